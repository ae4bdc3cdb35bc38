"""A run of the stand-ins, as a config and as a command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchrl_gpu.cli.lightning_cli import PackageCLI, build

CONFIG = {
    "seed_everything": 7,
    "trainer": {
        "accelerator": "cpu",
        # One epoch.
        "max_steps": 8,
        "log_every_n_steps": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": [{"class_path": "tests.standins.Note"}],
    },
    "model": {
        "class_path": "tests.standins.TinyModule",
        "init_args": {"env": {"class_path": "tests.standins.TinyEnv", "init_args": {"num_envs": 8}}},
    },
    "data": {"class_path": "tests.standins.TinyData"},
}

Run = Callable[..., Any]


def build_with(config: Path, *args: str) -> PackageCLI:
    return build("fit", ["--config", str(config), *args])
