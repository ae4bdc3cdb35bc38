"""Demonstrations of whatever format, by what lies at a path."""

from __future__ import annotations

import os
from pathlib import Path

from torchrl_gpu.demonstrations import hdf5, lerobot, memmap, minari
from torchrl_gpu.demonstrations.rows import Demonstrations, from_arrays
from torchrl_gpu.demonstrations.untrusted import refuse


def read_demonstrations(path: str | os.PathLike[str]) -> Demonstrations:
    """Rows and episodes of demonstrations, in memory; all of it checked, nothing in it run.

    Args:
        path: A folder that `torchrl-gpu record` wrote, of a LeRobotDataset v3 (its numbers, not its videos) or of a
            Minari dataset, or an HDF5 file of robomimic or Minari.

    Raises:
        FileNotFoundError: There is nothing.
        ValueError: It cannot be used; the message names file, entry and row.
        ModuleNotFoundError: An extra that reads the format is not installed.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"demonstrations: {path}: want a folder or a file; there is none")
    if memmap.is_saved(path):
        return memmap.open_saved(path)
    if lerobot.is_dataset(path):
        return from_arrays(*lerobot.read_rows(path), str(path), {"format": "LeRobotDataset v3"})
    if minari.is_minari(path):
        return minari.read_minari(path)
    if path.is_file():
        return hdf5.read_hdf5(path)
    return refuse(
        path, f"a folder with {memmap.ABOUT}, {lerobot.INFO} or {minari.DATA_FILE}, or an HDF5 file", "neither"
    )
