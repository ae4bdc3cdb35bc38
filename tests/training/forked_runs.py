"""Shipped configs in small, each run in a process of its own.

So it can be killed at any moment.
"""

from __future__ import annotations

import csv
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests import forks, test_end_to_end
from tests.training import resuming, test_configs
from torchrl_gpu import cli, configs
from torchrl_gpu.callbacks.checkpoint import EpisodeCheckpoint
from torchrl_gpu.checkpoints.files import newest_checkpoint

UPDATES = 8
SAVER = "{class_path: torchrl_gpu.callbacks.EpisodeCheckpoint, init_args: {every_n_updates: 1}}"
NO_REPLAY = ("ppo_packing.yaml", "ppo_marine.yaml", "packing.yaml", "packing_pallets.yaml", "bc.yaml")
NAMES = configs.names()


def arguments(name: str, folder: Path, updates: int = UPDATES) -> list[str]:
    """Arguments of a run of some updates.

    It saves whenever it can, and logs every training step as CSV.
    """
    by_worlds = name.startswith("navigation_") or name == "ppo_marine.yaml"
    few = test_configs.shortened(name, folder) if by_worlds else test_end_to_end.small(name)
    few = [each for each in few if "max_steps" not in each or "model." in each or "data." in each]
    few = [each for each in few if "logger" not in each]
    logger = f"{{class_path: lightning.pytorch.loggers.CSVLogger, init_args: {{save_dir: {folder}/csv, name: null}}}}"
    return [
        "fit",
        *few,
        f"--trainer.max_steps={updates}",
        "--trainer.accelerator=cpu",
        f"--trainer.default_root_dir={folder}",
        f"--trainer.logger={logger}",
        "--trainer.logger.flush_logs_every_n_steps=1",
        "--trainer.log_every_n_steps=1",
        f"--trainer.callbacks=[{SAVER}]",
    ]


def write_inputs(folder: Path) -> None:
    test_end_to_end.write_orders(folder / "orders.json")
    test_end_to_end.write_demonstrations(folder)


def run(
    args: list[str], inputs: Path, log: Path, kill_after_s: float | None = None, killed_when_saved: int | None = None
) -> tuple[int, float]:
    """Runs a command line in a process of its own.

    Args:
        args: For `lightning`.
        inputs: Folder that it runs in.
        log: What it prints is added there.
        kill_after_s: When it is killed, with SIGKILL; None lets it end.
        killed_when_saved: How many checkpoints it saves before it is killed.

    Returns:
        Its status, −9 where it was killed; and the seconds that it took.
    """
    begun = time.monotonic()
    status = forks.run(_command, args, killed_when_saved, log=log, folder=inputs, kill_after_s=kill_after_s)
    return status, time.monotonic() - begun


def _command(args: list[str], killed_when_saved: int | None) -> int:
    if killed_when_saved is not None:
        _die_when_saved(killed_when_saved)
    return int(cli.main(args, "lightning") or 0)


def _die_when_saved(most: int) -> None:
    save, made = EpisodeCheckpoint.save_numbered, Counter[str]()

    def dying(self: EpisodeCheckpoint, *args: Any) -> None:
        save(self, *args)
        made["saved"] += 1
        if made["saved"] == most:
            os.kill(os.getpid(), signal.SIGKILL)

    EpisodeCheckpoint.save_numbered = dying  # type: ignore[method-assign]


def result(folder: Path, name: str) -> dict[str, Any]:
    """All that a run came to: its newest checkpoint, and its replay.

    That is not `last.ckpt` where it was killed between the one after its last update and that.
    """
    newest = newest_checkpoint(folder / "checkpoints")[0]
    assert newest is not None
    if name in NO_REPLAY:
        return resuming.without_replay(newest)
    found = resuming.everything(newest)
    for ring in [each for each in found["replay"]["extra"].values() if "frames" in each]:
        for lane, (first, newest) in enumerate(zip(ring["first"].tolist(), ring["newest"].tolist(), strict=True)):
            slots = ring["frames"].shape[1]
            there = {number % slots for number in range(first, newest + 1)}
            # Frames in other slots belong to no clip any more.
            ring["frames"][lane, [slot for slot in range(slots) if slot not in there]] = 0
    return found


def curves(folder: Path) -> list[list[dict[str, str]]]:
    starts = sorted((folder / "csv").glob("version_*"), key=lambda path: int(path.name.rpartition("_")[2]))
    return [rows(path / "metrics.csv") for path in starts if (path / "metrics.csv").exists()]


def rows(path: Path) -> list[dict[str, str]]:
    """Return the lines of a table, without a last one that is torn.

    Empty cells are left out.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    found = list(csv.DictReader(lines[:-1]))
    return [_without_empty_cells(row) for row in found]


def _without_empty_cells(row: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in row.items() if value}
