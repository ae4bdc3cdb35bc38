"""Logged values of a run, as curves on the page of its stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_warn

MOST_CURVES = 200  # of `StreamServer.log`
LONGEST_NAME = 64
_LEFT_OUT = ("epoch", "hp_metric", "step")  # which Lightning adds


class CurveLogger(Logger):
    """Logger that forwards the values given to the run's loggers to a stream server.

    Lightning has read the scalars from the device for the other loggers by then, so that nothing more is read. The step
    is the number of updates made, as in the meta data of the pictures.
    """

    def __init__(self, trainer: Trainer, server: Any) -> None:
        super().__init__()
        self._trainer, self._server = trainer, server
        self._first = trainer.loggers[0]
        self._names: dict[str, str] = {}
        self._has_warned = False

    @property
    def name(self) -> str | None:
        """Name of the run's first logger, so that progress bars show one."""
        return self._first.name

    @property
    def version(self) -> int | str | None:
        """Version of the run's first logger."""
        return self._first.version

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Ignores hyperparameters."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Passes on the scalars, true as 1."""
        numbers = {name: _number(value) for name, value in metrics.items()}
        scalars = {self._curve(name): value for name, value in numbers.items() if value is not None}
        scalars.pop("", None)
        if scalars:
            self._server.log(self._trainer.global_step, **scalars)

    def _curve(self, name: str) -> str:
        if name in _LEFT_OUT:
            return ""
        if name not in self._names:
            if len(self._names) >= MOST_CURVES:
                if not self._has_warned:
                    self._has_warned = True
                    rank_zero_warn(f"FrameStream: the page shows {MOST_CURVES} curves; {name!r} is not among them")
                return ""
            self._names[name] = name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]
        return self._names[name]


def _number(value: Any) -> float | None:
    plain = value.item() if getattr(value, "shape", None) == () else value
    return int(plain) if isinstance(plain, bool) else plain if isinstance(plain, int | float) else None


def follow(trainer: Trainer, server: Any) -> CurveLogger | None:
    """Adds a `CurveLogger` that shows a run's logged values on a server; None where the run has no logger."""
    if not trainer.loggers:
        return None
    logger = CurveLogger(trainer, server)
    trainer.loggers = [*trainer.loggers, logger]
    return logger


def unfollow(trainer: Trainer, logger: CurveLogger | None) -> None:
    """Removes the logger that `follow` added."""
    if logger is not None:
        trainer.loggers = [each for each in trainer.loggers if each is not logger]
