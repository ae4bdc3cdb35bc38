"""The shipped runs, found by bare name from any folder."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """File names of the shipped configs, sorted."""
    return sorted(path.name for path in _FOLDER.glob("*.yaml"))


def find(name: str) -> str:
    """Path of a config: the file of that path if there is one, else the shipped config of that name.

    Args:
        name: A path, or the name of a shipped config with or without `.yaml`.

    Raises:
        FileNotFoundError: There is neither.
    """
    if Path(name).is_file():
        return name
    for candidate in (name, f"{name}.yaml"):
        if candidate in names():
            return str(_FOLDER / candidate)
    raise FileNotFoundError(f"--config: want a file, or a shipped config ({', '.join(names())}); got {name!r}")
