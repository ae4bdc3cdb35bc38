"""Named tuples with other values, and their values by name.

The standard library's methods for both begin with an underscore, so that they cannot be the name of a field.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar


class _NamedTuple(Protocol):
    def _replace(self, **changes: Any) -> Any: ...

    def _asdict(self) -> dict[str, Any]: ...


Record = TypeVar("Record", bound=_NamedTuple)


def with_values(record: Record, **changes: object) -> Record:
    """Return a named tuple with some of its values replaced."""
    copy: Record = record._replace(**changes)
    return copy


def values_by_name(record: _NamedTuple) -> dict[str, Any]:
    """Return the values of a named tuple by the names of its fields."""
    return record._asdict()
