"""Rates of a run, by hand with a clock of our own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import Throughput

RATES = ("throughput/env_steps_per_s", "throughput/updates_per_s", "throughput/episodes_per_h")


class Run:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, every_n_steps: int) -> None:
        self.clock, self.logged = 0.0, {}
        monkeypatch.setattr("time.perf_counter", lambda: self.clock)
        self.callback = Throughput(every_n_steps)
        self.trainer: Any = SimpleNamespace(global_step=0, barebones=False)
        self.module: Any = SimpleNamespace(
            frames=0, episodes=torch.tensor(0), log=lambda name, value, **_: self._log(name, value)
        )

    def _log(self, name: str, value: float) -> None:
        self.logged[name] = value

    def pass_by(self, seconds: float, frames: int = 0, updates: int = 0, episodes: int = 0) -> None:
        self.clock += seconds
        self.module.frames += frames
        self.trainer.global_step += updates
        self.module.episodes += episodes

    def step(self, *args: float) -> dict[str, float]:
        """A training step that takes so many seconds, frames, updates and episodes; what is logged at its end."""
        self.logged = {}
        self.callback.on_train_batch_start(self.trainer, self.module, None, 0)
        self.pass_by(*args)  # type: ignore[arg-type]
        self.callback.on_train_batch_end(self.trainer, self.module, None, None, 0)
        return self.logged


def test_episodes_are_those_of_all_processes_as_frames_are(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, every_n_steps=1)
    run.trainer.world_size = 3
    run.trainer.strategy = SimpleNamespace(reduce=lambda value, reduce_op: {"sum": 3 * value}[reduce_op])
    run.callback.on_train_start(run.trainer, run.module)
    assert run.step(6, 96, 12, 2) == dict(zip(RATES, (16, 2, 3600), strict=True))
    assert run.module.episodes == 2  # which nobody has written into


def test_rates_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, every_n_steps=2)
    run.callback.on_train_start(run.trainer, run.module)
    run.pass_by(100, frames=5000, episodes=70)  # warm-up, or a checkpoint that is loaded, is not training
    assert run.step(1, 32, 4, 1) == {}
    # 2 s and 4 s: (32 + 64) / 6 frames, (4 + 8) / 6 updates, 3600 · (1 + 2) / 6 episodes
    assert run.step(5, 64, 8, 2) == dict(zip(RATES, (16, 2, 1800), strict=True))
    assert run.step(1, 10, 1, 0) == {}
    assert run.step(1, 10, 1, 1) == dict(zip(RATES, (10, 1, 1800), strict=True))


def test_validation_is_not_training(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, every_n_steps=2)
    run.callback.on_train_start(run.trainer, run.module)
    run.step(1, 32, 4, 1)
    run.pass_by(1000)
    run.callback.on_validation_end(run.trainer, run.module)
    # more often than every second step, and still there is a reading: of what came since, 20 frames in 2 s
    assert run.step(2, 20, 4, 1) == dict(zip(RATES, (10, 2, 1800), strict=True))


def test_a_run_logs_its_rates(tmp_path: Path) -> None:
    metrics = fit(
        module(), tmp_path, 8, Throughput(every_n_steps=2), enable_checkpointing=False
    ).trainer.callback_metrics
    assert all(metrics[name] > 0 for name in RATES[:2])
    assert RATES[2] in metrics
