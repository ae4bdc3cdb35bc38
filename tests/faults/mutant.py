"""A fault that is planted in the package, and the tests that should notice it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A fault and what should notice it.

    Attributes:
        name: Of the mutant.
        tests: Files or folders in `tests/`; one that has moved is looked for by its name.
        changes: Pairs of a text and its replacement; the first whose text stands once in the package is planted.
        k: As pytest's `-k`.
        equivalent: Why no test can notice it; empty where one must.
    """

    name: str
    tests: tuple[str, ...]
    changes: tuple[tuple[str, str], ...]
    k: str = ""
    equivalent: str = ""


def mutant(
    name: str, old: str, new: str, *tests: str, k: str = "", also: Sequence[tuple[str, str]] = (), equivalent: str = ""
) -> Mutant:
    """A mutant by its text, and others in its place where that has changed; see `Mutant`."""
    return Mutant(name, tests, ((old, new), *also), k, equivalent)
