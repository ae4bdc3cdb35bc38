"""Table of what was read from a list of boxes, and what of it fits a bin."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from rich.markup import escape
from rich.table import Table

from torchrl_gpu.envs.packing.items.lists import LENGTHS, BoxList

# Rows of the table for boxes that are left out.
_MOST_NAMED = 20


def misfits(
    found: BoxList, room: Sequence[float], *, tipped: bool = False, most_weight: float = math.inf
) -> list[tuple[int, str, str]]:
    """Line, order and reason of each row whose boxes do not fit a bin by themselves.

    `room` is the bin's length, width and height in `found.unit`. Boxes that may be `tipped` lie on any face that the
    list permits, others are turned about z only; `most_weight` is of one box, kilograms.
    """
    per_unit = _per_own_unit(found)
    left_out: list[tuple[int, str, str]] = []
    for order, sizes, weights, up, labels in zip(
        found.orders, found.sizes, found.weights, found.up, found.labels, strict=True
    ):
        limits, stands = np.sort(room[:2]), np.zeros(len(sizes), bool)
        # `height` is the side that is vertical.
        for height in range(3) if tipped else (2,):
            bottom = np.sort(np.delete(sizes, height, 1), 1)
            lies = (bottom <= limits + 1e-6).all(1) & (sizes[:, height] <= room[2] + 1e-6)
            stands |= lies & up[:, height]
        for i in np.flatnonzero(~stands | (weights > most_weight)).tolist():
            line = labels[i]["line"]
            if left_out and left_out[-1][0] == line:
                # The row is reported already, for another of its boxes.
                continue
            if stands[i]:
                reason = f"weighs {weights[i]:g} kg, more than {most_weight:g}"
            else:
                size, of = _sides(sizes[i] * per_unit), _sides(np.asarray(room) * per_unit)
                reason = f"{size} {found.own_unit} does not fit {of}" + ("" if tipped else ", turned about z only")
            left_out.append((line, order, reason))
    return left_out


def list_table(found: BoxList, title: str, left_out: Sequence[tuple[int, str, str]] = ()) -> Table:
    """Make the table of what was read from a list.

    It shows orders, boxes, sides, volume, weight and columns, and the rows that give no box or a misfit.
    """
    shown = Table("read", "", title=escape(title), title_justify="left", show_header=False)
    sizes = np.concatenate([np.zeros((0, 3)), *found.sizes]) * _per_own_unit(found)
    weights = np.concatenate([np.zeros(0), *found.weights])
    lines = {label["line"] for label in itertools.chain.from_iterable(found.labels)}
    shown.add_row("orders", f"{len(found.orders):,}")
    shown.add_row("boxes", f"{len(sizes):,} in {len(lines):,} rows")
    if len(sizes):
        told = "as the file says" if found.names_unit else "which the file does not say"
        shown.add_row("sides", f"{sizes.min():g} to {sizes.max():g} {found.own_unit}, {told}")
        shown.add_row("volume", _volume(sizes, found.own_unit))
    known = ~np.isnan(weights)
    if known.any():
        without = "" if known.all() else f", {(~known).sum():,} boxes without one"
        shown.add_row("weight", f"{weights[known].sum():,.6g} kg, a box {_range(weights[known])} kg{without}")
    upright = [each[:, 2] & ~each[:, :2].any(1) for each in found.up]
    for name, flags in (("this side up", upright), ("fragile", found.fragile)):
        if number := sum(int(each.sum()) for each in flags):
            shown.add_row(name, f"{number:,} boxes")
    loads = np.concatenate([np.zeros(0), *found.max_loads])
    limited = np.isfinite(loads)
    if limited.any():
        shown.add_row("most load", f"{_range(loads[limited])} kg on {limited.sum():,} boxes")
    for name, header in found.columns.items():
        shown.add_row(f"{name.replace('_', ' ')} from", escape(header))
    shown.add_row("not read", escape(", ".join(found.unread)) or "no column")
    faults = sorted([*found.faults, *left_out])
    for line, order, reason in faults[:_MOST_NAMED]:
        of_order = f", order {order}" if len(found.orders) > 1 else ""
        shown.add_row("left out", escape(f"line {line:,}{of_order}: {reason}"), style="yellow")
    if len(faults) > _MOST_NAMED:
        shown.add_row("left out", f"and {len(faults) - _MOST_NAMED:,} rows more", style="yellow")
    return shown


def _per_own_unit(found: BoxList) -> float:
    """Factor from sizes of a list to the unit of its file."""
    return 1.0 if found.unit == found.own_unit else LENGTHS[found.unit] / LENGTHS[found.own_unit]


def _sides(size: np.ndarray) -> str:
    return " × ".join(f"{side:.6g}" for side in size)


def _range(values: np.ndarray) -> str:
    low, high = values.min(), values.max()
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _volume(sizes: np.ndarray, unit: str) -> str:
    volume = float(sizes.prod(1).sum())
    return f"{volume:,.0f} cubic cells" if unit == "cells" else f"{volume * (LENGTHS[unit] / 1000) ** 3:,.4g} m³"
