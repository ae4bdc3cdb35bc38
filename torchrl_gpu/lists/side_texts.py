"""Three sides in one cell, and the order in which a header says that they stand."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from torchrl_gpu.lists.columns import COLUMNS, SIDES
from torchrl_gpu.lists.numbers import text_of
from torchrl_gpu.lists.units import LENGTH_BY_WORD, unit_of_word
from torchrl_gpu.lists.words import fold, is_ideographic, phrase_words, plain_text, tokens

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
    {"w": "height", "s": "width", "d": "length"},
    {"w": "height", "s": "width", "g": "depth"},
)
ORDER_OF_SIDES = re.compile(
    r"\b(?P<a>[SIDES])\s*[x×*х/-]?\s*(?P<b>[SIDES])\s*[x×*х/-]?\s*(?P<c>[SIDES])\b".replace(
        "SIDES", "lwbhdtpacvsgдшвга长宽高長寬幅"
    )
)
# Letters of a header in which an order is looked for.
_MOST_HEADER = 200
# Three words with signs between them, whatever they are.
_ANY_ORDER = re.compile(r"[^\W\d_]+\.?\s*[x×*х/]\s*[^\W\d_]+\.?\s*[x×*х/]\s*[^\W\d_]+")
# The first separator that gives three parts counts: 15 3/4 x 12 x 8 has a fraction, 400/300/200 has none.
_SEPARATORS = [
    re.compile(each)
    for each in (r"\s*[x×*хX✕]\s*|\s+(?:by|por|par)\s+", r"\s*[/|;]\s*", r"(?<=\d)\s*-\s*(?=\d)", r"\s+")
]
_LABELLED = re.compile(
    r"(?P<before>[lwbhdtp长宽高長寬幅])さ?\s*[:=.]?\s*(?P<first>\d[\d.,]*\d|\d)"
    r"|(?P<second>\d[\d.,]*\d|\d)\s*(?P<inch>\"?)\s*\(?(?P<behind>[lwbhdtp])\b\)?"
)
# Characters of three sides in one cell. A longer text is none: patterns would take minutes for a million digits.
_LONGEST = 200
_ORDER_AT_END = re.compile(
    r"(?P<rest>.*\d.*?)\s*\(?\b(?P<a>[lwbhdt])\s*[x×*/]\s*(?P<b>[lwbhdt])\s*[x×*/]\s*(?P<c>[lwbhdt])\)?"
)
_UNIT_IN_BRACKETS = re.compile(r"\(\s*(mm|cm|dm|m|in|inch|inches|ft)\.?\s*\)$")
_IN_BRACKETS = re.compile(r"[(\[]([^()\[\]]*)[)\]]\s*([^\d()]*)")
_LAST_UNIT = re.compile(r"^(?P<rest>.*\d)\s*(?P<unit>[^\d\s]+)$")


def split_sides(cell: object) -> list[tuple[str, str]]:
    """Split a cell of three sides, such as 400x300x200 mm or L400 W300 H200.

    Returned are the names of the sides and their texts.

    A name is "" where the cell does not say it. A unit behind the last side is that of all three.
    """
    given = text_of(cell)
    if len(given) > _LONGEST:
        return []
    text = _without_brackets(fold(plain_text(given)))
    if not text:
        return []
    labelled = list(_LABELLED.finditer(text))
    if len(labelled) == 3:
        names = _without_depth([_SIDE_LETTERS[match["before"] or match["behind"]] for match in labelled])
        unit = _unit_behind(text)
        if not _has_one_unit(text, labelled):
            return []
        if all(match["inch"] for match in labelled):
            unit = ' "'
        return [
            (name, f"{match['first'] or match['second']}{unit}") for name, match in zip(names, labelled, strict=True)
        ]
    text, names_behind = _order_behind(text)
    parts = _three_parts(text)
    if not parts:
        return []
    last = _LAST_UNIT.fullmatch(parts[2])
    if last:
        unit = last["unit"]
        parts = [part if _LAST_UNIT.fullmatch(part) else f"{part} {unit}" for part in parts]
    return list(zip(names_behind or ("", "", ""), parts, strict=True))


def _has_one_unit(text: str, labelled: Sequence[re.Match[str]]) -> bool:
    """Whether all units between three labelled sides are the same.

    L1m W30cm H20cm has two.
    """
    between = [text[a.end() : b.start()] for a, b in itertools.pairwise(labelled)]
    between.append(text[labelled[-1].end() :])
    found = set()
    for part in between:
        for word in re.findall(r"[^\W\d_]+", part):
            found.add(unit_of_word(word, LENGTH_BY_WORD))
    return len(found - {""}) <= 1


def _order_behind(text: str) -> tuple[str, tuple[str, ...]]:
    """Split 30x40x20 cm (BxTxH) into the sides and their names.

    There are no names where a cell does not say them.
    """
    match = _ORDER_AT_END.fullmatch(text)
    if match is None:
        return text, ()
    names = _without_depth(_sides_of_letters("".join((match["a"], match["b"], match["c"]))))
    if set(names) != set(SIDES):
        return text, ()
    return match["rest"], tuple(names)


def _without_brackets(text: str) -> str:
    """Return 40 x 30 x 20 cm for (40 x 30 x 20) cm and for 40 x 30 x 20 (cm)."""
    text = _UNIT_IN_BRACKETS.sub(r" \1", text)
    whole = _IN_BRACKETS.fullmatch(text)
    return f"{whole[1]} {whole[2]}".strip() if whole else text


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
    match = ORDER_OF_SIDES.search(text)
    names = sides_in_words(tokens(header))
    if match is not None:
        names = _sides_of_letters("".join((match["a"], match["b"], match["c"])))
    if len(names) != 3:
        return SIDES
    first, second, third = _without_depth(names)
    return (first, second, third) if {first, second, third} == set(SIDES) else SIDES


def is_order_unknown(header: str) -> bool:
    """Whether a header says an order of the sides that is not understood.

    Such as AxAxF.
    """
    text = fold(plain_text(header[:_MOST_HEADER]))
    match = _ANY_ORDER.search(text)
    if match is None or not LENGTH_BY_WORD.keys().isdisjoint(tokens(match[0])):
        return False
    letters = ORDER_OF_SIDES.search(text)
    names = sides_in_words(tokens(header))
    if letters is not None:
        names = _sides_of_letters("".join((letters["a"], letters["b"], letters["c"])))
    return len(names) != 3 or set(_without_depth(names)) != set(SIDES)


def _sides_of_letters(letters: str) -> list[str]:
    """Return the sides that three initials stand for, in a language that has all."""
    # L x l x h and L x A x A: the second one is the width.
    if letters in ("llh", "laa"):
        return ["length", "width", "height"]
    for by_letter in _INITIALS_OF_SIDES:
        if set(letters) == set(by_letter):
            return [by_letter[letter] for letter in letters]
    return [_SIDE_LETTERS.get(letter, "") for letter in letters]


def sides_in_words(words: Sequence[str]) -> list[str]:
    """Return the sides whose words stand in a header, in their order."""
    found = []
    for word in words:
        for column in COLUMNS:
            is_word = len(word) > 1 or is_ideographic(word)
            if column.kind == "length" and is_word and [word] in map(phrase_words, column.all_words):
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
