"""What the other columns of a list say about its boxes.

A list tells more than is read: a column of volumes knows what the sides must be, and a row of totals whether a weight
is that of one box or that of a row. What does not go together is a doubt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from torchrl_gpu.lists.candidates import Cells, has_any, parse_header
from torchrl_gpu.lists.columns import (
    BOX_WORDS,
    GROSS_WORDS,
    INNER_WORDS,
    ONE_WORDS,
    OTHER_COUNTS,
    OUTER_WORDS,
    PACKING_WEIGHT_WORDS,
    PIECE_WORDS,
    SIDES,
    TOTAL_WORDS,
    UNIT_WORDS,
    VOLUME_UNITS,
    VOLUME_WORDS,
)
from torchrl_gpu.lists.numbers import NumberStyle, amount_of, flag_of, number_of, text_of
from torchrl_gpu.lists.quantities import count_numbers, number_ranges
from torchrl_gpu.lists.sheets import Table
from torchrl_gpu.lists.words import contains, fold, split_phrases, tokens

# Relative difference of volumes: lists round them, and some give those of the goods.
_MOST_DIFFERENCE = 0.3
# Relative difference of sums.
_MOST_ROUNDING = 0.005
# Rows that show what a column holds.
_SAMPLE = 200
# Words of a header that numbers boxes by itself.
_BOX_NUMBERS = "sscc, lpn, nve, hu, handling unit, license plate"
_BOX_LABELS = f"{_BOX_NUMBERS}, tracking, tracking number, tracking no"
_CANCELLED = {
    *("loschkennzeichen", "loschkz", "removed", "entfallt", "gestrichen", "annulliert"),
    *("cancelled", "canceled", "void", "deleted", "storniert", "storno", "geloscht", "annule", "annulee", "anulado"),
    *("cancelado", "cancelada", "annullato", "geannuleerd", "anulowane", "anulowano", "zruseno", "отменен", "отменено"),
    *("キャンセル", "取消", "已取消"),
}
_UNIT_WORDS = f"{UNIT_WORDS}, um, me, vme, jm, j m"
_WEIGHT_WORDS = "weight, wt, gw, gewicht, gew, poids, peso, waga, masa, hmotnost, вес, масса, 重"
# Boxes of one row whose numbers are compared with those of others.
_MOST_NUMBERED = 10_000
# A weight in a sentence, and letters in which it is looked for.
_WEIGHT_IN_WORDS = re.compile(r"(\d[\d.,' ]*)\s*(?:kgs?|kilos?|lbs?|кг|公斤|千克)\b")
_MOST_TITLE = 200
# Headers of what a row is packed in.
_TYPE_WORDS = (
    "type, kind, verp, packaging, packing, handling unit, verpackungsart, verpackung, emballage, embalaje, imballo, "
    "embalagem, "
    "verpakking, opakowanie, obal, упаковка, 荷姿, 包装"
)
_WEIGHT_UNIT_WORDS = f"{UNIT_WORDS}, uom, unit of measure, me, eh, um"
# Letters of a unit of quantities.
_MOST_LETTERS = 12


@dataclass(frozen=True)
class ReadRow:
    """What was understood of a row.

    Attributes:
        line: Its line.
        cells: Its cells.
        number: Number of boxes.
        litres: Volume of one box, NaN where its unit is not known.
    """

    line: int
    cells: Cells
    number: int
    litres: float


@dataclass(frozen=True)
class VolumeCheck:
    """What the column of volumes says.

    Attributes:
        doubt: A sentence where the sides give another volume, "" otherwise.
        is_of_rows: Whether the volumes are those of all boxes of a row.
        header: Header of the column.
    """

    doubt: str = ""
    is_of_rows: bool = False
    header: str = ""


def check_volumes(table: Table, rows: Sequence[ReadRow], style: NumberStyle) -> VolumeCheck:
    """Compare the volumes of a list with those of its boxes."""
    for at, header in enumerate(table.header):
        litres = _litres_of_unit(header) or _litres_of_next_column(table, at)
        if at in table.columns.taken() or not litres:
            continue
        return _check_volumes_at(at, header, litres, rows[:_SAMPLE], style)
    return VolumeCheck()


def _litres_of_unit(header: str) -> float:
    """Return the litres of a header's unit of volumes, 0 where it names none."""
    words = tokens(header)
    is_volume = any(contains(words, tokens(word)) for word in split_phrases(VOLUME_WORDS))
    for unit, litres in VOLUME_UNITS.items():
        is_named = any(contains(words, tokens(word)) for word in split_phrases(unit))
        # "L" alone is no litre.
        if is_named and (is_volume or (len(words) == 1 and len(words[0]) > 1)):
            return litres
    return 0.0


def _litres_of_next_column(table: Table, at: int) -> float:
    """Return the litres of the unit in the column behind that of the volumes.

    0 where there is none, or where rows have several.
    """
    words = tokens(table.header[at])
    is_volume = any(contains(words, tokens(word)) for word in split_phrases(VOLUME_WORDS))
    if not is_volume or at + 1 >= len(table.header):
        return 0.0
    units = {text_of(row[at + 1]) for row in table.rows[:_SAMPLE] if at + 1 < len(row)}
    return _litres_of_unit(f"volume {units.pop()}") if len(units) == 1 else 0.0


def _check_volumes_at(at: int, header: str, litres: float, rows: Sequence[ReadRow], style: NumberStyle) -> VolumeCheck:
    of_boxes = 0
    of_rows = 0
    matching = 0
    told = 0
    wrong: ReadRow | None = None
    for row in rows:
        amount = amount_of(row.cells[at], style) if at < len(row.cells) else None
        if amount is None or amount.word or amount.value <= 0 or math.isnan(row.litres) or not row.number:
            continue
        volume = amount.value * litres
        told += 1
        # 0.01 m³ may be anything from 5 to 15 litres.
        rounding = litres * _rounding(text_of(row.cells[at]))
        is_of_box = abs(volume - row.litres) <= rounding or _are_close(volume, row.litres, _MOST_DIFFERENCE)
        of_row = row.litres * row.number
        is_of_row = abs(volume - of_row) <= rounding or _are_close(volume, of_row, _MOST_DIFFERENCE)
        if row.number > 1:
            of_boxes += is_of_box
            of_rows += is_of_row
        if is_of_box or is_of_row:
            matching += 1
        elif wrong is None:
            wrong = row
    # One row may be a slip: most rows must differ.
    if wrong is not None and matching < told / 2:
        doubt = (
            f'line {wrong.line}: "{header}" is {text_of(wrong.cells[at])}, and the sides of a box give'
            f" {wrong.litres / litres:.3g}: are the sides of this box, and is their unit right?"
        )
        return VolumeCheck(doubt, header=header)
    is_total = of_rows > of_boxes and not has_any(tokens(header), ONE_WORDS)
    return VolumeCheck(is_of_rows=is_total, header=header)


def _rounding(text: str) -> float:
    """Half of the last decimal of a number."""
    decimals = re.search(r"[.,](\d+)$", text)
    return 0.5 * 10.0 ** -len(decimals[1]) if decimals else 0.5


def _are_close(a: float, b: float, difference: float) -> bool:
    return abs(a - b) <= difference * max(abs(a), abs(b))


def weights_are_totals(table: Table, style: NumberStyle) -> bool | None:
    """Say whether a total of the list is the sum of the weights.

    Then they are those of all boxes of a row. Totals stand in a row at the end, or in words above or below the table.
    None where they do not say.
    """
    at = table.columns.at
    if "weight" not in at or "quantity" not in at:
        return None
    weights = 0.0
    products = 0.0
    for row in table.rows:
        weight = _value(row, at["weight"], style)
        number = _value(row, at["quantity"], style)
        if weight is None or number is None:
            return None
        weights += weight
        products += weight * number
    if _are_close(weights, products, _MOST_ROUNDING):
        return None
    total = _grand_total([_value(row, at["weight"], style) for row in table.totals])
    totals = [total, *_weights_in_words(table, style)]
    if any(_are_close(each, weights, _MOST_ROUNDING) for each in totals):
        return True
    return False if any(_are_close(each, products, _MOST_ROUNDING) for each in totals) else None


def _weights_in_words(table: Table, style: NumberStyle) -> list[float]:
    """Return the weights that stand above or below a table.

    As in "Total gross weight: 47.5 kg", or in the cell behind such words.
    """
    texts = list(table.title)
    for row in table.totals:
        texts += [text_of(cell) for cell in row]
    found = []
    label = ""
    for text in filter(None, texts):
        with_unit = _WEIGHT_IN_WORDS.search(fold(text[:_MOST_TITLE]))
        amount = amount_of(text, style)
        if with_unit is not None:
            amount = amount_of(with_unit[1], style)
        elif amount is None or not has_any(tokens(label), _WEIGHT_WORDS):
            amount = None
        if amount is not None:
            found.append(amount.value)
        label = text[:_MOST_TITLE]
    return found


def _grand_total(values: Sequence[float | None]) -> float:
    """Return the sum of all rows, NaN where there are subtotals alone."""
    known = sorted(value for value in values if value is not None)
    if not known or (len(known) > 1 and known[-1] < sum(known[:-1]) * (1 - _MOST_ROUNDING)):
        return math.nan
    return known[-1]


def has_total_beside(table: Table) -> bool:
    """Whether another column has the total weight of a row.

    The one that is read has that of a box, then.
    """
    at = table.columns.at["weight"]
    for i, text in enumerate(table.header):
        header = parse_header(text)
        is_weight = header.weight_unit in ("kg", "lb", "g") or has_any(header.words, _WEIGHT_WORDS)
        if i != at and is_weight and has_any(header.words, TOTAL_WORDS):
            return True
    return False


def doubts_of_overlapping_numbers(table: Table) -> list[str]:
    """Say where rows have the same numbers of boxes.

    Boxes 1-2 of one article, and 1-2 of another, hold both.
    """
    at = table.columns.at.get("quantity")
    if at is None or not table.columns.numbers_boxes:
        return []
    seen: set[tuple[str, int]] = set()
    for line, row in zip(table.lines, table.rows, strict=True):
        ranges = number_ranges(row[at]) if at < len(row) else []
        if not ranges or count_numbers(ranges) > _MOST_NUMBERED:
            continue
        order = table.columns.at.get("order")
        name = text_of(row[order]) if order is not None and order < len(row) else ""
        boxes: set[tuple[str, int]] = set()
        for first, last in ranges:
            boxes.update((name, number) for number in range(first, last + 1))
        if not seen.isdisjoint(boxes):
            return [f'line {line}: the boxes "{text_of(row[at])}" are those of another row, too']
        seen |= boxes
    return []


def _value(row: Cells, at: int, style: NumberStyle) -> float | None:
    amount = amount_of(row[at], style) if at < len(row) else None
    return None if amount is None else amount.value


def says_of_what(header: str) -> bool:
    """Whether a header says if its numbers are those of one box or those of a row."""
    words = parse_header(header).words
    return any(has_any(words, each) for each in (ONE_WORDS, TOTAL_WORDS, OUTER_WORDS, BOX_WORDS))


def doubts_of_counting(table: Table) -> list[str]:
    """Say where a quantity may count something else than boxes."""
    at = table.columns.at
    if "quantity" not in at:
        return []
    found = _doubts_of_other_counts(table)
    if table.columns.counts_boxes:
        return found
    header = table.header[at["quantity"]]
    for i, name in enumerate(table.header):
        if i in table.columns.taken() or not _names_a_unit(name) or found:
            continue
        units = _units_in(table, i)
        if any(map(_is_box, units)) and any(map(_is_piece, units)):
            found.append(f'"{header}" counts boxes in some rows and pieces in others, by "{name}"')
    words = _words_in(table, at["quantity"])
    if any(map(_is_box, words)) and any(map(_is_piece, words)):
        found.append(f'"{header}" counts boxes in some rows and pieces in others')
    if not found and "per_box" not in at and _sides_are_of_a_packing(table) and _counts_pieces(table):
        found.append(f'"{header}" counts pieces, and the sides are those of a packing: say --column quantity="…"')
    boxes = _column_of_boxes(table)
    if not found and boxes and _counts_pieces(table):
        found.append(
            f'the quantity may be "{boxes}", and "{header}", which is read, what is in the boxes: say --column'
            ' quantity="…"'
        )
    return found


def _doubts_of_other_counts(table: Table) -> list[str]:
    """Say where a column of units or of packings names pallets, layers or dozens."""
    header = table.header[table.columns.at["quantity"]]
    for i, name in enumerate(table.header):
        is_type = has_any(parse_header(name).words, _TYPE_WORDS)
        if i in table.columns.taken() or not (is_type or _names_a_unit(name)):
            continue
        others = [unit for unit in _units_in(table, i) if has_any([unit], OTHER_COUNTS)]
        if others:
            return [f'"{header}" counts "{others[0]}", by "{name}", and is read as boxes']
    return []


def _column_of_boxes(table: Table) -> str:
    """Return the header of whole numbers that is a word for a box alone.

    Such as "Box"; "" for none.
    """
    for i, name in enumerate(table.header):
        words = parse_header(name).words
        if i in table.columns.taken() or len(words) != 1 or not _is_box(words[0]):
            continue
        values = [_value(row, i, NumberStyle()) for row in table.rows[:_SAMPLE]]
        if values and all(value is not None and value >= 1 and value % 1 == 0 for value in values):
            return name
    return ""


def doubts_of_what_is_inside(table: Table, style: NumberStyle) -> list[str]:
    """Say where boxes of several pieces have the sides, or the weight, of one piece."""
    at = table.columns.at
    if "per_box" not in at:
        return []
    holds = [_value(row, at["per_box"], style) for row in table.rows[:_SAMPLE]]
    if not any(value is not None and value > 1 for value in holds):
        return []
    found = []
    sides = [table.header[at[name]] for name in (*SIDES, "dimensions") if name in at]
    if table.columns.counts_boxes and all(_is_of_a_piece(header, INNER_WORDS) for header in sides):
        found.append(f'"{sides[0]}", … may be the sides of what is in a box: say --column length="…"')
    if "weight" in at and "weight" not in table.columns.is_total:
        header = table.header[at["weight"]]
        if _is_of_a_piece(header, f"{INNER_WORDS}, {PIECE_WORDS}, unit, piece, pc, stuck, unitario, unitaire"):
            found.append(f'"{header}" may be the weight of one piece in a box: say --column weight="…"')
    return found


def _is_of_a_piece(header: str, words: str) -> bool:
    named = parse_header(header).words
    return has_any(named, words) and not has_any(named, OUTER_WORDS) and not has_any(named, BOX_WORDS)


def doubts_of_weight_units(table: Table) -> list[str]:
    """Say where a column of weight units has words that are none."""
    if "weight" not in table.columns.at or "weight_unit" in table.columns.at:
        return []
    for i, name in enumerate(table.header):
        words = tokens(name)
        is_called_so = has_any(words, _WEIGHT_WORDS) and has_any(words, _WEIGHT_UNIT_WORDS)
        if i in table.columns.taken() or not is_called_so:
            continue
        cells = [text_of(row[i]) for row in table.rows[:_SAMPLE] if i < len(row)]
        unknown = [cell for cell in cells if cell and number_of(cell) is None]
        if unknown:
            return [f'"{name}" says "{unknown[0]}", which is no unit of weight that is known: say --weight-unit']
    return []


def doubts_of_packing_weights(table: Table, style: NumberStyle) -> list[str]:
    """Say where a box may weigh more than is read, with its packing."""
    at = table.columns.at.get("weight")
    if at is None or has_any(parse_header(table.header[at]).words, GROSS_WORDS):
        return []
    for i, text in enumerate(table.header):
        if i in table.columns.taken() or not has_any(tokens(text), PACKING_WEIGHT_WORDS):
            continue
        values = [_value(row, i, style) for row in table.rows[:_SAMPLE] if i < len(row)]
        if any(value is not None and value > 0 for value in values):
            return [f'"{table.header[at]}" may be without "{text}": is it the weight of the packed box?']
    return []


def doubts_of_contents(table: Table) -> list[str]:
    """Say where every row is one numbered box, and its quantity may be what is in it."""
    at = table.columns.at.get("quantity")
    if at is None:
        return []
    for i, text in enumerate(table.header):
        if i == at or not _numbers_boxes(text):
            continue
        if _counts_boxes_of_all(table, i, at):
            return [
                f'"{text}" numbers the boxes, and "{table.header[at]}" may be how many all rows have: say --column'
                " quantity=…"
            ]
        if table.columns.counts_boxes:
            continue
        numbers = [text_of(row[i]) for row in table.rows if i < len(row)]
        values = [_value(row, at, NumberStyle()) for row in table.rows[:_SAMPLE]]
        if any(numbers) and any(value is not None and value > 1 for value in values):
            return [
                f'"{text}" numbers the boxes, and "{table.header[at]}" may be what is in them: say --column quantity=…'
            ]
    return []


def doubts_of_repeated_boxes(table: Table) -> list[str]:
    """Say where one numbered box stands in several rows.

    Boxes of several articles do.
    """
    if table.columns.numbers_boxes:
        return []
    order = table.columns.at.get("order")
    for i, text in enumerate(table.header):
        words = parse_header(text).words
        is_label = has_any(words, _BOX_LABELS) or (_numbers_boxes(text) and not has_any(words, "code, label"))
        if i in table.columns.taken() or not is_label:
            continue
        seen: set[tuple[str, str]] = set()
        for line, row in zip(table.lines, table.rows, strict=True):
            label = text_of(row[i]) if i < len(row) else ""
            name = text_of(row[order]) if order is not None and order < len(row) else ""
            if label and (name, label) in seen:
                return [f'line {line}: the box "{label}" of "{text}" is that of another row, too, and is read twice']
            seen.add((name, label))
    return []


def _counts_boxes_of_all(table: Table, numbers_at: int, counts_at: int) -> bool:
    """Whether rows are the first, the second, … of as many boxes as each of them says."""
    numbers = [_value(row, numbers_at, NumberStyle()) for row in table.rows[:_SAMPLE]]
    counts = [_value(row, counts_at, NumberStyle()) for row in table.rows[:_SAMPLE]]
    if len(numbers) < 2 or len(set(numbers)) < 2:
        return False
    for number, count in zip(numbers, counts, strict=True):
        if number is None or count is None or count < 2 or not 1 <= number <= count:
            return False
    return True


def _numbers_boxes(header: str) -> bool:
    """Whether a header is the number of a box: "Carton ID", "SSCC"."""
    words = parse_header(header).words
    is_box = has_any(words, BOX_WORDS) or has_any(words, OUTER_WORDS)
    return has_any(words, _BOX_NUMBERS) or (
        is_box and has_any(words[-1:], "id, no, nr, number, code, label, nummer, #")
    )


def doubts_of_cancelled_rows(table: Table) -> list[str]:
    """Say where a row says that it is cancelled."""
    taken = table.columns.taken()
    for at, header in enumerate(table.header):
        if at in taken or not header:
            continue
        is_flag = not _CANCELLED.isdisjoint(tokens(header))
        for line, row in zip(table.lines, table.rows, strict=True):
            if is_flag and at < len(row) and flag_of(row[at]):
                return [f'line {line}: "{header}" is "{text_of(row[at])}", and the row is read as boxes']
            if at < len(row) and isinstance(row[at], str) and _is_cancelled(str(row[at])):
                return [f'line {line}: "{header}" is "{text_of(row[at])}", and the row is read as boxes']
    return []


@lru_cache(2**16)
def _is_cancelled(text: str) -> bool:
    return len(text) <= _MOST_LETTERS and fold(text.strip()) in _CANCELLED


def _names_a_unit(header: str) -> bool:
    return has_any(parse_header(header).words, _UNIT_WORDS)


def _units_in(table: Table, at: int) -> list[str]:
    """Words of a column, if they are short, each once."""
    words: dict[str, None] = {}
    for row in table.rows:
        text = text_of(row[at]) if at < len(row) else ""
        if text and len(text) <= _MOST_LETTERS:
            words.update(dict.fromkeys(tokens(text)))
    return list(words)


def _is_box(word: str) -> bool:
    return has_any([word], BOX_WORDS) or has_any([word], OUTER_WORDS)


def _is_piece(word: str) -> bool:
    return has_any([word], PIECE_WORDS) or word in ("pc", "st", "each", "ea")


def _words_in(table: Table, at: int) -> list[str]:
    """Words behind the numbers of a column, each once."""
    words: dict[str, None] = {}
    for row in table.rows:
        amount = amount_of(row[at], NumberStyle()) if at < len(row) else None
        if amount is not None and amount.word:
            words[amount.word] = None
    return list(words)


def _sides_are_of_a_packing(table: Table) -> bool:
    sides = [table.columns.at[name] for name in (*SIDES, "dimensions") if name in table.columns.at]
    return all(has_any(parse_header(table.header[at]).words, OUTER_WORDS) for at in sides)


def _counts_pieces(table: Table) -> bool:
    at = table.columns.at["quantity"]
    if has_any(parse_header(table.header[at]).words, PIECE_WORDS):
        return True
    if any(map(_is_piece, _words_in(table, at))):
        return True
    others = [i for i, name in enumerate(table.header) if i not in table.columns.taken() and _names_a_unit(name)]
    return any(any(map(_is_piece, _units_in(table, i))) for i in others)


def doubts_of_merged_cells(table: Table, merged: set[tuple[int, int]]) -> list[str]:
    """Say where one quantity, or one total weight, stands for several rows.

    Mixed cartons are written so: several articles in each of the same cartons.
    """
    found = []
    for name in ("quantity", "weight"):
        at = table.columns.at.get(name)
        if at is None or (name == "weight" and name not in table.columns.is_total):
            continue
        lines = [line for line in table.lines if (line, at) in merged]
        if lines:
            header = table.header[at]
            found.append(f'line {lines[0]}: the {name}, "{header}", is one cell over several rows, and read for each')
    return found or _doubts_of_merged_boxes(table, merged)


def _doubts_of_merged_boxes(table: Table, merged: set[tuple[int, int]]) -> list[str]:
    """Say where one box, whose name is a merged cell, stands in several rows."""
    sides = [table.columns.at[name] for name in (*SIDES, "dimensions") if name in table.columns.at]
    names = [i for i, text in enumerate(table.header) if any(map(_is_box, parse_header(text).words)) and i not in sides]
    for line in table.lines:
        if all((line, at) in merged for at in sides) and any((line, at) in merged for at in names):
            return [f"line {line}: the box is one cell over several rows, and is read for each"]
    return []
