"""Which header counts boxes.

"Cartons" does, "Carton no." does not, "1-12" under it does again, and pieces are none where a box holds several.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import cache

from torchrl_gpu.lists import columns as known
from torchrl_gpu.lists.candidates import (
    FILLERS,
    NUMBER_WORDS,
    PLAIN_UNITS,
    SAMPLE_ROWS,
    Candidate,
    Cells,
    FoundColumns,
    Header,
    Sample,
    column_numbers,
    has_any,
    is_amount,
    is_row_numbering,
    numbers_rows,
)
from torchrl_gpu.lists.columns import COLUMNS
from torchrl_gpu.lists.numbers import NumberStyle, amount_of, text_of
from torchrl_gpu.lists.words import fold, plain_text, split_phrases, tokens

# PackingSolver's columns of rotations, 1 for those that are permitted: the listed sides along x, y and z.
# Ranks of quantities that count boxes, or number them, before those of any word.
COUNTS_BOXES = -1
NUMBERS_BOXES = -2
_RANGE = re.compile(
    r"(?P<before>[^\W\d_]{0,4}[#-]?)(?P<first>\d{1,6})"
    r"(?:\s*(?:-|–|—|~|to|bis|a|à|al|до|至)\s*(?P<again>[^\W\d_]{0,4}[#-]?)(?P<last>\d{1,6}))?"
    # 1-2/3 and 1-2 of 3 are two of three.
    r"(?:\s*(?:/|of|von|de|di|из)\s*(?P<all>\d{1,6}))?"
)
_COUNTED = re.compile(r"[\s]*[,;&+、][\s]*")
# Largest number of boxes below a header that does not speak of them, and below one that does.
_MOST_SMALL = 1000
_MOST_WANTED = 100_000
# Words for what is wanted or done.
_WANTED = (
    "demand, done, need, needed, required, requested, ordered, to pick, pick, picked, reserved, shipped, bedarf, soll, "
    "ist, bestellt, commandé, demandé, pedido, solicitado, richiesto, ordinato, besteld, gevraagd, zamówiono, "
    "objednáno, заказано, 受注, 注文, 订购, 需求"
)
_MASSES = "weight, wt, gewicht, gew, poids, peso, waga, masa, hmotnost, вес, масса, 重, 重量"
COUNTING_WORDS = (
    *("number", "no", "nr", "#", "qty", "quantity", "anzahl", "count", "total", "nombre", "numero", "n", "nbre", "nb"),
    *("qte", "quantite", "cantidad", "cant", "quantita", "qta", "quantidade", "qtd", "qtde", "aantal", "ilosc"),
    *("order", "liczba", "pocet", "mnozstvi", "количество", "кол", "во", "ordered", "shipped", "picked"),
)
_NUMBERED_WORDS = ("no", "nr", "number", "#", "id", "numero")
# Rows whose numbers follow one another by more than chance.
_LEAST_NUMBERED = 2
_RANGE_WORDS = (*_NUMBERED_WORDS, "n", "num", "nos", "numbers")


def box_range_candidates(headers: Sequence[Header], sample: Sample, found: FoundColumns) -> list[Candidate]:
    """Numbers of boxes that say how many there are: "C/NO." with cells such as 3-5."""
    candidates = []
    for at, header in enumerate(headers):
        if at in found.taken() or not _is_box_range_header(header):
            continue
        ranges = [number_ranges(cell) for cell in sample.column(at)]
        if all(ranges) and any(count_numbers(each) > 1 for each in ranges):
            candidates.append(Candidate(at, True, NUMBERS_BOXES, ()))
    return candidates


def _is_box_range_header(header: Header) -> bool:
    """Whether a header is the number of a box, and nothing else.

    "Carton" and "C/NO." are, but not "Carton type".
    """
    if header.words[:2] == ["marks", "nos"] or header.words == ["箱号"]:
        return True
    words = ["carton" if word == "c" else word for word in _words_of(header)]
    boxes = [word for word in words if has_any([word], known.BOX_WORDS) or has_any([word], known.OUTER_WORDS)]
    others = [word for word in words if word not in boxes and word not in _RANGE_WORDS]
    return bool(boxes) and not others


def number_ranges(cell: object) -> list[tuple[int, int]]:
    """Read the first and the last number of each part of "1-3, 5".

    They are the same for 5. An empty list for anything else.
    """
    found = []
    for part in _COUNTED.split(plain_text(text_of(cell))):
        match = _RANGE.fullmatch(part)
        if match is None or not _is_one_series(match):
            return []
        first = int(match["first"])
        last = int(match["last"] or first)
        if last < first:
            return []
        found.append((first, last))
    return found


def _is_one_series(match: re.Match[str]) -> bool:
    """Whether both ends of a range have the same letters.

    AB1-AB2 and #1-2 are ranges, but C1-02 is the name of one box.
    """
    before = match["before"]
    again = match["again"]
    return again is None or again == before or (not again and before in ("", "#"))


def count_numbers(ranges: Sequence[tuple[int, int]]) -> int:
    """Number of boxes of some ranges: 1-3 and 5 are four."""
    return sum(last - first + 1 for first, last in ranges)


def successive_ranges(sample: Sample, taken: set[int], columns: int) -> list[int]:
    """Columns that are not read and go on from row to row, such as 1-2 and 3-5."""
    found = []
    for at in range(columns):
        if at in taken:
            continue
        ranges = [number_ranges(cell) for cell in sample.column(at)]
        is_one_each = all(len(each) == 1 for each in ranges)
        if not is_one_each or len(ranges) < _LEAST_NUMBERED:
            continue
        ends = [each[0][1] for each in ranges]
        begins = [each[0][0] for each in ranges]
        follows = all(begin == end + 1 for begin, end in zip(begins[1:], ends[:-1], strict=True))
        if follows and any(count_numbers(each) > 1 for each in ranges):
            found.append(at)
    return found


def per_box_candidates(headers: Sequence[Header], sample: Sample, taken: set[int]) -> list[Candidate]:
    """Numbers of pieces that a box holds, by a word between both.

    Such as "Stk/Karton" and "pz x cartone".
    """
    never = next(column.never for column in COLUMNS if column.name == "per_box")
    found = []
    for at, header in enumerate(headers):
        if at in taken or has_any(header.words, never) or not _divides_by_box(header.words):
            continue
        if sample.share(at, is_amount) >= 0.5:
            found.append(Candidate(at, True, 0, ()))
    return found


def _divides_by_box(words: list[str]) -> bool:
    contents = f"{known.PIECE_WORDS}, {known.CONTENT_WORDS}"
    boxes = f"{known.BOX_WORDS}, {known.OUTER_WORDS}, {known.SHORT_BOX_WORDS}"
    per = split_phrases(known.PER_WORDS)
    for i, word in enumerate(words):
        if word in per and has_any(words[:i], contents) and has_any(words[i + 1 :], boxes):
            return True
    return False


def box_count_candidates(headers: Sequence[Header], sample: Sample, taken: set[int]) -> list[Candidate]:
    """Quantities that count boxes: "Cartons", "No. of CTNS", "Qty (cases)"."""
    found = []
    never = next(column.never for column in COLUMNS if column.name == "quantity")
    for at, header in enumerate(headers):
        words = _words_of(header)
        if at in taken or not has_any(words, known.BOX_WORDS) or has_any(words, never):
            continue
        is_numbered = not NUMBER_WORDS.isdisjoint(words) and len(sample.column(at)) > 1 and is_row_numbering(sample, at)
        if not is_numbered and _is_box_count_header(words) and sample.share(at, is_amount) >= 0.5:
            found.append(Candidate(at, True, COUNTS_BOXES, ()))
    return found


def _words_of(header: Header) -> list[str]:
    """Words of a header, in which "C/T" is cartons, and no column of tonnes."""
    words = tokens(header.text)
    return ["cartons", *words[2:]] if words[:2] == ["c", "t"] else header.words


def _is_box_count_header(words: list[str]) -> bool:
    """Whether a header counts boxes.

    "Cartons" and "No. of cartons" do, but neither "Carton" nor "Carton no.".
    """
    boxes = [i for i, word in enumerate(words) if has_any([word], known.BOX_WORDS)]
    if not boxes:
        # A phrase of several words, such as "Karton-Anzahl".
        return True
    first_box = boxes[0]
    before = words[:first_box]
    behind = [word for word in words[first_box:] if not has_any([word], known.BOX_WORDS)]
    others = [word for word in [*before, *behind] if word not in COUNTING_WORDS and word not in FILLERS]
    others = [word for word in others if not has_any([word], known.OUTER_WORDS)]
    is_plural = not _plural_boxes().isdisjoint(words)
    is_counted = any(word in COUNTING_WORDS for word in before)
    is_numbered = any(word in _NUMBERED_WORDS for word in behind)
    return (is_plural or is_counted) and not others and not is_numbered


@cache
def _plural_boxes() -> set[str]:
    singular = {"carton", "ctn", "collo", "kollo"}
    return {fold(word) for word in split_phrases(known.BOX_WORDS)} - singular


def names_boxes(header: Header) -> bool:
    return has_any(header.words, known.BOX_WORDS) or has_any(header.words, known.OUTER_WORDS)


def find_full_boxes(
    candidates: Sequence[Candidate], others: Sequence[int], sample: Sample, found: FoundColumns
) -> Candidate | None:
    """Return the quantity that, times what a box holds, is another quantity.

    It counts boxes, whatever its words are. None where the numbers do not show it.
    """
    if "per_box" not in found.at:
        return None
    holds = column_numbers(sample, found.at["per_box"])
    if not holds or set(holds) <= {1.0}:
        return None
    known_at = {each.at for each in candidates}
    named = [Candidate(at, True, COUNTS_BOXES, ()) for at in others if at not in known_at]
    for boxes in [*candidates, *named]:
        counts = column_numbers(sample, boxes.at)
        pieces = [count * each for count, each in zip(counts, holds, strict=False)]
        for other in candidates:
            if other is not boxes and len(counts) == len(holds) and column_numbers(sample, other.at) == pieces:
                return boxes
    return None


def _increases(values: Sequence[float]) -> bool:
    return all(a < b for a, b in itertools.pairwise(values))


def small_whole_numbers(
    headers: Sequence[Header], sample_rows: Sequence[Cells], taken: set[int], style: NumberStyle
) -> list[int]:
    """Columns that are not read and may be a quantity.

    Small whole numbers that do not count the rows, or larger ones below a word for what is wanted.
    """
    sample = Sample(sample_rows[:SAMPLE_ROWS])
    found = []
    for at, header in enumerate(headers):
        if at in taken or header.length_unit in PLAIN_UNITS or header.weight_unit in PLAIN_UNITS:
            continue
        is_number_of_box = names_boxes(header) and header.words[-1] in _NUMBERED_WORDS
        if is_number_of_box or (header.weight_unit and has_any(header.words, _MASSES)):
            continue
        if has_any(header.words, known.CLASS_WORDS) or numbers_rows(header, sample, at):
            continue
        cells = sample.column(at)
        amounts = [amount_of(cell, style) for cell in cells]
        most = _MOST_WANTED if has_any(header.words, _WANTED) else _MOST_SMALL
        # 10-12 is no amount with a word behind it.
        values = [each.value for each in amounts if each is not None and (not each.word or each.word[0].isalpha())]
        if len(values) < max(1, len(cells)) or not all(0 <= value <= most and value % 1 == 0 for value in values):
            continue
        is_numbering = has_any(header.words, known.ROW_NUMBER_WORDS) and _increases(values)
        if not is_numbering and not is_row_numbering(sample, at) and any(value > 1 for value in values):
            found.append(at)
    return found
