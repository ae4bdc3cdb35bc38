"""The environments of the shipped configs, by what their constructors take."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import yaml

from benchmarks.result_types import JsonObject
from torchrl_gpu import configs
from torchrl_gpu.envs import BatchedEnv
from torchrl_gpu.policies import PatchTables
from torchrl_gpu.policies.spaces import AgentSpace


def environment_arguments(config: str) -> JsonObject:
    """Of the environment of a shipped config, named without its ending."""
    return _settings(config)[1]


def environment(config: str, **changes: Any) -> BatchedEnv:
    """The environment of a shipped config, with some arguments changed."""
    name, arguments = _settings(config)
    made: BatchedEnv = _named(name)(**arguments | changes)
    return made


def tables(config: str, space: AgentSpace) -> PatchTables:
    """The tables of a shipped config that learns them, in a space."""
    told = model_arguments(config)["tables"]
    made: PatchTables = _named(told["class_path"])(space, **told.get("init_args", {}))
    return made


def _settings(config: str) -> tuple[str, JsonObject]:
    env = model_arguments(config)["env"]
    return env["class_path"], {key: _made(value) for key, value in env.get("init_args", {}).items()}


def model_arguments(config: str) -> JsonObject:
    """Return the arguments of the learner of a shipped config, as its file has them."""
    told = yaml.safe_load(Path(configs.find(f"{config}.yaml")).read_text(encoding="utf-8"))
    made: JsonObject = told["model"]["init_args"]
    return made


def _made(given: Any) -> Any:
    """The objects that a config names by `class_path`."""
    if isinstance(given, dict) and "class_path" in given:
        return _named(given["class_path"])(**{key: _made(value) for key, value in given.get("init_args", {}).items()})
    return given


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
