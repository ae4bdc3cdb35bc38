"""Curves of a run, such as its return and losses: all of it in bounded memory, and what is new for each viewer."""

from __future__ import annotations

import math
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from torchrl_gpu.streaming.broadcast.protocol import MAX_NAME

MAX_CURVES = 200
MAX_POINTS = 1_000  # of a curve; even
MAX_STEP = 2**53  # what a page's numbers hold exactly
POINTS_PER_MESSAGE = 5_000


def _finite(step: object, scalars: Mapping[str, Any], known: Collection[str]) -> dict[str, float]:
    """The finite ones of logged scalars, numbers of Python or NumPy, as floats.

    ValueError for a step that is no integer from 0 to 2⁵³, a bad name or value, or too many beside the known ones.
    """
    if isinstance(step, bool) or not isinstance(step, int | np.integer) or not 0 <= step < MAX_STEP:
        raise ValueError(f"StreamServer.log: want the step to be an integer from 0 to 2**53; got {step!r}")
    finite, number = {}, len(known)
    for name, value in scalars.items():
        if name not in known and not (isinstance(name, str) and 1 <= len(name) <= MAX_NAME):
            raise ValueError(f"StreamServer.log: want names of 1 to {MAX_NAME} characters; got {name!r}")
        scalar = value if type(value) is float else _to_float(name, value)
        if math.isfinite(scalar):
            finite[name] = scalar
            number += name not in known
    if number > MAX_CURVES:
        raise ValueError(f"StreamServer.log: want at most {MAX_CURVES} curves; got {number} names")
    return finite


class Curves:
    """Curves by name, thinned to at most `MAX_POINTS` points each; see `StreamServer.log`. Any thread may call it.

    Every point has a number, by which a viewer says how far it has read.

    Attributes:
        serial: Number of the newest point; 0 where there is none.
    """

    def __init__(self) -> None:
        self.serial = 0
        self._curves: dict[str, _Curve] = {}
        self._lock = threading.Lock()

    def log(self, step: int, scalars: Mapping[str, Any]) -> None:
        """Adds a point to each of some curves, or to none where one of the arguments is a ValueError."""
        with self._lock:
            for name, value in _finite(step, scalars, self._curves).items():
                self.serial += 1
                self._curves.setdefault(name, _Curve()).add(self.serial, int(step), value)

    def since(self, number: int) -> Iterator[list[dict[str, Any]]]:
        """Points after that of a number, as JSON, in portions of about `POINTS_PER_MESSAGE` points.

        Each curve is its `name`, `steps`, `values`, and whether this is the `whole` of it, to be put in place of what a
        viewer has. Otherwise the points are added, in place of whatever the viewer has at their steps or later. A
        viewer of an earlier server, whose number is beyond ours, gets everything.
        """
        number = number if number <= self.serial else 0
        portion: list[dict[str, Any]] = []
        size = 0
        for name, curve in list(self._curves.items()):
            with self._lock:
                points = curve.since(number)
            if points["steps"]:
                portion.append({"name": name, **points})
                size += len(points["steps"])
            if size >= POINTS_PER_MESSAGE:
                yield portion
                portion, size = [], 0
        if portion:
            yield portion


class _Curve:
    """Points in the order of their steps: those on a grid of every `stride`-th logged value, and the newest."""

    def __init__(self) -> None:
        self._numbers, self._steps, self._values = array("q"), array("q"), array("d")
        self._stride = 1
        self._logged = 0  # values, as far as they have not been taken back
        self._rewritten = 0  # number of the point that last took something back

    def add(self, number: int, step: int, value: float) -> None:
        if self._steps and step <= self._steps[-1]:
            self._take_back(number, step)
        if self._logged and (self._logged - 1) % self._stride:
            for each in (self._numbers, self._steps, self._values):
                each.pop()  # the newest until now, which is not on the grid
        if len(self._steps) == MAX_POINTS:
            self._keep(slice(None, None, 2))
            self._stride *= 2
        self._numbers.append(number)
        self._steps.append(step)
        self._values.append(value)
        self._logged += 1

    def since(self, number: int) -> dict[str, Any]:
        first = 0 if number < self._rewritten else bisect_right(self._numbers, number)
        values = [float(f"{value:.7g}") for value in self._values[first:]]
        return {"steps": self._steps[first:].tolist(), "values": values, "whole": first == 0}

    def _take_back(self, number: int, step: int) -> None:
        if step < self._steps[-1]:
            self._rewritten = number
        kept = bisect_left(self._steps, step)
        self._keep(slice(kept))
        self._stride = self._stride if kept else 1
        self._logged = (kept - 1) * self._stride + 1 if kept else 0

    def _keep(self, part: slice) -> None:
        self._numbers, self._steps, self._values = self._numbers[part], self._steps[part], self._values[part]


def _to_float(name: str, value: object) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise ValueError(f"StreamServer.log: want {name!r} to be a number; got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        return math.inf
