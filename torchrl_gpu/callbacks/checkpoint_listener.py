"""Base class of callbacks that are told of checkpoints."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Callback, Trainer

from torchrl_gpu.checkpoints.files import Manifest
from torchrl_gpu.training.trainer_fields import callbacks_of


class CheckpointListener(Callback):
    """Base class of callbacks that are notified of every checkpoint of a run."""

    def fetch(self, folder: Path) -> None:
        """Bring checkpoints from elsewhere into a folder that has none.

        Called before one is looked for there.
        """

    def on_checkpoint(self, entry: Manifest, path: Path, parts: list[Path]) -> None: ...

    def flush(self) -> None:
        """Finish pending work.

        Called once the last checkpoint is written, or the run has failed.
        """


def listeners(trainer: Trainer) -> list[CheckpointListener]:
    """List the callbacks of a Trainer that are notified of checkpoints."""
    return [each for each in callbacks_of(trainer) if isinstance(each, CheckpointListener)]
