"""Curves of a run, such as its return and losses, in bounded memory."""

from __future__ import annotations

import math
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping
from typing import TypedDict

import numpy as np

from torchrl_gpu.streaming.broadcast.protocol import MAX_NAME

MAX_CURVES = 200
# Points of one curve. Even, since a full curve drops every second point.
MAX_POINTS = 1_000
# A page's numbers hold every integer up to here.
MAX_STEP = 2**53
POINTS_PER_MESSAGE = 5_000


class CurvePoints(TypedDict):
    """Points of a curve as JSON, as `Curves.since` describes them."""

    steps: list[int]
    values: list[float]
    whole: bool


class NamedPoints(CurvePoints):
    """Points of a curve, with its name."""

    name: str


class Curves:
    """Curves by name, thinned to at most `MAX_POINTS` points each.

    `StreamServer.log` describes them. Any thread may call it. Every point has a number, by which a viewer tells how
    far it has read.

    Attributes:
        serial: Number of the newest point; 0 if there is none.
    """

    def __init__(self) -> None:
        self.serial = 0
        self._curves: dict[str, _Curve] = {}
        self._lock = threading.Lock()

    def log(self, step: int, scalars: Mapping[str, object]) -> None:
        """Add a point to each named curve, or to none if an argument is invalid.

        Raises:
            ValueError: As `_finite_scalars`.
        """
        with self._lock:
            for name, value in _finite_scalars(step, scalars, self._curves).items():
                self.serial += 1
                curve = self._curves.setdefault(name, _Curve())
                curve.add(self.serial, int(step), value)

    def since(self, number: int) -> Iterator[list[NamedPoints]]:
        """Yield the points after a number as JSON, in portions.

        A portion has about `POINTS_PER_MESSAGE` points. Each curve has its `name`, `steps` and `values`. If `whole`
        is true, this is all of the curve and replaces what the viewer has. Otherwise the points are added, and
        replace whatever the viewer has at their steps or later. A viewer of an earlier server, whose number is beyond
        `serial`, gets everything.
        """
        number = number if number <= self.serial else 0
        portion: list[NamedPoints] = []
        size = 0
        # The lock is taken curve by curve: held over the whole loop, it would make the training thread wait in `log`.
        for name, curve in list(self._curves.items()):
            with self._lock:
                points = curve.since(number)
            if points["steps"]:
                portion.append({"name": name, **points})
                size += len(points["steps"])
            if size >= POINTS_PER_MESSAGE:
                yield portion
                portion = []
                size = 0
        if portion:
            yield portion


class _Curve:
    """Points in the order of their steps: those on a grid, and the newest.

    A run logs millions of values, a page draws some hundreds of points. Keeping the newest values would lose the
    beginning of the run, and averaging would need the page to draw every old point again. So the grid holds every
    `stride`-th logged value; when it is full, every second point goes and the stride doubles. The points that stay keep
    their numbers, so that a viewer still gets only what is new. The newest value is shown even if it is off the grid,
    until the next one replaces it.
    """

    def __init__(self) -> None:
        self._numbers = array("q")
        self._steps = array("q")
        self._values = array("d")
        self._stride = 1
        # Values logged so far, without those that were taken back.
        self._num_logged = 0
        # Number of the point that last took something back.
        self._rewritten = 0

    def add(self, number: int, step: int, value: float) -> None:
        """Add the newest value.

        A step that is not beyond the last one takes back what came from there on.
        """
        if self._steps and step <= self._steps[-1]:
            self._take_back(number, step)
        newest = self._num_logged - 1
        newest_is_off_grid = newest >= 0 and newest % self._stride != 0
        if newest_is_off_grid:
            self._numbers.pop()
            self._steps.pop()
            self._values.pop()
        if len(self._steps) == MAX_POINTS:
            self._keep(slice(None, None, 2))
            self._stride *= 2
        self._numbers.append(number)
        self._steps.append(step)
        self._values.append(value)
        self._num_logged += 1

    def since(self, number: int) -> CurvePoints:
        """Return the points after a number, as `Curves.since` describes them."""
        first = 0 if number < self._rewritten else bisect_right(self._numbers, number)
        steps = self._steps[first:].tolist()
        # In a curve seven digits look the same as all seventeen, which would make the message twice as long.
        values = [float(f"{value:.7g}") for value in self._values[first:]]
        return {"steps": steps, "values": values, "whole": first == 0}

    def _take_back(self, number: int, step: int) -> None:
        """Drop the points from a step on.

        Viewers that have some of them get the whole curve again.
        """
        if step < self._steps[-1]:
            self._rewritten = number
        kept = bisect_left(self._steps, step)
        self._keep(slice(kept))
        if kept:
            self._num_logged = (kept - 1) * self._stride + 1
        else:
            self._stride = 1
            self._num_logged = 0

    def _keep(self, part: slice) -> None:
        self._numbers = self._numbers[part]
        self._steps = self._steps[part]
        self._values = self._values[part]


def _finite_scalars(step: object, scalars: Mapping[str, object], known: Collection[str]) -> dict[str, float]:
    """Return the finite ones of logged scalars as floats.

    Scalars are numbers of Python or NumPy.

    Raises:
        ValueError: The step is not an integer from 0 to 2⁵³, a name or value is invalid, or the new names together with
            the `known` ones are too many.
    """
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or not 0 <= step < MAX_STEP:
        raise ValueError(f"StreamServer.log: step must be an integer from 0 to 2**53, not {step!r}")
    finite: dict[str, float] = {}
    num_names = len(known)
    for name, value in scalars.items():
        if name not in known:
            _check_curve_name(name)
        # Most values are floats already: they are logged at every step.
        scalar = value if type(value) is float else _to_float(name, value)
        if math.isfinite(scalar):
            finite[name] = scalar
            num_names += name not in known
    if num_names > MAX_CURVES:
        raise ValueError(f"StreamServer.log: a server shows at most {MAX_CURVES} curves, not {num_names}")
    return finite


def _check_curve_name(name: object) -> None:
    if not (isinstance(name, str) and 1 <= len(name) <= MAX_NAME):
        raise ValueError(f"StreamServer.log: the name of a curve must have 1 to {MAX_NAME} characters, not {name!r}")


def _to_float(name: str, value: object) -> float:
    """Return a number of Python or NumPy as a float.

    A number beyond all floats is infinite.
    """
    is_boolean = isinstance(value, bool | np.bool_)
    if is_boolean or not isinstance(value, int | float | np.integer | np.floating):
        raise ValueError(f"StreamServer.log: {name!r} must be a number, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        return math.inf
