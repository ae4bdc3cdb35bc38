"""Callbacks that give back what they hold at the end of a run, however it ends."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer


class ClosingCallback(Callback):
    """Callback that is closed when a run is torn down, and after an error, when Lightning tears nothing down."""

    def close(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gives back threads, processes, locks; may be called again."""
        raise NotImplementedError

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.close(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.close(trainer, pl_module)
