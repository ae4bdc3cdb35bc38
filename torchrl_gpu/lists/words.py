"""Headers and cells as words that can be compared.

Case, accents, brackets and camel case do not count.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

# "½" would be joined to the digits before it when it is decomposed.
_VULGAR = {"½": "1/2", "¼": "1/4", "¾": "3/4", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8", "⅓": "1/3", "⅔": "2/3"}
_SIGNS = str.maketrans("’‘`”“″⁄", "'''\"\"\"/")
# Letters that do not decompose into a plain letter and an accent.
_LETTERS: dict[str, str | int | None] = {"ł": "l", "ø": "o", "đ": "d", "æ": "ae", "œ": "oe", "ß": "ss", "ı": "i"}
_INITIALS = re.compile(r"\b(?:[a-z]\.){2,}(?![a-z])", re.IGNORECASE)
# A small letter or a digit before a capital, and the last of several capitals before a small letter.
_CAMEL = re.compile(r"(?<=[a-zà-ÿ0-9])(?=[A-ZÀ-Þ])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
# A unit behind a Chinese or Japanese word has no space before it: 长cm.
_BETWEEN_SCRIPTS = re.compile(r"(?<=[\u3040-\u9fff])(?=[a-z])|(?<=[a-z])(?=[\u3040-\u9fff])")
# A slash before a box or a piece divides: "Qty/CTN" is what one carton holds.
_PER = re.compile(
    r"\s*/\s*(?=(?:ctn|carton|case|cs|box|pc|pcs|piece|unit|ea|karton|stk|stuck|colli?|caja|caixa|cx|cartone|collo|colis"
    r"|caisse|scatola|doos|krabice|opak|ve|vpe|кор|коробка|коробку|место|уп|упак|упаковка|箱|ケース|件|个)(?![^\W_]))"
)
# Germanic languages join words: "Kartonlänge" is the length of a carton.
_LAST_PARTS = (
    *("lange", "laenge", "breite", "hohe", "hoehe", "tiefe", "gewicht", "menge", "anzahl", "einheit", "nummer"),
    *("lengte", "breedte", "hoogte", "diepte", "aantal", "mass", "masse"),
)


def plain_text(text: str) -> str:
    """Return a text with plain digits, signs and spaces.

    Full-width forms, fractions, quotes and hard spaces.
    """
    # Most cells are plain already, and a list has millions of them.
    if text.isascii():
        # Two apostrophes are an inch sign.
        return " ".join(text.replace("`", "'").replace("''", '"').split())
    for sign, fraction in _VULGAR.items():
        text = text.replace(sign, f" {fraction}")
    text = unicodedata.normalize("NFKC", text)
    text = text.translate(_SIGNS)
    return " ".join(text.split())


def fold(text: str) -> str:
    """Return a text in small letters without accents."""
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    without = "".join(each for each in decomposed if not unicodedata.combining(each))
    return without.translate(str.maketrans(_LETTERS))


def tokens(header: str) -> list[str]:
    """Split a header into folded words.

    "lengthMm", "Length_mm" and "LENGTH (mm)" give the same words. The sign `"` is a word of its own: inches.
    """
    text = plain_text(header)
    text = _INITIALS.sub(lambda match: match[0].replace(".", "") + " ", text)
    text = fold(_CAMEL.sub(" ", text))
    if not text.isascii():
        text = _BETWEEN_SCRIPTS.sub(" ", text)
    text = _PER.sub(" per ", text)
    found = re.findall(r'[^\W_]+|"|#', text)
    parts: list[str] = []
    for word in found:
        parts += _split_compound(word)
    return parts


def _split_compound(word: str) -> list[str]:
    for last in _LAST_PARTS:
        first = word.removesuffix(last)
        if first not in (word, "") and len(first) > 2:
            return [first, last]
    return [word]


def is_ideographic(word: str) -> bool:
    """Whether a word is written without spaces around it.

    Chinese characters, kana or hangul.
    """
    return any("\u3040" <= each <= "\u9fff" or "\uac00" <= each <= "\ud7af" for each in word)


def contains(header: list[str], phrase: list[str]) -> bool:
    """Whether the words of a phrase stand in a header, side by side."""
    if len(phrase) == 1 and is_ideographic(phrase[0]):
        return any(phrase[0] in word for word in header)
    last = len(header) - len(phrase)
    return any(header[first : first + len(phrase)] == phrase for first in range(last + 1))


def split_phrases(text: str) -> list[str]:
    """Split words and phrases that stand between commas."""
    return [phrase.strip() for phrase in text.split(",") if phrase.strip()]


@cache
def phrase_words(phrase: str) -> list[str]:
    """Split a phrase of a table into folded words.

    They are kept, so that whoever gets them must not change them.
    """
    return tokens(phrase)
