"""Fonts of a printed plan: DejaVu Sans, and installed ones for what it lacks.

Needs matplotlib, which brings DejaVu Sans with Latin, Cyrillic and Greek letters.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cache

from matplotlib import font_manager, ft2font
from matplotlib.font_manager import FontProperties

FIRST_FAMILY = "DejaVu Sans"
# Fonts beside the first one: Chinese, Japanese, Korean, and a few more scripts.
_MOST_FONTS = 6
# Fonts that draw one box for any character, and so would hide that it is missing.
_PLACEHOLDERS = ("last resort", "lastresort", "adobe blank")
# Weight of regular fonts, and words in the names of those that are unlike DejaVu Sans.
_REGULAR = 400
_UNLIKE = ("Serif", "Mono", "Mincho", "Ming", "Song")
# Printed for a character that no font has, and for one that cannot be printed.
REPLACEMENT = "\ufffd"
_ELLIPSIS = "…"
_POINT_MM = 25.4 / 72


class Fonts:
    """Fonts in which some texts are printed.

    Args:
        texts: All texts that will be printed.

    Attributes:
        families: Names of the fonts in the order in which a character is looked up, for matplotlib.
        missing: Characters of the texts that none of them has, sorted.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        wanted: set[str] = set()
        for text in texts:
            wanted.update(_printable(text))
        self.families = [FIRST_FAMILY]
        left = _without(wanted, FIRST_FAMILY)
        if left:
            _add_new_fonts()
        # Of all fonts the one that has most of what is left, so that one text is printed in as few as possible.
        while left and len(self.families) <= _MOST_FONTS:
            family = _best_family(left)
            if family is None:
                break
            self.families.append(family)
            left = _without(left, family)
        self.missing = "".join(sorted(left))
        self._replace_missing = str.maketrans(dict.fromkeys(left, REPLACEMENT))
        self._advances: dict[str, float] = {}

    def clean(self, text: str) -> str:
        """Make a text of one line that can be printed, with U+FFFD for what cannot."""
        return _printable(text).translate(self._replace_missing)

    def width(self, text: str, size: float) -> float:
        """Width of a cleaned text in millimetres, `size` in points."""
        return sum(map(self._advance, text)) * size * _POINT_MM

    def shorten(self, text: str, size: float, most: float) -> str:
        """Clean a text and cut it, visibly by "…", to `most` millimetres at `size` points."""
        whole = self.clean(text)
        if self.width(whole, size) <= most:
            return whole
        room = most - self.width(_ELLIPSIS, size)
        kept = ""
        for char in whole:
            room -= self.width(char, size)
            if room < 0:
                break
            kept += char
        return kept.rstrip() + _ELLIPSIS

    def _advance(self, char: str) -> float:
        """Width of a character in ems."""
        if char not in self._advances:
            self._advances[char] = _advance_in(char, self.families)
        return self._advances[char]


def _printable(text: str) -> str:
    """Make one line, without what has no shape: joiners, selectors, direction marks."""
    kept = []
    for char in " ".join(text.split()):
        category = unicodedata.category(char)
        is_selector = "\ufe00" <= char <= "\ufe0f"
        if category == "Cf" or is_selector:
            continue
        # Control characters, halves of surrogates, private and unassigned ones.
        kept.append(REPLACEMENT if category.startswith("C") else char)
    return "".join(kept)


@cache
def _font(family: str) -> ft2font.FT2Font | None:
    """The regular font of a family, as matplotlib chooses it when it draws."""
    try:
        path = font_manager.findfont(FontProperties(family=[family]), fallback_to_default=False)
        return font_manager.get_font(path)
    except (OSError, RuntimeError, ValueError):
        # A font that is broken is a font that is not there.
        return None


def _has(font: ft2font.FT2Font, char: str) -> bool:
    if not font.get_char_index(ord(char)):
        return False
    if char.isspace():
        return True
    # A font of coloured pictures may know a character and have no outline for it.
    font.load_char(ord(char), flags=ft2font.LoadFlags.NO_SCALE)
    return len(font.get_path()[0]) > 0


def _without(chars: set[str], family: str) -> set[str]:
    """Characters that the font of a family lacks."""
    font = _font(family)
    if font is None:
        return chars
    return {char for char in chars if not _has(font, char)}


def _advance_in(char: str, families: list[str]) -> float:
    for family in families:
        font = _font(family)
        if font is not None and font.get_char_index(ord(char)):
            glyph = font.load_char(ord(char), flags=ft2font.LoadFlags.NO_SCALE)
            return glyph.horiAdvance / font.units_per_EM
    return 1.0


def _add_new_fonts() -> None:
    """Add fonts that were installed after matplotlib made its list of them.

    It keeps the list in a file, so that a user who installs a font would see no difference.
    """
    known = {entry.fname for entry in font_manager.fontManager.ttflist}
    for path in sorted(font_manager.findSystemFonts()):
        if path not in known:
            try:
                font_manager.fontManager.addfont(path)
            except (OSError, RuntimeError, NotImplementedError, ValueError):
                continue


def _best_family(chars: set[str]) -> str | None:
    """The installed family that has most of some characters, or None.

    Of several it is a sans-serif one that is not of fixed width, as DejaVu Sans is none, then one of the country that
    the characters are of, then the first by name.
    """
    # Families without a regular weight would be searched for with a warning by matplotlib.
    families = set()
    for entry in font_manager.fontManager.ttflist:
        if (entry.style, entry.stretch, entry.weight) == ("normal", "normal", _REGULAR):
            families.add(entry.name)
    # Chinese characters have other shapes in Japan, whose texts are known by their syllables.
    is_japanese = any("\u3040" <= char <= "\u30ff" for char in chars)
    country = " JP" if is_japanese else " SC"
    best = None
    best_score = (0, False, False)
    for family in sorted(families):
        font = None if family.lower().startswith(_PLACEHOLDERS) else _font(family)
        has = 0 if font is None else sum(_has(font, char) for char in chars)
        is_alike = not any(word in family for word in _UNLIKE)
        score = (has, is_alike, family.endswith(country))
        if has and score > best_score:
            best = family
            best_score = score
    return best
