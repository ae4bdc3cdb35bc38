"""Names of streams: of one, of an overlay of it, and of one member of a family that is too large to be listed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchrl_gpu.streaming.broadcast.frames import check_title

MAX_FAMILIES = 64
MAX_MEMBERS = 10**9
_NAME = re.compile(r"([A-Za-z][A-Za-z_]{0,31})(:[a-z][a-z_]{0,15})?")
_MEMBER = re.compile(r"([A-Za-z][A-Za-z_]{0,31})(0|[1-9][0-9]{0,8})(:[a-z][a-z_]{0,15})?")
_OVERLAY = re.compile(r"(.+):([a-z][a-z_]{0,15})")


@dataclass(frozen=True)
class Family:
    """Streams `env0`, `env1`, …, or with an overlay `env0:q`, `env1:q`, …, made when a viewer asks for one."""

    name: str  # "env", or "env:q"
    title: str  # what viewers read
    count: int

    @property
    def label(self) -> str:
        """Of all members in metrics, which a name for each would fill."""
        base, overlay = split_name(self.name)
        return f"{base}*" if overlay is None else f"{base}*:{overlay}"

    def title_of(self, name: str) -> str:
        member = _MEMBER.fullmatch(name)
        assert member is not None
        title, mark, overlay = self.title.partition(": ")
        return f"{title} {member[2]}{mark}{overlay}"


class Families:
    """Families by name. One thread declares, any may ask."""

    def __init__(self) -> None:
        self.by_name: dict[str, Family] = {}

    def declare(self, name: object, count: object, title: str | None) -> Family:
        where = "StreamServer.declare_family"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"{where}: want a name of at most 32 letters and underscores, or NAME:OVERLAY of which the second has"
                f" at most 16; got {name!r}"
            )
        check_title(where, title)
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_MEMBERS:
            raise ValueError(f"{where}: want a count of 1 to {MAX_MEMBERS:,}; got {count!r}")
        if len(self.by_name) >= MAX_FAMILIES and name not in self.by_name:
            raise ValueError(f"{where}: want at most {MAX_FAMILIES} families; got {name!r} beside them")
        self.by_name = {**self.by_name, name: Family(name, title or name, count)}
        return self.by_name[name]

    def find(self, name: object) -> Family | None:
        """The family that a stream of this name would belong to; None if there is none, or it has too few members."""
        member = _MEMBER.fullmatch(name) if isinstance(name, str) and self.by_name else None
        if member is None:
            return None
        family = self.by_name.get(member[1] + (member[3] or ""))
        return family if family is not None and int(member[2]) < family.count else None


def split_name(name: str) -> tuple[str, str | None]:
    """The parts of `base`, or of `base:overlay`."""
    found = _OVERLAY.fullmatch(name)
    return (name, None) if found is None else (found[1], found[2])
