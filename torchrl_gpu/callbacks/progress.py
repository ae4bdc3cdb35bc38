"""What the terminal shows of a run: how far it is, how fast, how well, and how long it will take."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.loggers import Logger
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar as Bar
from rich.table import Table
from rich.text import Text
from torch import Tensor

from torchrl_gpu import arguments

_WINDOW_S = 20.0  # rates are those of so many last seconds
_BETWEEN_S = 0.5  # of two looks at the run
_SEPARATOR = " · "


class RunProgress(ProgressBar):
    """Two lines at the bottom of the terminal: updates made, time left; env-steps/s, what episodes came to, the loss.

    Where the output is no terminal, one plain line now and then. The default of the programs `lightning` and
    `torchrl-gpu`; another progress bar in `trainer.callbacks` takes its place, `--trainer.enable_progress_bar false`
    switches it off.

    It makes the host wait for the device nowhere: figures are those that the loggers are given, when they are given
    them (see `trainer.log_every_n_steps`); without a logger only a module on the CPU is asked for them. Of a module
    that counts no frames, which is not one of this package, it shows what is logged with `prog_bar=True`.

    Args:
        line_every_s: Seconds between two lines where the output is no terminal.
        clock: Gives seconds.
    """

    def __init__(self, line_every_s: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        arguments.number("RunProgress", "line_every_s", line_every_s, above=0)
        self.line_every_s, self._clock = line_every_s, clock
        self._enabled = True
        self._live: Live | None = None
        self._redirected: list[tuple[logging.StreamHandler[Any], Any]] = []
        self._status = self._activity = ""
        self._reset()

    def _reset(self) -> None:
        self._done, self._total, self._unit = 0, 0, "updates"
        self._marks: deque[tuple[float, int, float | None]] = deque()
        self._updates_per_s = 0.0
        self._frames_per_s: float | None = None
        self._metrics: dict[str, float] = {}
        self._logged: _LoggedValues | None = None
        self._last_look = self._last_line = -math.inf
        self._began = self._clock()

    # -- Lightning's switches ---------------------------------------------------------------------------------------

    def disable(self) -> None:
        """Shows nothing from now on."""
        self._close()
        self._enabled = False

    def enable(self) -> None:
        """Shows again."""
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints above the lines."""
        (self._live.console if self._live else Console()).print(*args, **kwargs)

    # -- a run ------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begins to listen to what is logged."""
        super().setup(trainer, pl_module, stage)
        self._reset()
        if stage == "fit" and trainer.loggers and self._enabled:
            self._logged = _LoggedValues()
            trainer.loggers.append(self._logged)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leaves the last state on the terminal."""
        self._close()
        if self._logged in trainer.loggers:
            trainer.loggers.remove(self._logged)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Gives the terminal back before anybody writes about it."""
        self._close()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Appears."""
        self._status = "filling the replay" if getattr(pl_module, "warmup_frames", 0) else ""
        self._count(trainer)
        self._open()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Starts the clock, behind the module's warm-up and behind validation."""
        if not self._marks:
            self._status = ""
            self._mark(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Looks at the run, if some time has passed."""
        if not self._enabled or self._clock() - self._last_look < _BETWEEN_S:
            return
        self._look(trainer, pl_module)
        if self._live is None and self._clock() - self._last_line >= self.line_every_s:
            self._line()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says so."""
        self._begin("validating")

    def on_validation_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, *args: Any) -> None:
        """Lets a suite of episodes say how far it is."""
        self._listen(batch)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the figures; the clock of training starts anew."""
        self._status = ""
        self._marks.clear()
        if trainer.state.fn != "fit":
            self._close()
        else:
            self._take_metrics(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves the last state on the terminal."""
        self._look(trainer, pl_module)
        self._status = f"trained for {_clock_time(self._clock() - self._began)}"
        self._marks.clear()
        if self._live is None:
            self._line()
        self._close()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says so."""
        self._begin("testing")

    def on_test_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, *args: Any) -> None:
        """Lets a suite of episodes say how far it is."""
        self._listen(batch)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Is done."""
        self._close()

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says so."""
        self._begin("predicting")

    def on_predict_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, *args: Any) -> None:
        """Lets a suite of episodes say how far it is."""
        self._listen(batch)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Is done."""
        self._close()

    @contextmanager
    def evaluating(self, suite: Any) -> Iterator[None]:
        """Shows how far a suite is that is played outside of Lightning's loops."""
        self._reset()
        self._begin("evaluating")
        self._listen(suite)
        try:
            yield
        finally:
            self._close()

    def say(self, words: str) -> None:
        """Shows what an evaluation is at, or, told nothing, leaves the terminal to its results."""
        if not (words or self._done or self._total):
            self._close()
        self._status = f"{self._activity}: {words}" if words else self._activity
        if words and self._enabled and self._live is None and self._clock() - self._last_line >= self.line_every_s:
            self._line()

    def _begin(self, activity: str) -> None:
        self._status = self._activity = activity
        self._open()
        if self._live is not None:
            self._live.refresh()

    def _listen(self, batch: Any) -> None:
        if hasattr(batch, "say"):
            batch.say = self.say

    # -- what is known ----------------------------------------------------------------------------------------------

    def _look(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._last_look = self._clock()
        self._mark(trainer, pl_module)
        self._take_metrics(trainer, pl_module)

    def _mark(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._count(trainer)
        now = self._clock()
        frames = getattr(pl_module, "frames", None)
        self._marks.append((now, self._done, frames if isinstance(frames, int | float) else None))
        while len(self._marks) > 2 and now - self._marks[1][0] > _WINDOW_S:
            self._marks.popleft()
        self._update_rates()

    def _count(self, trainer: Trainer) -> None:
        if trainer.max_steps > 0:
            self._done, self._total, self._unit = trainer.global_step, trainer.max_steps, "updates"
            return
        self._done, self._unit = trainer.fit_loop.epoch_loop.total_batch_idx + 1, "steps"
        total = (trainer.max_epochs or -1) * trainer.num_training_batches
        self._total = int(total) if 0 < total < math.inf else 0

    def _take_metrics(self, trainer: Trainer, pl_module: LightningModule) -> None:
        recent: Mapping[str, Tensor] = getattr(pl_module, "outcomes", {})
        if not hasattr(pl_module, "frames"):
            self._metrics = {name: float(value) for name, value in trainer.progress_bar_metrics.items()}
            return
        logged: Mapping[str, float] = {} if self._logged is None else self._logged.values
        if not logged and pl_module.device.type == "cpu":
            told = {name: float(value) for name, value in recent.items()}
            logged = {f"train/{name}": value for name, value in told.items() if not math.isnan(value)}
        if not logged:
            return
        validated = [name for name in logged if name.startswith("val/")]
        wanted = [*(f"train/{name}" for name in recent), *validated[:1], "train/loss"]
        self._metrics = {name.removeprefix("train/"): logged[name] for name in wanted if name in logged}

    def _update_rates(self) -> None:
        """Those of the last seconds; where the clock has just started anew, those before stay."""
        if len(self._marks) < 2:
            return
        (begin, updates, frames), (now, updates_now, frames_now) = self._marks[0], self._marks[-1]
        seconds = max(now - begin, 1e-6)
        self._updates_per_s = (updates_now - updates) / seconds
        self._frames_per_s = None if frames is None or frames_now is None else (frames_now - frames) / seconds

    # -- what is shown ----------------------------------------------------------------------------------------------

    def progress_text(self) -> str:
        """How far the run is."""
        if not self._total:
            return f"{self._done:,} {self._unit}"
        return f"{self._done:,} of {self._total:,} {self._unit} ({math.floor(100 * self._done / self._total)}%)"

    def time_text(self) -> str:
        """What it is doing besides training, or how long it will train yet; empty where that is not known."""
        if self._status or not self._total or not self._updates_per_s:
            return self._status
        return f"{_clock_time((self._total - self._done) / self._updates_per_s)} left"

    def metrics_text(self) -> list[str]:
        """How fast and how well, the most important first."""
        shown = [f"{self._frames_per_s:,.0f} env-steps/s"] if self._frames_per_s else []
        return shown + [f"{name} {_number(value)}" for name, value in self._metrics.items()]

    def line(self) -> str:
        """All of it, for a file."""
        training = [self.progress_text()] if self._done or self._total else []
        return _SEPARATOR.join(filter(None, [*training, self.time_text(), *self.metrics_text()]))

    def _line(self) -> None:
        if self._enabled and self.trainer.is_global_zero:
            self._last_line = self._clock()
            print(self.line(), flush=True)

    def _open(self) -> None:
        if not self._enabled or self._live is not None:
            return
        console = Console()
        if console.is_terminal:
            self._live = Live(console=console, get_renderable=self._lines, refresh_per_second=2)
            self._redirect_logs(self._live)
        elif self._clock() - self._last_line >= self.line_every_s:
            self._line()

    def _close(self) -> None:
        if self._live is not None:
            for handler, stream in self._redirected:
                handler.setStream(stream)
            self._redirected = []
            self._live.transient = not (self._done or self._total)  # what an evaluation was at is of no more interest
            self._live.stop()
            self._live = None

    def _redirect_logs(self, live: Live) -> None:
        """Starts the lines, and lets what is logged to the terminal appear above them."""
        terminal = sys.stdout, sys.stderr
        live.start()
        for name in (None, "lightning", "lightning.pytorch", "lightning.fabric"):
            for handler in logging.getLogger(name).handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream in terminal:
                    self._redirected.append((handler, handler.stream))
                    handler.setStream(sys.stderr)

    def _lines(self) -> RenderableType:
        """Two lines as wide as the terminal: what does not fit is left out whole, the last figures first."""
        width = 80 if self._live is None else self._live.console.width
        if not (self._done or self._total):
            return Text(_fitting([self._status], width))
        lines = Table.grid(expand=True, padding=(0, 1, 0, 0))
        lines.add_column(no_wrap=True)
        if self._total:
            lines.add_column(ratio=1)
            bar = Bar(total=self._total, completed=self._done)
            lines.add_row(self.progress_text(), bar, self.time_text())
        else:
            lines.add_row(_fitting([self.progress_text(), self.time_text()], width))
        shown = Table.grid()
        shown.add_row(lines)
        shown.add_row(Text(_fitting(self.metrics_text(), width), style="dim"))
        return shown


class _LoggedValues(Logger):
    """Keeps the last value of everything that the loggers are given, read from the device already."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, float] = {}

    @property
    def name(self) -> str | None:
        """None: it has no folder."""
        return None

    @property
    def version(self) -> int | str | None:
        """None, likewise."""
        return None

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keeps them."""
        self.values.update(metrics)

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Are none of its business."""


def _fitting(parts: list[str], width: int) -> str:
    """As many parts as fit."""
    while parts and len(_SEPARATOR.join(parts)) > width:
        parts = parts[:-1]
    return _SEPARATOR.join(parts)


def _number(value: float) -> str:
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.3f}" if size >= 0.01 or size == 0 else f"{value:.1e}"


def _clock_time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
