"""The progress bar of a run, by hand with a clock of our own, and of small runs."""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from tests.standins import Rows
from tests.training.tiny import data, fit, module, trainer
from torchrl_gpu.callbacks import FinalTable, RunProgress, progress

SHOWN: dict[str, Any] = {"enable_progress_bar": True, "enable_checkpointing": False}


class Clock:
    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr("tqdm.std.time", clock)
    return clock


class Unreadable:
    """A figure on a device that must not be asked."""

    def __float__(self) -> float:
        raise AssertionError("the host has waited for the device")


class Run:
    def __init__(self, clock: Clock, max_steps: int = 4000, device: str = "cuda", recent: Any = None) -> None:
        self.clock = clock
        self.bar = RunProgress()
        self.trainer: Any = SimpleNamespace(max_steps=max_steps, global_step=0, is_global_zero=True, loggers=[])
        self.trainer.state, self.trainer.sanity_checking = SimpleNamespace(fn="fit"), False
        outcomes = recent or {"utilization": Unreadable()}
        self.module: Any = SimpleNamespace(frames=0, outcomes=outcomes, device=torch.device(device))
        self.bar._trainer = self.trainer
        self.bar.on_train_start(self.trainer, self.module)

    def step(self, seconds: float, updates: int, frames: int) -> str:
        self.bar.on_train_batch_start(self.trainer, self.module)
        self.clock.now += seconds
        self.trainer.global_step += updates
        self.module.frames += frames
        self.bar.on_train_batch_end(self.trainer, self.module)
        return str(self.bar.train_progress_bar)

    def logs(self, **values: float) -> None:
        self.bar._logged.log_metrics({name.replace("_", "/", 1): value for name, value in values.items()})


def test_how_far_and_how_fast_by_hand(clock: Clock) -> None:
    run = Run(clock)
    clock.now += 1000  # the warm-up
    # 3992 updates at 4 a second
    assert run.step(2, 8, 1000) == "8 of 4,000 updates (0%) 00:02, 16:38 left, env-steps/s=500"
    # 3976 at (0.3 · 16 + 0.7 · 0.3 · 8) / (0.51 · 2), tqdm's average; 500 + 0.3 · (1500 − 500) frames
    assert run.step(2, 16, 3000) == "24 of 4,000 updates (1%) 00:04, 10:25 left, env-steps/s=800"
    run.bar.on_train_end(run.trainer, run.module)  # too soon for another rate
    assert run.bar.train_progress_bar.postfix == "env-steps/s=800"


def test_the_bar_moves_at_most_twice_a_second(clock: Clock) -> None:
    run = Run(clock)
    first = run.step(1, 10, 100)
    assert run.step(0.2, 1, 1).partition(", env")[2] == first.partition(", env")[2]
    assert run.step(0.4, 1, 599).endswith("env-steps/s=370")  # 100 + 0.3 · (600 / 0.6 − 100)


def test_validation_is_not_training(clock: Clock) -> None:
    run = Run(clock)
    run.step(1, 10, 100)
    run.bar.on_validation_start(run.trainer, run.module)
    assert str(run.bar.val_progress_bar) == "validating"
    clock.now += 1000
    run.bar.on_validation_end(run.trainer, run.module)
    assert str(run.bar.train_progress_bar).endswith("env-steps/s=100")  # those before
    assert run.step(1, 10, 50) == "20 of 4,000 updates (0%) 00:02, 06:38 left, env-steps/s=85"


def test_figures_are_those_of_the_loggers_and_nothing_is_read(clock: Clock) -> None:
    run = Run(clock)
    assert run.step(1, 10, 100).endswith("left, env-steps/s=100")
    run.logs(train_loss=0.0042, train_utilization=0.7123, val_utilization=0.69, train_epsilon=0.5)
    wanted = "env-steps/s=100, utilization=0.712, val/utilization=0.690, loss=4.2e-03"
    assert run.step(1, 10, 100).endswith(f"left, {wanted}")


def test_a_cpu_is_asked_where_there_is_no_logger(clock: Clock) -> None:
    run = Run(clock, device="cpu", recent={"success": torch.tensor(0.5), "collided": torch.tensor(0.25)})
    assert run.step(1, 1, 1).endswith("env-steps/s=1, success=0.500, collided=0.250")


def test_a_run_without_an_end(clock: Clock) -> None:
    assert Run(clock, max_steps=-1).step(2, 42, 10) == "42 updates, 00:02, env-steps/s=5"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def test_a_run_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    clock.tick = 1.0
    fit(module(), tmp_path, 6, RunProgress(), **SHOWN)
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"0 of 6 updates \(0%\) \d\d:\d\d, \? left, filling the replay", said[0])
    wanted = r"6 of 6 updates \(100%\) \d\d:\d\d, 00:00 left, env-steps/s=\d+, utilization=0\.\d+.*"
    assert re.fullmatch(wanted, said[-1])
    assert len(said) < 8
    assert not {"\x1b", "\r"} & set("".join(said))


def test_a_run_in_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    fit(module(), tmp_path, 6, RunProgress(), logger=CSVLogger(str(tmp_path)), **SHOWN)
    shown = terminal.getvalue()
    assert "6 of 6 updates (100%)" in shown
    assert "validating: episodes 1 to 4 of 4" in shown
    assert "loss=" in shown
    assert "val/utilization=" in shown
    assert shown.endswith("\n")


def test_it_leaves_the_loggers_as_they_were(tmp_path: Path) -> None:
    logger = CSVLogger(str(tmp_path))
    runner = trainer(tmp_path, 2, RunProgress(), logger=logger, **SHOWN)
    runner.fit(module(), datamodule=data())
    assert runner.loggers == [logger]


class Breaks(Callback):
    def on_train_batch_end(self, *args: Any) -> None:
        raise RuntimeError("broken")


def test_the_terminal_is_given_back_when_a_run_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    bar, handlers = RunProgress(), logging.getLogger("lightning.pytorch").handlers
    with pytest.raises(RuntimeError, match="broken"):
        fit(module(), tmp_path, 6, bar, Breaks(), **SHOWN)
    assert bar.train_progress_bar.disable
    assert terminal.getvalue().endswith("\n")
    assert logging.getLogger("lightning.pytorch").handlers == handlers


def test_what_is_logged_meanwhile_stands_above(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    terminal = on_terminal(monkeypatch)
    handler = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("lightning.pytorch")
    logger.addHandler(handler)
    try:
        run = Run(clock)
        run.step(1, 1, 1)
        logger.warning("between")
        assert "\rbetween\n" in terminal.getvalue()
        run.bar._close()
        assert handler in logger.handlers
    finally:
        logger.removeHandler(handler)


class Other(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.layer(batch).square().mean()
        self.log("speed", 0.25, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_module_of_another_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = trainer(tmp_path, 8, RunProgress(), **SHOWN)
    runner.fit(Other(), Rows())
    assert capsys.readouterr().out.splitlines()[-1].endswith("speed=0.250")


def test_switched_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bar = RunProgress()
    bar.disable()
    fit(module(), tmp_path, 4, bar, **SHOWN)
    assert capsys.readouterr().out == ""


def said_by(run: Callable[[Trainer, LightningModule], Any], tmp_path: Path) -> list[str]:
    bar, words = RunProgress(), []
    say = bar.say
    bar.say = lambda text: (words.append(text), say(text))[0]  # type: ignore[method-assign]
    run(trainer(tmp_path, 2, bar, **SHOWN), module())
    return words


def test_evaluations_say_how_far_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = data(batch_size=2)
    tested = said_by(lambda runner, made: runner.test(made, datamodule=few, verbose=False), tmp_path)
    parts = [f"random legal, episodes {first}" for first in ("1 to 2 of 5", "3 to 4 of 5", "5 to 5 of 5")]
    assert tested[:3] == parts
    assert tested[-1] == ""  # and leave the terminal to the table
    validated = said_by(lambda runner, made: runner.validate(made, datamodule=few, verbose=False), tmp_path)
    assert validated == ["episodes 1 to 2 of 4", "episodes 3 to 4 of 4", ""]


def test_the_final_table_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    fit(module(), tmp_path, 2, RunProgress(), FinalTable(), **SHOWN)
    assert "evaluating: random legal, episodes 1 to 5 of 5" in terminal.getvalue()
