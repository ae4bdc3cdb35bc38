"""Which headers are length, width and height.

Three sides must be of one thing: a carton, or what is in it, but not one of each.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchrl_gpu.lists import columns as known
from torchrl_gpu.lists.candidates import (
    SMALL_L,
    Candidate,
    FoundColumns,
    Header,
    Sample,
    candidates_of,
    column_numbers,
    has_any,
    match_header,
)
from torchrl_gpu.lists.columns import COLUMNS, SIDES
from torchrl_gpu.lists.side_texts import ORDER_OF_SIDES, is_order_unknown, order_of_sides, split_sides
from torchrl_gpu.lists.units import LENGTHS
from torchrl_gpu.lists.words import fold, plain_text

# Relative difference of a length in two units, which lists round to whole ones.
_MOST_ROUNDING = 0.1
# Letters of a cell in which a cross between two numbers is looked for.
_MOST_LETTERS = 200
_CROSS = re.compile(r"\d\s*\w{0,2}\s*[xX×*]\s*\d")


def find_sides(headers: Sequence[Header], sample: Sample, found: FoundColumns) -> None:
    """Find length, width and height, or the column that holds all three.

    Three sides must be of one thing: the best group of headers that differ by the word for the side alone.
    """
    if all(side in found.at for side in SIDES) or "dimensions" in found.at:
        if "dimensions" in found.at:
            _take_order(headers, found)
        return
    groups: dict[tuple[str, ...], dict[str, list[Candidate]]] = {}
    for column in COLUMNS:
        if column.kind != "length":
            continue
        for candidate in candidates_of(column, headers, sample, set(found.at.values())):
            groups.setdefault(candidate.rest, {}).setdefault(column.name, []).append(candidate)
    _tell_length_from_width(headers, groups)
    whole = []
    for rest, sides in groups.items():
        chosen = _three_sides(sides, headers, found.at)
        if chosen is not None:
            whole.append(_Sides(packing_rank(rest), bool(rest), min(chosen.values()), chosen))
    dimensions = _dimensions(headers, sample, found)
    whole.sort(key=lambda each: (each.rank, each.has_other_words, each.first))
    if dimensions and (not whole or packing_rank(dimensions[0].rest) < whole[0].rank):
        found.at["dimensions"] = dimensions[0].at
        _take_order(headers, found)
        _doubt_other_cells_of_sides(dimensions, headers, sample, found)
    elif whole:
        found.at |= whole[0].at
        _doubt_other_sides(whole, headers, sample, found)
        for sides in groups.values():
            _doubt_other_units(sides, headers, sample, found)
    else:
        _take_sides_of_any_group(groups, headers, found)


def _doubt_other_cells_of_sides(
    dimensions: Sequence[Candidate], headers: Sequence[Header], sample: Sample, found: FoundColumns
) -> None:
    """Say where a column that no word names has sides as well: "Packed" beside "Size"."""
    named = {each.at for each in dimensions}
    for at, header in enumerate(headers):
        if at in named or has_any(header.words, "pallet, palette, pallets, container"):
            continue
        # A date has three parts, too, but no cross between them.
        if sample.column(at) and sample.share(at, _is_cross_of_sides) == 1:
            found.doubts.append(
                f'the sides may be "{headers[dimensions[0].at].text}", which are read, or "{header.text}":'
                ' say --column dimensions="…"'
            )
            return


def _is_cross_of_sides(cell: object) -> bool:
    return _CROSS.search(str(cell)[:_MOST_LETTERS]) is not None and len(split_sides(cell)) == 3


def _take_order(headers: Sequence[Header], found: FoundColumns) -> None:
    """Take the order in which a cell holds its sides from its header."""
    text = headers[found.at["dimensions"]].text
    found.in_order = order_of_sides(text)
    if is_order_unknown(text):
        found.doubts.append(
            f'"{text}" is read as length × width × height: if that is another order, write it as LxWxH or HxWxL'
        )


@dataclass(frozen=True)
class _Sides:
    """Columns of three sides of one thing.

    Attributes:
        rank: Of the thing, see `packing_rank`.
        has_other_words: Whether its headers have more words than those for the sides.
        first: Index of the first column.
        at: Index of each side.
    """

    rank: int
    has_other_words: bool
    first: int
    at: dict[str, int]


def _doubt_other_sides(sides: Sequence[_Sides], headers: Sequence[Header], sample: Sample, found: FoundColumns) -> None:
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


def _doubt_other_units(
    sides: Mapping[str, Sequence[Candidate]], headers: Sequence[Header], sample: Sample, found: FoundColumns
) -> None:
    """Say where a side stands in two units, and one is no conversion of the other.

    1 foot in one column and 6 inches in the next are such.
    """
    for side, candidates in sides.items():
        at = found.at.get(side)
        if at is None or all(each.at != at for each in candidates):
            continue
        unit = headers[at].length_unit
        for other in candidates:
            other_unit = headers[other.at].length_unit
            if other.at == at or not unit or not other_unit or unit == other_unit:
                continue
            values = column_numbers(sample, at)
            others = column_numbers(sample, other.at)
            pairs = list(zip(values, others, strict=False))
            if pairs and not all(
                math.isclose(a * LENGTHS[unit], b * LENGTHS[other_unit], rel_tol=_MOST_ROUNDING) for a, b in pairs
            ):
                found.doubts.append(
                    f'the {side} may be "{headers[at].text}", which is read, "{headers[other.at].text}", or their sum:'
                    f' say --column {side}="…"'
                )
                return


def packing_rank(rest: tuple[str, ...]) -> int:
    """Rank a group of sides by its other words.

    0 for a packing, 1 for a box, 2 for what is inside, 3 for limits.
    """
    words = list(rest)
    if has_any(words, known.MOST_WORDS):
        return 3
    is_inside = has_any(words, known.INNER_BOX_WORDS)
    if is_inside or has_any(words, known.NET_WORDS) or has_any(words, known.WITHOUT_WORDS):
        return 2
    is_packed = has_any(words, known.PACKED_WORDS) or has_any(words, known.OUTER_WORDS)
    if is_packed or has_any(words, known.GROSS_WORDS):
        return 0
    return 2 if has_any(words, known.INNER_WORDS) else 1


def _three_sides(
    sides: Mapping[str, list[Candidate]], headers: Sequence[Header], given: Mapping[str, int]
) -> dict[str, int] | None:
    """Return the columns of length, width and height of a group.

    None where one is missing.

    Of two columns for a side, in different units, those of the unit that most sides have are taken.
    """
    named = dict(sides)
    for side in SIDES:
        if side in given:
            named[side] = [Candidate(given[side], True, 0, ())]
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


def _common_unit(sides: Mapping[str, Sequence[Candidate]], headers: Sequence[Header]) -> str:
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
    groups: Mapping[tuple[str, ...], Mapping[str, list[Candidate]]], headers: Sequence[Header], found: FoundColumns
) -> None:
    """Take each side from the best group that has it: "Max. length", but "Width"."""
    merged: dict[str, list[Candidate]] = {}
    for rest in sorted(groups, key=packing_rank):
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
    headers: Sequence[Header], groups: Mapping[tuple[str, ...], dict[str, list[Candidate]]]
) -> None:
    """In French lists L is the length and l the width."""
    for sides in groups.values():
        lengths = sides.get("length", [])
        letters = [each for each in lengths if headers[each.at].words[-1:] == ["l"]]
        small = [each for each in letters if SMALL_L.search(headers[each.at].text)]
        large = [each for each in letters if each not in small]
        if small and large and "width" not in sides:
            sides["length"] = large
            sides["width"] = small


def _dimensions(headers: Sequence[Header], sample: Sample, found: FoundColumns) -> list[Candidate]:
    """Headers of cells with all three sides, the best first."""
    column = next(each for each in COLUMNS if each.name == "dimensions")
    candidates = []
    for at, header in enumerate(headers):
        candidate = match_header(column, header, at)
        if candidate is None and ORDER_OF_SIDES.search(fold(plain_text(header.text))):
            candidate = Candidate(at, True, 0, ())
        if candidate is None or at in found.at.values():
            continue
        if sample.column(at) and sample.share(at, lambda cell: len(split_sides(cell)) == 3) >= 0.5:
            candidates.append(candidate)
    return sorted(candidates, key=lambda each: (packing_rank(each.rest), each.rank, each.at))
