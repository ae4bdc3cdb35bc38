"""Named tuples with other values, and their values by name.

The standard library's methods for both begin with an underscore, so that they cannot be the name of a field.
"""

from __future__ import annotations

from typing import Protocol, Self, TypeVar


class _NamedTuple(Protocol):
    def _replace(self, **changes: object) -> Self: ...

    def _asdict(self) -> dict[str, object]: ...


Record = TypeVar("Record", bound=_NamedTuple)


def with_values(record: Record, **changes: object) -> Record:
    """Return a named tuple with some of its values replaced."""
    return record._replace(**changes)


def values_by_name(record: _NamedTuple) -> dict[str, object]:
    """Return the values of a named tuple by the names of its fields."""
    return record._asdict()
