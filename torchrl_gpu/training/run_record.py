"""What a run was, as plain data for its checkpoints: configuration, versions, commit."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from torchrl_gpu.machine import commit, version

_PACKAGES = ("torchrl_gpu", "torch", "torchrl", "tensordict", "lightning", "numpy")
_SECRET = re.compile(r"(.*_)?(token|password|secret|api_key)", re.IGNORECASE)


def run_record(config: Mapping[str, Any] | None, module: object = None) -> dict[str, Any]:
    """Record of a run for its checkpoints: numbers, text, lists and dicts only, which are read without running code.

    Args:
        config: The resolved configuration, as the command line gave it; None where there was none. Tokens and
            passwords in it are left out.
        module: What is trained, whose class is named; None where nothing is.
    """
    named = {} if module is None else {"module": f"{type(module).__module__}.{type(module).__qualname__}"}
    return {"config": None if config is None else without_secrets(config), **_made_by(), **named}


@cache
def _made_by() -> dict[str, Any]:
    versions = {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
    return {"versions": versions, "commit": commit()}


def without_secrets(config: Any) -> Any:
    """A tree of plain values in which None stands for what is named like a token or a password."""
    if isinstance(config, Mapping):
        return {str(name): None if is_secret(str(name)) else without_secrets(value) for name, value in config.items()}
    if isinstance(config, list | tuple):
        return [without_secrets(each) for each in config]
    return config if isinstance(config, str | int | float | bool | None) else str(config)


def is_secret(name: str) -> bool:
    """Whether an option is named like a token or a password."""
    return _SECRET.fullmatch(name) is not None
