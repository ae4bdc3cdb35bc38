"""Failures of loggers as warnings.

A failed call loses its record, and not the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_warn

_GUARDED = ("log_metrics", "log_image", "log_text", "log_graph", "save", "finalize", "after_save_checkpoint")
_IN_A_ROW = 10

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


@contextmanager
def outlives(what: str) -> Iterator[None]:
    """Turn an OSError into a warning.

    A failed write of diagnostics must not end a run.
    """
    try:
        yield
    except OSError as error:
        rank_zero_warn(f"{what}: could not be written ({error}); the run goes on without it")


class LoggerGuard(Callback):
    """Keeps errors of loggers from ending a run.

    Such errors come from a full disk or a lost connection.

    `lightning fit` adds one. From the beginning of training on, a call of a logger that fails is dropped: the first of
    each logger with a warning, the others counted and reported at the end. What has failed ten times in a row is not
    tried again. A logger that cannot begin still ends the run before it has begun.
    """

    def __init__(self) -> None:
        self._failed: Counter[str] = Counter()
        # By the id of a logger and the name of a method.
        self._in_a_row: Counter[tuple[int, str]] = Counter()
        self._told: set[str] = set()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Guard the loggers for good, and forget earlier failures.

        Lightning closes loggers after all callbacks, so that the guard must stay.
        """
        for failures in (self._failed, self._in_a_row, self._told):
            failures.clear()
        for logger in trainer.loggers:
            for name in _GUARDED:
                method = getattr(logger, name, None)
                # A logger that a fit before has guarded has the method of its own already.
                if callable(method) and name not in vars(logger):
                    setattr(logger, name, self.guard(logger, method))

    def guard(self, logger: Logger, method: Callable[_Given, _Result]) -> Callable[_Given, _Result | None]:
        """Wrap a method of a logger in a function that never raises."""
        name = type(logger).__name__
        key = (id(logger), method.__name__)

        @wraps(method)
        def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result | None:
            if self._in_a_row[key] >= _IN_A_ROW:
                self._failed[name] += 1
                return None
            try:
                result = method(*args, **kwargs)
            except Exception as error:
                # A disk, a network or the logger of another package may raise anything.
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
