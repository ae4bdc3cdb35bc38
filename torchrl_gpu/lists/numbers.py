"""Numbers as countries write them: 1.200,5 and 1,200.5 and 1'200.5 and 1 200,5.

`1.200` alone is a thousand and two hundred in one country and one and a fifth in another. So the country is decided
once for a whole file, by those of its numbers that can be read in one way only.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from torchrl_gpu.lists.words import fold, plain_text, split_phrases

Cell = str | int | float | bool | datetime.date | datetime.time | datetime.timedelta | None

POINT = "."
COMMA = ","
_SIGN = r"[+-]?"
_EXPONENT = r"(?:[eE][+-]?\d+)?"
_WHOLE = re.compile(rf"{_SIGN}\d+{_EXPONENT}")
_GROUPED = re.compile(rf"{_SIGN}\d{{1,3}}((?P<group>[ '.,])\d{{3}}(?:(?P=group)\d{{3}})*)(?:(?P<decimal>[.,])\d*)?")
# 1,20,000: hundreds of thousands have groups of their own in India.
_INDIAN = re.compile(rf"{_SIGN}\d{{1,2}}(?:,\d{{2}})+,\d{{3}}(?:\.\d*)?")
_DECIMAL = re.compile(rf"{_SIGN}\d*(?P<decimal>[.,])\d+{_EXPONENT}|{_SIGN}\d+(?P<last>[.,])")
_FRACTION = re.compile(r"(?:(?P<whole>\d{1,9})[ -])?(?P<above>\d{1,9})\s*/\s*(?P<below>\d{1,9})")
# A number, and what stands behind it.
_WITH_WORD = re.compile(
    r"(?P<number>(?:\d+[ -])?\d+\s*/\s*\d+|[+-]?[\d.,' ]*\d[.,]?(?:[eE][+-]?\d+(?!\w))?)\s*(?P<word>[^\d\s].*)?"
)


@dataclass(frozen=True)
class Evidence:
    """What a number's text says about its country.

    Attributes:
        decimal: The decimal sign, "" where the text does not say.
        thousands: The sign between thousands, "" where the text does not say.
        either: The sign of a number such as 1.200, which is one or the other.
    """

    decimal: str = ""
    thousands: str = ""
    either: str = ""


@dataclass(frozen=True)
class NumberStyle:
    """How the numbers of a file are written.

    Attributes:
        decimal: The decimal sign, "." or ",".
        known: Whether the file shows it: False where every number reads the same in both ways.
        mixed: Whether numbers of both kinds are in the file.
        ambiguous: First number that reads in two ways, "" for none.
    """

    decimal: str = POINT
    known: bool = False
    mixed: bool = False
    ambiguous: str = ""

    @property
    def thousands(self) -> str:
        return COMMA if self.decimal == POINT else POINT


def evidence_of(text: str) -> Evidence | None:
    """Return what the text of a number says about its country.

    None where it is no number.
    """
    if _WHOLE.fullmatch(text):
        return Evidence()
    if _INDIAN.fullmatch(text):
        return Evidence(POINT, COMMA)
    grouped = _GROUPED.fullmatch(text)
    if grouped:
        return _evidence_of_groups(text, grouped)
    decimal = _DECIMAL.fullmatch(text)
    if decimal:
        return Evidence(decimal=decimal["decimal"] or decimal["last"])
    return None


def _evidence_of_groups(text: str, match: re.Match[str]) -> Evidence | None:
    group, decimal = match["group"], match["decimal"] or ""
    if group == decimal:
        return None
    if decimal:
        return Evidence(decimal, group)
    if group in " '":
        return Evidence(thousands=group)
    several = len(match[1]) > 4
    if several:
        return Evidence(COMMA if group == POINT else POINT, group)
    # A number with thousands does not begin with 0.
    if text.lstrip("+-").startswith("0"):
        return Evidence(decimal=group)
    return Evidence(either=group)


def decide_style(texts: Iterable[str], whole: Iterable[str] = ()) -> NumberStyle:
    """Decide how the numbers of a file are written.

    Args:
        texts: Numbers of the file as they stand there; other texts are passed over.
        whole: Numbers of columns that hold whole numbers. A column of 1.250 and 12.500 holds no fractions, but one of
            12.000 and 3.000 may count in thousandths, as some systems do.
    """
    decimals: set[str] = set()
    ambiguous = ""
    for text in texts:
        found = evidence_of(text)
        if found is None:
            continue
        if found.decimal:
            decimals.add(found.decimal)
        elif found.either and not ambiguous:
            ambiguous = text
    for text in whole:
        found = evidence_of(text)
        if found is not None and found.either and not text.endswith("000"):
            decimals.add(COMMA if found.either == POINT else POINT)
    if len(decimals) == 2:
        return NumberStyle(POINT, known=False, mixed=True, ambiguous=ambiguous)
    if decimals:
        return NumberStyle(decimals.pop(), known=True)
    return NumberStyle(POINT, known=False, ambiguous=ambiguous)


def number_of(cell: object, style: NumberStyle = NumberStyle(known=False)) -> float | None:
    """Read a number, None for anything else.

    A number that can be read in one way only is read so, whatever the style of the file.
    """
    if isinstance(cell, str):
        return _number_of_text(cell, style)
    if isinstance(cell, (int, float, Decimal)) and not isinstance(cell, bool):
        return None if math.isnan(cell) else float(cell)
    return None


# The same few numbers fill most of a list.
@lru_cache(2**16)
def _number_of_text(cell: str, style: NumberStyle) -> float | None:
    text = plain_text(cell)
    fraction = _FRACTION.fullmatch(text)
    if fraction:
        below = int(fraction["below"])
        return int(fraction["whole"] or 0) + int(fraction["above"]) / below if below else None
    found = evidence_of(text)
    if found is None:
        return None
    decimal = found.decimal
    if found.either:
        decimal = style.decimal
    thousands = found.thousands or (style.thousands if found.either else "")
    for sign in {thousands, " ", "'"} - {""}:
        text = text.replace(sign, "")
    return float(text.replace(decimal, POINT) if decimal else text)


@dataclass(frozen=True)
class Amount:
    """A number with the word behind it.

    Attributes:
        value: The number.
        word: The word, folded; "" for none.
    """

    value: float
    word: str


def amount_of(cell: object, style: NumberStyle) -> Amount | None:
    """Read a number that may have a unit behind it, such as 40cm, 15 3/4" or 12 pcs.

    None for anything else.
    """
    if isinstance(cell, str):
        return _amount_of_text(cell, style)
    value = number_of(cell, style)
    return None if value is None else Amount(value, "")


@lru_cache(2**16)
def _amount_of_text(cell: str, style: NumberStyle) -> Amount | None:
    value = _number_of_text(cell, style)
    if value is not None:
        return Amount(value, "")
    match = _WITH_WORD.fullmatch(plain_text(cell))
    if not match or not match["word"]:
        return None
    value = number_of(match["number"], style)
    if value is None:
        return None
    return Amount(value, fold(match["word"].strip().rstrip(".")))


def number_text(cell: object) -> str:
    """Return the number of a cell as it is written there, without its unit.

    "" where a cell holds no text.
    """
    if not isinstance(cell, str):
        return ""
    match = _WITH_WORD.fullmatch(plain_text(cell))
    return match["number"].strip() if match else ""


def text_of(cell: object) -> str:
    """Return a cell as text, "" for an empty one.

    Parquet may have NaN for an empty cell, and Excel 123.0 for 123.
    """
    if isinstance(cell, str):
        return cell.strip()
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()


_NOTHING = "-, –, —, n/a, na, n.a., #n/a, null, none, nil, k.a., ./."
_NOTHING_WORDS = {fold(word) for word in split_phrases(_NOTHING)}


def is_nothing(cell: object) -> bool:
    """Whether a cell is empty, or says that there is nothing: "-", "n/a"."""
    text = text_of(cell)
    return not text or (len(text) <= 4 and fold(text) in _NOTHING_WORDS)


_YES = "yes, y, true, 1, x, ja, j, wahr, oui, o, vrai, si, s, sim, tak, ano, a, да, д, はい, 有, 是, ✓, ✔, √, ○"
_NO = "no, n, false, 0, -, nein, falsch, non, faux, nao, nee, nie, ne, нет, н, いいえ, 无, 無, 否, ✗, ×"
_YES_WORDS = {fold(word) for word in split_phrases(_YES)}
_NO_WORDS = {fold(word) for word in split_phrases(_NO)}


def flag_of(cell: object) -> bool | None:
    """Read yes or no in several languages.

    An empty cell is no. None for anything else.
    """
    word = fold(text_of(cell))
    if word in _YES_WORDS:
        return True
    return False if not word or word in _NO_WORDS else None
