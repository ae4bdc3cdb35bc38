"""Sheets of workbooks: .xlsx by openpyxl, .xls and .ods by calamine."""

from __future__ import annotations

import importlib
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from types import ModuleType
from typing import Protocol

from torchrl_gpu.lists.candidates import Cells
from torchrl_gpu.lists.sheets import Sheet
from torchrl_gpu.system.extras import how_to_install

# A workbook is held in memory as a whole, which takes some 20 times its unpacked size.
MOST_BYTES = 2**28
MOST_ROWS = 2**20
MOST_COLUMNS = 1024
# Cells of a sheet, and cells that merged ones cover.
MOST_CELLS = 2**24
MOST_MERGED = 2**22
_MERGED = re.compile(rb"""<(?:\w+:)?mergeCell\s[^>]*?ref\s*=\s*["']([A-Z]{1,3})(\d{1,7}):([A-Z]{1,3})(\d{1,7})["']""")
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_ONLY_ZEROS = re.compile(r"0{2,}")
# A unit that a number's format writes behind it.
_LITERAL = re.compile(r'[0#]\s*"([^"]*[^\s"][^"]*)"')
_QUOTED = re.compile(r'"[^"]*"')
_ESCAPED = re.compile(r"(?:\\.)+")
# Excel keeps 15 digits of a number.
_MOST_EXACT = 10**15


class _ExcelFont(Protocol):
    strike: bool | None


class _ExcelCell(Protocol):
    value: object
    number_format: str
    font: _ExcelFont


class _ExcelRow(Protocol):
    hidden: bool


class _ExcelColumn(Protocol):
    hidden: bool
    min: int | None
    max: int | None


class _Range(Protocol):
    min_row: int
    min_col: int
    max_row: int
    max_col: int


class _Ranges(Protocol):
    ranges: Iterable[_Range]


class _Worksheet(Protocol):
    """What is read of a worksheet of openpyxl."""

    title: str
    max_row: int
    max_column: int
    row_dimensions: Mapping[int, _ExcelRow]
    column_dimensions: Mapping[str, _ExcelColumn]
    merged_cells: _Ranges

    # There is no public way to the cells that a file has.
    _cells: Mapping[tuple[int, int], _ExcelCell]


def library(module: str, extra: str = "lists") -> ModuleType:
    """Import a library for a kind of file, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise ModuleNotFoundError(
            f"reading this list needs {package}, which is not installed; to install it: {how_to_install(extra)}",
            name=error.name,
        ) from error


def check_unpacked(raw: bytes, most: int) -> None:
    """Raise ValueError if a zipped file unpacks to more than `most` bytes."""
    with zipfile.ZipFile(BytesIO(raw)) as archive:
        size = sum(info.file_size for info in archive.infolist())
    if size > most:
        raise ValueError(f"{size:,} bytes unpacked, more than {most:,}")


def check_merged(raw: bytes, most: int) -> None:
    """Raise ValueError if merged cells of an .xlsx file cover more than `most` cells.

    Reading makes every one of them, and a sheet has 17 billion.
    """
    covered = 0
    with zipfile.ZipFile(BytesIO(raw)) as archive:
        for name in archive.namelist():
            # A sheet may have any name: the workbook's relations say where it is.
            text = archive.read(name)
            if text[:2] in _UTF_16_MARKS:
                text = text.decode("utf-16", errors="replace").encode()
            for match in _MERGED.finditer(text):
                left, top, right, bottom = match.groups()
                covered += (_column_number(right) - _column_number(left) + 1) * (int(bottom) - int(top) + 1)
    if covered > most:
        raise ValueError(f"{covered:,} merged cells, more than {most:,}")


def _column_number(letters: bytes) -> int:
    """Number of a column by its letters: A is 1, and AA is 27."""
    number = 0
    for letter in letters:
        number = 26 * number + letter - ord("A") + 1
    return number


def excel_sheets(raw: bytes, hidden: bool, as_shown: bool = True) -> list[Sheet]:
    """Read the sheets of an .xlsx file, the active visible one first.

    Args:
        raw: The file.
        hidden: Whether hidden and filtered rows are read.
        as_shown: Whether cells are as a person sees them, with their formats, and merged cells go down.
    """
    check_unpacked(raw, MOST_BYTES)
    check_merged(raw, MOST_MERGED)
    book = library("openpyxl").load_workbook(BytesIO(raw), data_only=True)
    # To look at the font of every cell takes long, and few workbooks strike anything through.
    strikes = any(font.strike for font in book._fonts)
    found = []
    for place, sheet in enumerate(book.worksheets):
        made = _excel_sheet(sheet, hidden, as_shown)
        if strikes and as_shown:
            _doubt_struck_rows(sheet, made)
        made.place = place
        if sheet.sheet_state != "visible":
            made.is_visible = False
            made.doubts.append(f'the sheet "{sheet.title}" is hidden')
        found.append(made)
    active = book.worksheets.index(book.active) if book.active in book.worksheets else 0
    found.sort(key=lambda made: (not made.is_visible, made.place != active))
    return found


def _excel_sheet(sheet: _Worksheet, hidden: bool, as_shown: bool) -> Sheet:
    if sheet.max_row > MOST_ROWS or sheet.max_column > MOST_COLUMNS:
        raise ValueError(f"{sheet.max_row:,} rows of {sheet.max_column:,} columns")
    made = Sheet([], [], sheet.title, hidden_columns=_hidden_columns(sheet))
    left_out = []
    for line, cells in _rows_of(sheet):
        if sheet.row_dimensions[line].hidden and not hidden:
            if cells:
                left_out.append(line)
            continue
        made.lines.append(line)
        made.rows.append([_cell_value(cell, as_shown) for cell in cells])
    if left_out:
        made.doubts.append(
            f"{len(left_out):,} hidden or filtered rows are not read, the first is line {left_out[0]:,}:"
            " --hidden reads them"
        )
    if as_shown:
        _fill_merged(made, [(r.min_row, r.min_col, r.max_row, r.max_col) for r in sheet.merged_cells.ranges])
    return made


def _hidden_columns(sheet: _Worksheet) -> set[int]:
    """Indices of the columns that are not shown."""
    found: set[int] = set()
    for column in sheet.column_dimensions.values():
        if column.hidden and column.min is not None and column.max is not None:
            found.update(range(column.min - 1, min(column.max, MOST_COLUMNS)))
    return found


def _doubt_struck_rows(sheet: _Worksheet, made: Sheet) -> None:
    """Say where all cells of a row are struck through.

    So rows are taken out of a list by hand.
    """
    for line, cells in _rows_of(sheet):
        filled = [cell for cell in cells if cell is not None]
        if filled and all(cell.font.strike for cell in filled):
            made.doubts.append(f"line {line:,} is struck through, and is read: take it out of the list, or say --yes")
            return


def _rows_of(sheet: _Worksheet) -> Iterator[tuple[int, Sequence[_ExcelCell | None]]]:
    """Yield the rows of a sheet that have a value, and one empty row for each gap.

    `iter_rows` makes a cell for every place of the sheet, and a format that goes down to its last row has a million.
    """
    rows: dict[int, list[_ExcelCell | None]] = {}
    for (line, column), cell in sorted(sheet._cells.items()):
        if cell.value is not None:
            row = rows.setdefault(line, [])
            row += [None] * (column - len(row))
            row[column - 1] = cell
    last = 0
    for line, cells in rows.items():
        if line > last + 1:
            yield line - 1, []
        yield line, cells
        last = line


def _cell_value(cell: _ExcelCell | None, as_shown: bool) -> object:
    if cell is None:
        return None
    return _value(cell.value, cell.number_format) if as_shown else cell.value


def _value(value: object, number_format: str) -> object:
    """Return a cell as a person sees it.

    123 in the format 00000 is 00123, and 40 in the format 0" cm" is 40 cm.
    """
    is_whole = isinstance(value, (int, float)) and not isinstance(value, bool) and float(value).is_integer()
    if is_whole and _ONLY_ZEROS.fullmatch(number_format or ""):
        return f"{int(value):0{len(number_format)}d}"  # type: ignore[call-overload]
    is_percent = "%" in _QUOTED.sub("", number_format or "")
    if is_percent and isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{100 * value:g}%"
    # 0\ \k\g is 0" kg".
    number_format = _ESCAPED.sub(lambda match: f'"{match[0].replace(chr(92), "")}"', number_format or "")
    literals = _LITERAL.findall(number_format)
    if literals and isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value} {literals[-1].strip()}"
    return value


def _fill_merged(sheet: Sheet, ranges: Iterable[tuple[int, int, int, int]]) -> None:
    """Give the value of a merged cell to all cells that it covers."""
    row_of = {line: i for i, line in enumerate(sheet.lines)}
    for top, left, bottom, right in ranges:
        first = row_of.get(top)
        value = None if first is None or left > len(sheet.rows[first]) else sheet.rows[first][left - 1]
        if value is None:
            continue
        for line in range(top, bottom + 1):
            at = row_of.get(line)
            # A title that is merged across columns stays one cell: only what is merged downwards goes down.
            if at is None or bottom == top:
                continue
            row = list(sheet.rows[at])
            row += [None] * (min(right, MOST_COLUMNS) - len(row))
            for column in range(left, min(right, len(row)) + 1):
                if row[column - 1] is None:
                    row[column - 1] = value
                    sheet.merged.add((line, column - 1))
            sheet.rows[at] = row


def calamine_sheets(raw: bytes) -> list[Sheet]:
    """Read the visible sheets of an .xls or .ods file, in their order."""
    if raw[:2] == b"PK":
        check_unpacked(raw, MOST_BYTES)
    calamine = library("python_calamine")
    book = calamine.CalamineWorkbook.from_filelike(BytesIO(raw))
    found: list[Sheet] = []
    for about in book.sheets_metadata:
        sheet = book.get_sheet_by_name(about.name)
        if sheet.height > MOST_ROWS or sheet.width > MOST_COLUMNS or sheet.height * sheet.width > MOST_CELLS:
            raise ValueError(f"{sheet.height:,} rows of {sheet.width:,} columns")
        rows = [_without_empty(row) for row in sheet.to_python(skip_empty_area=False)]
        made = Sheet(list(range(1, len(rows) + 1)), rows, about.name, place=len(found))
        if about.visible != calamine.SheetVisibleEnum.Visible:
            made.is_visible = False
            made.doubts.append(f'the sheet "{about.name}" is hidden')
        ranges = getattr(sheet, "merged_cell_ranges", None) or []
        _fill_merged(made, [(top + 1, left + 1, bottom + 1, right + 1) for (top, left), (bottom, right) in ranges])
        found.append(made)
    found.sort(key=lambda sheet: not sheet.is_visible)
    return found


def _without_empty(row: Sequence[object]) -> Cells:
    return [None if cell == "" else cell for cell in row]


def is_inexact(value: object) -> bool:
    """Whether Excel may have changed the last digits of a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) >= _MOST_EXACT
