"""Cost of a z-map against the number of environments, the resolution, the footprint and the visible items."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from benchmarks.kernels import parity as kernel_parity
from benchmarks.kernels.ceilings import Ceilings
from benchmarks.kernels.counts import Work, count
from benchmarks.kernels.rows import NUMPY, UNFOLD, Backends, numpy_row, our_row, unfold_row
from benchmarks.kernels.workloads import Workload, boxes, pebbles
from torchrl_gpu.bench.timing import TimedRow, measure

AXES: dict[str, tuple[int, ...]] = {
    "num_envs": tuple(4**i for i in range(9)),
    "resolution": (50, 100, 200, 400),
    "footprint": (10, 25, 50, 100, 200),
    "visible": (1, 5, 10, 20, 50),
}
_REPETITIONS = 3
_CALLS = 5  # that a row takes at least: a trial, two to warm up, two that count
_GIB = 2**30
_EAGER_COPIES = 12  # of a z-map, and of the windows under boxes, that the eager backend holds at once


class Line(NamedTuple):
    """An axis with one kind of item; a line of the plot for each row.

    Attributes:
        axis: What changes, a name of `AXES`.
        kind: "boxes" or "irregular".
        values: In rising order.
        make: The workload at a value, in a number of environments.
        num_envs: Environments at a value.
    """

    axis: str
    kind: str
    values: tuple[int, ...]
    make: Callable[[int, int], Workload]
    num_envs: Callable[[int], int]


def lines(args: argparse.Namespace) -> list[Line]:
    """What is swept; what an axis does not change is as the arguments say.

    Along `resolution` items keep their size in metres, and the grid its step in cells; `footprint` is at the highest
    resolution.
    """
    side, resolution, step = args.footprint, args.resolution, args.grid_step
    finest = max(AXES["resolution"])

    def irregular(num_envs: int, num_visible: int = 1, *, side: int = side, resolution: int = resolution) -> Workload:
        return pebbles(num_envs, num_visible, side=side, resolution=resolution, step=step)

    makers: dict[tuple[str, str], Callable[[int, int], Workload]] = {
        ("num_envs", "boxes"): lambda value, n: boxes(n),
        ("num_envs", "irregular"): lambda value, n: irregular(n),
        ("resolution", "irregular"): lambda value, n: irregular(
            n, side=max(2, side * value // resolution), resolution=value
        ),
        ("footprint", "irregular"): lambda value, n: irregular(n, side=value, resolution=finest),
        ("visible", "irregular"): lambda value, n: irregular(n, value),
    }
    return [
        Line(axis, kind, AXES[axis], make, (lambda value: value) if axis == "num_envs" else lambda _: args.sweep_envs)
        for (axis, kind), make in makers.items()
        if axis in (args.axes or ())
    ]


def parity(lines: list[Line], used: Backends) -> Iterator[dict[str, Any]]:
    """Of every workload that will be timed, with the reference: one environment, one item, two orientations."""
    for line in lines:
        for value in line.values[:1] if line.axis in ("num_envs", "visible") else line.values:
            whole = line.make(value, 1)
            orientations = sorted({0, whole.catalogue.num_orientations // 2})
            for check in kernel_parity.checks(whole.first(1, 1, orientations), used.running):
                yield check | {"setting": f"sweep of {line.axis}, {line.kind}, {value}, {check['row']}"}


def run(
    lines: list[Line],
    used: Backends,
    device: torch.device,
    ceilings: Callable[[], Mapping[str, Ceilings]],
    args: argparse.Namespace,
    say: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """Every point, or why it was left out; the ceilings are measured anew at each."""
    limits = Limits(args.point_seconds, args.memory_gib and args.memory_gib * _GIB)
    points = [point for line in lines for point in _Sweep(line, used, device, limits, say).points(ceilings)]
    return {
        "items": {"footprint": args.footprint, "resolution": args.resolution, "grid_step": args.grid_step},
        "num_envs_of_other_axes": args.sweep_envs,
        "point_seconds": limits.seconds,
        "memory_gib": {kind: limits.memory(torch.device(kind)) / _GIB for kind in sorted({"cpu", device.type})},
        "rows": list(dict.fromkeys(point["row"] for point in points)),
        "points": points,
        "missing": [{"row": f"ours {name}", "reason": reason} for name, reason in used.missing.items()],
    }


class Limits:
    """What a row of one point may take.

    Args:
        seconds: All its calls together.
        num_bytes: That it may hold; None for half of what is free now.
    """

    def __init__(self, seconds: float, num_bytes: float | None) -> None:
        self.seconds, self._given = seconds, num_bytes
        self._free: dict[str, float] = {}

    def memory(self, device: torch.device) -> float:
        """Bytes."""
        if self._given is not None:
            return self._given
        if device.type not in self._free:
            self._free[device.type] = _free_bytes(device) / 2
        return self._free[device.type]


def _free_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return 8.0 * _GIB


class _Sweep:
    """One line: remembers what each row took at the last value, to tell what it will take at the next."""

    def __init__(
        self, line: Line, used: Backends, device: torch.device, limits: Limits, say: Callable[[str], None]
    ) -> None:
        self.line, self.limits, self.say = line, limits, say
        self.where = {NUMPY: torch.device("cpu")}
        if line.kind != "boxes":
            self.where[UNFOLD] = device
        self.where |= {f"ours {name}": where for name, where in used.running.items()}
        self.pace: dict[str, float] = {}  # seconds for each unit of work, of the last point

    def points(self, ceilings: Callable[[], Mapping[str, Ceilings]]) -> Iterator[dict[str, Any]]:
        for value in self.line.values:
            self.say(f"{self.line.axis}, {self.line.kind}, {value}")
            yield from self._at(value, ceilings)

    def _at(self, value: int, ceilings: Callable[[], Mapping[str, Ceilings]]) -> Iterator[dict[str, Any]]:
        one, num_envs = self.line.make(value, 1), self.line.num_envs(value)
        work = count(one)
        names = [name for name in self.where if name != NUMPY or self.line.axis != "num_envs" or not self.pace]
        skipped = {name: why for name in names if (why := self._too_much(name, one, work, num_envs))}
        rows: dict[str, TimedRow] = {}
        whole = self.line.make(value, num_envs) if len(skipped) < len(names) else one
        for name in names:
            if name not in skipped:
                row = self._row(name, whole)
                if why := self._trial(name, row, work, num_envs):
                    skipped[name] = why
                else:
                    rows[name] = row
        measure(list(rows.values()), self.limits.seconds / 2, _REPETITIONS, on_row=self.say)
        now = ceilings() if rows else {}
        for name in names:
            fixed = {"axis": self.line.axis, "kind": self.line.kind, "value": value, "row": name}
            if name in skipped:
                yield fixed | skipped[name]
            else:
                yield fixed | _point(rows[name], whole.maps_per_env, now)

    def _envs(self, name: str, num_envs: int) -> int:
        return 1 if name == NUMPY else num_envs

    def _too_much(self, name: str, one: Workload, work: Work, num_envs: int) -> dict[str, str]:
        """Why a point is not even tried; empty where it is."""
        n, where = self._envs(name, num_envs), self.where[name]
        needed, most = n * _bytes_held(name, one), self.limits.memory(where)
        if needed > most:
            return {"skipped": f"needs about {needed / _GIB:.2g} GiB, of {most / _GIB:.2g} GiB", "shown": "memory"}
        expected = _CALLS * n * _units(work) * self.pace.get(name, 0.0)
        if expected > 2 * self.limits.seconds:  # a little more may turn out to be less: that is tried
            return self._too_slow(expected, "about ")
        return {}

    def _too_slow(self, seconds: float, about: str = "") -> dict[str, str]:
        most = self.limits.seconds
        return {"skipped": f"takes {about}{seconds:.2g} s, of {most:g} s", "shown": f"> {most:g} s"}

    def _row(self, name: str, workload: Workload) -> TimedRow:
        if name == NUMPY:
            return numpy_row(workload)
        if name == UNFOLD:
            return unfold_row(workload, self.where[name])
        return our_row(name.removeprefix("ours "), self.where[name], workload)

    def _trial(self, name: str, row: TimedRow, work: Work, num_envs: int) -> dict[str, str]:
        """Runs a row once, twice where that may have compiled it; why it is left out all the same, or empty."""
        try:
            once = self._call(name, row)
            if self.limits.seconds < _CALLS * once < 4 * _CALLS * self.limits.seconds:
                once = self._call(name, row)
        except (MemoryError, RuntimeError) as error:
            if "memory" not in str(error).lower() and not isinstance(error, MemoryError):
                raise
            return {"skipped": "ran out of memory", "shown": "memory"}
        self.pace[name] = once / (self._envs(name, num_envs) * _units(work))
        return self._too_slow(_CALLS * once) if _CALLS * once > self.limits.seconds else {}

    def _call(self, name: str, row: TimedRow) -> float:
        """Seconds of one call."""
        started = time.perf_counter()
        row.run(1)
        if self.where[name].type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started


def _units(work: Work) -> int:
    """What the time of a call grows with."""
    return work.add_max or work.placements


def _bytes_held(name: str, one: Workload) -> float:
    """Bytes that a row holds at once for one environment, about."""
    grid = one.bin_.grid[0] * one.bin_.grid[1]
    out = one.maps_per_env * grid * 5
    held = out + 4 * one.heightmap[0].numel()
    if name in (NUMPY, UNFOLD):
        held += grid * one.catalogue.footprint[0] * one.catalogue.footprint[1] * 4
    elif name == "ours eager":
        cells = one.heightmap[0].numel() if one.catalogue.flat else 0
        held += _EAGER_COPIES * one.maps_per_env * 4 * max(grid, cells)
    return float(held)


def _point(row: TimedRow, maps_per_env: int, ceilings: Mapping[str, Ceilings]) -> dict[str, Any]:
    extra: dict[str, Any] = row.extra
    floor, bound = ceilings[extra["device"]].floor(extra["add_max_per_z_map"], extra["bytes_per_z_map"])
    each = [1 / rate for rate in row.rates]
    return {
        "seconds_per_z_map": 1 / row.rate,
        "seconds_per_env": maps_per_env / row.rate,
        "range_per_env": [maps_per_env * min(each), maps_per_env * max(each)],
        "floor_per_env": None if floor is None else maps_per_env * floor,
        "bound_by": bound,
        "ceilings": ceilings[extra["device"]]._asdict(),
        "calls": row.calls,
        "results_per_call": row.per_call,
        "seconds": row.seconds,
    } | extra
