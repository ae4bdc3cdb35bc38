"""Locks of files and folders: one holder at a time, freed by the system when the holder's process ends."""

from __future__ import annotations

import logging
import os
from pathlib import Path

_LOG = logging.getLogger(__name__)
_LOCKS = Path("/proc/locks")
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
    """Words for who holds the lock of a file or folder: the process by its number, where the system tells."""
    try:
        found = path.stat()
        lines = _LOCKS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return "another process"
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in lines:
        words = line.split()
        if "FLOCK" in words and place in words and "->" not in words:
            number = words[words.index(place) - 1]
            if number == str(os.getpid()):
                return "this process itself"
            if number != "0":  # as processes of other containers are shown
                return f"process {number}"
    return "another process"


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
