"""Files that are in their place whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def publish(fresh: Path, path: Path) -> None:
    """Renames a file that has been written into its place, once its bytes are on the disk."""
    _to_disk(fresh)
    fresh.replace(path)
    _to_disk(path.parent)


def write_whole(path: Path, write: Callable[[Any], object]) -> None:
    """Writes a file that appears whole or not at all; `write` is given it open."""
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:16]}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.chmod(part, 0o644)  # mkstemp makes it private
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _to_disk(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # where a folder cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
