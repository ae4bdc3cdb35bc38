"""`read_demonstrations`: rows of any supported format.

The format is recognised by the files at a path.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from torchrl_gpu.demonstrations import hdf5, lerobot, memmap, minari
from torchrl_gpu.demonstrations.recordings import BadParts, OnBad
from torchrl_gpu.demonstrations.transitions import Demonstrations
from torchrl_gpu.demonstrations.untrusted import fail


def read_demonstrations(
    path: str | os.PathLike[str], *, entries: Collection[str] | None = None, on_bad: OnBad = "raise"
) -> Demonstrations:
    """Read rows and episodes of demonstrations into memory.

    Everything is validated, and no code in a file is run.

    Args:
        path: A folder that `torchrl-gpu record` wrote, of a LeRobotDataset v3 (its numbers, not its videos) or of a
            Minari dataset, or an HDF5 file of robomimic or Minari.
        entries: Names of the observations to read; None for all.
        on_bad: "raise" the error of a bad episode, or "skip" the episode; skipped ones are logged in one line. In a
            folder that `torchrl-gpu record` wrote, every error is raised.

    Raises:
        FileNotFoundError: There is nothing at `path`.
        ValueError: It cannot be used; the message names file, entry and row.
        ModuleNotFoundError: An extra that reads the format is not installed.
    """
    path = Path(path)
    bad = BadParts(on_bad, "episodes")
    # The action is no observation, and always needed.
    names = None if entries is None else {*entries, "action"}
    if not path.exists():
        raise FileNotFoundError(f"demonstrations: {path}: there is no such folder or file")
    # By the files that only one format has, the most particular first.
    if memmap.is_saved(path):
        found = memmap.open_saved(path)
    elif lerobot.is_dataset(path):
        found = lerobot.read_rows(path, names, bad)
    elif minari.is_minari(path):
        found = minari.read_minari(path, names, bad)
    elif path.is_file():
        found = hdf5.read_hdf5(path, names, bad)
    else:
        fail(path, f"it has neither {memmap.ABOUT} nor {lerobot.INFO} nor {minari.DATA_FILE}, and is no HDF5 file")
    bad.log()
    return found
