"""Failures of loggers as warnings: a failed call loses its record, and not the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_warn

_GUARDED = ("log_metrics", "log_image", "log_text", "log_graph", "save", "finalize", "after_save_checkpoint")
_IN_A_ROW = 10


@contextmanager
def outlives(what: str) -> Iterator[None]:
    """Context manager that turns an OSError into a warning: a failed write of diagnostics must not end a run."""
    try:
        yield
    except OSError as error:
        rank_zero_warn(f"{what}: could not be written ({error}); the run goes on without it")


class LoggerGuard(Callback):
    """Keeps errors of loggers, such as those of a full disk or a lost connection, from ending a run.

    `lightning fit` adds one. From the beginning of training on, a call of a logger that fails is dropped: the first of
    each logger with a warning, the others counted and reported at the end. What has failed ten times in a row is not
    tried again. A logger that cannot begin still ends the run before it has begun.
    """

    def __init__(self) -> None:
        self._failed: Counter[str] = Counter()
        self._in_a_row: Counter[tuple[int, str]] = Counter()  # of a method of a logger
        self._told: set[str] = set()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Guards the loggers, for good: Lightning closes them after all callbacks. Earlier failures are forgotten."""
        for failures in (self._failed, self._in_a_row, self._told):
            failures.clear()
        for logger in trainer.loggers:
            for name in _GUARDED:
                method = getattr(logger, name, None)
                if callable(method) and name not in vars(logger):
                    setattr(logger, name, self.guarded(logger, method))

    def guarded(self, logger: Logger, method: Callable[..., Any]) -> Callable[..., Any]:
        """A function that never raises, for a method of a logger that may."""
        name, key = type(logger).__name__, (id(logger), method.__name__)

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._in_a_row[key] >= _IN_A_ROW:
                self._failed[name] += 1
                return None
            try:
                result = method(*args, **kwargs)
            except Exception as error:  # whatever a disk, a network or another package's logger raises
                self._in_a_row[key] += 1
                self._failed[name] += 1
                if name not in self._told:
                    self._told.add(name)
                    reason = error or type(error).__name__
                    rank_zero_warn(f"LoggerGuard: {name} failed ({reason}): the run goes on without it")
                return None
            self._in_a_row[key] = 0
            return result

        return call

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for name, count in self._failed.items():
            if count > 1:
                rank_zero_warn(f"LoggerGuard: {count} calls of {name} failed in all")
        self._failed.clear()
