"""Checkpoints by episodes, with the replay beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from torchrl_gpu.training.replay import replay_file


class EpisodeCheckpoint(Checkpoint):
    """Saves `episodes-N.ckpt` whenever another `every_n_episodes` have finished, and `last.ckpt` at the end.

    Environments finish in clumps, so a checkpoint is due when a multiple has been crossed. Each is written whole or not
    at all; the replay goes into a file beside it.

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
        self._crossed: int | None = None
        self._saved: list[str] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forgets another run."""
        self._crossed = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Counts from where the run is: only now has the module filled its replay or gone back to its checkpoint."""
        if self.every_n_episodes is not None and self._crossed is None:
            self._crossed = _episodes(pl_module) // self.every_n_episodes

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Saves where a multiple has been crossed."""
        if self.every_n_episodes is None or self._crossed is None:
            return
        episodes = _episodes(pl_module)
        if episodes // self.every_n_episodes > self._crossed:
            self._crossed = episodes // self.every_n_episodes
            path = self._path(trainer, f"episodes-{episodes}.ckpt")
            self._saved.append(str(path))  # first, so that the checkpoint knows of itself
            self._save(trainer, pl_module, path)
            self._drop_old()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves `last.ckpt`."""
        self._save(trainer, pl_module, self._path(trainer, "last.ckpt"))

    def _path(self, trainer: Trainer, name: str) -> Path:
        return Path(self.dirpath or Path(trainer.default_root_dir) / "checkpoints") / name

    def _save(self, trainer: Trainer, pl_module: Any, path: Path) -> None:
        fresh = path.with_suffix(".ckpt-new")
        trainer.save_checkpoint(fresh, weights_only=False)
        if trainer.is_global_zero:
            if self.save_replay:
                pl_module.save_replay(path)
            fresh.replace(path)

    def _drop_old(self) -> None:
        while len(self._saved) > self.keep:
            old = Path(self._saved.pop(0))
            old.unlink(missing_ok=True)
            replay_file(old).unlink(missing_ok=True)

    def state_dict(self) -> dict[str, Any]:
        """Which checkpoints are kept."""
        return {"saved": list(self._saved)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with those."""
        self._saved = list(state_dict["saved"])


def _episodes(module: Any) -> int:
    return int(module.meter.finished)
