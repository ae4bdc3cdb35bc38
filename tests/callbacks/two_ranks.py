"""A program that trains on two processes. Run by test_two_ranks.py."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import EpisodeCheckpoint

warnings.filterwarnings("ignore")
FOLDER = Path(sys.argv[1])
TWO = {"accelerator": "cpu", "devices": 2, "strategy": "ddp_find_unused_parameters_true"}


def whole() -> None:
    made = module(env={"seed": 1})
    # seeds that differ between processes in what they play pass their multiples of episodes at different steps
    callback = EpisodeCheckpoint(every_n_episodes=2, keep=100)
    fit(made, FOLDER / "whole", 12, callback, **TWO)
    weights = torch.cat([weight.detach().reshape(-1) for weight in made.parameters()])
    rank = made.global_rank
    logged = {key: value.item() for key, value in made.trainer.callback_metrics.items() if key.startswith("train/")}
    told = {"episodes": int(made.episodes), "weights": weights.double().sum().item(), "frames": made.frames}
    told["logged"] = logged
    (FOLDER / f"whole-{rank}.json").write_text(json.dumps(told))


whole()


class Failing(EpisodeCheckpoint):
    """Saves by a module whose second process cannot say what it needs to go on, once."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        super().on_train_start(trainer, pl_module)
        if trainer.global_rank == 1:
            pl_module.part_state = self.fail

    def fail(self, *args: Any) -> None:
        raise KeyError("no such thing")


def failed() -> None:
    """Both must end, and neither wait for the other."""
    made, error = module(), None
    try:
        fit(made, FOLDER / "failed", 6, Failing(every_n_updates=2), seed=1, **TWO)
    except (KeyError, RuntimeError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    told = {"error": error, "updates": made.trainer.global_step}
    (FOLDER / f"failed-{made.global_rank}.json").write_text(json.dumps(told))


failed()
