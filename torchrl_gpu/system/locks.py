"""Locks of files and folders: one holder at a time, freed by the system when the holder's process ends."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

_LOG = logging.getLogger(__name__)
_PROCESSES = Path("/proc")
_told = False  # whether the log says already that there are no locks here


def lock(path: Path, *, wait: bool = False) -> int | None:
    """Descriptor of a file or folder, locked until that is closed; None where the system has no locks.

    Raises:
        BlockingIOError: Another process, or another descriptor of this one, holds the lock, which is not waited for.
    """
    try:
        import fcntl
    except ImportError:
        _tell_once("this system has no flock")
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        _tell_once(f"{path}: {error.strerror}")
        return None
    if _is_at(descriptor, path):
        return descriptor
    # Its holder renamed or removed it while it was being opened: the lock would be of something else.
    os.close(descriptor)
    raise BlockingIOError(f"{path} was renamed or removed by another process")


def holder_of(path: Path) -> str:
    """Words for who holds the lock of a file or folder: number and name of a process, where the system tells.

    A lock lasts as long as a descriptor is open, and Linux lists those of every process of the same user.
    """
    try:
        wanted = path.stat()
        numbers = [each.name for each in _PROCESSES.iterdir() if each.name.isdecimal()]
    except OSError:
        return "another process"
    for number in sorted(numbers, key=int):
        try:
            opened = any(os.path.samestat(each.stat(), wanted) for each in _descriptors(number))
            name = (_PROCESSES / number / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:  # it has ended, or is another user's
            continue
        if opened:
            own = ", this one" if int(number) == os.getpid() else ""
            return f"process {number} ({name}{own})"
    return "another process"


def _descriptors(number: str) -> Iterator[Path]:
    """Descriptors of a process that lead somewhere."""
    for each in (_PROCESSES / number / "fd").iterdir():
        if each.exists():
            yield each


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _tell_once(why: str) -> None:
    global _told
    if not _told:
        _told = True
        _LOG.warning("no locks of folders (%s): nothing keeps two programs from writing to one", why)
