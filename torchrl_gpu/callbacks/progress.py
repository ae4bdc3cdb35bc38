"""What a run prints: its networks, a line of progress, the final table."""

from __future__ import annotations

import io
import logging
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partialmethod

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelSummary, TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from rich.table import Table
from torch import nn
from tqdm.contrib.logging import logging_redirect_tqdm  # type: ignore[import-untyped]

from torchrl_gpu.callbacks.throughput import RATE
from torchrl_gpu.evaluation.reports import print_whole
from torchrl_gpu.evaluation.suite import Suite
from torchrl_gpu.system import arguments
from torchrl_gpu.training.data.episodes import suite_of
from torchrl_gpu.training.trainer_fields import is_trial

# A network of more parts is shown as a whole.
_MOST_PARTS = 6


class NetworkSummary(ModelSummary):
    """Prints the networks of a module and their sizes when `fit` starts.

    Without networks it prints nothing. The default of the programs `lightning` and `torchrl-gpu`, in place of
    Lightning's, which shows an agent as one row.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        table = network_table(pl_module)
        if table.rows and trainer.is_global_zero:
            print_whole(table)


def network_table(module: nn.Module) -> Table:
    """Build the table of the networks of a module, each followed by its parts.

    A network with two names is listed once.
    """
    table = Table("network", "class", box=None, pad_edge=False)
    table.add_column("parameters", justify="right")
    table.add_column("")
    counted: set[nn.Parameter] = set()
    num_shown = 0
    networks = _children(module)
    # A single holder says nothing: the networks of the agent in it stand in its place.
    while len(networks) == 1:
        _, holder = networks[0]
        held = _children(holder)
        if len(held) < 2:
            break
        networks = held
    for name, network in networks:
        own = set(network.parameters()) - counted
        counted |= own
        if own:
            num_shown += 1
            trained = any(weight.requires_grad for weight in own)
            inner = _unwrap(network)
            size = sum(weight.numel() for weight in own)
            _add_row(table, name, inner, size, "" if trained else "follows, is not trained")
            parts = _children(inner)
            # The parts of a sequence have numbers for names, which say nothing.
            has_names = not isinstance(inner, nn.Sequential)
            if trained and has_names and 1 < len(parts) <= _MOST_PARTS:
                for part_name, part in parts:
                    _add_row(table, f"  {part_name}", _unwrap(part), _size(part), style="dim")
    uncounted = set(module.parameters()) - counted
    rest = sum(weight.numel() for weight in uncounted)
    if counted and rest:
        num_shown += 1
        table.add_row("other weights", "", f"{rest:,}", "")
    if num_shown > 1:
        table.add_row("total", "", f"{_size(module):,}", "", style="bold")
    return table


def _add_row(table: Table, name: str, module: nn.Module, size: int, remark: str = "", style: str = "") -> None:
    table.add_row(name, type(module).__name__.lstrip("_"), f"{size:,}", remark, style=style)


def _unwrap(network: nn.Module) -> nn.Module:
    """Return the network inside of holders that add no weights."""
    inside = _children(network)
    while len(inside) == 1 and _size(inside[0][1]) == _size(network):
        network = inside[0][1]
        inside = _children(network)
    return network


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, child) for name, child in module.named_children() if _size(child)]


def _size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


class FinalTable(Callback):
    """Prints and writes the table of `test` when `fit` ends normally.

    It compares policy and baselines on the same episodes. The first process does it, after the last checkpoint is
    saved; `trainer.fast_dev_run` leaves it out.

    Args:
        num_episodes: Of the test episodes, see `Episodes.suite`; None stands for all.
    """

    def __init__(self, num_episodes: int | None = None) -> None:
        self.num_episodes = arguments.optional(arguments.whole, "FinalTable", "num_episodes", num_episodes, 1)
        self._has_trained = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and not (hasattr(pl_module, "compare")):
            name = type(pl_module).__name__
            raise ValueError(
                f"FinalTable: {name} has no `compare`, as HierarchicalPacking has. Add the method, or leave this"
                " callback out"
            )
        self._has_trained = False

    def on_train_batch_end(self, *args: object) -> None:
        self._has_trained = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Evaluate the policy.

        Lightning has moved the module to the CPU by now, but not its environment.
        """
        if not trainer.is_global_zero or is_trial(trainer):
            return
        # Without a training step, the table in the folder belongs to the run that made some.
        if not self._has_trained:
            return
        bar = trainer.progress_bar_callback
        module = pl_module
        if bar is not None:
            # It would draw over the table.
            bar.teardown(trainer, pl_module, "fit")
        suite = suite_of(pl_module, "test", self.num_episodes)
        module.to(suite.env.device).eval()
        shown = bar.evaluating(suite) if isinstance(bar, RunProgress) else nullcontext()
        with trainer.precision_plugin.forward_context(), shown:
            module.compare(suite)  # type: ignore[operator]
        # Callbacks that come after this one find the module where Lightning had left it.
        module.cpu()


_REFRESH_S = 0.5
# Seconds between lines where the output is no terminal.
_LINE_EVERY_S = 30.0
_WITH_END = "{n:,} of {total:,} updates ({percentage:.0f}%) {bar} {elapsed}, {remaining} left{postfix}"
_WITHOUT_END = "{n:,} updates, {elapsed}{postfix}"
# These loggers write to the terminal themselves.
_LOGGERS = ("lightning", "lightning.pytorch", "lightning.fabric")


class RunProgress(TQDMProgressBar):
    """One line at the bottom of the terminal.

    It shows updates made, time left, env-steps/s, outcomes of episodes and the loss. Where the output is no terminal,
    the same as a plain line now and then. The default of the programs `lightning` and `torchrl-gpu`. Figures are what
    is logged with `prog_bar=True`, env-steps/s those of `Throughput`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._redirected = ExitStack()
        self._activity = ""
        self._evaluation = Tqdm(disable=True)
        self._last_line = -math.inf
        # The clock of the bar stands before training and during a validation.
        self._is_paused = True

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the bar, before the module fills its replay."""
        super().on_train_start(trainer, pl_module)
        self._is_paused = True
        if draws_bars() and not self.is_disabled:
            # Lines of logs go above the bar.
            loggers = [each for each in map(logging.getLogger, _LOGGERS) if each.handlers]
            redirected = logging_redirect_tqdm([logging.getLogger(), *loggers], tqdm_class=Tqdm)
            self._redirected.enter_context(redirected)
        if getattr(pl_module, "warmup_frames", 0):
            self.train_progress_bar.set_postfix_str("filling the replay")
        self._print(self.train_progress_bar)

    def on_train_epoch_start(self, trainer: Trainer, *_: object) -> None:
        """Leave the bar, which is that of the run, as it is."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pass

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        if self._is_paused:
            self._is_paused = False
            self.train_progress_bar.unpause()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        bar = self.train_progress_bar
        if bar.update(trainer.global_step - bar.n):
            bar.set_postfix(self.get_metrics(trainer, pl_module))
            self._print(bar)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_start(trainer, pl_module)
        self._is_paused = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        bar = self.train_progress_bar
        # A run may end with a validation.
        if self._is_paused:
            bar.unpause()
        bar.n = trainer.global_step
        bar.set_postfix(self.get_metrics(trainer, pl_module))
        self._print(bar, at_once=True)
        self._close()

    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        """Return what the bar shows: env-steps/s first, the loss last.

        What `StepLog` logs is on the host, so that nothing waits.
        """
        logged = trainer.progress_bar_metrics
        shown: dict[str, int | str | float | dict[str, float]] = {}
        for name in sorted(logged, key=_order_on_bar):
            words = "env-steps/s" if name == RATE else name.removeprefix("train/")
            shown[words] = _number(logged[name])
        return shown

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, *_: object
    ) -> None:
        if hasattr(batch, "announce"):
            batch.announce = self.say

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start  # type: ignore[assignment]

    @contextmanager
    def evaluating(self, suite: Suite) -> Iterator[None]:
        """Show how far a suite is that is played outside of Lightning's loops."""
        suite.announce = self.say
        self._open_evaluation("evaluating")
        try:
            yield
        finally:
            self._close()

    def say(self, words: str) -> None:
        """Show how far an evaluation is.

        Without words the terminal is left to its results.
        """
        if not words:
            self._evaluation.close()
        elif not self._evaluation.disable:
            self._evaluation.set_description_str(f"{self._activity}: {words}")
            self._print(self._evaluation)

    def init_train_tqdm(self) -> Tqdm:
        total = self.trainer.max_steps if self.trainer.max_steps > 0 else None
        style = _WITH_END if total else _WITHOUT_END
        return self._bar(style, total=total, initial=self.trainer.global_step)

    def _open_evaluation(self, activity: str) -> Tqdm:
        self._activity = activity
        self._evaluation = self._bar("{desc}", desc=activity, leave=False)
        return self._evaluation

    init_sanity_tqdm = init_validation_tqdm = partialmethod(_open_evaluation, "validating")
    init_test_tqdm = partialmethod(_open_evaluation, "testing")
    init_predict_tqdm = partialmethod(_open_evaluation, "predicting")

    def _bar(
        self,
        style: str,
        *,
        desc: str | None = None,
        total: int | None = None,
        initial: int = 0,
        leave: bool = True,
    ) -> Tqdm:
        on_terminal = draws_bars()
        return Tqdm(
            desc=desc,
            total=total,
            initial=initial,
            leave=leave,
            bar_format=style if on_terminal else style.replace("{bar} ", ""),
            disable=self.is_disabled,
            mininterval=_REFRESH_S,
            miniters=0,
            file=sys.stdout if on_terminal else _Nowhere(),
            dynamic_ncols=on_terminal,
        )

    def _print(self, bar: Tqdm, *, at_once: bool = False) -> None:
        is_due = at_once or time.monotonic() - self._last_line >= _LINE_EVERY_S
        if is_due and not bar.disable and not draws_bars():
            self._last_line = time.monotonic()
            print(bar, flush=True)

    def _close(self) -> None:
        for bar in (self._train_progress_bar, self._evaluation):
            if bar is not None:
                bar.close()
        self._redirected.close()


class _Nowhere(io.TextIOBase):
    """Text stream that discards a bar where there is no terminal to draw it on."""

    def write(self, text: str) -> int:
        return len(text)


def draws_bars() -> bool:
    """Return whether the output is a terminal on which tqdm draws.

    It does not draw on one that does not know its own size.
    """
    # A service has no output at all.
    if sys.stdout is None:
        return False
    try:
        if not sys.stdout.isatty():
            return False
        size = os.get_terminal_size(sys.stdout.fileno())
        return size.lines > 0
    except OSError:
        # A terminal without a file has no size, and tqdm draws on it.
        return sys.stdout.isatty()


def _order_on_bar(name: str) -> tuple[bool, bool]:
    is_last = name == "train/loss"
    is_first = name == RATE
    return is_last, not is_first


def _number(value: float) -> str:
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 0.01 or size == 0:
        return f"{value:.3f}"
    return f"{value:.1e}"
