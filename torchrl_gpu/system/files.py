"""Files that are in their place whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO


def publish(fresh: Path, path: Path) -> None:
    """Rename a written file into its place, once its bytes are on the disk."""
    _to_disk(fresh)
    fresh.replace(path)
    _to_disk(path.parent)


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file that appears whole or not at all.

    `write` gets the open file.
    """
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:16]}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        # mkstemp makes a file that only this user may read.
        os.chmod(part, 0o644)
        os.replace(part, path)
    # An interrupt, which is no Exception, must not leave a part behind either.
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _to_disk(path: Path) -> None:
    # Windows cannot open a folder.
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
