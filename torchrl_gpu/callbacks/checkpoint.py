"""Checkpoints by episodes, with the replay beside them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from torchrl_gpu.training.replay import replay_folder


class EpisodeCheckpoint(Checkpoint):
    """Saves `episodes-N.ckpt` whenever another `every_n_episodes` have finished, and `last.ckpt` at the end.

    Environments finish in clumps, so a checkpoint is due when a multiple has been crossed. Each is written whole or not at
    all; the replay goes into a folder beside it.

    Args:
        dirpath: Folder; None stands for `checkpoints` in the Trainer's `default_root_dir`.
        every_n_episodes: Episodes, over all environments, between checkpoints; None saves only `last.ckpt`.
        keep: Checkpoints by episodes that are kept; older ones go.
        save_replay: Whether the replay is written too; without it a resumed run fills it anew.
    """

    def __init__(
        self,
        dirpath: str | None = None,
        every_n_episodes: int | None = None,
        keep: int = 2,
        save_replay: bool = True,
    ) -> None:
        if every_n_episodes is not None and every_n_episodes < 1:
            raise ValueError(f"EpisodeCheckpoint: every_n_episodes must be at least 1; got {every_n_episodes}")
        if keep < 1:
            raise ValueError(f"EpisodeCheckpoint: keep must be at least 1; got {keep}")
        self.dirpath, self.every_n_episodes, self.keep, self.save_replay = dirpath, every_n_episodes, keep, save_replay
        self._crossed = 0
        self._saved: list[str] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Counts from where the run is."""
        if self.every_n_episodes is not None:
            self._crossed = int(pl_module.meter.finished) // self.every_n_episodes  # type: ignore[union-attr, operator, arg-type]

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Saves where a multiple has been crossed."""
        if self.every_n_episodes is None:
            return
        episodes = int(pl_module.meter.finished)  # type: ignore[union-attr, arg-type]
        if episodes // self.every_n_episodes > self._crossed:
            self._crossed = episodes // self.every_n_episodes
            self._saved.append(str(self._save(trainer, pl_module, f"episodes-{episodes}.ckpt")))
            self._drop_old()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves `last.ckpt`."""
        self._save(trainer, pl_module, "last.ckpt")

    def _save(self, trainer: Trainer, pl_module: Any, name: str) -> Path:
        path = Path(self.dirpath or Path(trainer.default_root_dir) / "checkpoints") / name
        fresh = path.with_suffix(".ckpt-new")
        trainer.save_checkpoint(fresh)
        if trainer.is_global_zero:
            if self.save_replay:
                pl_module.save_replay(path)
            fresh.replace(path)
        return path

    def _drop_old(self) -> None:
        while len(self._saved) > self.keep:
            old = Path(self._saved.pop(0))
            old.unlink(missing_ok=True)
            shutil.rmtree(replay_folder(old), ignore_errors=True)

    def state_dict(self) -> dict[str, Any]:
        """Which checkpoints are kept."""
        return {"saved": list(self._saved)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with those."""
        self._saved = list(state_dict["saved"])
