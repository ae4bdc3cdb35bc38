"""Runs of one of two nodes, as torchrun starts them.

test_ranks.py looks at what they leave.
"""

from __future__ import annotations

import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.utilities.exceptions import SIGTERMException

from tests.training import rank_cases as cases
from tests.training import tiny
from torchrl_gpu.callbacks import EpisodeCheckpoint, FrameStream
from torchrl_gpu.policies.weights import unpacked_state
from torchrl_gpu.training.lightning_callbacks import RunAveraging

# `main` sets both.
FOLDER, RANK = Path(), 0
TWO: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "num_nodes": 2, "strategy": "ddp"}
TOLD: dict[str, Any] = {}


class Watch(Callback):
    """Note after each update if all processes have the same weights.

    To the last bit, and who streams.
    """

    def __init__(self) -> None:
        self.agreed: list[bool] = []
        self.weights: list[float] = []
        self.streams: list[bool] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        own = cases.weights_of(pl_module)
        first = trainer.strategy.broadcast(own)
        self.agreed.append(torch.equal(own, first))
        self.weights.append(own.abs().sum().item())
        self.streams += [each.url is not None for each in trainer.callbacks if isinstance(each, FrameStream)]  # type: ignore[attr-defined]


class Terminated(Callback):
    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if RANK == 1 and trainer.global_step == 1:
            signal.raise_signal(signal.SIGTERM)


def whole(name: str) -> None:
    watch = Watch()
    more = [FrameStream(port=0)] if name == "dqn" else []
    made = cases.fit(name, cases.make(name, FOLDER), FOLDER / "two" / name, watch, *more, **TWO)
    TOLD[name] = {"agreed": watch.agreed, "weights": watch.weights, "streams": watch.streams, "frames": made.frames}
    TOLD[name]["steps"] = made.trainer.global_step


class Averages(Callback):
    """Note after each update if all processes have the same average.

    To the last bit, and if it differs from the weights.
    """

    def __init__(self) -> None:
        self.agreed: list[bool] = []
        self.moved: list[bool] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        matching = [each for each in trainer.callbacks if isinstance(each, RunAveraging)]  # type: ignore[attr-defined]
        (averaging,) = matching
        own = cases.weights_of(averaging._average_model.module)  # type: ignore[arg-type,union-attr]
        self.agreed.append(torch.equal(own, trainer.strategy.broadcast(own)))
        self.moved.append(not torch.equal(own, cases.weights_of(pl_module)))


def averaged(name: str, run: str, checkpoint: Path | None = None) -> None:
    averages, average = Averages(), EMAWeightAveraging(decay=0.5)
    made = cases.make(name, FOLDER)
    cases.fit(name, made, FOLDER / run / name, average, averages, ckpt_path=checkpoint, **TWO)
    end = cases.weights_of(made[0])
    first = torch.load(FOLDER / run / name / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    first = unpacked_state(name, made[0], first)
    saved = torch.cat([first[key].double().reshape(-1) for key in made[0].state_dict()])
    told = {"agreed": averages.agreed, "moved": averages.moved, "ends with it": torch.equal(end, saved)}
    TOLD[f"{run}/{name}"] = told


def resumed(name: str, run: str, checkpoint: Path) -> None:
    with cases.Lines() as lines:
        made = cases.fit(name, cases.make(name, FOLDER), FOLDER / run / name, ckpt_path=checkpoint, seed=5, **TWO)
    TOLD[f"{run}/{name}"] = {"frames": made.frames, "said": lines, "steps": made.trainer.global_step}


def given(name: str) -> None:
    rows = torch.load(FOLDER / f"{name}.pt", weights_only=True)
    callback = cases.Given(rows, RANK, 2)
    cases.fit(name, cases.make(name, FOLDER), FOLDER / "given" / name, callback, max_steps=1, **TWO)
    torch.save(callback.gradient, FOLDER / f"gradient-{name}-{RANK}.pt")


def by_episodes() -> None:
    """The first process decides when a checkpoint is due.

    Processes pass multiples of episodes at different steps, as their seeds differ.
    """
    saver = EpisodeCheckpoint(every_n_episodes=2, keep=100)
    made = tiny.fit(tiny.module(env={"seed": 1}), FOLDER / "by episodes", 12, saver, **TWO)
    logged = {key: value.item() for key, value in made.trainer.callback_metrics.items() if key.startswith("train/")}
    TOLD["by episodes"] = {"episodes": int(made.episodes), "frames": made.frames, "logged": logged}


class Failing(EpisodeCheckpoint):
    """Saves by a module whose second process cannot say what it needs to go on."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        super().on_train_start(trainer, pl_module)
        if RANK == 1:
            pl_module.part_state = self.fail

    def fail(self, *args: Any) -> None:
        raise KeyError("no such thing")


def failed() -> None:
    made, error = tiny.module(), None
    try:
        tiny.fit(made, FOLDER / "failed", 6, Failing(every_n_updates=2), **TWO)
    except (KeyError, RuntimeError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    TOLD["failed"] = {"error": error, "updates": made.trainer.global_step}


def terminated() -> None:
    try:
        cases.fit("dqn", cases.make("dqn", FOLDER), FOLDER / "terminated" / "dqn", Terminated(), **TWO)
    except SIGTERMException:
        TOLD["terminated"] = True


def main(folder: Path) -> None:
    global FOLDER, RANK
    FOLDER, RANK = folder, int(os.environ["RANK"])
    warnings.filterwarnings("ignore")
    for each in cases.NAMES:
        whole(each)
        resumed(each, "rest", cases.half(FOLDER / "two" / each))
    for each in cases.CROSSING:
        resumed(each, "more", cases.half(FOLDER / "one" / each))
    for each in cases.GIVEN:
        given(each)
    for each in cases.AVERAGED:
        averaged(each, "average")
        averaged(each, "average rest", cases.half(FOLDER / "average" / each))
    terminated()
    by_episodes()
    failed()
    (FOLDER / f"told-{RANK}.json").write_text(json.dumps(TOLD))
