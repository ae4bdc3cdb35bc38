"""`plan.csv` and `plan.xlsx`: the plan in the form of the list that it is of.

It has the list's delimiter, its decimal sign and its units, and carries the other columns of the list along.
"""

from __future__ import annotations

import csv
import importlib
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


def plan_table(rows: Iterable[Row], found: BoxList) -> tuple[list[str], list[Row]]:
    """Make the table of a plan in the form of its list.

    Args:
        rows: Rows of `PalletPlans.rows`, lengths in the unit of the list, weights in kilograms.
        found: The list.

    Returns:
        Names of the columns, in the order in which they are first seen, and the rows by them.
    """
    carried = _carried_columns(found)
    written = []
    header: dict[str, None] = {}
    for row in rows:
        cells = _in_own_units(row, found.own_weight_unit)
        cells |= {_own_name(name, cells): value for name, value in carried.get(row.get("line"), {}).items()}
        written.append(cells)
        header.update(dict.fromkeys(cells))
    return list(header), written


def write_plan_csv(path: Path, rows: Iterable[Row], found: BoxList) -> None:
    """Write the rows of a plan with the delimiter and the decimal sign of the list.

    Arguments are those of `plan_table`.
    """
    header, written = plan_table(rows, found)
    delimiter = found.source.delimiter if found.source.delimiter in _DELIMITERS else ","
    decimal = found.source.style.decimal if found.source.style.known else "."
    # Excel takes a file for UTF-8 by its byte order mark.
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, header, restval="", delimiter=delimiter)
        writer.writeheader()
        for cells in written:
            writer.writerow({name: _text(value, decimal) for name, value in cells.items()})


def write_plan_xlsx(path: Path, rows: Iterable[Row], found: BoxList) -> bool:
    """Write the rows of a plan as a workbook, if openpyxl is installed.

    Texts stay texts: a name that begins with "=" is no formula. Arguments are those of `plan_table`.

    Returns:
        Whether it was written.
    """
    try:
        openpyxl = importlib.import_module("openpyxl")
    except ModuleNotFoundError:
        return False
    illegal = openpyxl.cell.cell.ILLEGAL_CHARACTERS_RE
    header, written = plan_table(rows, found)
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("plan")
    sheet.freeze_panes = "A2"
    sheet.append([illegal.sub("", name) for name in header])
    for cells in written:
        line = []
        for name in header:
            value = cells.get(name, "")
            is_number = isinstance(value, (int, float))
            # A workbook cannot hold control characters, which a list may.
            shown = value if is_number else illegal.sub("", str(value))
            cell = openpyxl.cell.WriteOnlyCell(sheet, shown)
            if not is_number:
                cell.data_type = "s"
            line.append(cell)
        sheet.append(line)
    book.save(path)
    return True


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
