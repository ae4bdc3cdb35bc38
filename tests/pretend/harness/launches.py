"""Launches of the host, counted: operators one by one, and replays of graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch._ops import OpOverload

# They hand out memory, or look at it another way, without a schema that says so.
_NOTHING = ("empty", "_unsafe_view", "record_stream", "set_", "lift_fresh", "resize_", "is_same_size", "_to_copy_view")


class Launches:
    """Launches by what the host asked for.

    Attributes:
        operators: By name, outside of graphs, views and empty memory left out.
        replays: Of graphs.
        nodes: Operators of the graphs that were replayed, views left out.
    """

    def __init__(self) -> None:
        self.operators: Counter[str] = Counter()
        self.replays = 0
        self.nodes = 0

    @property
    def total(self) -> int:
        """Launches of the host: operators, and one for each replay."""
        return self.operators.total() + self.replays


_open: list[Launches] = []


@contextmanager
def launches() -> Iterator[Launches]:
    """Count launches while it is open, in all threads."""
    counted = Launches()
    _open.append(counted)
    try:
        yield counted
    finally:
        _open.remove(counted)


def schema_of(func: OpOverload) -> Any:
    """Return the arguments and results that an operator declares."""
    return func._schema


def note(func: OpOverload) -> None:
    """Count an operator outside of graphs."""
    if _open and launches_something(func):
        for each in _open:
            each.operators[schema_of(func).name.partition("::")[2]] += 1


def note_replay(nodes: int) -> None:
    """Count the replay of a graph by the number of its operators."""
    for each in _open:
        each.replays += 1
        each.nodes += nodes


@cache
def launches_something(func: OpOverload) -> bool:
    """True of an operator that is more than another view of memory."""
    schema = schema_of(func)
    if schema.name.partition("::")[2].startswith(_NOTHING):
        return False
    if schema.is_mutable:
        return True
    return not any(each.alias_info is not None for each in schema.returns)
