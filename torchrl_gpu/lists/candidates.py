"""Headers as words, and which of them may be a column.

A header is split into words and units once. It is a candidate for a column if it has one of the column's words, none of
the words that make it another one, and cells of the column's kind.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from torchrl_gpu.lists import columns as known
from torchrl_gpu.lists.columns import COLUMNS, SIDES, Column
from torchrl_gpu.lists.numbers import NumberStyle, amount_of, flag_of, number_of, text_of
from torchrl_gpu.lists.side_texts import sides_in_words, split_sides
from torchrl_gpu.lists.units import LENGTH_BY_WORD, WEIGHT_BY_WORD, unit_in
from torchrl_gpu.lists.words import contains, fold, is_ideographic, phrase_words, plain_text, split_phrases, tokens

# Rows that show what kind of cells a column has.
SAMPLE_ROWS = 200
# Letters of a header that are read.
_MOST_LETTERS = 200
FILLERS = (
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
SMALL_L = re.compile(r"\bl\b")
_BRACKETS = re.compile(r"[(\[]([^()\[\]]*)[)\]]")
# Units that are no other word, either.
PLAIN_UNITS = ("mm", "cm", "dm", "ft", "kg", "lb", "oz")
NUMBER_WORDS = frozenset(("no", "nr", "n", "#", "number", "numero"))
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
        if inner and (inner == ["#"] or not any(map(is_known_word, inner))):
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
    texts += [
        known.TOTAL_WORDS,
        known.MOST_WORDS,
        known.OTHER_COUNTS,
        known.BOX_WORDS,
        known.PIECE_WORDS,
        known.UNIT_WORDS,
    ]
    for column in COLUMNS:
        texts += column.words.values()
    found = set(FILLERS)
    for text in texts:
        found.update(tokens(text))
    return found | set(LENGTH_BY_WORD) | set(WEIGHT_BY_WORD)


def is_known_word(word: str) -> bool:
    return word in _known_words() or len(word) == 1 or (is_ideographic(word) and any(k in word for k in _known_words()))


@cache
def _vocabulary(column: Column) -> frozenset[str]:
    """All words of a column's phrases."""
    return frozenset(itertools.chain.from_iterable(map(phrase_words, column.all_words)))


def has_any(words: list[str], phrases: str) -> bool:
    """Whether a header has one of some phrases, which stand between commas."""
    return any(contains(words, phrase) for phrase in _split(phrases))


@cache
def _split(phrases: str) -> list[list[str]]:
    return [tokens(phrase) for phrase in split_phrases(phrases)]


@dataclass(frozen=True)
class Candidate:
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


def match_header(column: Column, header: Header, at: int) -> Candidate | None:
    """Return how a header names a column, None where it does not."""
    candidate = _match_words(column, header)
    return None if candidate is None else replace(candidate, at=at)


# Many rows are tried as headers, by several delimiters and encodings.
@lru_cache(2**16)
def _match_words(column: Column, header: Header) -> Candidate | None:
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
    if column.kind == "length" and len(set(sides_in_words(words))) > 2:
        return None
    for rank, word in enumerate(column.all_words):
        phrase = phrase_words(word)
        if words == phrase:
            return Candidate(0, True, rank, ())
    for rank, word in enumerate(column.all_words):
        phrase = phrase_words(word)
        is_letter = len(word) == 1 and not is_ideographic(word)
        rest = _rest(words, phrase)
        if rest is None:
            continue
        # A single letter is a side behind words for a packing alone: "Box L".
        if is_letter and not all(_is_packing(each) for each in rest):
            continue
        # "Länge/Length" says the same twice.
        others = [each for each in rest if each not in FILLERS and not _is_same_side(column, each)]
        return Candidate(0, False, rank, tuple(others))
    return None


def _is_same_side(column: Column, word: str) -> bool:
    """Whether a word is another one for the side that a column is."""
    return column.kind == "length" and len(word) > 1 and [word] in map(phrase_words, column.all_words)


def _is_measured_otherwise(column: Column, header: Header) -> bool:
    """Whether a header's unit shows that it is another column.

    "Pallet L (mm)" is no order, "Qty (kg)" no count and "Maße cm" no mass.
    """
    if column.kind == "mass":
        return header.length_unit in PLAIN_UNITS and not header.weight_unit
    if column.kind in ("length", "sides"):
        return header.weight_unit in PLAIN_UNITS and not header.length_unit
    if column.kind not in ("text", "count"):
        return False
    in_brackets = set(tokens(" ".join(_BRACKETS.findall(plain_text(header.text[:_MOST_LETTERS])))))
    is_length = header.length_unit in PLAIN_UNITS or not in_brackets.isdisjoint(LENGTH_BY_WORD)
    is_weight = header.weight_unit in PLAIN_UNITS or not in_brackets.isdisjoint(WEIGHT_BY_WORD)
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
    packings += f", {known.GROSS_WORDS}, {known.NET_WORDS}, {known.PACKED_WORDS}"
    return {fold(word) for word in split_phrases(packings)}


def _is_packing(word: str) -> bool:
    return word.isdigit() or word in _packing_words()


class Sample:
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


def is_amount(cell: object) -> bool:
    return amount_of(cell, NumberStyle()) is not None


def _is_three_sides(cell: object) -> bool:
    return isinstance(cell, str) and len(split_sides(cell)) == 3


def _is_flag(cell: object) -> bool:
    return flag_of(cell) is not None


def candidates_of(column: Column, headers: Sequence[Header], sample: Sample, taken: set[int]) -> list[Candidate]:
    """Headers that have the words of a column and whose cells may be its."""
    found = []
    for at, header in enumerate(headers):
        candidate = None if at in taken else match_header(column, header, at)
        if candidate is None:
            continue
        if column.kind in ("length", "mass", "count") and sample.share(at, is_amount) < 0.5:
            continue
        if column.kind == "length" and sample.column(at) and sample.share(at, _is_three_sides) > 0.5:
            continue
        if column.name == "quantity" and numbers_rows(header, sample, at):
            continue
        if column.kind == "flag" and sample.share(at, _is_flag) < 0.5:
            continue
        found.append(candidate)
    return found


def numbers_rows(header: Header, sample: Sample, at: int) -> bool:
    """Whether a column called "N", "N°" or "Nr." numbers the rows.

    Such as 1, 2, 3, or 10, 20, 30.
    """
    if NUMBER_WORDS.isdisjoint(header.words):
        return False
    if is_row_numbering(sample, at):
        return True
    if not NUMBER_WORDS.issuperset(header.words):
        return False
    values = [value for value in map(number_of, sample.column(at)) if value is not None]
    increases = len(values) > 1 and all(a < b for a, b in itertools.pairwise(values))
    return increases or "°" in header.text


def is_row_numbering(sample: Sample, at: int) -> bool:
    """Whether a column holds 1, 2, 3, or 0, 1, 2."""
    values = [number_of(cell) for cell in sample.column(at)]
    if not values or values[0] not in (0, 1):
        return False
    return values == [values[0] + i for i in range(len(values))]


def column_numbers(sample: Sample, at: int) -> list[float]:
    """Numbers of a column's cells, none if one of them has no number."""
    amounts = [amount_of(cell, NumberStyle()) for cell in sample.column(at)]
    return [] if None in amounts else [amount.value for amount in amounts if amount is not None]
