"""Which header is which column.

Headers are compared with the words of `columns.COLUMNS`, but words alone do not decide: a list has the net weight
beside the gross weight, the sides of the item beside those of its carton, the pieces in a carton beside the cartons.
So every header that has the words of a column is a candidate, candidates are ranked by the other words of their
headers, and those whose cells are of another kind are passed over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from torchrl_gpu.lists import columns as known
from torchrl_gpu.lists.candidates import (
    PLAIN_UNITS,
    SAMPLE_ROWS,
    Candidate,
    Cells,
    FoundColumns,
    Header,
    Sample,
    candidates_of,
    column_numbers,
    has_any,
    is_row_numbering,
    match_header,
    numbers_rows,
    parse_header,
)
from torchrl_gpu.lists.columns import COLUMNS, SIDES, Column
from torchrl_gpu.lists.numbers import text_of
from torchrl_gpu.lists.quantities import (
    COUNTING_WORDS,
    NUMBERS_BOXES,
    box_count_candidates,
    box_range_candidates,
    find_full_boxes,
    names_boxes,
    per_box_candidates,
)
from torchrl_gpu.lists.sides import find_sides
from torchrl_gpu.lists.units import LENGTH_BY_WORD, WEIGHT_BY_WORD, WEIGHTS, unit_of_word

_ROTATION = re.compile(r"rotation ([xyz]{3})")
_ORDER_NUMBER = re.compile(r"#[A-Z]{0,4}-?\d{3,}")


def find_columns(header: Cells, rows: Sequence[Cells], given: Mapping[str, int]) -> FoundColumns:
    """Find the columns of a table.

    Args:
        header: Headers.
        rows: Rows below it, of which the first 200 show what kind of cells a column has.
        given: Index of each column that the user names.
    """
    headers = [parse_header(text_of(cell)) for cell in header]
    sample = Sample(rows[:SAMPLE_ROWS])
    found = FoundColumns(at=dict(given))
    found.rotations = _rotations(headers)
    find_sides(headers, sample, found)
    for column in COLUMNS:
        if column.name in found.at or column.kind in ("length", "sides"):
            continue
        if column.kind == "unit":
            _find_units(column, headers, sample, found)
            continue
        candidates = candidates_of(column, headers, sample, found.taken())
        if column.name == "per_box":
            candidates += per_box_candidates(headers, sample, found.taken())
        if column.name == "quantity":
            ranges = box_range_candidates(headers, sample, found)
            # "N° colis" counts boxes, but not where its cells are 1-3.
            counts = box_count_candidates(headers, sample, {*found.taken(), *(each.at for each in ranges)})
            candidates = (counts or ranges) + candidates
        if column.name == "weight" and not candidates:
            candidates = _named_by_unit(headers, found.taken())
        if column.name == "order" and not candidates:
            candidates = _numbered_names(headers, sample, found.taken())
        if candidates:
            _take_best(column, candidates, headers, sample, found)
        elif column.name in ("quantity", "weight"):
            _doubt_other_cells(column, headers, sample, found)
    return found


def _doubt_other_cells(column: Column, headers: Sequence[Header], sample: Sample, found: FoundColumns) -> None:
    """Say where a header names a column and its cells are of another kind."""
    for at, header in enumerate(headers):
        candidate = None if at in found.taken() else match_header(column, header, at)
        cells = sample.column(at)
        if candidate is None or not cells or numbers_rows(header, sample, at) or is_row_numbering(sample, at):
            continue
        is_counted = column.kind == "count" and all(each in COUNTING_WORDS for each in candidate.rest)
        if not candidate.exact and not is_counted:
            continue
        found.doubts.append(
            f'"{header.text}" is not read as the {column.name}: its cells are no numbers, such as "{text_of(cells[0])}"'
        )


def _named_by_unit(headers: Sequence[Header], taken: set[int]) -> list[Candidate]:
    """Weights under a header that names their unit: "KG", "Pounds", "Box kg"."""
    found = []
    for at, header in enumerate(headers):
        words = header.words
        is_alone = len(words) == 1 and len(words[0]) > 1 and words[0] in WEIGHT_BY_WORD
        is_of_packing = bool(header.weight_unit in PLAIN_UNITS and words) and all(map(_says_of_what, words))
        if at not in taken and (is_alone or is_of_packing):
            found.append(Candidate(at, True, 0, ()))
    return found


def _numbered_names(headers: Sequence[Header], sample: Sample, taken: set[int]) -> list[Candidate]:
    """Orders of shops that call their number a name: #1001 below "Name"."""
    found = []
    for at, header in enumerate(headers):
        cells = [text_of(cell) for cell in sample.column(at)]
        if at not in taken and header.words == ["name"] and cells and all(map(_ORDER_NUMBER.fullmatch, cells)):
            found.append(Candidate(at, True, 0, ()))
    return found


def _says_of_what(word: str) -> bool:
    """Whether a word says of what a weight is: "Box kg", "kg per carton", "total kg"."""
    of_what = (known.BOX_WORDS, known.PIECE_WORDS, known.OUTER_WORDS)
    of_how_many = (known.ONE_WORDS, known.TOTAL_WORDS, known.GROSS_WORDS)
    return any(has_any([word], words) for words in (*of_what, *of_how_many))


def _take_best(
    column: Column, candidates: Sequence[Candidate], headers: Sequence[Header], sample: Sample, found: FoundColumns
) -> None:
    """Take the best candidate, and say where another one may be meant as well."""
    ranked = sorted(candidates, key=lambda each: (_preference(column, each, headers), each.rank, each.at))
    best = ranked[0]
    if column.name == "quantity":
        named = [at for at, header in enumerate(headers) if at not in found.taken() and names_boxes(header)]
        by_numbers = find_full_boxes(ranked, named, sample, found)
        best = by_numbers or best
        found.counts_boxes = by_numbers is not None or best.rank < 0
        found.numbers_boxes = best.rank == NUMBERS_BOXES
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


def _is_converted(best: Candidate, other: Candidate, headers: Sequence[Header], sample: Sample) -> bool:
    """Whether two columns hold the same weights in two units."""
    unit = headers[best.at].weight_unit
    other_unit = headers[other.at].weight_unit
    values = column_numbers(sample, best.at)
    others = column_numbers(sample, other.at)
    if not unit or not other_unit or unit == other_unit or not values or len(values) != len(others):
        return False
    pairs = zip(values, others, strict=True)
    return all(math.isclose(a * WEIGHTS[unit], b * WEIGHTS[other_unit], rel_tol=0.02) for a, b in pairs)


def _is_of_what_is_inside(words: list[str]) -> bool:
    return has_any(words, known.INNER_WORDS) and not has_any(words, known.OUTER_WORDS)


def _has_sides_of_a_packing(headers: Sequence[Header], found: FoundColumns) -> bool:
    sides = [found.at[side] for side in SIDES if side in found.at]
    return bool(sides) and all(has_any(headers[at].words, known.OUTER_WORDS) for at in sides)


def _preference(column: Column, candidate: Candidate, headers: Sequence[Header]) -> tuple[int | bool, ...]:
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


def _find_units(column: Column, headers: Sequence[Header], sample: Sample, found: FoundColumns) -> None:
    """Find the columns that say the units of a row's lengths and of its weight.

    Their cells decide, as both are called "unit", and so is what a quantity counts.
    """
    for at, header in enumerate(headers):
        if at in found.taken() or not sample.column(at):
            continue
        is_called_so = match_header(column, header, at) is not None
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


def _doubt_other_unit(at: int, headers: Sequence[Header], sample: Sample, found: FoundColumns) -> None:
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
