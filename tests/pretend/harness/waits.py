"""Waits of the host for the device, counted by the line that asked."""

from __future__ import annotations

import linecache
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]
_PACKAGE = f"{ROOT}/torchrl_gpu/"
_TESTS = f"{ROOT}/tests/"
_HARNESS = f"{Path(__file__).parent}/"


class Waits:
    """Waits by place and kind."""

    def __init__(self) -> None:
        self.found: Counter[tuple[str, str]] = Counter()

    @property
    def total(self) -> int:
        return self.found.total()

    def by_place(self) -> dict[str, int]:
        """Count waits by the line that asked, and by kind.

        The line is of this package, else of a test, else of a library.
        """
        return {f"{place}: {kind}": number for (place, kind), number in self.found.most_common()}

    def by_kind(self) -> dict[str, int]:
        kinds: Counter[str] = Counter()
        for (_, kind), number in self.found.items():
            kinds[kind] += number
        return dict(kinds)

    def report(self) -> str:
        return "\n".join(
            [f"{self.total} waits", *(f"{number:5} × {place}" for place, number in self.by_place().items())]
        )


_open: list[Waits] = []
capturing = False
"""Whether a graph is being captured, in which nothing may wait."""


@contextmanager
def waits() -> Iterator[Waits]:
    """Count what makes the host wait while it is open, in all threads."""
    counted = Waits()
    _open.append(counted)
    try:
        yield counted
    finally:
        _open.remove(counted)


def note(kind: str) -> None:
    """Count a wait.

    Raises:
        RuntimeError: A graph is being captured.
    """
    if capturing:
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {kind} at {_place()}")
    if _open:
        place = _place()
        for counted in _open:
            counted.found[place, kind] += 1


def _place() -> str:
    """Describe the line of this package, else of a test, that asked.

    The line of the library that it asked through follows.
    """
    frame = sys._getframe(2)
    test = None
    library = None
    while frame is not None:
        name, function = frame.f_code.co_filename, frame.f_code.co_name
        if name.startswith(_PACKAGE) and function != "__torch_dispatch__":
            return _shown(frame, library)
        if name.startswith(_TESTS) and not name.startswith(_HARNESS):
            test = test or frame
        elif "/torch/" not in name and not name.startswith((_HARNESS, _PACKAGE)) and test is None:
            library = library or frame
        frame = frame.f_back  # type: ignore[assignment]
    found = test or library
    return "autograd" if found is None else _shown(found, library)


def _shown(frame: object, library: object) -> str:
    code, line = frame.f_code, frame.f_lineno  # type: ignore[attr-defined]
    name = code.co_filename.removeprefix(f"{ROOT}/")
    through = ""
    if library is not None and library is not frame:
        through = f" through {library.f_code.co_filename.rpartition('site-packages/')[2]}:{library.f_lineno}"  # type: ignore[attr-defined]
    return f"{name}:{line} {code.co_name} `{linecache.getline(code.co_filename, line).strip()}`{through}"
