"""Demonstrations of whatever format, by what lies at a path."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from torchrl_gpu.demonstrations import hdf5, lerobot, memmap, minari
from torchrl_gpu.demonstrations.recordings import BadParts, OnBad
from torchrl_gpu.demonstrations.transitions import Demonstrations
from torchrl_gpu.demonstrations.untrusted import refuse


def read_demonstrations(
    path: str | os.PathLike[str], *, entries: Collection[str] | None = None, on_bad: OnBad = "raise"
) -> Demonstrations:
    """Rows and episodes of demonstrations, in memory; all of it checked, nothing in it run.

    Args:
        path: A folder that `torchrl-gpu record` wrote, of a LeRobotDataset v3 (its numbers, not its videos) or of a
            Minari dataset, or an HDF5 file of robomimic or Minari.
        entries: Names of observations that are wanted; others are not looked at. None for all that there are.
        on_bad: "raise" what is wrong with an episode, or "skip" it; skipped ones are logged in one line. What
            `torchrl-gpu record` wrote is used whole, or not.

    Raises:
        FileNotFoundError: There is nothing.
        ValueError: It cannot be used; the message names file, entry and row.
        ModuleNotFoundError: An extra that reads the format is not installed.
    """
    path, bad = Path(path), BadParts(on_bad, "episodes")
    if not path.exists():
        raise FileNotFoundError(f"demonstrations: {path}: want a folder or a file; there is none")
    found = _read(path, None if entries is None else {*entries, "action"}, bad)
    bad.log()
    return found


def _read(path: Path, entries: Collection[str] | None, bad: BadParts) -> Demonstrations:
    if memmap.is_saved(path):
        return memmap.open_saved(path)
    if lerobot.is_dataset(path):
        return lerobot.read_rows(path, entries, bad)
    if minari.is_minari(path):
        return minari.read_minari(path, entries, bad)
    if path.is_file():
        return hdf5.read_hdf5(path, entries, bad)
    return refuse(
        path, f"a folder with {memmap.ABOUT}, {lerobot.INFO} or {minari.DATA_FILE}, or an HDF5 file", "neither"
    )
