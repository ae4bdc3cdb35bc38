"""Container loading files of the OR-Library: thpack1 to thpack7."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchrl_gpu.lists.sheets import Sheet

_HEADER = ("order", "article", "length", "width", "height", "quantity")
_MOST_DIGITS = 15
_ROTATIONS = ("zyx", "yzx", "xzy", "zxy", "xyz", "yxz")


class _OtherFileError(ValueError):
    """The file is another one."""


def thpack_sheet(text: str) -> Sheet | None:
    """Read a file of the OR-Library, None where a text is no such file.

    It begins with the number of problems. Each has a line of its number and seed, one of the container's sides, one of
    the number of kinds of boxes, and one for each kind: its number, three sides, each followed by 1 where it may be
    vertical, and how many boxes there are. Bischoff and Ratcliff, 1995.
    """
    try:
        return _read(text)
    except _OtherFileError:
        return None


def _read(text: str) -> Sheet:
    lines = iter(_numbers(text))
    _, (problems,) = _next(lines, 1)
    header = [*_HEADER, *(f"rotation {axes}" for axes in _ROTATIONS)]
    sheet = Sheet([0], [header])
    container: Sequence[int] = ()
    for _ in range(problems):
        _, (problem, _seed) = _next(lines, 2)
        _, container = _next(lines, 3)
        _, (kinds,) = _next(lines, 1)
        for _ in range(kinds):
            number, row = _next(lines, 8)
            sheet.lines.append(number)
            sheet.rows.append(_cells(problem, row))
    sides = " × ".join(map(str, container))
    sheet.notes.append(f"OR-Library, {problems:,} problems; the last container, {sides}, is not used")
    return sheet


def _numbers(text: str) -> list[tuple[int, list[int]]]:
    """Line number and numbers of every line that is not empty."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if any(not word.isdecimal() or len(word) > _MOST_DIGITS for word in words):
            raise _OtherFileError
        if words:
            found.append((number, [int(word) for word in words]))
    return found


def _next(lines: Iterator[tuple[int, list[int]]], length: int) -> tuple[int, list[int]]:
    number, row = next(lines, (0, []))
    if len(row) != length:
        raise _OtherFileError
    return number, row


def _cells(problem: int, row: Sequence[int]) -> list[object]:
    kind, length, length_up, width, width_up, height, height_up, quantity = row
    rotations = [length_up, length_up, width_up, width_up, height_up, height_up]
    return [str(problem), str(kind), length, width, height, quantity, *rotations]
