"""Cache folder of this user on this machine, for compiled kernels and results of self-tests."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def private_folder() -> Path | None:
    """Cache folder: `$TORCHRL_GPU_CACHE`, else one in the user's cache, else one for temporary files; made if missing.

    Only this user can write to it, since its files are loaded and run. None where there is no such folder.
    """
    if not hasattr(os, "getuid"):
        return None
    named = os.environ.get("TORCHRL_GPU_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "torchrl_gpu"
    for unexpanded in (Path(named) if named else home, Path(tempfile.gettempdir()) / f"torchrl_gpu-{os.getuid()}"):
        try:
            folder = unexpanded.expanduser()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, RuntimeError):  # the latter where there is no home
            continue
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o022:
            return folder
    return None
