"""A program that trains on two processes, once without a stop, once stopped and resumed. Run by test_two_ranks.py."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch

from tests.training.resuming import last
from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import EpisodeCheckpoint

warnings.filterwarnings("ignore")
FOLDER = Path(sys.argv[1])
TWO = {"accelerator": "cpu", "devices": 2, "strategy": "ddp_find_unused_parameters_true"}


def run(name: str, max_steps: int, ckpt_path: Path | None = None, seed: int = 1) -> None:
    made = module(env={"seed": seed})
    # seeds that differ between processes in what they play pass their multiples of episodes at different steps
    callback = EpisodeCheckpoint(every_n_episodes=2, keep=100, most_share=None)
    fit(made, FOLDER / name, max_steps, callback, ckpt_path=ckpt_path, seed=seed, **TWO)
    weights = torch.cat([weight.detach().reshape(-1) for weight in made.parameters()])
    rank = made.global_rank
    logged = {key: value.item() for key, value in made.trainer.callback_metrics.items() if key.startswith("train/")}
    told = {"episodes": int(made.episodes), "weights": weights.double().sum().item(), "frames": made.frames}
    told["logged"] = logged
    (FOLDER / f"{name}-{rank}.json").write_text(json.dumps(told))


run("whole", 12)
run("half", 6)
run("rest", 12, last(FOLDER / "half"), seed=5)
