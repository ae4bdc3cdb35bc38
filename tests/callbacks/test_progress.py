"""What the terminal shows of a run, by hand with a clock of our own, and of small runs."""

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
from rich.console import Console
from torch import Tensor, nn

from tests.standins import Rows
from tests.training.tiny import data, fit, module, trainer
from torchrl_gpu.callbacks import FinalTable, RunProgress, progress

SHOWN: dict[str, Any] = {"enable_progress_bar": True, "enable_checkpointing": False}


class Clock:
    """Seconds that go on by hand, and by `tick` at every look."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class Unreadable:
    """A figure on a device that must not be asked."""

    def __float__(self) -> float:
        raise AssertionError("the host has waited for the device")


class Run:
    """As much of a trainer and a module as the callback looks at."""

    def __init__(self, max_steps: int = 4000, device: str = "cuda", recent: Any = None) -> None:
        self.clock = Clock()
        self.bar = RunProgress(clock=self.clock)
        self.trainer: Any = SimpleNamespace(
            max_steps=max_steps, global_step=0, is_global_zero=True, loggers=[], state=SimpleNamespace(fn="fit")
        )
        self.trainer.max_epochs, self.trainer.num_training_batches = -1, 10
        self.trainer.fit_loop = SimpleNamespace(epoch_loop=SimpleNamespace(total_batch_idx=41))
        outcomes = recent or {"utilization": Unreadable()}
        self.module: Any = SimpleNamespace(frames=0, outcomes=outcomes, device=torch.device(device))
        self.bar._trainer = self.trainer
        self.bar.on_fit_start(self.trainer, self.module)

    def step(self, seconds: float, updates: int, frames: int) -> RunProgress:
        self.bar.on_train_batch_start(self.trainer, self.module)
        self.clock.now += seconds
        self.trainer.global_step += updates
        self.module.frames += frames
        self.bar.on_train_batch_end(self.trainer, self.module)
        return self.bar

    def logs(self, **values: float) -> None:
        """What the loggers are given."""
        self.bar._logged = progress._LoggedValues()
        self.bar._logged.log_metrics({name.replace("_", "/", 1): value for name, value in values.items()})


def test_how_far_and_how_fast_by_hand() -> None:
    run = Run()
    bar = run.step(2, 8, 1000)
    assert bar.line() == "8 of 4,000 updates (0%) · 16:38 left · 500 env-steps/s"  # 3992 updates at 4 a second
    bar = run.step(2, 16, 3000)
    # 24 updates and 4000 frames in 4 s
    assert bar.line() == "24 of 4,000 updates (0%) · 11:03 left · 1,000 env-steps/s"


def test_rates_are_those_of_the_last_seconds() -> None:
    run = Run()
    run.step(100, 1, 1)  # a slow beginning
    for _ in range(30):
        bar = run.step(1, 10, 100)
    assert bar.metrics_text() == ["100 env-steps/s"]


def test_validation_is_not_training() -> None:
    run = Run()
    run.step(1, 10, 100)
    run.bar.on_validation_start(run.trainer, run.module)
    assert run.bar.time_text() == "validating"
    run.clock.now += 1000
    run.bar.on_validation_end(run.trainer, run.module)
    assert run.bar.metrics_text() == ["100 env-steps/s"]  # those before
    assert run.step(1, 10, 50).metrics_text() == ["50 env-steps/s"]


def test_figures_are_those_of_the_loggers_and_nothing_is_read() -> None:
    run = Run()
    assert run.step(1, 10, 100).metrics_text() == ["100 env-steps/s"]
    run.logs(train_loss=0.0042, train_utilization=0.7123, val_utilization=0.69, train_epsilon=0.5)
    figures = run.step(1, 10, 100).metrics_text()
    assert figures == ["100 env-steps/s", "utilization 0.712", "val/utilization 0.690", "loss 4.2e-03"]


def test_a_cpu_is_asked_where_there_is_no_logger() -> None:
    run = Run(device="cpu", recent={"success": torch.tensor(0.5), "collided": torch.tensor(0.25)})
    assert run.step(1, 1, 1).metrics_text()[1:] == ["success 0.500", "collided 0.250"]


def test_a_run_without_an_end() -> None:
    run = Run(max_steps=-1)
    assert run.step(2, 0, 10).line() == "42 steps · 5 env-steps/s"
    run.trainer.max_epochs = 8
    assert run.step(2, 0, 10).line().startswith("42 of 80 steps (52%)")


@pytest.mark.parametrize(("seconds", "text"), [(7.4, "0:07"), (83, "1:23"), (3600 * 11 + 62, "11:01:02")])
def test_times(seconds: float, text: str) -> None:
    assert progress._clock_time(seconds) == text


def drawn(bar: RunProgress, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    bar._live = SimpleNamespace(console=console)  # type: ignore[assignment]
    console.print(bar._lines())
    bar._live = None
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [60, 80, 140, 300])
def test_nothing_is_cut(width: int) -> None:
    run = Run(max_steps=400_000)
    run.trainer.global_step = 123_456
    run.logs(train_loss=0.0042, train_utilization=0.7123, val_utilization=0.69)
    first, second = drawn(run.step(1, 10, 12_345), width)
    assert first.startswith("123,466 of 400,000 updates (30%) ━")
    assert first.rstrip().endswith("7:40:53 left")
    assert len(first) <= width
    whole = "12,345 env-steps/s · utilization 0.712 · val/utilization 0.690 · loss 4.2e-03"
    while len(whole) > width:  # figures are left out whole, the loss first
        whole = whole.rsplit(" · ", 1)[0]
    assert second.rstrip() == whole


def test_before_the_first_update() -> None:
    run = Run()
    run.bar._status = "filling the replay"
    first, *rest = drawn(run.bar, 80)
    assert re.fullmatch(r"0 of 4,000 updates \(0%\) +filling the replay", first.rstrip())
    assert "".join(rest).strip() == ""


# -- small runs --


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 80 columns is given."""
    screen = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda: Console(file=screen, force_terminal=True, width=80))
    return screen


def test_a_run_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bar = RunProgress(clock=Clock(tick=1.0))
    fit(module(), tmp_path, 6, bar, **SHOWN)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("0 of 6 updates (0%) · filling the replay")
    assert re.fullmatch(
        r"6 of 6 updates \(100%\) · trained for \d:\d\d · .* env-steps/s · utilization 0\.\d+.*", said[-1]
    )
    assert len(said) < 5
    assert "\x1b" not in "".join(said)


def test_a_run_in_a_terminal(tmp_path: Path, terminal: io.StringIO) -> None:
    streams = sys.stdout, sys.stderr
    fit(module(), tmp_path, 6, RunProgress(), logger=CSVLogger(str(tmp_path)), **SHOWN)
    shown = terminal.getvalue()
    assert "6 of 6 updates (100%)" in shown
    assert "validating" in shown
    assert "loss" in shown
    assert "val/utilization" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor is there again
    assert (sys.stdout, sys.stderr) == streams


def test_it_leaves_the_loggers_as_they_were(tmp_path: Path) -> None:
    logger = CSVLogger(str(tmp_path))
    runner = trainer(tmp_path, 2, RunProgress(), logger=logger, **SHOWN)
    runner.fit(module(), datamodule=data())
    assert runner.loggers == [logger]


class Breaks(Callback):
    """Ends a run that has just begun."""

    def on_train_batch_end(self, *args: Any) -> None:
        raise RuntimeError("broken")


def test_the_terminal_is_given_back_when_a_run_breaks(tmp_path: Path, terminal: io.StringIO) -> None:
    streams = sys.stdout, sys.stderr
    with pytest.raises(RuntimeError, match="broken"):
        fit(module(), tmp_path, 6, RunProgress(), Breaks(), **SHOWN)
    assert terminal.getvalue().count("\x1b[?25h") == 1
    assert (sys.stdout, sys.stderr) == streams


def test_what_is_logged_meanwhile_stands_above(terminal: io.StringIO) -> None:
    handler = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("lightning.pytorch")
    logger.addHandler(handler)
    try:
        run = Run()
        handler.stream.write("between\n")  # as a log record is written
        assert "between" in terminal.getvalue()
        run.bar._close()
        assert handler.stream is sys.stderr
    finally:
        logger.removeHandler(handler)


class Other(LightningModule):
    """Knows nothing of frames and episodes."""

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
    runner = trainer(tmp_path, 8, RunProgress(clock=Clock(tick=1.0)), **SHOWN)
    runner.fit(Other(), Rows())
    assert capsys.readouterr().out.splitlines()[-1].endswith("speed 0.250")


def test_switched_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bar = RunProgress(clock=Clock(tick=1.0))
    bar.disable()
    fit(module(), tmp_path, 4, bar, **SHOWN)
    assert capsys.readouterr().out == ""


def test_other_ranks_say_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run()
    capsys.readouterr()
    run.trainer.is_global_zero = False
    run.bar.setup(run.trainer, run.module, "fit")
    run.step(100, 1, 1)
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


def test_the_final_table_says_how_far_it_is(tmp_path: Path, terminal: io.StringIO) -> None:
    fit(module(), tmp_path, 2, RunProgress(), FinalTable(), **SHOWN)
    assert "evaluating" in terminal.getvalue()
    assert terminal.getvalue().count("\x1b[?25h") == 2


def test_numbers_that_cannot_work() -> None:
    with pytest.raises(ValueError, match="RunProgress: line_every_s must be above 0; got 0"):
        RunProgress(0)
