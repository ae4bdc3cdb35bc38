"""Modules of Triton kernels that are used only where their self-test has passed."""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import platform
import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch

from torchrl_gpu.system import machine
from torchrl_gpu.system.self_tests import SelfTest

_LOG = logging.getLogger(__name__)


@cache
def load_kernels(what: str, name: str, device: torch.device, parts: tuple[str, ...] = ()) -> ModuleType | None:
    """A module of Triton kernels, or None where its self-test fails.

    A warning says why. Its result is kept, so that each is tried and told once.

    Args:
        what: Its subject, for messages.
        name: The module's full name; its function `self_test(device)` returns a failure, "" for none.
        device: On another than CUDA the result is None, without a warning.
        parts: Full names of further modules whose device functions the kernels call.
    """
    if device.type != "cuda":
        return None
    problem = problem_of(what, name, device, parts)
    if problem:
        _LOG.warning("%s: Triton cannot run on %s, so torch will: %s", what, device, problem)
        return None
    return importlib.import_module(name)


@cache
def problem_of(what: str, name: str, device: torch.device, parts: tuple[str, ...] = ()) -> str:
    """Reason why kernels cannot run on a CUDA device, "" where they can.

    Arguments are those of `load_kernels`.
    """
    try:
        importlib.import_module(name)
        modules = (name, *parts)
        contents = b"".join(_source_of(each).read_bytes() for each in modules)
        # Kernels call device functions of other modules, whose changes count as well.
        depends_on = versions(name, contents, device)
        subject = f"{what} on {device}"
        test = SelfTest(subject, f"{name}:self_test", (str(device),), depends_on)
        return test.failure()
    except ImportError as error:
        return str(error)


def versions(name: str, contents: bytes, device: torch.device) -> dict[str, str]:
    """Versions of all that the result of a self-test of kernels depends on.

    Args:
        name: Of the kernels.
        contents: All their source code.
        device: Where they run.
    """
    found: dict[str, object] = {
        "backend": name,
        "sources": hashlib.sha256(contents).hexdigest(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": machine.version("triton"),
        "interpreted": os.environ.get("TRITON_INTERPRET"),
        "device": device,
    }
    if device.type == "cuda":
        found |= machine.cuda_versions(device)
        names = filter(None, (os.environ.get("CC"), "gcc", "clang", "cc"))
        # The C compiler makes Triton's launchers.
        compiler = next(filter(None, map(shutil.which, names)), "")
        found["compiler"] = compiler and f"{compiler} {Path(compiler).stat().st_mtime_ns}"
    return {key: str(value) for key, value in found.items()}


def _source_of(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)
