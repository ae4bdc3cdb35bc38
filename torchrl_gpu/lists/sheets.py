"""Where the table of boxes stands in a sheet.

Titles stand above it, units below its header, totals at its end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from torchrl_gpu.lists.candidates import Cells, FoundColumns, is_known_word, match_header, parse_header
from torchrl_gpu.lists.columns import COLUMNS, SIDES
from torchrl_gpu.lists.headers import find_columns
from torchrl_gpu.lists.numbers import NumberStyle, amount_of, number_of, text_of
from torchrl_gpu.lists.side_texts import split_sides
from torchrl_gpu.lists.units import LENGTH_BY_WORD, WEIGHT_BY_WORD, unit_of_word
from torchrl_gpu.lists.words import split_phrases, tokens

# Rows in which a header is looked for: reports have a title, an address, a date above it.
_MOST_ABOVE = 60
# Letters of a cell in which a word for a total is looked for.
_MOST_LETTERS = 200
# Rows of a list whose last one may be the sum of the others: of more the sum is no side of a box.
_MOST_SUMMED = 1000
# "Signature" and "Date": a row with more is a box whose sides are missing.
_MOST_CELLS_OF_A_REMARK = 2
# Columns that a list may have several of under one header.
_REPEATABLE = ("unit", "weight_unit", "article")
_TOTAL_WORDS = split_phrases(
    "total, totals, sum, subtotal, grand, summe, gesamt, zwischensumme, totaal, totale, suma, totaux, somme, razem,"
    " celkem, soucet, итого, итог, всего, 合計, 小計, 合计, 总计, 小计, 總計, gesamtsumme, endsumme"
)
# Rows of a workbook that are no boxes, by a cell that is such a word.
_STATISTIC_WORDS = split_phrases(
    "average, avg, mean, max, min, maximum, minimum, mittelwert, durchschnitt, moyenne, media, promedio, gemiddelde,"
    " srednia, prumer, среднее, 平均, example, sample, beispiel, muster, exemple, ejemplo, esempio, exemplo, voorbeeld,"
    " przykład, priklad, пример, 例, 示例"
)
# At the break of a page: sums of the pages before, and their numbers.
_CARRIED_WORDS = {"ubertrag", "uebertrag", "report", "riporto", "carried", "brought", "przeniesienie", "prevod"}
_PAGE_WORDS = {"page", "seite", "blatt", "pagina", "strona", "strana", "стр", "страница", "ページ", "页", "頁"}


@dataclass
class Sheet:
    """Rows of a file, or of one sheet of a workbook, as they stand there.

    Attributes:
        lines: Line of each row in the file, from 1.
        rows: Cells of each row.
        name: Name of the sheet, "" for a file that has none.
        notes: What a reader should know about how the rows were read.
        doubts: What may be wrong about that.
        merged: (line, column) of cells that have no value of their own: a merged cell's goes down to them.
        delimiter: Sign between the cells of a text file, "" for other files.
        encoding: Encoding of a text file, "" for other files.
        is_visible: Whether a workbook shows the sheet.
        place: Of the sheet in its workbook, from 0.
        hidden_columns: Indices of the columns that a workbook does not show.
    """

    lines: list[int]
    rows: list[Cells]
    name: str = ""
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    merged: set[tuple[int, int]] = field(default_factory=set)
    delimiter: str = ""
    encoding: str = ""
    is_visible: bool = True
    place: int = 0
    hidden_columns: set[int] = field(default_factory=set)


@dataclass
class Table:
    """A table of boxes that was found in a sheet.

    Attributes:
        header: Headers; those of two rows are joined.
        header_line: Line of the header, 0 for a table without one.
        columns: Columns by what they are.
        lines: Line of each row.
        rows: Cells of each row.
        units: Unit of each column by its index, from a row of units below the header.
        footers: Lines of totals and remarks, which give no box.
        totals: Cells of the rows of totals.
        title: Texts of the lines above the header.
    """

    header: list[str]
    header_line: int
    columns: FoundColumns
    lines: list[int]
    rows: list[Cells]
    units: dict[int, str] = field(default_factory=dict)
    footers: list[int] = field(default_factory=list)
    totals: list[Cells] = field(default_factory=list)
    title: list[str] = field(default_factory=list)


def is_empty(row: Cells) -> bool:
    return not any(map(text_of, row))


def find_table(sheet: Sheet, named: Mapping[str, str]) -> Table | None:
    """Find the table of boxes of a sheet.

    None where no row is a header with all three sides.

    Args:
        sheet: Rows of the sheet.
        named: Headers, or numbers of columns from 1, by what the user says they are.
    """
    filled = [i for i, row in enumerate(sheet.rows) if not is_empty(row)]
    best: tuple[int, bool, int] | None = None
    best_table: Table | None = None
    for i in filled[:_MOST_ABOVE]:
        table = _table_at(sheet, i, named)
        if table is None:
            continue
        # Of two rows with as many columns the one with units is the header, or else the upper one.
        score = (len(table.columns.at), _has_units(table, sheet.rows[i]), -i)
        if best is None or score > best:
            best, best_table = score, table
    if best_table is not None:
        return best_table
    return _table_without_header(sheet, filled, named)


def _has_units(table: Table, row: Cells) -> bool:
    """Whether a row of headers says a unit. A row of boxes says amounts, and is none."""
    if any(amount_of(cell, NumberStyle()) is not None for cell in row):
        return False
    return bool(table.units) or any(parse_header(table.header[at]).length_unit for at in table.columns.at.values())


def _table_at(sheet: Sheet, at: int, named: Mapping[str, str]) -> Table | None:
    """Return the table whose header is a row, None where that row is no header."""
    cells = [text_of(cell) for cell in sheet.rows[at]]
    # Numbers are no headers, and a header has more than one cell.
    words = [cell for cell in cells if cell and number_of(cell) is None]
    if len(words) < 1 or len(words) < len([cell for cell in cells if cell]) / 2:
        return None
    below = [row for row in sheet.rows[at + 1 : at + 400] if not is_empty(row)]
    best: tuple[list[str], FoundColumns] | None = None
    best_score = (False, 0, False)
    for header in (cells, _joined(sheet, at)):
        given = _given(header, named)
        if given is None:
            continue
        columns = find_columns(header, below, given)
        # "Carton (cm)" above the sides says their unit.
        is_of_sides = header is not cells and _stands_above_sides(sheet.rows[at - 1], header, columns)
        score = (not _repeated(header, columns, below), len(columns.at), is_of_sides)
        if columns.has_sides and score > best_score:
            best, best_score = (header, columns), score
    if best is None:
        return None
    header, columns = best
    for name in _repeated(header, columns, below):
        if name not in named:
            columns.doubts.append(f'"{header[columns.at[name]]}" stands there twice, and the first is the {name}')
    return _cut(sheet, at, header, columns)


def _stands_above_sides(above: Cells, header: Sequence[str], columns: FoundColumns) -> bool:
    """Whether a row has a unit above a side, and nothing above the first column."""
    sides = [columns.at[side] for side in SIDES if side in columns.at]
    is_above = any(at < len(above) and text_of(above[at]) for at in sides)
    starts_there = bool(above) and bool(text_of(above[0]))
    return is_above and not starts_there and any(parse_header(header[at]).length_unit for at in sides)


def _repeated(header: Sequence[str], columns: FoundColumns, rows: Sequence[Cells]) -> list[str]:
    """Columns whose header stands a second time, above other cells."""
    found = []
    for name, at in columns.at.items():
        text = header[at]
        if name not in _REPEATABLE and text and header.count(text) > 1:
            others = [i for i, each in enumerate(header) if each == text and i != at]
            if any(_cells(rows, other) != _cells(rows, at) for other in others):
                found.append(name)
    return found


def _cells(rows: Sequence[Cells], at: int) -> list[str]:
    return [text_of(row[at]) if at < len(row) else "" for row in rows]


def _joined(sheet: Sheet, at: int) -> list[str]:
    """Header of two rows: "Carton" above "Length", "Width" and "Height"."""
    below = [text_of(cell) for cell in sheet.rows[at]]
    if at == 0 or is_empty(sheet.rows[at - 1]):
        return below
    above = [text_of(cell) for cell in sheet.rows[at - 1]]
    above += [""] * (len(below) - len(above))
    joined = []
    group = ""
    for upper, lower in zip(above, below, strict=False):
        # A group's name stands over its first column.
        group = upper or group
        # "Carton (cm)" stands over sides alone, and a quantity beside them has no unit.
        if not upper and parse_header(group).length_unit and not _is_side(lower):
            group = ""
        joined.append(f"{group} {lower}".strip() if lower else upper)
    return joined


def _is_side(text: str) -> bool:
    header = parse_header(text)
    return any(column.kind == "length" and match_header(column, header, 0) is not None for column in COLUMNS)


def _given(header: Sequence[str], named: Mapping[str, str]) -> dict[str, int] | None:
    """Index of each column that the user names, None where one is not in this header."""
    found = {}
    for name, text in named.items():
        if text in header:
            found[name] = header.index(text)
        elif text.isdecimal() and 1 <= int(text) <= len(header):
            found[name] = int(text) - 1
        else:
            return None
    return found


def _cut(sheet: Sheet, at: int, header: list[str], columns: FoundColumns) -> Table:
    table = Table(header, sheet.lines[at], columns, sheet.lines[at + 1 :], sheet.rows[at + 1 :])
    for row in sheet.rows[:at]:
        table.title += [text for text in map(text_of, row) if text]
    table.units = _row_of_units(table)
    above = [_texts(row) for row in sheet.rows[max(0, at - 1) : at] if not is_empty(row)]
    _leave_out_footers(table, [header, _texts(sheet.rows[at]), *above])
    return table


def _texts(row: Cells) -> list[str]:
    return [text_of(cell) for cell in row]


def _row_of_units(table: Table) -> dict[int, str]:
    """Take the row of units from below a header, if there is one."""
    for i, row in enumerate(table.rows[:2]):
        if is_empty(row):
            continue
        units = {}
        for at, cell in enumerate(row):
            word = text_of(cell).strip("()[] ")
            if not word:
                continue
            if not unit_of_word(word, LENGTH_BY_WORD) and not unit_of_word(word, WEIGHT_BY_WORD):
                # Words such as "pcs" may stand there as well, but a number shows that this is a row of boxes.
                if any(map(str.isdigit, word)):
                    return {}
                continue
            units[at] = word
        sides = [table.columns.at.get(side) for side in SIDES]
        if units and any(
            at in units for at in [*sides, table.columns.at.get("dimensions"), table.columns.at.get("weight")]
        ):
            del table.rows[: i + 1]
            del table.lines[: i + 1]
            return units
        return {}
    return {}


def _leave_out_footers(table: Table, headers: Sequence[list[str]]) -> None:
    """Leave out rows that are no boxes.

    Totals, remarks, and the rows of `headers` where a page repeats them.

    A row without sides that may be a box stays, and becomes a fault with its line.
    """
    at = table.columns.at
    sides = [at[name] for name in (*SIDES, "dimensions") if name in at]
    with_numbers = {i for i, row in enumerate(table.rows) if _has_numbers(row, sides)}
    last = max(with_numbers, default=-1)
    kept: list[int] = []
    above = _Sums()
    for i, row in enumerate(table.rows):
        if i in with_numbers:
            is_sum_of_sides = i == last and len(with_numbers) <= _MOST_SUMMED and above.has_sides(table, row)
            above.pending.append(row)
            kept.append(i)
            if is_sum_of_sides or _is_called_total(row):
                table.columns.doubts.append(
                    f"line {table.lines[i]}: this may be a total or an example, and is read as a box"
                )
            continue
        if is_empty(row):
            continue
        texts = [text_of(cell) for cell in row]
        has_side = any(column < len(row) and texts[column] for column in sides)
        filled = [text for text in texts if text]
        is_remark = i > last and len(filled) <= _MOST_CELLS_OF_A_REMARK and not any(map(_is_number, filled))
        if is_remark and _is_article(texts, filled, at):
            is_remark = False
        is_sum = above.are_in(table, row)
        is_nameless_total = i > last and is_sum and all(map(_is_number, filled))
        # The second of two equal rows has the sum of those above it.
        is_sure = is_sum and (i > last or above.rows > 1)
        is_total = is_nameless_total or (_is_total(row) and (is_sure or not _may_be_a_box(table, row)))
        is_of_page = _begins_with(filled, _PAGE_WORDS) and len(filled) <= _MOST_CELLS_OF_A_REMARK
        is_of_page = is_of_page or _begins_with(filled, _CARRIED_WORDS)
        if texts in headers or (not has_side and is_of_page):
            table.footers.append(table.lines[i])
        elif not has_side and (is_remark or is_total):
            table.footers.append(table.lines[i])
            table.totals.append(row)
        else:
            kept.append(i)
    table.lines = [table.lines[i] for i in kept]
    table.rows = [table.rows[i] for i in kept]


@dataclass
class _Sums:
    """Sums of the rows above a row, by which a total is known.

    Attributes:
        rows: How many they are.
        boxes: Of the quantities.
        weights: Of the weights.
        products: Of the weights times the quantities.
        sides: Of length, width and height.
        pending: Rows that are added when a sum is asked for: most lists have no totals, and millions of rows.
    """

    rows: int = 0
    boxes: float = 0.0
    weights: float = 0.0
    products: float = 0.0
    sides: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    pending: list[Cells] = field(default_factory=list)

    def _add_pending(self, table: Table) -> None:
        for row in self.pending:
            number = _amount(table, row, "quantity") or 0.0
            weight = _amount(table, row, "weight") or 0.0
            self.rows += 1
            self.boxes += number
            self.weights += weight
            self.products += number * weight
            self.sides = [a + b for a, b in zip(self.sides, _sides(table, row), strict=True)]
        self.pending.clear()

    def has_sides(self, table: Table, row: Cells) -> bool:
        """Whether each side of a row is the sum of those above it.

        Some sheets add up every column.
        """
        self._add_pending(table)
        pairs = zip(_sides(table, row), self.sides, strict=True)
        return self.rows > 1 and all(a > 0 and math.isclose(a, b) for a, b in pairs)

    def are_in(self, table: Table, row: Cells) -> bool:
        """Whether a row has the sum of the boxes and, if any, one of those of the weights."""
        self._add_pending(table)
        number = _amount(table, row, "quantity")
        weight = _amount(table, row, "weight")
        if not number or number != self.boxes:
            return False
        if weight is None:
            return True
        return any(math.isclose(weight, each, rel_tol=0.005) for each in (self.weights, self.products))


def _amount(table: Table, row: Cells, name: str) -> float | None:
    at = table.columns.at.get(name)
    amount = amount_of(row[at], NumberStyle()) if at is not None and at < len(row) else None
    return None if amount is None else amount.value


def _sides(table: Table, row: Cells) -> list[float]:
    return [_amount(table, row, side) or 0.0 for side in SIDES]


def _begins_with(filled: Sequence[str], words: set[str]) -> bool:
    """Whether the first cell of a row begins with one of some words: "Page 2 of 3"."""
    first = tokens(filled[0][:_MOST_LETTERS]) if filled else []
    return bool(first) and first[0] in words


def _is_article(texts: Sequence[str], filled: Sequence[str], at: Mapping[str, int]) -> bool:
    """Whether a row has the name of an article alone, such as AB-12, and is no remark."""
    place = at.get("article")
    if place is None or place >= len(texts) or filled != [texts[place]]:
        return False
    text = texts[place]
    return any(map(str.isdigit, text)) and any(map(str.isalpha, text)) and not any(map(str.isspace, text))


def _may_be_a_box(table: Table, row: Cells) -> bool:
    """Whether a row with a word for a total has a quantity and a name.

    Such as an article called "Total Cleaner".
    """
    if _amount(table, row, "quantity") is None:
        return False
    for i, cell in enumerate(row):
        if not isinstance(cell, str) or i == table.columns.at["quantity"]:
            continue
        words = [word for word in tokens(cell[:_MOST_LETTERS]) if any(map(str.isalpha, word))]
        if not all(word in _TOTAL_WORDS or is_known_word(word) for word in words):
            return True
    return False


def _is_number(text: str) -> bool:
    return number_of(text) is not None


def _is_total(row: Cells) -> bool:
    """Whether a row has a word for a total."""
    words: set[str] = set()
    for cell in row:
        if isinstance(cell, str):
            words.update(tokens(cell[:_MOST_LETTERS]))
    return not words.isdisjoint(_TOTAL_WORDS)


def _is_called_total(row: Cells) -> bool:
    """Whether a cell of a row is a word for a total and nothing else.

    "Grand total" is, but not "Total Cleaner".
    """
    return any(isinstance(cell, str) and _is_total_word(cell) for cell in row)


# The same few articles fill most of a list.
@lru_cache(2**16)
def _is_total_word(cell: str) -> bool:
    if len(cell) > _MOST_LETTERS or not any(map(str.isalpha, cell)):
        return False
    # "Example: AB-12" is one, too.
    words = tokens(cell.partition(":")[0])
    return bool(words) and all(word in _TOTAL_WORDS or word in _STATISTIC_WORDS for word in words)


def _has_numbers(row: Cells, columns: Sequence[int]) -> bool:
    cells = [row[at] for at in columns if at < len(row)]
    return any(amount_of(cell, NumberStyle()) is not None or split_sides(cell) for cell in cells)


def _table_without_header(sheet: Sheet, filled: Sequence[int], named: Mapping[str, str]) -> Table | None:
    """Return the table of a file that begins with a box.

    It has three numbers a line, or columns that the user numbers.
    """
    if not filled:
        return None
    first = sheet.rows[filled[0]]
    cells = [text_of(cell) for cell in first]
    three_numbers = len(cells) == 3 and all(number_of(cell) is not None for cell in cells)
    numbered = bool(named) and all(text.isdecimal() and 1 <= int(text) <= len(cells) for text in named.values())
    if three_numbers and not named:
        columns = FoundColumns({side: i for i, side in enumerate(SIDES)})
        header = list(SIDES)
    elif numbered:
        columns = FoundColumns({name: int(text) - 1 for name, text in named.items()})
        header = [f"column {i + 1}" for i in range(len(cells))]
    else:
        return None
    if not columns.has_sides:
        return None
    return Table(header, 0, columns, sheet.lines[filled[0] :], sheet.rows[filled[0] :])


def header_of_quantity(sheet: Sheet) -> str:
    """Return the header of a quantity in a sheet that has no sides, "" for none."""
    filled = [i for i, row in enumerate(sheet.rows) if not is_empty(row)][:_MOST_ABOVE]
    for i in filled:
        header = [text_of(cell) for cell in sheet.rows[i]]
        columns = find_columns(header, sheet.rows[i + 1 : i + _MOST_ABOVE], {})
        if "quantity" in columns.at and "article" in columns.at:
            return header[columns.at["quantity"]]
    return ""


def why_no_table(sheet: Sheet) -> str:
    """Say what is missing in the row that is most like a header."""
    filled = [row for row in sheet.rows if not is_empty(row)][:_MOST_ABOVE]
    if not filled:
        return "it is empty"

    def words(row: Cells) -> int:
        return sum(bool(text_of(cell)) and number_of(cell) is None for cell in row)

    header = [text_of(cell) for cell in max(filled, key=lambda row: (len(find_columns(row, [], {}).at), words(row)))]
    found = find_columns(header, [], {})
    missing = [side for side in SIDES if side not in found.at]
    if not missing:
        # The words are there, so the cells are no numbers.
        for name in SIDES:
            wrong = _first_other_cell(filled, header, found.at[name])
            if wrong:
                return f'the {name} must be a number, and "{header[found.at[name]]}" has "{wrong}"'
    shown = ", ".join(f'"{cell}"' for cell in header[:40] if cell)
    side = missing[0] if missing else "length"
    return (
        f"no column for the {side} among {shown or 'no header'}; name it: --column {side}=HEADER, or by its number,"
        f" --column {side}=1"
    )


def _first_other_cell(rows: Sequence[Cells], header: Sequence[str], at: int) -> str:
    """Return the first cell below a header that is no number, "" for none."""
    texts = [text_of(row[at]) if at < len(row) else "" for row in rows]
    below = texts[texts.index(header[at]) + 1 :]
    wrong = [text for text in below if text and amount_of(text, NumberStyle()) is None]
    return wrong[0][:_MOST_LETTERS] if wrong else ""


def unread_units(header: Sequence[str], columns: Mapping[str, int]) -> dict[str, str]:
    """Text in brackets that names no known unit, by the column of lengths or weights."""
    found = {}
    for name in (*SIDES, "dimensions", "weight", "max_load"):
        if name in columns:
            parsed = parse_header(header[columns[name]])
            if parsed.unread and not parsed.length_unit and not parsed.weight_unit:
                found[name] = parsed.unread
    return found
