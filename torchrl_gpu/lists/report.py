"""Tables of what was read from a list, so that it is seen before it is trusted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from rich.markup import escape
from rich.table import Table

from torchrl_gpu.lists.box_list import BoxList, Fault, Label
from torchrl_gpu.lists.numbers import COMMA
from torchrl_gpu.lists.units import LENGTHS, WEIGHTS

# Rows of the table for boxes that are left out.
_MOST_NAMED = 20
# Rows of the list that are shown as they were understood.
_FIRST_ROWS = 5


def list_table(found: BoxList, title: str, left_out: Sequence[tuple[int, str, str]] = ()) -> Table:
    """Make the table of what was read from a list.

    It shows file, orders, boxes, sides, volume, weight and columns, and the rows that give no box.

    Args:
        found: The list.
        title: Name of the file.
        left_out: Line, order and reason of more rows that are left out.
    """
    shown = Table("read", "", title=escape(title), title_justify="left", show_header=False)
    shown.add_row("table", escape(_where_it_stands(found)))
    shown.add_row("orders", f"{len(found.orders):,}")
    lines = {label["line"] for label in itertools.chain.from_iterable(found.labels)}
    shown.add_row("boxes", f"{sum(map(len, found.sizes)):,} in {len(lines):,} rows")
    _add_amounts(shown, found)
    for name, header in found.columns.items():
        shown.add_row(f"{name.replace('_', ' ')} from", escape(_column_words(found, name, header)))
    shown.add_row("not read", escape(", ".join(found.unread)) or "no column")
    for note in found.source.notes:
        shown.add_row("note", escape(note))
    faults = sorted([*found.faults, *itertools.starmap(Fault, left_out)])
    for fault in faults[:_MOST_NAMED]:
        of_order = f", order {fault.order}" if len(found.orders) > 1 else ""
        shown.add_row("left out", escape(f"line {fault.line:,}{of_order}: {fault.reason}"), style="yellow")
    if len(faults) > _MOST_NAMED:
        shown.add_row("left out", f"and {len(faults) - _MOST_NAMED:,} rows more", style="yellow")
    for doubt in found.doubts:
        shown.add_row("doubtful", escape(doubt), style="bold yellow")
    return shown


def _where_it_stands(found: BoxList) -> str:
    source = found.source
    parts = []
    if source.sheet:
        parts.append(f'sheet "{source.sheet}"')
    parts.append(f"header in line {source.header_line}" if source.header_line else "no header")
    if source.encoding:
        parts.append(source.encoding)
    if source.delimiter:
        named = {"\t": "tabs", ";": "semicolons", ",": "commas", " ": "blanks", "  ": "blanks"}
        parts.append(f"cells between {named.get(source.delimiter, source.delimiter)}")
    if source.style.known:
        parts.append("decimal comma" if source.style.decimal == COMMA else "decimal point")
    return ", ".join(parts)


def _add_amounts(shown: Table, found: BoxList) -> None:
    """Add rows for the sides, the volume, the weight and the limits of the boxes."""
    sizes = np.concatenate([np.zeros((0, 3)), *found.sizes]) * _per_own_unit(found)
    weights = np.concatenate([np.zeros(0), *found.weights])
    if len(sizes):
        said = "as the file says" if found.names_unit else "which the file does not say"
        shown.add_row("sides", f"{sizes.min():g} to {sizes.max():g} {found.own_unit}, {said}")
        shown.add_row("volume", _volume(sizes, found.own_unit))
    known = ~np.isnan(weights)
    if known.any():
        without = "" if known.all() else f", {(~known).sum():,} boxes without one"
        shown.add_row("weight", f"{weights[known].sum():,.6g} kg, a box {_range(weights[known])} kg{without}")
    upright = [up[:, 2] & ~up[:, :2].any(1) for up in found.up]
    flagged = {"this side up": upright, "fragile": found.fragile, "bottom only": found.bottom_only}
    for name, flags in flagged.items():
        if number := sum(int(each.sum()) for each in flags):
            shown.add_row(name, f"{number:,} boxes")
    loads = np.concatenate([np.zeros(0), *found.max_loads])
    limited = np.isfinite(loads)
    if limited.any():
        shown.add_row("most load", f"{_range(loads[limited])} kg on {limited.sum():,} boxes")


def _column_words(found: BoxList, name: str, header: str) -> str:
    """Header of a column, its unit, its first cell, and what was done with it."""
    reading = found.readings.get(name)
    if reading is None:
        return header
    words = header
    if reading.example:
        words += f", first cell {reading.example}"
    if reading.unit:
        words += f", unit {reading.unit}"
    if reading.note:
        words += f", {reading.note}"
    return words


def first_rows(found: BoxList) -> Table:
    """Make the table of the first rows of a list as they were understood."""
    weight_unit = found.own_weight_unit
    sides = f"length × width × height, {found.own_unit}"
    shown = Table(title="the first rows, as they are understood", title_justify="left")
    for column in ("line", "order", "article", "boxes", sides, f"{weight_unit} a box"):
        shown.add_column(column, justify="left" if column in ("order", "article") else "right")
    rows: dict[int, list[str]] = {}
    boxes: dict[int, int] = {}
    for order, sizes, labels in zip(found.orders, found.sizes, found.labels, strict=True):
        for size, label in zip(sizes * _per_own_unit(found), labels, strict=True):
            line = int(label["line"])
            boxes[line] = boxes.get(line, 0) + 1
            if line not in rows and len(rows) <= _FIRST_ROWS:
                article = escape(str(label.get("article", "")))
                rows[line] = [escape(order), article, _sides(size), _weight(label, weight_unit)]
    for line in sorted(rows)[:_FIRST_ROWS]:
        order, article, size, weight = rows[line]
        shown.add_row(str(line), order, article, f"{boxes[line]:,}", size, weight)
    return shown


def _weight(label: Label, unit: str) -> str:
    weight = label.get("weight/kg")
    return "–" if weight is None else f"{weight / WEIGHTS[unit]:g}"


def _per_own_unit(found: BoxList) -> float:
    """Factor from sizes of a list to the unit of its file."""
    return 1.0 if found.unit == found.own_unit else LENGTHS[found.unit] / LENGTHS[found.own_unit]


def _sides(size: np.ndarray) -> str:
    return " × ".join(f"{side:.6g}" for side in size)


def _range(values: np.ndarray) -> str:
    low = values.min()
    high = values.max()
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _volume(sizes: np.ndarray, unit: str) -> str:
    volume = math.fsum(sizes.prod(1).tolist())
    return f"{volume:,.0f} cubic cells" if unit == "cells" else f"{volume * (LENGTHS[unit] / 1000) ** 3:,.4g} m³"
