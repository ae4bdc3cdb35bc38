"""Which header is which column.

Headers are compared with the words of `columns.COLUMNS`, but words alone do not decide: a list has the net weight
beside the gross weight, the sides of the item beside those of its carton, the pieces in a carton beside the cartons.
So every header that has the words of a column is a candidate, candidates are ranked by the other words of their
headers, and those whose cells are of another kind are passed over.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from torchrl_gpu.lists import columns as known
from torchrl_gpu.lists.columns import COLUMNS, SIDES, Column
from torchrl_gpu.lists.numbers import NumberStyle, amount_of, flag_of, number_of, text_of
from torchrl_gpu.lists.units import LENGTH_BY_WORD, WEIGHT_BY_WORD, WEIGHTS, unit_in, unit_of_word
from torchrl_gpu.lists.words import contains, fold, is_ideographic, plain_text, split_phrases, tokens

# Rows that show what kind of cells a column has.
_SAMPLE = 200
# Letters of a header that are read.
_MOST_LETTERS = 200
_FILLERS = (
    "of",
    "the",
    "de",
    "des",
    "du",
    "del",
    "della",
    "do",
    "da",
    "der",
    "in",
    "outside",
    "external",
    "ext",
    "size",
    "o",
)
# PackingSolver's columns of rotations, 1 for those that are permitted: the listed sides along x, y and z.
# Ranks of quantities that count boxes, or number them, before those of any word.
_OF_BOXES = -1
_OF_NUMBERS = -2
_SMALL_L = re.compile(r"\bl\b")
_RANGE = re.compile(r"(?P<first>\d{1,6})(?:\s*(?:-|–|—|~|to|bis)\s*(?P<last>\d{1,6}))?")
_ROTATION = re.compile(r"rotation ([xyz]{3})")
_BRACKETS = re.compile(r"[(\[]([^()\[\]]*)[)\]]")
# Names of sides in the order of a cell such as 400x300x200: "LxWxH", "B x T x H", "长*宽*高".
_SIDE_LETTERS = {"l": "length", "w": "width", "b": "width", "h": "height", "d": "depth", "t": "depth", "p": "depth"}
_SIDE_LETTERS |= {
    "д": "length",
    "ш": "width",
    "в": "height",
    "г": "depth",
    "长": "length",
    "宽": "width",
    "高": "height",
}
_SIDE_LETTERS |= {"長": "length", "寬": "width", "幅": "width", "a": "width"}
# Initials that mean another side in some languages: Portuguese, Spanish, Czech, Italian.
_INITIALS_OF_SIDES = (
    {"c": "length", "l": "width", "a": "height"},
    {"l": "length", "a": "width", "h": "height"},
    {"v": "height", "s": "width", "h": "depth"},
    {"v": "height", "s": "width", "d": "length"},
    {"a": "height", "l": "width", "p": "depth"},
)
_ORDER_OF_SIDES = re.compile(
    r"\b(?P<a>[SIDES])\s*[x×*х/-]?\s*(?P<b>[SIDES])\s*[x×*х/-]?\s*(?P<c>[SIDES])\b".replace(
        "SIDES", "lwbhdtpacvsдшвга长宽高長寬幅"
    )
)

_COUNTING = (
    *("number", "no", "nr", "#", "qty", "quantity", "anzahl", "count", "total", "nombre", "numero", "n", "nbre", "nb"),
    *("qte", "quantite", "cantidad", "cant", "quantita", "qta", "quantidade", "qtd", "qtde", "aantal", "ilosc"),
    *("order", "liczba", "pocet", "mnozstvi", "количество", "кол", "во", "ordered", "shipped", "picked"),
)
# Units that are no other word, either.
_PLAIN_UNITS = ("mm", "cm", "dm", "ft", "kg", "lb", "oz")
_NUMBERS = frozenset(("no", "nr", "n", "#", "number", "numero"))
_NUMBERING = ("no", "nr", "number", "#", "id", "numero")

Cells = Sequence[object]


@dataclass(frozen=True, eq=False)
class Header:
    """A header and what its words say.

    Attributes:
        text: As it stands in the file.
        words: Its words without units, see `words.tokens`.
        length_unit: Unit of length that it names, "" for none.
        weight_unit: Unit of mass that it names, "" for none.
        unread: Text in brackets that names no known unit and no known word; "" for none.
    """

    text: str
    words: list[str]
    length_unit: str
    weight_unit: str
    unread: str


@dataclass
class FoundColumns:
    """Columns of a table by what they are.

    Attributes:
        at: Index of each column by its name.
        rotations: Indices of the six columns of rotations, or none.
        doubts: Sentences about headers that may be meant otherwise.
        is_total: Names of columns whose cells are of all boxes of a row.
        in_order: Names of the sides in the order in which a cell of all three holds them.
        counts_boxes: Whether the quantity is one of boxes, by its words or by its numbers.
        numbers_boxes: Whether its cells are numbers of boxes, such as 3-5.
    """

    at: dict[str, int] = field(default_factory=dict)
    rotations: list[int] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    is_total: set[str] = field(default_factory=set)
    in_order: tuple[str, str, str] = SIDES
    counts_boxes: bool = False
    numbers_boxes: bool = False

    @property
    def has_sides(self) -> bool:
        return "dimensions" in self.at or all(side in self.at for side in SIDES)

    def taken(self) -> set[int]:
        return {*self.at.values(), *self.rotations}


@lru_cache(2**14)
def parse_header(text: str) -> Header:
    """Split a header into words and units.

    What stands behind its first 200 letters is not read: a text of a megabyte is no header.
    """
    words = tokens(text[:_MOST_LETTERS])
    length_unit = unit_in(words, LENGTH_BY_WORD)
    weight_unit = unit_in(words, WEIGHT_BY_WORD)
    rest = [word for word in words if not _is_unit(word, words)]
    unread = ""
    if len(_units_in_brackets(text)) > 1:
        # "Length (cm/in)" does not say which.
        return Header(text, rest, "", "", _BRACKETS.findall(plain_text(text))[-1])
    for inside in _BRACKETS.findall(plain_text(text[:_MOST_LETTERS])):
        inner = tokens(inside)
        # "#" is a number here and pounds there.
        if inner and (inner == ["#"] or not any(map(_is_known, inner))):
            unread = inside
    return Header(text, rest, length_unit, weight_unit, unread)


def _units_in_brackets(text: str) -> set[str]:
    """Units of length, or of mass, that a header names in brackets."""
    words = tokens(" ".join(_BRACKETS.findall(plain_text(text[:_MOST_LETTERS]))))
    lengths = {LENGTH_BY_WORD[word] for word in words if word in LENGTH_BY_WORD and len(word) > 1}
    weights = {WEIGHT_BY_WORD[word] for word in words if word in WEIGHT_BY_WORD and len(word) > 1}
    return max(lengths, weights, key=len)


def _is_unit(word: str, words: Sequence[str]) -> bool:
    if word not in LENGTH_BY_WORD and word not in WEIGHT_BY_WORD:
        return False
    # A unit of one letter that begins a header, or is the whole of it, is an initial.
    return len(words) > 1 and not (word == words[0] and len(word) == 1)


@cache
def _known_words() -> set[str]:
    texts = [known.OUTER_WORDS, known.INNER_WORDS, known.GROSS_WORDS, known.NET_WORDS, known.ONE_WORDS]
    texts += [known.TOTAL_WORDS, known.MOST_WORDS, known.BOX_WORDS, known.PIECE_WORDS, known.UNIT_WORDS]
    for column in COLUMNS:
        texts += column.words.values()
    found = set(_FILLERS)
    for text in texts:
        found.update(tokens(text))
    return found | set(LENGTH_BY_WORD) | set(WEIGHT_BY_WORD)


def _is_known(word: str) -> bool:
    return word in _known_words() or len(word) == 1 or (is_ideographic(word) and any(k in word for k in _known_words()))


@cache
def _vocabulary(column: Column) -> frozenset[str]:
    """All words of a column's phrases."""
    return frozenset(itertools.chain.from_iterable(map(_phrase, column.all_words)))


@cache
def _phrase(word: str) -> list[str]:
    return tokens(word)


def has_any(words: list[str], phrases: str) -> bool:
    """Whether a header has one of some phrases, which stand between commas."""
    return any(contains(words, phrase) for phrase in _split(phrases))


@cache
def _split(phrases: str) -> list[list[str]]:
    return [tokens(phrase) for phrase in split_phrases(phrases)]


@dataclass(frozen=True)
class _Candidate:
    """A header that has the words of a column.

    Attributes:
        at: Index of the header.
        exact: Whether there are no other words.
        rank: Place of the word in the column's list.
        rest: The other words.
    """

    at: int
    exact: bool
    rank: int
    rest: tuple[str, ...]


def _match(column: Column, header: Header, at: int) -> _Candidate | None:
    """Return how a header names a column, None where it does not."""
    candidate = _match_words(column, header)
    return None if candidate is None else replace(candidate, at=at)


# Many rows are tried as headers, by several delimiters and encodings.
@lru_cache(2**16)
def _match_words(column: Column, header: Header) -> _Candidate | None:
    """Return how the words of a header name a column, at index 0."""
    words = header.words
    has_unit = bool(header.length_unit or header.weight_unit)
    names_a_unit = len(words) > 1 and not has_unit and has_any(words[-1:], known.UNIT_WORDS)
    if not words or (names_a_unit and column.kind != "unit"):
        return None
    # Most words of a file are in no phrase at all.
    if _vocabulary(column).isdisjoint(words) and not any(map(is_ideographic, words)):
        return None
    if has_any(words, column.never) or _is_measured_otherwise(column, header):
        return None
    # "Height x Width x Length" is none of them.
    if column.kind == "length" and len(set(_sides_in_words(words))) > 2:
        return None
    for rank, word in enumerate(column.all_words):
        phrase = _phrase(word)
        if words == phrase:
            return _Candidate(0, True, rank, ())
    for rank, word in enumerate(column.all_words):
        phrase = _phrase(word)
        is_letter = len(word) == 1 and not is_ideographic(word)
        rest = _rest(words, phrase)
        if rest is None:
            continue
        # A single letter is a side behind words for a packing alone: "Box L".
        if is_letter and not all(_is_packing(each) for each in rest):
            continue
        return _Candidate(0, False, rank, tuple(each for each in rest if each not in _FILLERS))
    return None


def _is_measured_otherwise(column: Column, header: Header) -> bool:
    """Whether a header's unit shows that it is another column.

    "Pallet L (mm)" is no order, "Qty (kg)" no count and "Maße cm" no mass.
    """
    if column.kind == "mass":
        return header.length_unit in _PLAIN_UNITS and not header.weight_unit
    if column.kind in ("length", "sides"):
        return header.weight_unit in _PLAIN_UNITS and not header.length_unit
    if column.kind not in ("text", "count"):
        return False
    in_brackets = set(tokens(" ".join(_BRACKETS.findall(plain_text(header.text[:_MOST_LETTERS])))))
    is_length = header.length_unit in _PLAIN_UNITS or not in_brackets.isdisjoint(LENGTH_BY_WORD)
    is_weight = header.weight_unit in _PLAIN_UNITS or not in_brackets.isdisjoint(WEIGHT_BY_WORD)
    return is_length or is_weight


def _rest(words: list[str], phrase: list[str]) -> list[str] | None:
    """Return the words of a header around a phrase.

    None where it does not stand there.
    """
    for first in range(len(words) - len(phrase) + 1):
        if words[first : first + len(phrase)] == phrase:
            return [*words[:first], *words[first + len(phrase) :]]
    if len(phrase) != 1 or not is_ideographic(phrase[0]):
        return None
    # Without spaces a word of one sign must end the header: 外箱长 is a length, 长期 is not.
    sign = phrase[0]
    for i, word in enumerate(words):
        if word.endswith(sign) or (len(sign) > 1 and sign in word):
            left = word.replace(sign, "")
            return [*words[:i], *([left] if left else []), *words[i + 1 :]]
    return None


@cache
def _packing_words() -> set[str]:
    dimensions = next(column for column in COLUMNS if column.name == "dimensions")
    packings = f"{known.OUTER_WORDS}, {known.INNER_WORDS}, {', '.join(dimensions.words.values())}, mass, masse"
    packings += f", {known.GROSS_WORDS}, {known.NET_WORDS}"
    return {fold(word) for word in split_phrases(packings)}


def _is_packing(word: str) -> bool:
    return word.isdigit() or word in _packing_words()


def find_columns(header: Cells, rows: Sequence[Cells], given: Mapping[str, int]) -> FoundColumns:
    """Find the columns of a table.

    Args:
        header: Headers.
        rows: Rows below it, of which the first 200 show what kind of cells a column has.
        given: Index of each column that the user names.
    """
    headers = [parse_header(text_of(cell)) for cell in header]
    sample = _Sample(rows[:_SAMPLE])
    found = FoundColumns(at=dict(given))
    found.rotations = _rotations(headers)
    _find_sides(headers, sample, found)
    for column in COLUMNS:
        if column.name in found.at or column.kind in ("length", "sides"):
            continue
        if column.kind == "unit":
            _find_units(column, headers, sample, found)
            continue
        candidates = _candidates(column, headers, sample, found.taken())
        if column.name == "quantity":
            candidates = _counts_of_boxes(headers, sample, found.taken()) + candidates
        if column.name == "quantity" and not any(each.rank < 0 for each in candidates):
            candidates = _numbered_boxes(headers, sample, found) + candidates
        if column.name == "weight" and not candidates:
            candidates = _named_by_unit(headers, found.taken())
        if candidates:
            _take_best(column, candidates, headers, sample, found)
        elif column.name in ("quantity", "weight"):
            _doubt_other_cells(column, headers, sample, found)
    return found


class _Sample:
    """Cells of the first rows, by column."""

    def __init__(self, rows: Sequence[Cells]) -> None:
        self.rows = rows

    def column(self, at: int) -> list[object]:
        """Cells of a column that are not empty."""
        cells = [row[at] for row in self.rows if at < len(row)]
        return [cell for cell in cells if text_of(cell)]

    def share(self, at: int, holds: Callable[[object], bool]) -> float:
        """Share of the cells of a column for which something holds.

        1 for an empty column.
        """
        cells = self.column(at)
        return sum(map(holds, cells)) / len(cells) if cells else 1.0


def _is_amount(cell: object) -> bool:
    return amount_of(cell, NumberStyle()) is not None


def _is_three_sides(cell: object) -> bool:
    return isinstance(cell, str) and len(split_sides(cell)) == 3


def _is_flag(cell: object) -> bool:
    return flag_of(cell) is not None


def _candidates(column: Column, headers: Sequence[Header], sample: _Sample, taken: set[int]) -> list[_Candidate]:
    """Headers that have the words of a column and whose cells may be its."""
    found = []
    for at, header in enumerate(headers):
        candidate = None if at in taken else _match(column, header, at)
        if candidate is None:
            continue
        if column.kind in ("length", "mass", "count") and sample.share(at, _is_amount) < 0.5:
            continue
        if column.kind == "length" and sample.column(at) and sample.share(at, _is_three_sides) > 0.5:
            continue
        if column.name == "quantity" and not _NUMBERS.isdisjoint(header.words) and _counts_rows(sample, at):
            continue
        if column.kind == "flag" and sample.share(at, _is_flag) < 0.5:
            continue
        found.append(candidate)
    return found


def _counts_rows(sample: _Sample, at: int) -> bool:
    """Whether a column holds 1, 2, 3, or 0, 1, 2."""
    values = [number_of(cell) for cell in sample.column(at)]
    if not values or values[0] not in (0, 1):
        return False
    return values == [values[0] + i for i in range(len(values))]


def _numbered_boxes(headers: Sequence[Header], sample: _Sample, found: FoundColumns) -> list[_Candidate]:
    """Numbers of boxes that say how many there are: "C/NO." with cells such as 3-5."""
    candidates = []
    for at, header in enumerate(headers):
        if at in found.taken() or not _numbers_boxes(header):
            continue
        ranges = [number_range(cell) for cell in sample.column(at)]
        if ranges and None not in ranges and any(first != last for first, last in filter(None, ranges)):
            candidates.append(_Candidate(at, True, _OF_NUMBERS, ()))
    return candidates


def _numbers_boxes(header: Header) -> bool:
    """Whether a header is the number of a box, and nothing else.

    "Carton" and "C/NO." are, but not "Carton type".
    """
    words = ["carton" if word == "c" else word for word in header.words]
    boxes = [word for word in words if has_any([word], known.BOX_WORDS) or has_any([word], known.OUTER_WORDS)]
    others = [word for word in words if word not in boxes and word not in _NUMBERING]
    return bool(boxes) and not others


def number_range(cell: object) -> tuple[int, int] | None:
    """Read the first and the last number of 3-5, which are the same for 3.

    None for anything else.
    """
    match = _RANGE.fullmatch(plain_text(text_of(cell)))
    if match is None:
        return None
    first = int(match["first"])
    last = int(match["last"] or first)
    return (first, last) if last >= first else None


def _doubt_other_cells(column: Column, headers: Sequence[Header], sample: _Sample, found: FoundColumns) -> None:
    """Say where a header names a column and its cells are of another kind."""
    for at, header in enumerate(headers):
        candidate = None if at in found.taken() else _match(column, header, at)
        cells = sample.column(at)
        if candidate is None or not candidate.exact or not cells or _counts_rows(sample, at):
            continue
        found.doubts.append(
            f'"{header.text}" is not read as the {column.name}: its cells are no numbers, such as "{text_of(cells[0])}"'
        )


def _counts_of_boxes(headers: Sequence[Header], sample: _Sample, taken: set[int]) -> list[_Candidate]:
    """Quantities that count boxes: "Cartons", "No. of CTNS", "Qty (cases)"."""
    found = []
    never = next(column.never for column in COLUMNS if column.name == "quantity")
    for at, header in enumerate(headers):
        words = header.words
        if at in taken or not has_any(words, known.BOX_WORDS) or has_any(words, never):
            continue
        is_numbered = not _NUMBERS.isdisjoint(words) and len(sample.column(at)) > 1 and _counts_rows(sample, at)
        if not is_numbered and _counts_boxes(words) and sample.share(at, _is_amount) >= 0.5:
            found.append(_Candidate(at, True, _OF_BOXES, ()))
    return found


def _counts_boxes(words: list[str]) -> bool:
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
    others = [word for word in [*before, *behind] if word not in _COUNTING and word not in _FILLERS]
    others = [word for word in others if not has_any([word], known.OUTER_WORDS)]
    is_plural = not _plural_boxes().isdisjoint(words)
    is_counted = any(word in _COUNTING for word in before)
    is_numbered = any(word in _NUMBERING for word in behind)
    return (is_plural or is_counted) and not others and not is_numbered


@cache
def _plural_boxes() -> set[str]:
    singular = {"carton", "ctn", "collo", "kollo"}
    return {fold(word) for word in split_phrases(known.BOX_WORDS)} - singular


def _named_by_unit(headers: Sequence[Header], taken: set[int]) -> list[_Candidate]:
    """Weights under a header that names their unit: "KG", "Pounds", "Box kg"."""
    found = []
    for at, header in enumerate(headers):
        words = header.words
        is_alone = len(words) == 1 and len(words[0]) > 1 and words[0] in WEIGHT_BY_WORD
        is_of_packing = bool(header.weight_unit in _PLAIN_UNITS and words) and all(map(_says_of_what, words))
        if at not in taken and (is_alone or is_of_packing):
            found.append(_Candidate(at, True, 0, ()))
    return found


def _says_of_what(word: str) -> bool:
    """Whether a word says of what a weight is: "Box kg", "kg per carton", "total kg"."""
    of_what = (known.BOX_WORDS, known.PIECE_WORDS, known.OUTER_WORDS)
    of_how_many = (known.ONE_WORDS, known.TOTAL_WORDS, known.GROSS_WORDS)
    return any(has_any([word], words) for words in (*of_what, *of_how_many))


def _take_best(
    column: Column, candidates: Sequence[_Candidate], headers: Sequence[Header], sample: _Sample, found: FoundColumns
) -> None:
    """Take the best candidate, and say where another one may be meant as well."""
    ranked = sorted(candidates, key=lambda each: (_preference(column, each, headers), each.rank, each.at))
    best = ranked[0]
    if column.name == "quantity":
        named = [at for at, header in enumerate(headers) if at not in found.taken() and _names_boxes(header)]
        by_numbers = _number_of_full_boxes(ranked, named, sample, found)
        best = by_numbers or best
        found.counts_boxes = by_numbers is not None or best.rank < 0
        found.numbers_boxes = best.rank == _OF_NUMBERS
    found.at[column.name] = best.at
    if found.counts_boxes and column.name == "quantity" and best is not ranked[0]:
        return
    if column.kind == "mass" and has_any(headers[best.at].words, known.TOTAL_WORDS):
        found.is_total.add(column.name)
    if column.kind not in ("mass", "count"):
        return
    words = headers[best.at].words
    if column.kind == "mass" and has_any(words, known.GROSS_WORDS) and has_any(words, known.NET_WORDS):
        found.doubts.append(f'"{headers[best.at].text}" names two weights: say --column weight="…"')
    if (
        column.name == "weight"
        and _is_of_what_is_inside(headers[best.at].words)
        and _has_sides_of_a_packing(headers, found)
    ):
        found.doubts.append(f'"{headers[best.at].text}" may be the weight of what is in a box: say --column weight="…"')
    for other in ranked[1:]:
        same = _preference(column, other, headers) == _preference(column, best, headers)
        is_converted = column.kind == "mass" and _is_converted(best, other, headers, sample)
        if same and not is_converted and sample.column(other.at) != sample.column(best.at):
            found.doubts.append(
                f'the {column.name} may be "{headers[best.at].text}", which is read, or "{headers[other.at].text}":'
                f' say --column {column.name}="…"'
            )
            return


def _is_converted(best: _Candidate, other: _Candidate, headers: Sequence[Header], sample: _Sample) -> bool:
    """Whether two columns hold the same weights in two units."""
    unit = headers[best.at].weight_unit
    other_unit = headers[other.at].weight_unit
    values = _numbers(sample, best.at)
    others = _numbers(sample, other.at)
    if not unit or not other_unit or unit == other_unit or not values or len(values) != len(others):
        return False
    pairs = zip(values, others, strict=True)
    return all(math.isclose(a * WEIGHTS[unit], b * WEIGHTS[other_unit], rel_tol=0.02) for a, b in pairs)


def _names_boxes(header: Header) -> bool:
    return has_any(header.words, known.BOX_WORDS) or has_any(header.words, known.OUTER_WORDS)


def _number_of_full_boxes(
    candidates: Sequence[_Candidate], others: Sequence[int], sample: _Sample, found: FoundColumns
) -> _Candidate | None:
    """Return the quantity that, times what a box holds, is another quantity.

    It counts boxes, whatever its words are. None where the numbers do not show it.
    """
    if "per_box" not in found.at:
        return None
    holds = _numbers(sample, found.at["per_box"])
    if not holds or set(holds) <= {1.0}:
        return None
    known_at = {each.at for each in candidates}
    named = [_Candidate(at, True, _OF_BOXES, ()) for at in others if at not in known_at]
    for boxes in [*candidates, *named]:
        counts = _numbers(sample, boxes.at)
        pieces = [count * each for count, each in zip(counts, holds, strict=False)]
        for other in candidates:
            if other is not boxes and len(counts) == len(holds) and _numbers(sample, other.at) == pieces:
                return boxes
    return None


def _numbers(sample: _Sample, at: int) -> list[float]:
    """Numbers of a column's cells, none if one of them has no number."""
    amounts = [amount_of(cell, NumberStyle()) for cell in sample.column(at)]
    return [] if None in amounts else [amount.value for amount in amounts if amount is not None]


def _is_of_what_is_inside(words: list[str]) -> bool:
    return has_any(words, known.INNER_WORDS) and not has_any(words, known.OUTER_WORDS)


def _has_sides_of_a_packing(headers: Sequence[Header], found: FoundColumns) -> bool:
    sides = [found.at[side] for side in SIDES if side in found.at]
    return bool(sides) and all(has_any(headers[at].words, known.OUTER_WORDS) for at in sides)


def _preference(column: Column, candidate: _Candidate, headers: Sequence[Header]) -> tuple[int | bool, ...]:
    """Order among candidates, the least first."""
    words = headers[candidate.at].words
    if column.name == "quantity":
        counts_boxes = candidate.rank < 0
        shipped = has_any(words, known.SHIPPED_WORDS)
        pieces = has_any(words, known.PIECE_WORDS)
        return not counts_boxes, pieces, not shipped
    if column.kind == "mass":
        inner = has_any(words, known.INNER_WORDS)
        outer = has_any(words, known.OUTER_WORDS)
        is_net = has_any(words, known.NET_WORDS) or has_any(words, known.WITHOUT_WORDS)
        net = is_net and not has_any(words, known.GROSS_WORDS)
        gross = has_any(words, known.GROSS_WORDS)
        total = has_any(words, known.TOTAL_WORDS)
        return inner and not outer, net, not gross, not outer, total
    return (not candidate.exact, candidate.rank)


# -- sides -----------------------------------------------------------------------------------------------------------


def _find_sides(headers: Sequence[Header], sample: _Sample, found: FoundColumns) -> None:
    """Find length, width and height, or the column that holds all three.

    Three sides must be of one thing: the best group of headers that differ by the word for the side alone.
    """
    if all(side in found.at for side in SIDES) or "dimensions" in found.at:
        if "dimensions" in found.at:
            found.in_order = order_of_sides(headers[found.at["dimensions"]].text)
        return
    groups: dict[tuple[str, ...], dict[str, list[_Candidate]]] = {}
    for column in COLUMNS:
        if column.kind != "length":
            continue
        for candidate in _candidates(column, headers, sample, set(found.at.values())):
            groups.setdefault(candidate.rest, {}).setdefault(column.name, []).append(candidate)
    _tell_length_from_width(headers, groups)
    whole = []
    for rest, sides in groups.items():
        chosen = _three_sides(sides, headers, found.at)
        if chosen is not None:
            whole.append(_Sides(_packing_rank(rest), bool(rest), min(chosen.values()), chosen))
    dimensions = _dimensions(headers, sample, found)
    whole.sort(key=lambda each: (each.rank, each.has_other_words, each.first))
    if dimensions and (not whole or _packing_rank(dimensions[0].rest) < whole[0].rank):
        found.at["dimensions"] = dimensions[0].at
        found.in_order = order_of_sides(headers[dimensions[0].at].text)
    elif whole:
        found.at |= whole[0].at
        _doubt_other_sides(whole, headers, sample, found)
    else:
        _take_sides_of_any_group(groups, headers, found)


@dataclass(frozen=True)
class _Sides:
    """Columns of three sides of one thing.

    Attributes:
        rank: Of the thing, see `_packing_rank`.
        has_other_words: Whether its headers have more words than those for the sides.
        first: Index of the first column.
        at: Index of each side.
    """

    rank: int
    has_other_words: bool
    first: int
    at: dict[str, int]


def _doubt_other_sides(
    sides: Sequence[_Sides], headers: Sequence[Header], sample: _Sample, found: FoundColumns
) -> None:
    """Say where the sides of another thing may be meant.

    "Box 1 length" stands beside "Box 2 length".
    """
    best = sides[0]
    unit = headers[best.at["length"]].length_unit
    for other in sides[1:]:
        at = other.at["length"]
        is_alike = other.rank == best.rank and other.has_other_words == best.has_other_words
        is_converted = headers[at].length_unit != unit
        differs = any(sample.column(other.at[side]) != sample.column(best.at[side]) for side in SIDES)
        if is_alike and differs and not is_converted:
            found.doubts.append(
                f'the sides may be "{headers[best.at["length"]].text}", …, which are read, or "{headers[at].text}", …:'
                " say --column length=…, width=…, height=…"
            )
            return


def _packing_rank(rest: tuple[str, ...]) -> int:
    """Rank a group of sides by its other words.

    0 for a packing, 1 for a box, 2 for what is inside, 3 for limits.
    """
    words = list(rest)
    if has_any(words, known.MOST_WORDS):
        return 3
    if has_any(words, known.NET_WORDS) or has_any(words, known.WITHOUT_WORDS):
        return 2
    if has_any(words, known.OUTER_WORDS) or has_any(words, known.GROSS_WORDS):
        return 0
    return 2 if has_any(words, known.INNER_WORDS) else 1


def _three_sides(
    sides: Mapping[str, list[_Candidate]], headers: Sequence[Header], given: Mapping[str, int]
) -> dict[str, int] | None:
    """Return the columns of length, width and height of a group.

    None where one is missing.

    Of two columns for a side, in different units, those of the unit that most sides have are taken.
    """
    named = dict(sides)
    for side in SIDES:
        if side in given:
            named[side] = [_Candidate(given[side], True, 0, ())]
    missing = [side for side in SIDES if side not in named]
    if "depth" in named and len(missing) == 1:
        named[missing[0]] = named["depth"]
        missing = []
    if missing:
        return None
    unit = _common_unit(named, headers)
    chosen = {}
    for side in SIDES:
        ranked = sorted(named[side], key=lambda each: (headers[each.at].length_unit != unit, not each.exact, each.at))
        chosen[side] = ranked[0].at
    return chosen if len(set(chosen.values())) == 3 else None


def _common_unit(sides: Mapping[str, Sequence[_Candidate]], headers: Sequence[Header]) -> str:
    """Return the unit in which most sides are given, of several the first.

    Any unit goes before none.
    """
    candidates = sorted(itertools.chain.from_iterable(sides[side] for side in SIDES), key=lambda each: each.at)
    units = [headers[each.at].length_unit for each in candidates]

    def has_unit(side: str, unit: str) -> bool:
        return any(headers[each.at].length_unit == unit for each in sides[side])

    def preference(unit: str) -> tuple[int, bool]:
        return sum(has_unit(side, unit) for side in SIDES), bool(unit)

    return max(dict.fromkeys(units), key=preference)


def _take_sides_of_any_group(
    groups: Mapping[tuple[str, ...], Mapping[str, list[_Candidate]]], headers: Sequence[Header], found: FoundColumns
) -> None:
    """Take each side from the best group that has it: "Max. length", but "Width"."""
    merged: dict[str, list[_Candidate]] = {}
    for rest in sorted(groups, key=_packing_rank):
        for side, candidates in groups[rest].items():
            merged.setdefault(side, []).extend(candidates)
    first_of_each = {side: candidates[:1] for side, candidates in merged.items()}
    chosen = _three_sides(first_of_each, headers, found.at)
    if chosen is None:
        for side in SIDES:
            if side in first_of_each:
                found.at.setdefault(side, first_of_each[side][0].at)
        return
    found.at |= chosen
    named = ", ".join(f'"{headers[at].text}"' for at in chosen.values())
    found.doubts.append(f"the sides {named} may be of different things: say --column length=…, width=…, height=…")


def _tell_length_from_width(
    headers: Sequence[Header], groups: Mapping[tuple[str, ...], dict[str, list[_Candidate]]]
) -> None:
    """In French lists L is the length and l the width."""
    for sides in groups.values():
        lengths = sides.get("length", [])
        letters = [each for each in lengths if headers[each.at].words[-1:] == ["l"]]
        small = [each for each in letters if _SMALL_L.search(headers[each.at].text)]
        large = [each for each in letters if each not in small]
        if small and large and "width" not in sides:
            sides["length"] = large
            sides["width"] = small


def _dimensions(headers: Sequence[Header], sample: _Sample, found: FoundColumns) -> list[_Candidate]:
    """Headers of cells with all three sides, the best first."""
    column = next(each for each in COLUMNS if each.name == "dimensions")
    candidates = []
    for at, header in enumerate(headers):
        candidate = _match(column, header, at)
        if candidate is None and _ORDER_OF_SIDES.search(fold(plain_text(header.text))):
            candidate = _Candidate(at, True, 0, ())
        if candidate is None or at in found.at.values():
            continue
        if sample.column(at) and sample.share(at, lambda cell: len(split_sides(cell)) == 3) >= 0.5:
            candidates.append(candidate)
    return sorted(candidates, key=lambda each: (_packing_rank(each.rest), each.rank, each.at))


# The first separator that gives three parts counts: 15 3/4 x 12 x 8 has a fraction, 400/300/200 has none.
_SEPARATORS = [
    re.compile(each) for each in (r"\s*[x×*хX✕]\s*|\s+by\s+", r"\s*[/|;]\s*", r"(?<=\d)\s*-\s*(?=\d)", r"\s+")
]
_LABELLED = re.compile(
    r"(?P<before>[lwbhdtp])\s*[:=.]?\s*(?P<first>\d[\d.,]*\d|\d)|(?P<second>\d[\d.,]*\d|\d)\s*\(?(?P<behind>[lwbhdtp])\b\)?"
)
_LAST_UNIT = re.compile(r"^(?P<rest>.*\d)\s*(?P<unit>[^\d\s]+)$")


def split_sides(cell: object) -> list[tuple[str, str]]:
    """Split a cell of three sides, such as 400x300x200 mm or L400 W300 H200.

    Returned are the names of the sides and their texts.

    A name is "" where the cell does not say it. A unit behind the last side is that of all three.
    """
    text = fold(plain_text(text_of(cell)))
    if not text:
        return []
    labelled = list(_LABELLED.finditer(text))
    if len(labelled) == 3:
        names = _without_depth([_SIDE_LETTERS[match["before"] or match["behind"]] for match in labelled])
        unit = _unit_behind(text)
        return [
            (name, f"{match['first'] or match['second']}{unit}") for name, match in zip(names, labelled, strict=True)
        ]
    parts = _three_parts(text)
    if not parts:
        return []
    last = _LAST_UNIT.fullmatch(parts[2])
    if last:
        unit = last["unit"]
        parts = [part if _LAST_UNIT.fullmatch(part) else f"{part} {unit}" for part in parts]
    return [("", part) for part in parts]


def _three_parts(text: str) -> list[str]:
    for separator in _SEPARATORS:
        parts = [part.strip() for part in separator.split(text) if part.strip()]
        # The unit of 400 300 200 mm belongs to the last side.
        if len(parts) == 4 and not any(map(str.isdigit, parts[3])):
            parts = [*parts[:2], f"{parts[2]} {parts[3]}"]
        if len(parts) == 3 and all(any(map(str.isdigit, part)) for part in parts):
            return parts
    return []


def _unit_behind(text: str) -> str:
    word = re.sub(r".*[\d)\s]", "", text)
    return f" {word}" if unit_of_word(word, LENGTH_BY_WORD) and len(word) > 1 else ""


def order_of_sides(header: str) -> tuple[str, str, str]:
    """Return the names of the sides in the order that a header says.

    Examples: LxWxH or B x T x H.
    """
    text = fold(plain_text(header))
    match = _ORDER_OF_SIDES.search(text)
    names = _sides_in_words(tokens(header))
    if match is not None:
        names = _sides_of_letters("".join((match["a"], match["b"], match["c"])))
    if len(names) != 3:
        return SIDES
    first, second, third = _without_depth(names)
    return (first, second, third) if {first, second, third} == set(SIDES) else SIDES


def _sides_of_letters(letters: str) -> list[str]:
    """Return the sides that three initials stand for, in a language that has all."""
    # L x l x h: the second one is the width.
    if letters == "llh":
        return ["length", "width", "height"]
    for by_letter in _INITIALS_OF_SIDES:
        if set(letters) == set(by_letter):
            return [by_letter[letter] for letter in letters]
    return [_SIDE_LETTERS.get(letter, "") for letter in letters]


def _sides_in_words(words: Sequence[str]) -> list[str]:
    """Return the sides whose words stand in a header, in their order."""
    found = []
    for word in words:
        for column in COLUMNS:
            is_word = len(word) > 1 or is_ideographic(word)
            if column.kind == "length" and is_word and [word] in map(_phrase, column.all_words):
                found.append(column.name)
                break
    return found


def _without_depth(names: Sequence[str]) -> list[str]:
    """Replace "depth" by the side that is missing.

    It is the length beside a width and a height, and the height beside a length and a width.
    """
    missing = [side for side in SIDES if side not in names]
    # Of a cell that says the depth alone nothing is known.
    instead = missing[0] if len(missing) == 1 else "depth"
    return [instead if name == "depth" else name for name in names]


# -- units and rotations ---------------------------------------------------------------------------------------------


def _find_units(column: Column, headers: Sequence[Header], sample: _Sample, found: FoundColumns) -> None:
    """Find the columns that say the units of a row's lengths and of its weight.

    Their cells decide, as both are called "unit", and so is what a quantity counts.
    """
    for at, header in enumerate(headers):
        if at in found.taken() or not sample.column(at):
            continue
        is_called_so = _match(column, header, at) is not None
        for name, by_word in (("unit", LENGTH_BY_WORD), ("weight_unit", WEIGHT_BY_WORD)):
            if name in found.at:
                continue
            cells = sample.column(at)
            share = sample.share(at, lambda cell: bool(unit_of_word(text_of(cell), by_word)))  # noqa: B023
            plain = share == 1 and all(len(text_of(cell)) > 1 for cell in cells)
            if (is_called_so and share >= 0.5) or plain:
                found.at[name] = at
                break
        else:
            _doubt_other_unit(at, headers, sample, found)


def _doubt_other_unit(at: int, headers: Sequence[Header], sample: _Sample, found: FoundColumns) -> None:
    """Say where a second column has other units of length than the one that is read."""
    if "unit" not in found.at:
        return
    units = {unit_of_word(text_of(cell), LENGTH_BY_WORD) for cell in sample.column(at)}
    read = {unit_of_word(text_of(cell), LENGTH_BY_WORD) for cell in sample.column(found.at["unit"])}
    if "" not in units and units != read:
        found.doubts.append(
            f'"{headers[at].text}" has other units than "{headers[found.at["unit"]].text}", which is read for all sides'
        )


def _rotations(headers: Sequence[Header]) -> list[int]:
    """Find the columns of the six rotations, if the header has them.

    The two rotations with the same vertical side stand together, in the order of the sides.

    Raises:
        ValueError: Only some of the six are there.
    """
    at_rotation = {}
    for at, header in enumerate(headers):
        match = _ROTATION.fullmatch(" ".join(header.words))
        if match and len(set(match[1])) == 3:
            at_rotation[match[1]] = at
    if not at_rotation:
        return []
    if len(at_rotation) < 6:
        there = ", ".join(headers[at].text for at in at_rotation.values())
        raise ValueError(f"rotations need six columns; there are only {there}")
    return [at_rotation[name] for name in ("zyx", "yzx", "xzy", "zxy", "xyz", "yxz")]


def _increases(values: Sequence[float]) -> bool:
    return all(a < b for a, b in itertools.pairwise(values))


def small_whole_numbers(headers: Sequence[Header], sample_rows: Sequence[Cells], taken: set[int]) -> list[int]:
    """Columns that are not read and may be a quantity.

    Small whole numbers that do not count the rows.
    """
    sample = _Sample(sample_rows[:_SAMPLE])
    found = []
    for at, header in enumerate(headers):
        if at in taken or header.length_unit in _PLAIN_UNITS or header.weight_unit in _PLAIN_UNITS:
            continue
        if has_any(header.words, known.CLASS_WORDS):
            continue
        cells = sample.column(at)
        amounts = [amount_of(cell, NumberStyle()) for cell in cells]
        # 10-12 is no amount with a word behind it.
        values = [each.value for each in amounts if each is not None and (not each.word or each.word[0].isalpha())]
        if len(values) < max(1, len(cells)) or not all(1 <= value <= 1000 and value % 1 == 0 for value in values):
            continue
        is_numbering = has_any(header.words, known.ROW_NUMBER_WORDS) and _increases(values)
        if not is_numbering and not _counts_rows(sample, at) and any(value > 1 for value in values):
            found.append(at)
    return found
