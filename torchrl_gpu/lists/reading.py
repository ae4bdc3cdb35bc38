"""From a file to a `BoxList`.

Table, columns, country and units are decided for the whole list, then its rows are read one by one.

Nothing is guessed in silence. What the file leaves open is an error that shows both readings and names the option that
decides; what is understood but unlikely is in `BoxList.doubts`.
"""

from __future__ import annotations

import datetime
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from torchrl_gpu.lists import cross_checks, doubts
from torchrl_gpu.lists.box_list import BoxList, ColumnReading, Fault, Label, Source
from torchrl_gpu.lists.candidates import SAMPLE_ROWS, Cells, Sample, has_any, parse_header
from torchrl_gpu.lists.columns import (
    AMOUNT_WORDS,
    BOX_WORDS,
    COLUMNS,
    GROSS_WORDS,
    ONE_WORDS,
    OUTER_WORDS,
    PIECE_WORDS,
    SIDES,
    Column,
)
from torchrl_gpu.lists.cross_checks import ReadRow
from torchrl_gpu.lists.files import read_sheets
from torchrl_gpu.lists.numbers import (
    COMMA,
    POINT,
    Amount,
    NumberStyle,
    amount_of,
    decide_style,
    evidence_of,
    flag_of,
    is_nothing,
    number_of,
    number_text,
    text_of,
)
from torchrl_gpu.lists.quantities import count_numbers, number_ranges, small_whole_numbers, successive_ranges
from torchrl_gpu.lists.sheets import Sheet, Table, find_table, header_of_quantity, unread_units, why_no_table
from torchrl_gpu.lists.side_texts import split_sides
from torchrl_gpu.lists.spreadsheets import is_inexact
from torchrl_gpu.lists.units import LENGTH_BY_WORD, LENGTHS, WEIGHT_BY_WORD, WEIGHTS, unit_in, unit_of_word
from torchrl_gpu.lists.words import contains, fold, split_phrases, tokens
from torchrl_gpu.system import arguments

MOST_BOXES = 2**24
_INCH_IN_TITLE = re.compile(r"\bin\.?\s*$|[(\[/]\s*in\.?\s*[)\]/]|\bin\.?\s*/")
_IMPROPER = re.compile(r"(?P<above>\d{1,9})\s*/\s*(?P<below>\d{1,9})")
# Rows in which a header that the user names is looked for.
_HEADER_ROWS = 100
# Rows that show what the numbers of a list are.
_SAMPLE = 1000
# Letters of a cell in an error.
_MOST_SHOWN = 60
# What a quantity counts.
COUNTS = ("boxes", "pieces")
# Of what a weight is: one box, or all boxes of its row.
WEIGHTS_OF = ("box", "row")
# Columns, words of a line above the header that speaks of them, and units.
_TITLE_WORDS = (
    (
        (*SIDES, "dimensions"),
        "dimensions, dims, sizes, measures, lengths, maße, abmessungen, mesures, medidas, misure, afmetingen, wymiary,"
        " rozměry, размеры, 寸法, 尺寸, angaben, alle, all, cotes, côtes, quote, unit, units, einheit, einheiten, "
        "unité, unités, unidad, unidades, 単位, 单位",
        LENGTH_BY_WORD,
    ),
    (
        ("weight", "max_load"),
        "weights, weight, gewichte, gewicht, poids, peso, pesos, waga, вес, 重量, unit, units, einheit, "
        "einheiten, unités",
        WEIGHT_BY_WORD,
    ),
)
_MORE_COUNT_WORDS = (
    "pc, piece, ea, each, x, st, stk, box, case, cs, pce, pz, ud, u, unit, un, ct, krt, pièces, pieza, piezas, кор, 个,"
    " 個, 箱, 件, kar, car, stck, pkg, pk, cx, kart, krt, kt, scat, op, opak, bal, ctn(s), ケース, 台"
)
# Behind the unit of the weight of one box, and how many words may stand there.
_OF_ONE_BOX = f"{ONE_WORDS}, {GROSS_WORDS}, {BOX_WORDS}, {OUTER_WORDS}"
_MOST_WORDS = 5
# Words behind a number of boxes: 12 pcs.
_COUNT_WORDS = {fold(word) for word in split_phrases(f"{PIECE_WORDS}, {BOX_WORDS}, {_MORE_COUNT_WORDS}")}


@dataclass(frozen=True)
class ListOptions:
    """What a user says about a list that it does not say itself.

    Attributes:
        unit: Unit of lengths without one.
        weight_unit: Unit of weights without one.
        decimal: The decimal sign, "." or ",".
        encoding: Encoding of a text file.
        sheet: Name or number, from 1, of the sheet.
        columns: Headers, or numbers from 1, of columns by what they are.
        hidden: Whether hidden rows are read.
        counts: What the quantity counts where a list also says how many pieces a box holds: "boxes" or "pieces".
        weights: Of what a weight is where a list does not say: a "box", or a "row" of boxes.
    """

    unit: str | None = None
    weight_unit: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    sheet: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    hidden: bool = False
    counts: str | None = None
    weights: str | None = None


def read_list(
    path: Path,
    where: str,
    unit: str = "cells",
    columns: Mapping[str, str] | None = None,
    options: ListOptions | None = None,
) -> BoxList:
    """Read the boxes of a list.

    Args:
        path: A text file, a workbook, Parquet or JSON, or `-` for standard input. Columns are found by the words of the
            field in twelve languages, see `columns.COLUMNS`; a file of three numbers a line needs no header.
        where: Begins the messages of errors.
        unit: Of sides whose unit stands neither in a cell, nor in a column, nor in the header; "cells" for none.
        columns: Headers by what they are, where the words do not find them.
        options: More of what the list does not say; its `unit` and `columns` go before those above.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file has no table with all three sides, or can be read in two ways, or is too large.
        ModuleNotFoundError: The library for the file is not installed.
    """
    options = options or ListOptions()
    if options.unit is None and unit != "cells":
        options = replace(options, unit=unit)
    if not options.columns and columns:
        options = replace(options, columns=columns)
    _check_options(options, where)
    sheets = read_sheets(path, where, encoding=options.encoding, hidden=options.hidden)
    sheet, table = _choose_table(sheets, options, where)
    return _Reader(sheet, table, options, where).read()


def names_of_columns() -> list[str]:
    """Columns that a user may name: those of the table, and the unit of the weights."""
    return [*[column.name for column in COLUMNS], "weight_unit"]


def _check_options(options: ListOptions, where: str) -> None:
    for name in options.columns:
        arguments.choice(where, "columns", name, names_of_columns())
    if options.decimal is not None:
        arguments.choice(where, "decimal", options.decimal, (POINT, COMMA))
    if options.counts is not None:
        arguments.choice(where, "counts", options.counts, COUNTS)
    if options.weights is not None:
        arguments.choice(where, "weights", options.weights, WEIGHTS_OF)


def _choose_table(sheets: Sequence[Sheet], options: ListOptions, where: str) -> tuple[Sheet, Table]:
    """Return the first sheet that has a table, or the one that the user names."""
    chosen = _named_sheets(sheets, options, where)
    tables: list[tuple[Sheet, Table]] = []
    for sheet in chosen:
        try:
            table = find_table(sheet, options.columns)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        if table is not None:
            tables.append((sheet, table))
    if not tables:
        raise ValueError(f"{where}: {_why_nothing_is_found(chosen, options)}")
    sheet, table = tables[0]
    if len(sheets) > 1:
        others = ", ".join(f'"{each.name}"' for each in sheets if each is not sheet)
        sheet.notes.append(f'sheet "{sheet.name}" is read, not {others}')
    if "quantity" not in table.columns.at and options.sheet is None:
        for other in sheets:
            header = "" if other is sheet or not other.is_visible else header_of_quantity(other)
            if header:
                sheet.doubts.append(
                    f'"{sheet.name}" is read without a quantity, and the sheet "{other.name}" has "{header}"'
                )
    more = ", ".join(f'"{each.name}"' for each, _ in tables[1:] if each.is_visible)
    if more and options.sheet is None:
        sheet.doubts.append(f'boxes are in the sheets {more} too; only "{sheet.name}" is read: say --sheet')
    return sheet, table


def _named_sheets(sheets: Sequence[Sheet], options: ListOptions, where: str) -> list[Sheet]:
    """Sheets that the user names, by name or by number.

    All of them without a name.
    """
    if options.sheet is None:
        return list(sheets)
    named = [sheet for i, sheet in enumerate(sheets, 1) if options.sheet in (sheet.name, str(i))]
    if not named:
        names = ", ".join(f'"{sheet.name}"' for sheet in sheets)
        raise ValueError(f'{where}: there is no sheet "{options.sheet}"; there are {names}')
    return named


def _why_nothing_is_found(sheets: Sequence[Sheet], options: ListOptions) -> str:
    """Say which header that the user names is not there, or which side has no header."""
    filled: list[list[str]] = []
    for sheet in sheets:
        for row in sheet.rows[:_HEADER_ROWS]:
            texts = [text_of(cell) for cell in row]
            if any(texts):
                filled.append(texts)
    for name, header in options.columns.items():
        if not header.isdecimal() and not any(header in row for row in filled):
            there = ", ".join(filter(None, filled[0])) if filled else "none"
            return f'columns.{name}: there is no header "{header}"; there are {there}'
    return why_no_table(sheets[0]) if sheets else "there is no sheet"


@dataclass
class _Row:
    """A row that gives boxes: how many, their numbers, their label, their texts."""

    number: int
    sizes: list[float]
    values: dict[str, float | str]
    up: tuple[bool, bool, bool]
    label: Label
    unit: str


class _Reader:
    """Reader of the rows of a table.

    Columns, country and units are decided before the first row.
    """

    def __init__(self, sheet: Sheet, table: Table, options: ListOptions, where: str) -> None:
        self.sheet = sheet
        self.table = table
        self.options = options
        self.where = where
        self.at = table.columns.at
        self.columns = [
            column for column in COLUMNS if column.name in self.at and column.kind not in ("length", "sides")
        ]
        self.doubts = [*sheet.doubts, *table.columns.doubts]
        self.notes = list(sheet.notes)
        self.notes_of: dict[str, str] = {}
        # Kinds of doubts that are said already.
        self._doubted: set[str] = set()
        self.style = NumberStyle()
        self.units_of_columns = self._units_of_columns()
        self.style = self._decide_style()
        self._decide_what_is_counted()
        self._decide_of_what_weights_are()
        self.read_rows: list[ReadRow] = []
        # Cells of a row that has as many as the header, without the empty ones at its end.
        whole = [row for row in self.table.rows if len(row) == len(self.table.header)]
        self._least_filled = min(map(_num_filled, whole), default=len(self.table.header))

    # -- what holds for the whole list -----------------------------------------------------------------------------

    def _numeric_columns(self) -> list[int]:
        """Columns whose numbers show the country.

        They are those that are read, and prices and volumes. Others may hold months, versions or times, whose points
        and commas say nothing.
        """
        found = [self.at[name] for name in (*SIDES, "weight", "quantity", "max_load", "per_box") if name in self.at]
        for at, header in enumerate(self.table.header):
            words = parse_header(header).words
            if at not in self.at.values() and any(
                contains(words, tokens(word)) for word in split_phrases(AMOUNT_WORDS)
            ):
                found.append(at)
        return found

    def _column(self, at: int) -> list[object]:
        """Cells of a column.

        Rows that end before it have none.
        """
        return [row[at] for row in self.table.rows if at < len(row)]

    def _distinct_texts(self, at: int) -> list[str]:
        """Texts of a column, each once: the same few numbers fill most of a list."""
        return list(dict.fromkeys(cell for cell in self._column(at) if isinstance(cell, str)))

    def _texts(self, columns: Sequence[int]) -> Iterator[str]:
        """Texts of the numbers of some columns, and of the sides that share a cell."""
        for at in columns:
            for cell in self._distinct_texts(at):
                yield number_text(cell)
        if "dimensions" in self.at:
            for cell in self._distinct_texts(self.at["dimensions"]):
                for _, part in split_sides(cell):
                    yield number_text(part)

    def _decide_style(self) -> NumberStyle:
        if self.options.decimal is not None:
            return NumberStyle(self.options.decimal, known=True)
        whole = [self.at["quantity"]] if "quantity" in self.at else []
        style = decide_style(self._texts(self._numeric_columns()), self._texts(whole))
        if style.mixed:
            self.doubts.append("some numbers have a decimal point, others a decimal comma")
        if style.known or not style.ambiguous:
            return style
        # No side of a box is 1.2 mm, nor 1,200 m, and no box of 24 litres weighs 5,000 kg: where only one reading gives
        # boxes, it is the one.
        likely = [each for each in (POINT, COMMA) if self._gives_likely_boxes(NumberStyle(each, known=True))]
        if len(likely) == 1:
            style = NumberStyle(likely[0], known=True, ambiguous=style.ambiguous)
            self.notes.append(
                f"{style.ambiguous} is {number_of(style.ambiguous, style):g}: the other reading gives no boxes"
            )
            return style
        with_point = number_of(style.ambiguous, NumberStyle(POINT))
        with_comma = number_of(style.ambiguous, NumberStyle(COMMA))
        raise ValueError(
            f"{self.where}: {style.ambiguous} is {with_point:g} with a decimal point and {with_comma:g} with a decimal"
            " comma, and no other number of the list says which: say --decimal . or --decimal ,"
        )

    def _gives_likely_boxes(self, style: NumberStyle) -> bool:
        """Whether rows with numbers that read in two ways give likely boxes.

        True where there are no such rows, or their units are not known.
        """
        self.style = style
        columns = [self.at[name] for name in (*SIDES, "dimensions", "weight") if name in self.at]
        for cells in self.table.rows[:_SAMPLE]:
            texts = [text_of(cells[at]) for at in columns if at < len(cells)]
            if any(map(_reads_two_ways, texts)) and not self._is_likely_box(cells):
                return False
        return True

    def _is_likely_box(self, cells: Cells) -> bool:
        try:
            sizes, unit = self._sides(cells)
            kilograms = self._kilograms(cells)
        except _RowError:
            return True
        unit = unit or self.options.unit or ""
        if unit not in LENGTHS:
            return True
        sides_mm = [side * LENGTHS[unit] for side in sizes]
        if not all(doubts.LEAST_SIDE_MM <= side <= doubts.MOST_SIDE_MM for side in sides_mm):
            return False
        density = kilograms / (math.prod(sides_mm) / 1e6)
        # A weight that is not known is not unlikely.
        return math.isnan(density) or doubts.LEAST_DENSITY <= density <= doubts.MOST_DENSITY

    def _kilograms(self, cells: Cells) -> float:
        """Weight of a row that says its unit and is of one box, NaN otherwise."""
        amount = amount_of(self._cell(cells, "weight"), self.style)
        if amount is None or "weight" in self.table.columns.is_total:
            return math.nan
        words = [amount.word, self.units_of_columns.get("weight", ""), self._text(cells, "weight_unit")]
        units = [unit_of_word(word, WEIGHT_BY_WORD) for word in words if word]
        return amount.value * WEIGHTS[units[0]] if units and units[0] else math.nan

    def _unit_of_column(self, name: str, at: int) -> str:
        """Unit that a column's header, or the row of units below it, says.

        "" for none.
        """
        by_word = WEIGHT_BY_WORD if name in ("weight", "max_load") else LENGTH_BY_WORD
        below = unit_of_word(self.table.units.get(at, ""), by_word)
        if below:
            return below
        header = parse_header(self.table.header[at])
        return header.weight_unit if by_word is WEIGHT_BY_WORD else header.length_unit

    def _units_of_columns(self) -> dict[str, str]:
        """Unit of each column of lengths or weights.

        "" where neither file nor user says one.
        """
        units = {}
        for name in (*SIDES, "dimensions", "weight", "max_load"):
            if name in self.at:
                units[name] = self._unit_of_column(name, self.at[name])
        # "Length x Width (cm)": sides without a unit beside one that has it.
        named = {units[side] for side in SIDES if units.get(side)}
        if len(named) == 1:
            for side in SIDES:
                if side in units and not units[side]:
                    units[side] = next(iter(named))
        self._take_units_of_title(units)
        if self.options.weight_unit:
            for name in ("weight", "max_load"):
                if name in units and not units[name]:
                    units[name] = self.options.weight_unit
        for name, unread in unread_units(self.table.header, self.at).items():
            is_weight = name in ("weight", "max_load")
            # "Length (required)", beside a column of units.
            if units[name] or ("weight_unit" if is_weight else "unit") in self.at:
                continue
            if (self.options.weight_unit if is_weight else self.options.unit) is None:
                header = self.table.header[self.at[name]]
                option = "--weight-unit" if is_weight else "--unit"
                raise ValueError(f'{self.where}: "{unread}" in "{header}" is no unit that is known: say {option}')
        return units

    def _take_units_of_title(self, units: dict[str, str]) -> None:
        """Take units from a line above the header: "All dimensions in mm, weights in lb"."""
        for line in self.table.title:
            for part in line.replace(";", ",").split(","):
                words = _title_words(part)
                for names, about, by_word in _TITLE_WORDS:
                    unit = unit_in(words, by_word)
                    if not unit or not has_any(words, about):
                        continue
                    for name in names:
                        if name in units and not units[name]:
                            units[name] = unit
                    self.notes.append(f'"{part.strip()}" above the header says the unit')

    def _decide_what_is_counted(self) -> None:
        """A quantity of pieces is no number of boxes.

        Ask where a list says how many pieces a box holds.
        """
        self.pieces = False
        if "per_box" not in self.at or "quantity" not in self.at:
            return
        header = parse_header(self.table.header[self.at["quantity"]])
        if has_any(header.words, BOX_WORDS) or self.table.columns.counts_boxes:
            return
        cells = [row[self.at["per_box"]] for row in self.table.rows if self.at["per_box"] < len(row)]
        holds = [amount_of(cell, self.style) for cell in cells]
        if all(each is None or each.value in (0, 1) for each in holds):
            return
        if self.options.counts == "boxes":
            return
        if self.options.counts == "pieces":
            self.pieces = True
            self.notes_of["quantity"] = "pieces, divided by what a box holds"
            return
        counted = self.table.header[self.at["quantity"]]
        per_box = self.table.header[self.at["per_box"]]
        raise ValueError(
            f'{self.where}: "{counted}" may count boxes, or pieces of which a box holds "{per_box}":'
            " say --counts boxes or --counts pieces"
        )

    def _decide_of_what_weights_are(self) -> None:
        """Decide whether weights are those of one box or those of a row.

        They are those of one box, unless header, totals or user say otherwise.
        """
        is_total = self.table.columns.is_total
        self.knows_weights = bool(self.options.weights)
        if "weight" not in self.at:
            return
        if cross_checks.says_of_what(self._header_of("weight")) or cross_checks.has_total_beside(self.table):
            self.knows_weights = True
        if self.options.weights == "row":
            is_total.add("weight")
        elif self.options.weights == "box":
            is_total.discard("weight")
        elif not self.knows_weights:
            by_totals = cross_checks.weights_are_totals(self.table, self.style)
            self.knows_weights = by_totals is not None
            if by_totals:
                is_total.add("weight")
                self.notes.append(f'"{self._header_of("weight")}" is the weight of a row: its total is their sum')

    def _header_of(self, name: str) -> str:
        return self.table.header[self.at[name]]

    # -- rows --------------------------------------------------------------------------------------------------------

    def read(self) -> BoxList:
        faults: list[Fault] = []
        orders: dict[str, list[_Row]] = {}
        total = 0
        order = ""
        carried = 0
        rotations = self.table.columns.rotations
        for line, cells in zip(self.table.lines, self.table.rows, strict=True):
            own_order = self._text(cells, "order")
            if not own_order and order and "order" in self.at:
                # A merged cell of orders, or one that is written once for the rows below it.
                carried += 1
            order = own_order or order
            name = order or "all"
            if "order" in self.at and not order:
                faults.append(Fault(line, name, f'there is no order in "{self.table.header[self.at["order"]]}"'))
                continue
            permitted = [flag_of(cells[at]) if at < len(cells) else False for at in rotations]
            try:
                row = self._row(line, cells, permitted)
            except _RowError as fault:
                faults.append(Fault(line, name, str(fault)))
                continue
            # A quantity of zero is a row without a box, not a fault.
            if row.number == 0:
                continue
            total += row.number
            self._keep_for_checks(row, cells)
            if total > MOST_BOXES:
                raise ValueError(f"{self.where}: more than {MOST_BOXES:,} boxes by line {line}")
            orders.setdefault(name, []).append(row)
        if carried:
            self.notes.append(f"{carried:,} rows without an order belong to the order above them")
        if self.table.footers:
            lines = ", ".join(f"{line:,}" for line in self.table.footers[:5])
            self.notes.append(
                f"totals and remarks are not read: line {lines}{', …' if len(self.table.footers) > 5 else ''}"
            )
        return self._box_list(orders, faults)

    def _keep_for_checks(self, row: _Row, cells: Cells) -> None:
        if len(self.read_rows) < _SAMPLE:
            unit = row.unit or self.options.unit or ""
            side_dm = LENGTHS[unit] / 100 if unit in LENGTHS else math.nan
            self.read_rows.append(ReadRow(row.label["line"], cells, row.number, math.prod(row.sizes) * side_dm**3))

    def _other_columns_doubt(self, own_unit: str) -> list[str]:
        """Sentences about what the other columns of the list contradict."""
        table = self.table
        found = cross_checks.doubts_of_counting(table)
        found += cross_checks.doubts_of_merged_cells(table, self.sheet.merged)
        found += cross_checks.doubts_of_overlapping_numbers(table)
        found += cross_checks.doubts_of_contents(table)
        found += cross_checks.doubts_of_repeated_boxes(table)
        found += cross_checks.doubts_of_what_is_inside(table, self.style)
        found += cross_checks.doubts_of_packing_weights(table, self.style)
        if not self.options.weight_unit and not self.units_of_columns.get("weight"):
            found += cross_checks.doubts_of_weight_units(table)
        found += self._hidden_columns()
        found += cross_checks.doubts_of_cancelled_rows(table)
        volumes = cross_checks.check_volumes(table, self.read_rows, self.style)
        if volumes.doubt:
            found.append(volumes.doubt)
        if "weight" not in self.at:
            return [*found, *self._unread_weight()]
        weight = self._header_of("weight")
        if volumes.is_of_rows and not self.knows_weights:
            found.append(
                f'"{volumes.header}" is the volume of all boxes of a row, and "{weight}" may be their weight: say'
                " --weights row or --weights box"
            )
        is_imperial = own_unit in ("in", "ft", "yd")
        if is_imperial and "weight" in self.notes_of and not self.options.weight_unit and not self._says_weight_unit():
            found.append(f'"{weight}" is read as kg, and the lengths are in {own_unit}: say --weight-unit')
        return found

    def _hidden_columns(self) -> list[str]:
        """Name the first column that is read and hidden."""
        for name, at in self.at.items():
            if at in self.sheet.hidden_columns and not self.options.hidden and name != "article":
                return [
                    f'the {name} is read from "{self.table.header[at]}", a hidden column: say --hidden if it is meant'
                ]
        return []

    def _says_weight_unit(self) -> bool:
        return bool(self.units_of_columns.get("weight")) or "weight_unit" in self.at

    def _unread_weight(self) -> list[str]:
        """Name a column of kilograms that is not read where the list has no weight."""
        column = next(each for each in COLUMNS if each.name == "weight")
        for at, text in enumerate(self.table.header):
            header = parse_header(text)
            is_letter = header.words == ["w"] and any(map(_is_number, self._column(at)))
            names_unit = any(len(word) > 1 and word in WEIGHT_BY_WORD for word in tokens(text))
            has_unit = names_unit and not has_any(header.words, column.never)
            is_weight = has_unit or is_letter
            if is_weight and at not in self.table.columns.taken() and any(self._column(at)):
                return [f'no column is read as the weight; "{text}" may be it: say --column weight="{text}"']
        return []

    def _text(self, cells: Cells, name: str) -> str:
        at = self.at.get(name)
        return text_of(cells[at]) if at is not None and at < len(cells) else ""

    def _cell(self, cells: Cells, name: str) -> object:
        at = self.at.get(name)
        return cells[at] if at is not None and at < len(cells) else None

    def _check_length(self, cells: Cells) -> None:
        """Refuse a row of text whose cells do not stand under their headers.

        A decimal comma between commas makes one cell more; an empty cell between blanks makes one cell less.
        """
        if not self.sheet.delimiter or not self.table.header_line:
            return
        # A decimal comma between commas moves the last, empty cells beyond the header.
        filled = _num_filled(cells)
        if self.sheet.delimiter == "," and len(cells) > len(self.table.header) and filled > self._least_filled:
            raise _RowError(f"the row has {len(cells)} cells, and the header {len(self.table.header)}")
        wanted = len(self.table.header)
        of_blanks = not self.sheet.delimiter.strip(" ")
        if filled > wanted or (of_blanks and filled < wanted):
            raise _RowError(f"the row has {filled} cells, and the header {wanted}")

    def _row(self, line: int, cells: Cells, permitted: Sequence[bool | None]) -> _Row:
        self._check_length(cells)
        sizes, unit = self._sides(cells)
        number = self._number(cells)
        values: dict[str, float | str] = {}
        for column in self.columns:
            is_range = column.name == "quantity" and self.table.columns.numbers_boxes
            values[column.name] = float(number) if is_range else self._value(column, cells, number)
        up = _sides_up(permitted, bool(values.get("upright", 0.0)))
        label: Label = {"line": line}
        if article := self._article(cells, line):
            label["article"] = article
        weight = values.get("weight", math.nan)
        if isinstance(weight, float) and not math.isnan(weight):
            label["weight/kg"] = weight
        return _Row(number, sizes, values, up, label, unit)

    def _article(self, cells: Cells, line: int) -> str:
        cell = self._cell(cells, "article")
        if isinstance(cell, (datetime.date, datetime.time)):
            self._doubt_once(
                "date", f"line {line}: the article {cell} is a date, which Excel may have made of a number"
            )
        elif is_inexact(cell):
            self._doubt_once("digits", f"line {line}: Excel keeps 15 digits of a number, and article {cell:g} has more")
        return text_of(cell)

    def _doubt_once(self, kind: str, sentence: str) -> None:
        if kind not in self._doubted:
            self._doubted.add(kind)
            self.doubts.append(sentence)

    # -- sides -------------------------------------------------------------------------------------------------------

    def _sides(self, cells: Cells) -> tuple[list[float], str]:
        """Sides of a row, in its unit.

        A row whose sides have several units is in millimetres.
        """
        own = self._row_unit(cells)
        read = [self._side(name, cell, own) for name, cell in self._cells_of_sides(cells)]
        units = {unit for _, unit in read}
        if len(units) == 1:
            return [value for value, _ in read], units.pop()
        if "" in units:
            raise _RowError("only some of the sides have a unit")
        return [value * LENGTHS[unit] for value, unit in read], "mm"

    def _row_unit(self, cells: Cells) -> str:
        """Unit that a row's own column says, "" for none."""
        text = self._text(cells, "unit")
        if not text:
            return ""
        unit = unit_of_word(text, LENGTH_BY_WORD)
        if not unit:
            raise _RowError(f'unit: "{text}" is none of {", ".join(LENGTHS)}')
        return unit

    def _cells_of_sides(self, cells: Cells) -> list[tuple[str, object]]:
        if "dimensions" not in self.at:
            return [(side, self._cell(cells, side)) for side in SIDES]
        cell = self._cell(cells, "dimensions")
        parts = split_sides(cell)
        if not parts:
            raise _RowError(f'dimensions: "{_shown(cell)}" is not three numbers such as 400x300x200')
        names = self.table.columns.in_order
        by_name = {name or names[i]: text for i, (name, text) in enumerate(parts)}
        if set(by_name) != set(SIDES):
            raise _RowError(f'dimensions: "{_shown(cell)}" does not say length, width and height')
        return [(side, by_name[side]) for side in SIDES]

    def _side(self, name: str, cell: object, row_unit: str) -> tuple[float, str]:
        amount = amount_of(cell, self.style)
        if amount is None:
            raise _RowError(f"{name} must be a positive number, not {_quoted(cell)}")
        if not 0 < amount.value < math.inf:
            raise _RowError(f"{name} must be a positive number, not {_shown(cell)}")
        column = "dimensions" if "dimensions" in self.at else name
        unit = self.units_of_columns.get(column, "")
        if unit and row_unit and unit != row_unit:
            self._doubt_once("unit", f'"{self.table.header[self.at["unit"]]}" says {row_unit}, the headers say {unit}')
        unit = unit or row_unit
        # 40x30x20/2 is two boxes, and no height of ten.
        if isinstance(cell, str) and "/" in cell and _is_improper(cell):
            raise _RowError(f"{name} must be a positive number, not {_shown(cell)}")
        if amount.word:
            unit = unit_of_word(amount.word.strip("()[] "), LENGTH_BY_WORD)
            if not unit:
                raise _RowError(f'{name}: "{amount.word}" in "{_shown(cell)}" is no unit of length')
        return amount.value, unit

    # -- other columns -----------------------------------------------------------------------------------------------

    def _number(self, cells: Cells) -> int:
        """Number of boxes of a row."""
        if "quantity" not in self.at:
            return 1
        cell = self._cell(cells, "quantity")
        if self.table.columns.numbers_boxes:
            ranges = number_ranges(cell)
            if not ranges:
                raise _RowError(f"quantity must be numbers of boxes such as 3-5, not {_quoted(cell)}")
            self.notes_of["quantity"] = "numbers of boxes: 3-5 are three"
            return count_numbers(ranges)
        amount = amount_of(cell, self.style)
        # 1/2 is the first of two boxes, or half of one.
        if amount is None or "/" in text_of(cell):
            raise _RowError(f"quantity must be a whole number, not {_quoted(cell)}")
        if amount.word and amount.word not in _COUNT_WORDS:
            raise _RowError(f'quantity: "{amount.word}" in "{_shown(cell)}" is no word for boxes')
        value = amount.value
        if self.pieces:
            holds = amount_of(self._cell(cells, "per_box"), self.style)
            value = math.ceil(value / holds.value) if holds is not None and holds.value > 0 else value
        if not 0 <= value < math.inf or value % 1:
            raise _RowError(f"quantity must be a whole number, not {_shown(cell)}")
        return int(value)

    def _value(self, column: Column, cells: Cells, number: int) -> float | str:
        """Value of a column in a row: kilograms, 0 or 1, a number, or text."""
        cell = self._cell(cells, column.name)
        if column.kind in ("text", "unit"):
            return text_of(cell)
        if is_nothing(cell):
            return column.default
        if column.kind == "flag":
            flag = flag_of(cell)
            if flag is None:
                raise _RowError(f"{column.name} must be yes or no, not {_shown(cell)}")
            return float(flag)
        amount = amount_of(cell, self.style)
        if amount is None:
            raise _RowError(f"{column.name} must be a number or nothing, not {_quoted(cell)}")
        if column.kind != "mass":
            return amount.value
        value = amount.value * WEIGHTS[self._weight_unit(column, cells, amount)]
        too_small = value <= 0 if column.positive else value < 0
        if too_small or math.isinf(value):
            wanted = "a positive number" if column.positive else "at least 0"
            raise _RowError(f"{column.name} must be {wanted}, or nothing, not {_shown(cell)}")
        if column.name in self.table.columns.is_total and number:
            self.notes_of[column.name] = "of all boxes of a row: divided by the quantity"
            value /= number
        return value

    def _weight_unit(self, column: Column, cells: Cells, amount: Amount) -> str:
        if amount.word:
            first, *rest = tokens(amount.word)[:_MOST_WORDS] or [amount.word]
            unit = unit_of_word(first, WEIGHT_BY_WORD)
            # 5 kg/ctn and 5 kg brutto are the weight of one box; 5 kg total may not be.
            is_of_one = all(has_any([word], _OF_ONE_BOX) for word in rest)
            if not unit or not is_of_one:
                raise _RowError(f'{column.name}: "{amount.word}" is no unit of weight')
            return unit
        unit = self.units_of_columns.get(column.name, "")
        text = self._text(cells, "weight_unit")
        if text:
            row_unit = unit_of_word(text, WEIGHT_BY_WORD)
            if not row_unit:
                raise _RowError(f'weight_unit: "{text}" is none of {", ".join(WEIGHTS)}')
            if unit and unit != row_unit:
                header = self.table.header[self.at["weight_unit"]]
                self._doubt_once("weight unit", f'"{header}" says {row_unit}, the header of the weights says {unit}')
            unit = unit or row_unit
        if not unit:
            self.notes_of.setdefault(column.name, "kg, which the list does not say")
        return unit or "kg"

    # -- the list ----------------------------------------------------------------------------------------------------

    def _box_list(self, orders: Mapping[str, Sequence[_Row]], faults: list[Fault]) -> BoxList:
        rows = list(itertools.chain.from_iterable(orders.values()))
        unit, own_unit, names_unit = self._unit_of_list(rows)
        sizes = []
        up = []
        labels = []
        for of_order in orders.values():
            sizes.append(self._sizes(of_order, unit, own_unit))
            up.append(_repeat([row.up for row in of_order], of_order).reshape(-1, 3))
            labels.append(_repeat_labels(of_order))
        values = self._values(orders)
        columns = self._headers()
        unread = self._unread_headers()
        found = BoxList(
            orders=list(orders),
            sizes=sizes,
            values=values,
            up=up,
            labels=labels,
            unit=unit,
            own_unit=own_unit,
            names_unit=names_unit,
            columns=columns,
            unread=unread,
            faults=faults,
        )
        found = replace(
            found, own_weight_unit=self._own_weight_unit(), readings=self._readings(), source=self._source()
        )
        lines = [row.label["line"] for row in rows]
        quantities = [row.number for row in rows]
        sentences = [*self.doubts, *self._unread_quantity(), *self._other_columns_doubt(own_unit)]
        sentences += doubts.unlikely_values(found)
        sentences += doubts.unlikely_quantities(lines, quantities)
        return replace(found, doubts=sentences)

    def _headers(self) -> dict[str, str]:
        """Headers of the columns that are read, by what they are."""
        headers = {name: self.table.header[at] for name, at in self.at.items()}
        rotations = self.table.columns.rotations
        if rotations:
            headers["sides_up"] = ", ".join(self.table.header[at] for at in rotations)
        return headers

    def _unread_headers(self) -> list[str]:
        taken = self.table.columns.taken()
        return [header for at, header in enumerate(self.table.header) if at not in taken and header]

    def _source(self) -> Source:
        return Source(
            sheet=self.sheet.name,
            header_line=self.table.header_line,
            encoding=self.sheet.encoding,
            delimiter=self.sheet.delimiter,
            style=self.style,
            table=self.table,
            notes=tuple(self.notes),
        )

    def _unit_of_list(self, rows: Sequence[_Row]) -> tuple[str, str, bool]:
        """Unit of the sizes, unit of the file, and whether the file says it.

        A list of several units is in millimetres.
        """
        units = {row.unit for row in rows}
        named = units - {""}
        if not named:
            own = self.options.unit or "cells"
            return (own, own, False) if own in ("cells", "m", "cm", "mm") else ("mm", own, False)
        if "" in units and self.options.unit is None:
            line = next(row.label["line"] for row in rows if not row.unit)
            raise ValueError(
                f"{self.where}: line {line} does not say its unit, others are in {', '.join(sorted(named))}: say --unit"
            )
        if "" in units:
            named.add(self.options.unit or "")
        own = next(iter(named)) if len(named) == 1 else "mm"
        return own if own in ("m", "cm", "mm") else "mm", own, True

    def _sizes(self, rows: Sequence[_Row], target: str, own: str) -> np.ndarray:
        sizes = []
        for row in rows:
            unit = row.unit or own
            needs_no_factor = unit == target or target == "cells"
            factor = 1.0 if needs_no_factor else LENGTHS[unit] / LENGTHS[target]
            sizes.append([side * factor for side in row.sizes])
        return _repeat(sizes, rows).reshape(-1, 3)

    def _values(self, orders: Mapping[str, Sequence[_Row]]) -> dict[str, list[np.ndarray]]:
        values = {}
        for column in COLUMNS:
            if column.kind in ("length", "sides"):
                continue
            values[column.name] = [_values_of_boxes(column, rows) for rows in orders.values()]
        return values

    def _own_weight_unit(self) -> str:
        unit = self.units_of_columns.get("weight", "")
        if unit:
            return unit
        cells = [self._text(row, "weight_unit") for row in self.table.rows]
        units = {unit_of_word(cell, WEIGHT_BY_WORD) for cell in cells if cell}
        return next(iter(units)) if len(units) == 1 and "" not in units else "kg"

    def _readings(self) -> dict[str, ColumnReading]:
        readings = {}
        for name, at in self.at.items():
            cells = [text_of(row[at]) for row in self.table.rows if at < len(row)]
            example = next(filter(None, cells), "")
            unit = self.units_of_columns.get(name, "")
            readings[name] = ColumnReading(self.table.header[at], unit, example, self.notes_of.get(name, ""))
        return readings

    def _unread_quantity(self) -> list[str]:
        if "quantity" in self.at or not self.table.header_line:
            return []
        headers = [parse_header(text) for text in self.table.header]
        found = small_whole_numbers(headers, self.table.rows, self.table.columns.taken(), self.style)
        # What one case holds, or how many cases there are.
        per_box = self.at.get("per_box")
        if per_box is not None and headers[per_box].words in (["case", "qty"], ["case", "quantity"]):
            found.append(per_box)
        if not found:
            return self._unread_numbers_of_boxes()
        named = ", ".join(f'"{headers[at].text}"' if headers[at].text else f"column {at + 1}" for at in found)
        # A column without a header has a number.
        first = headers[found[0]].text or str(found[0] + 1)
        return [
            f"no column is read as the quantity, so every row is one box; {named} holds small whole numbers:"
            f' say --column quantity="{first}"'
        ]

    def _unread_numbers_of_boxes(self) -> list[str]:
        """Name a column such as 1-2 and 3-5, where every row is read as one box."""
        header = self.table.header
        sample = Sample(self.table.rows[:SAMPLE_ROWS])
        numbered = successive_ranges(sample, self.table.columns.taken(), len(header))
        if not numbered:
            return []
        at = numbered[0]
        example = text_of(sample.column(at)[0])
        return [
            f'no column is read as the quantity, so every row is one box; "{header[at]}" may number the boxes, such as'
            f" {example}: give their number in a column of its own"
        ]


def _title_words(part: str) -> list[str]:
    """Words of a line above the header.

    There "in" is an inch at its end, in brackets or beside a slash alone.
    """
    words = tokens(part)
    if _INCH_IN_TITLE.search(part.casefold()):
        return words
    return [word for word in words if word != "in"]


class _RowError(ValueError):
    """Why a row gives no box."""


def _is_improper(text: str) -> bool:
    """Whether a number is written as a fraction of at least one, such as 20/2."""
    match = _IMPROPER.search(text)
    return match is not None and int(match["above"]) >= int(match["below"])


def _num_filled(cells: Cells) -> int:
    """Number of cells of a row without the empty ones at its end."""
    filled = len(cells)
    while filled and not text_of(cells[filled - 1]):
        filled -= 1
    return filled


def _is_number(cell: object) -> bool:
    return number_of(cell) is not None


def _reads_two_ways(text: str) -> bool:
    for number in [text, *(part for _, part in split_sides(text))]:
        evidence = evidence_of(number_text(number))
        if evidence is not None and evidence.either:
            return True
    return False


def _shown(cell: object) -> str:
    """Return the beginning of a cell, as errors show it."""
    text = text_of(cell)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _quoted(cell: object) -> str:
    text = _shown(cell)
    return f'"{text}"' if text else "an empty cell"


def _sides_up(permitted: Sequence[bool | None], upright: bool) -> tuple[bool, bool, bool]:
    """Return the mask of the sides that may be vertical.

    `permitted` is in the order of `FoundColumns.rotations`; without rotations all sides may be vertical.
    """
    if None in permitted:
        raise _RowError("rotations must be yes or no")
    if any(one != other for one, other in zip(permitted[::2], permitted[1::2], strict=True)):
        raise _RowError("rotations must allow both turns about the vertical, or none")
    x = any(permitted[0:2]) or not permitted
    y = any(permitted[2:4]) or not permitted
    z = any(permitted[4:6]) or not permitted
    up = (x and not upright, y and not upright, z)
    if not any(up):
        raise _RowError("rotations allow no side to be vertical")
    return up


def _values_of_boxes(column: Column, rows: Sequence[_Row]) -> np.ndarray:
    """Values of a column for every box of an order, (boxes,)."""
    cells = [row.values.get(column.name, column.default) for row in rows]
    dtype = object if column.kind in ("text", "unit") else np.float64
    return _repeat(np.array(cells, dtype=dtype), rows)


def _repeat(values: Sequence[object] | np.ndarray, rows: Sequence[_Row]) -> np.ndarray:
    """Values of every box of an order, one entry for each box."""
    return np.repeat(np.asarray(values), [row.number for row in rows], 0)


def _repeat_labels(rows: Sequence[_Row]) -> list[Label]:
    """Label of every box of an order, shared by the boxes of a row."""
    labels: list[Label] = []
    for row in rows:
        labels += [row.label] * row.number
    return labels
