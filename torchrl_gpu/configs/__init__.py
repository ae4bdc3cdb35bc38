"""Shipped configs of runs, found by name from any folder.

Each is a YAML file of this folder. How one is read is in `torchrl_gpu/cli/lightning_cli.py`. Read `packing_dqn.yaml`
first.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Return the file names of the shipped configs, sorted."""
    return sorted(path.name for path in _FOLDER.glob("*.yaml"))


def find(name: str) -> str:
    """Return the path of a config.

    A file of that path comes first, then the shipped config of that name.

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
    raise FileNotFoundError(f"--config: {name!r} is neither a file nor a shipped config ({', '.join(names())})")
