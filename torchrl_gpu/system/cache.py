"""Cache folder of this user, for compiled kernels and results of self-tests."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# Permissions to write of everybody but the owner.
_WRITABLE_BY_OTHERS = 0o022


def private_folder() -> Path | None:
    """Cache folder that only this user can write to, made if missing.

    It is `$TORCHRL_GPU_CACHE`, else a folder in the user's cache, else one for temporary files. Its files are loaded
    and run, so that nobody else may write them. None where there is no such folder.
    """
    if not hasattr(os, "getuid"):
        return None
    named = os.environ.get("TORCHRL_GPU_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "torchrl_gpu"
    temporary = Path(tempfile.gettempdir()) / f"torchrl_gpu-{os.getuid()}"
    for unexpanded in (Path(named) if named else home, temporary):
        # Expanding "~" raises RuntimeError where there is no home.
        try:
            folder = unexpanded.expanduser()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, RuntimeError):
            continue
        about = folder.stat()
        # `mkdir` leaves a folder that is already there as it is, whoever made it.
        is_own = about.st_uid == os.getuid()
        is_private = not about.st_mode & _WRITABLE_BY_OTHERS
        if is_own and is_private and os.access(folder, os.W_OK):
            return folder
    return None
