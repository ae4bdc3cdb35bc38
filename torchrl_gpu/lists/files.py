"""A file, or standard input, as sheets of cells.

Text of any encoding, workbooks, Parquet, JSON.

What a file is, its first bytes say, not its name: exports are often workbooks called .csv, or text called .xls.
"""

from __future__ import annotations

import csv
import io
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from torchrl_gpu.lists.candidates import Cells
from torchrl_gpu.lists.json_records import json_sheet
from torchrl_gpu.lists.or_library import thpack_sheet
from torchrl_gpu.lists.sheets import Sheet, find_table
from torchrl_gpu.lists.spreadsheets import MOST_COLUMNS, MOST_ROWS, calamine_sheets, excel_sheets, library


class _CsvReader(Protocol):
    """What `csv.reader` makes."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...


SUFFIXES = (".csv", ".tsv", ".txt", ".xlsx", ".xlsm", ".xls", ".ods", ".parquet", ".jsonl", ".ndjson")
# Largest size of a file, unpacked, bytes.
MOST_BYTES = 2**30
# Most memory for the rows of a Parquet file that are read at a time, bytes.
_MOST_BATCH_BYTES = 2**28
# Most characters in the cells of a file.
_MOST_CHARACTERS = 2**29
STANDARD_INPUT = Path("-")
# Rows that show the encoding and the delimiter.
_FIRST_ROWS = 200
_ROWS_OF_ENCODING = 80
# Text that shows the encoding, bytes.
_SHOWN = 2**16
# Encodings that files are written in which do not say so, the likely ones first.
_ENCODINGS = (
    *("cp1252", "cp932", "gb18030", "cp1250", "cp1251", "big5", "euc_kr", "euc_jp", "koi8_r", "iso8859_2", "iso8859_5"),
    *("cp850", "mac_roman"),
)
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_DELIMITERS = (";", "\t", "|", ",", "^", "~")
# Lines that some systems draw between header and rows: "|-----|-----|".
_RULE_SIGNS = frozenset("-+=|:_ \t")
_RULES = ("---", "===", "___")


def check_size(path: Path) -> None:
    """Raise ValueError if a file is too large, unpacked if it is zipped."""
    size = path.stat().st_size
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = max(size, sum(info.file_size for info in archive.infolist()))
    if size > MOST_BYTES:
        raise ValueError(f"{size:,} bytes, more than {MOST_BYTES:,}")


def read_sheets(
    path: Path, where: str, *, encoding: str | None = None, hidden: bool = False, as_shown: bool = True
) -> list[Sheet]:
    """Read the sheets of a file, the likeliest one first.

    Args:
        path: The file; `-` is standard input.
        where: Begins the messages of errors.
        encoding: Encoding of a text file; None finds it.
        hidden: Whether hidden rows of a workbook are read.
        as_shown: Whether cells of a workbook are as a person sees them, see `excel_sheets`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file holds no table.
        ModuleNotFoundError: The library for the file is not installed.
    """
    if path != STANDARD_INPUT and not path.is_file():
        raise FileNotFoundError(f"{where}: there is no such list of boxes")
    try:
        if path == STANDARD_INPUT:
            raw = sys.stdin.buffer.read(MOST_BYTES + 1)
            if len(raw) > MOST_BYTES:
                raise ValueError(f"more than {MOST_BYTES:,} bytes")
        else:
            check_size(path)
            raw = path.read_bytes()
        sheets = _sheets(raw, encoding, hidden, as_shown)
        for sheet in sheets:
            if len(sheet.rows) > MOST_ROWS or max(map(len, sheet.rows), default=0) > MOST_COLUMNS:
                raise ValueError(f"more than {MOST_ROWS:,} rows or {MOST_COLUMNS:,} columns")
        return sheets
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{where}: {error}", name=error.name) from error
    except Exception as error:
        # A broken or foreign file can make a reader raise anything.
        reason = str(error).strip().split("\n")[0][:160] or type(error).__name__
        raise ValueError(f"{where}: not a table of boxes; reading the file fails with: {reason}") from error


def _sheets(raw: bytes, encoding: str | None, hidden: bool, as_shown: bool) -> list[Sheet]:
    if raw[:4] == b"PAR1":
        return [_parquet_sheet(raw)]
    if raw[:8] == _OLE:
        return calamine_sheets(raw)
    if raw[:4] == b"PK\x03\x04":
        return _zipped_sheets(raw, hidden, as_shown)
    return [_text_sheet(raw, encoding)]


def _zipped_sheets(raw: bytes, hidden: bool, as_shown: bool) -> list[Sheet]:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        names = archive.namelist()
    if "xl/workbook.xml" in names:
        return excel_sheets(raw, hidden, as_shown)
    return calamine_sheets(raw)


def table_rows(path: Path, where: str) -> Iterator[Cells]:
    """Yield all rows of the first sheet of a file, cells as it holds them.

    Errors as `read_sheets`.
    """
    sheets = read_sheets(path, where, hidden=True, as_shown=False)
    first = min(sheets, key=lambda sheet: sheet.place)
    yield from first.rows


# -- text ------------------------------------------------------------------------------------------------------------


def _text_sheet(raw: bytes, encoding: str | None) -> Sheet:
    if b"\0" in raw[:4096] and not _wide_encoding(raw) and encoding is None:
        raise ValueError("it is no text")
    texts: dict[str, str] = {}
    for each in [encoding] if encoding else _encodings(raw):
        try:
            texts[each] = raw.decode(each)
        except UnicodeDecodeError:
            continue
        if each.startswith("utf"):
            break
    if not texts:
        raise ValueError(f"its text is not {encoding or 'in an encoding that is known'}: say --encoding")
    chosen = next(iter(texts))
    if len(texts) > 1:
        # Where bytes do not say what they are, the encoding whose words are headers counts.
        delimiter = _delimiter_of(_first_lines(texts[chosen]))
        chosen = max(texts, key=lambda each: _num_columns_of_text(texts[each], delimiter))
    return _sheet_of_text(texts[chosen], chosen)


def _first_lines(text: str) -> str:
    return "\n".join(text[:_SHOWN].splitlines()[:_ROWS_OF_ENCODING])


def _num_columns_of_text(text: str, delimiter: str) -> int:
    """Number of columns that are found by the words of a text's first lines.

    -1 where it cannot be read.
    """
    try:
        return _num_columns(_cells(_first_lines(text), delimiter))
    except ValueError:
        return -1


def _num_columns(sheet: Sheet) -> int:
    """Number of columns that are found by the words of a sheet's first rows."""
    first = Sheet(sheet.lines[:_FIRST_ROWS], sheet.rows[:_FIRST_ROWS])
    table = find_table(first, {})
    return len(table.columns.at) if table is not None else 0


def _encodings(raw: bytes) -> Sequence[str]:
    """Encodings that bytes may be in, the likely ones first."""
    wide = _wide_encoding(raw)
    if wide:
        return [wide]
    shown = raw[:_SHOWN]
    try:
        # A character may be cut at the end.
        shown.decode("utf-8-sig")
        return ["utf-8-sig", *_ENCODINGS]
    except UnicodeDecodeError as error:
        if error.start > len(shown) - 4:
            return ["utf-8-sig", *_ENCODINGS]
    guessed = library("charset_normalizer").from_bytes(shown, cp_isolation=list(_ENCODINGS)).best()
    first = [guessed.encoding] if guessed is not None else []
    return [*_ENCODINGS[:1], *first, *_ENCODINGS[1:]]


def _wide_encoding(raw: bytes) -> str:
    """Return the encoding of text in units of 2 or 4 bytes, "" for others."""
    if raw[:4] in (b"\xff\xfe\0\0", b"\0\0\xfe\xff"):
        return "utf-32"
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    # Without a mark: every other byte of headers in Latin letters is zero.
    shown = raw[:1024]
    even = shown[0::2].count(0)
    odd = shown[1::2].count(0)
    if odd > len(shown) / 8 > even * 4:
        return "utf-16-le"
    if even > len(shown) / 8 > odd * 4:
        return "utf-16-be"
    return ""


def _sheet_of_text(text: str, encoding: str) -> Sheet:
    start = text.lstrip("\ufeff \t\r\n")[:1]
    if start in ("[", "{"):
        sheet = json_sheet(text.lstrip("\ufeff"))
    else:
        sheet = thpack_sheet(text) or _delimited_sheet(text.lstrip("\ufeff"))
    sheet.encoding = encoding.removesuffix("-sig")
    return sheet


def _delimited_sheet(text: str) -> Sheet:
    first, _, rest = text.partition("\n")
    match = re.fullmatch(r'"?sep=(.|\\t)"?\s*', first[:100].strip("\r"), re.IGNORECASE)
    if match:
        # Excel's own word for the delimiter, in a line of its own.
        delimiter = "\t" if match[1] == "\\t" else match[1]
        sheet = _cells(rest, delimiter)
        sheet.lines = [line + 1 for line in sheet.lines]
        return sheet
    return _cells(text, _delimiter_of(_first_lines(text)))


def _delimiter_of(head: str) -> str:
    """Return the sign between the cells of a text, by its first lines."""
    ranked = []
    for delimiter in (*_DELIMITERS, "  ", " "):
        if delimiter not in head:
            continue
        try:
            found = _cells(head, delimiter)
        except ValueError:
            # Another delimiter may make shorter cells.
            continue
        if max(map(len, found.rows), default=0) > MOST_COLUMNS:
            continue
        # Titles and remarks have one cell.
        widths = [len(row) for row in found.rows if len(row) > 1]
        common = max(widths, key=widths.count, default=0)
        if common < 2:
            continue
        same = sum(width == common for width in widths) / len(widths)
        # Words between blanks are a table only where nothing else is.
        of_blanks = delimiter.isspace() and delimiter != "\t"
        num_columns = _num_columns(found)
        ranked.append((num_columns > 0, not of_blanks, num_columns, same, common, delimiter))
    return max(ranked)[-1] if ranked else ","


def _cells(text: str, delimiter: str) -> Sheet:
    """Split a text into cells.

    Two blanks stand for two or more.
    """
    sheet = Sheet([], [], delimiter=delimiter)
    if not delimiter.strip(" "):
        blanks = r"\s+" if delimiter == " " else r"\s{2,}"
        for line, words in enumerate(text.splitlines(), 1):
            sheet.lines.append(line)
            sheet.rows.append(re.split(blanks, words.strip()) if words.strip() else [])
        return sheet
    characters = 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    line = 1
    for row in _rows_of(reader):
        characters += sum(map(len, row))
        if len(sheet.rows) > MOST_ROWS or characters > _MOST_CHARACTERS:
            raise ValueError(f"more than {MOST_ROWS:,} rows or {_MOST_CHARACTERS:,} characters, by line {line}")
        sheet.lines.append(line)
        is_rule = len(row) <= 1 or not any(map(str.isalnum, row[0] + row[-1]))
        sheet.rows.append([] if is_rule and _is_rule(row, delimiter) else [_without_formula(cell) for cell in row])
        line = reader.line_num + 1
    return sheet


def _rows_of(reader: _CsvReader) -> Iterator[list[str]]:
    """Yield the rows of a reader of text.

    Raises:
        ValueError: A quote that nothing ends, or no text, makes a cell of very many letters.
    """
    try:
        yield from reader
    except csv.Error as error:
        raise ValueError(
            f"a cell of more than {csv.field_size_limit():,} characters by line {reader.line_num + 1}: is a quote not"
            f" closed? ({error})"
        ) from error


def _is_rule(row: Sequence[str], delimiter: str) -> bool:
    """Whether a row is a line that is drawn between others."""
    text = delimiter.join(row)
    return any(rule in text for rule in _RULES) and _RULE_SIGNS.issuperset(text)


def _without_formula(cell: str) -> str:
    """Return the text of ="00123".

    Some systems write it so that Excel keeps the zeros.
    """
    return cell[2:-1] if cell.startswith('="') and cell.endswith('"') and len(cell) > 2 else cell


# -- Parquet ---------------------------------------------------------------------------------------------------------


def _parquet_sheet(raw: bytes) -> Sheet:
    file = library("pyarrow.parquet", "parquet").ParquetFile(io.BytesIO(raw))
    names = list(file.schema_arrow.names)
    about = file.metadata
    if about.num_rows > MOST_ROWS or len(names) > MOST_COLUMNS:
        raise ValueError(f"{about.num_rows:,} rows of {len(names):,} columns")
    # Every row may hold the longest text of its group, which stands in the file once.
    longest = max((about.row_group(i).total_byte_size for i in range(about.num_row_groups)), default=0)
    if longest > _MOST_BATCH_BYTES:
        raise ValueError(f"{longest:,} bytes in a group of rows, more than {_MOST_BATCH_BYTES:,}")
    sheet = Sheet([1], [names])
    characters = 0
    for batch in file.iter_batches(batch_size=max(1, min(4096, _MOST_BATCH_BYTES // max(1, longest)))):
        for row in batch.to_pylist():
            cells = list(row.values())
            characters += sum(len(cell) for cell in cells if isinstance(cell, str))
            if characters > _MOST_CHARACTERS:
                raise ValueError(f"more than {_MOST_CHARACTERS:,} characters, by row {len(sheet.rows)}")
            sheet.lines.append(len(sheet.rows) + 1)
            sheet.rows.append(cells)
    return sheet
