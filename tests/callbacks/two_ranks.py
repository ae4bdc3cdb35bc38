"""What each of two processes does that train together. Run by test_two_ranks.py."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import EpisodeCheckpoint

TWO = {"accelerator": "cpu", "devices": 2, "strategy": "ddp_find_unused_parameters_true"}


def whole(folder: Path) -> None:
    made = module(env={"seed": 1})
    # seeds that differ between processes in what they play pass their multiples of episodes at different steps
    callback = EpisodeCheckpoint(every_n_episodes=2, keep=100)
    fit(made, folder / "whole", 12, callback, **TWO)
    weights = torch.cat([weight.detach().reshape(-1) for weight in made.parameters()])
    rank = made.global_rank
    logged = {key: value.item() for key, value in made.trainer.callback_metrics.items() if key.startswith("train/")}
    told = {"episodes": int(made.episodes), "weights": weights.double().sum().item(), "frames": made.frames}
    told["logged"] = logged
    (folder / f"whole-{rank}.json").write_text(json.dumps(told))


class Failing(EpisodeCheckpoint):
    """Saves by a module whose second process cannot say what it needs to go on, once."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        super().on_train_start(trainer, pl_module)
        if trainer.global_rank == 1:
            pl_module.part_state = self.fail

    def fail(self, *args: Any) -> None:
        raise KeyError("no such thing")


def failed(folder: Path) -> None:
    """Both must end, and neither wait for the other."""
    made, error = module(), None
    try:
        fit(made, folder / "failed", 6, Failing(every_n_updates=2), seed=1, **TWO)
    except (KeyError, RuntimeError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    told = {"error": error, "updates": made.trainer.global_step}
    (folder / f"failed-{made.global_rank}.json").write_text(json.dumps(told))


def main(rank: int, port: int, folder: Path) -> None:
    """Both runs, as the process of a rank."""
    warnings.filterwarnings("ignore")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    os.environ |= {"NODE_RANK": "0", "LOCAL_RANK": str(rank)}
    whole(folder)
    failed(folder)
