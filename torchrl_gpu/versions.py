"""Which code made a figure or a checkpoint: versions of packages, and the commit of this one."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path


def version(name: str) -> str | None:
    """Version of an installed package; None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """Commit of the checkout that this code lies in, "+" behind it where tracked files differ from it; else None."""
    here = Path(__file__).parent
    try:
        head, changed = (
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "--", "."])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if changed else "")
