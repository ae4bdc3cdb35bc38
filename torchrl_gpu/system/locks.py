"""Locks of files and folders.

One holder at a time; the system frees a lock when the holder's process ends.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

_LOG = logging.getLogger(__name__)
_PROCESSES = Path("/proc")
# Whether the log already says that there are no locks here.
_told = False


def lock(path: Path, *, wait: bool = False) -> int | None:
    """Lock a file or folder until the descriptor that is returned is closed.

    Returns:
        The descriptor; None where the system has no locks.

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
    """Describe who holds the lock of a file or folder, as "process 12 (python)".

    Where the system does not tell, it is "another process".

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
        # The process has ended, or is another user's.
        except OSError:
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
