"""`plan.csv`: the plan in the form of the list that it is of.

It has the list's delimiter, its decimal sign and its units, and carries the other columns of the list along.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchrl_gpu.lists.box_list import BoxList
from torchrl_gpu.lists.numbers import COMMA, text_of
from torchrl_gpu.lists.units import WEIGHTS
from torchrl_gpu.palletizing.page import Row

# Digits of a weight: a pound is 0.45359237 kilograms, and no scale has so many.
_DIGITS = 9
# A spreadsheet would compute a cell that begins so.
_FORMULA = ("=", "@", "\t", "\r")
_DELIMITERS = (",", ";", "\t")
# Columns of a list that the plan shows in its own.
_OF_THE_PLAN = ("order", "article", "length", "width", "height", "dimensions", "quantity", "weight")


def write_plan_csv(path: Path, rows: Iterable[Row], found: BoxList) -> None:
    """Write the rows of a plan.

    Args:
        path: The file.
        rows: Rows of `PalletPlans.rows`, lengths in the unit of the list, weights in kilograms.
        found: The list.
    """
    carried = _carried_columns(found)
    written = []
    # All names of columns, in the order in which they are first seen.
    header: dict[str, None] = {}
    for row in rows:
        cells = _in_own_units(row, found.own_weight_unit)
        cells |= {_own_name(name, cells): value for name, value in carried.get(row.get("line"), {}).items()}
        written.append(cells)
        header.update(dict.fromkeys(cells))
    delimiter = found.source.delimiter if found.source.delimiter in _DELIMITERS else ","
    decimal = found.source.style.decimal if found.source.style.known else "."
    # Excel takes a file for UTF-8 by its byte order mark.
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(header), restval="", delimiter=delimiter)
        writer.writeheader()
        for cells in written:
            writer.writerow({name: _text(value, decimal) for name, value in cells.items()})


def _carried_columns(found: BoxList) -> dict[object, dict[str, str]]:
    """Cells of the columns that the plan has not itself, by the line of the list."""
    table = found.source.table
    if table is None:
        return {}
    shown = {at for name, at in table.columns.at.items() if name in _OF_THE_PLAN}
    columns = [(at, name) for at, name in enumerate(table.header) if at not in shown and name]
    by_line: dict[object, dict[str, str]] = {}
    for line, row in zip(table.lines, table.rows, strict=True):
        by_line[line] = {name: text_of(row[at]) for at, name in columns if at < len(row)}
    return by_line


def _own_name(name: str, cells: Mapping[str, object]) -> str:
    """Name of a carried column.

    One that the plan has itself gets the word "list" before it.
    """
    return f"list {name}" if name in cells else name


def _in_own_units(row: Row, unit: str) -> Row:
    """Give the weight of a row in the unit of the list."""
    cells: Row = {}
    for name, value in row.items():
        if name == "weight_kg" and unit != "kg":
            cells[f"weight_{unit}"] = round(value / WEIGHTS[unit], _DIGITS) if isinstance(value, float) else value
        else:
            cells[name] = value
    return cells


def _text(value: object, decimal: str) -> str:
    """Write a cell.

    A number has the decimal sign of the list, and no spreadsheet computes a text.
    """
    if isinstance(value, float):
        text = f"{value:.{_DIGITS}f}".rstrip("0").rstrip(".")
        return text.replace(".", COMMA) if decimal == COMMA else text
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
