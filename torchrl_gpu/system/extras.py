"""Optional packages: how to install the extra that brings one."""

from __future__ import annotations

import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType

NAME = "torchrl_gpu"


def how_to_install(extra: str) -> str:
    """Command that installs an extra, in one line for a message.

    Several extras stand in one word, "stream,webrtc".

    No command names the package alone: the package is on no public registry, so pip would take whatever somebody
    else registered there under this name.
    """
    clone = _clone(Path(__file__).parents[2])
    if clone is None:
        return (
            f"install the extra [{extra}] from the wheel or the clone that {NAME} came from,"
            " never by the bare name, which anybody may register"
        )
    words = [sys.executable, "-m", "pip", "install", "-e", f"{clone}[{extra}]"]
    return shlex.join(words)


def _clone(folder: Path) -> Path | None:
    """The folder around the package where it is a clone of the repository, else None."""
    try:
        text = (folder / "pyproject.toml").read_text(encoding="utf-8")
        project = tomllib.loads(text).get("project")
    except (OSError, ValueError):
        return None
    if not isinstance(project, dict) or project.get("name") != NAME:
        return None
    return folder


def load_mujoco() -> ModuleType:
    """Import MuJoCo, or raise a ModuleNotFoundError that names the extra."""
    try:
        import mujoco
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"physics needs MuJoCo, which is not installed; to install it: {how_to_install('physics')}",
            name=error.name,
        ) from error
    return mujoco
