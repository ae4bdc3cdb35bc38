"""Lengths and pallets as a user gives them: 15, 15mm, 48in, eur, 1200x800.

A number without a unit is in millimetres, whatever the list is in. One that would then be an unlikely pallet is asked
about: 120x80 may be meant in centimetres.
"""

from __future__ import annotations

import re

from torchrl_gpu.lists.units import LENGTH_BY_WORD, LENGTHS, unit_of_word
from torchrl_gpu.palletizing.pallet import OWN_WEIGHT_AND_HEIGHT, PRESETS
from torchrl_gpu.system import arguments

WHERE = "pack"
MOST_METRES = 100.0
_LEAST_METRES = 0.01
# Other names of the same pallets.
_ALIASES = {"epal": "eur", "eur1": "eur", "euro": "eur", "europallet": "eur", "europalette": "eur", "gma": "48x40"}
_ALIASES |= {"industrial": "1200x1000", "eur2": "1200x1000", "iso": "1200x1000"}
# Pallets and loads that are built, metres: a number without a unit beyond them was meant in another unit.
_LIKELY_SIDE = (0.2, 4.0)
_LIKELY_HEIGHT = (0.1, 4.0)
_SIZE = re.compile(r"([\d.,]+(?:\s*[x×*]\s*[\d.,]+){1,2})\s*([^\d\s]*)")
_LENGTH = re.compile(r"([\d.,]+)\s*([^\d\s]*)")
_LENGTH_WORDS = "a length, such as 15 or 15mm"


def metres(name: str, given: str | float, above: float | None = None) -> float:
    """Convert an option's length to metres.

    A number of millimetres, or a text that says its unit.

    Raises:
        ValueError: It is no length, is negative, or is not above `above`.
    """
    match = _LENGTH.fullmatch(str(given).strip().casefold())
    unit = _unit(match[2]) if match else ""
    if not match or not unit:
        arguments.refuse(WHERE, name, _LENGTH_WORDS, given)
    return _number(name, match[1], given, above) * LENGTHS[unit] / 1000


def load_height(given: str | float) -> float:
    """Convert the most height of a load to metres.

    Without a unit it must be a likely one.
    """
    height = metres("height", given, above=0.0)
    if _says_no_unit(str(given)) and not _LIKELY_HEIGHT[0] <= height <= _LIKELY_HEIGHT[1]:
        raise ValueError(f"{WHERE}: height: {given} are millimetres, {height:g} m: say the unit, such as {given}cm")
    return height


def sides_of(pallet: str) -> tuple[float, float, float]:
    """Length, width and most height of a pallet by name, or of sides, metres.

    Raises:
        ValueError: It is no pallet, or an unlikely one without a unit.
    """
    name = _name_of(pallet)
    if name in PRESETS:
        return PRESETS[name]
    text = str(pallet).strip().casefold()
    match = _SIZE.fullmatch(text)
    unit = _unit(match[2]) if match else ""
    if not match or not unit:
        wanted = f"one of {', '.join(PRESETS)} or sides such as 1200x800mm or 120x80x150cm"
        arguments.refuse(WHERE, "pallet", wanted, pallet)
    numbers = re.split(r"\s*[x×*]\s*", match[1])
    sides = [_number("pallet", number, pallet, 0.0) * LENGTHS[unit] / 1000 for number in numbers]
    if not _LEAST_METRES <= min(sides) <= max(sides) <= MOST_METRES:
        arguments.refuse(WHERE, "pallet", f"of sides from {1000 * _LEAST_METRES:g} mm to {MOST_METRES:g} m", pallet)
    if not match[2] and not _LIKELY_SIDE[0] <= min(sides[:2]) <= max(sides[:2]) <= _LIKELY_SIDE[1]:
        size = " × ".join(f"{side:g}" for side in sides[:2])
        raise ValueError(f"{WHERE}: pallet: {pallet} are millimetres, {size} m: say the unit, such as {pallet}cm")
    if len(sides) == 2:
        sides.append(PRESETS["eur"][2])
    length, width, height = sides
    return length, width, height


def own_weight_and_height(pallet: str) -> tuple[float, float]:
    """Kilograms and metres of a pallet of a name, 0 where they are not known."""
    return OWN_WEIGHT_AND_HEIGHT.get(_name_of(pallet), (0.0, 0.0))


def _name_of(pallet: str) -> str:
    text = str(pallet).strip().casefold()
    return _ALIASES.get(text, text)


def _unit(word: str) -> str:
    """Unit that a word names, millimetres for no word, "" for any other."""
    return unit_of_word(word, LENGTH_BY_WORD) if word else "mm"


def _says_no_unit(given: str) -> bool:
    return not any(map(str.isalpha, given)) and '"' not in given


def _number(name: str, text: str, given: object, above: float | None) -> float:
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        arguments.refuse(WHERE, name, _LENGTH_WORDS, given)
    return arguments.number(WHERE, name, value, 0, above=above)
