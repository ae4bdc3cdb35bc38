"""Files that are in their place whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def publish(fresh: Path, path: Path) -> None:
    """Renames a file that has been written into its place, once its bytes are on the disk."""
    _to_disk(fresh)
    fresh.replace(path)
    _to_disk(path.parent)


def _to_disk(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # where a folder cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
