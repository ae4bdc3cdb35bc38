"""Callbacks that give back what they hold at the end of a run, however it ends."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer


class ClosingCallback(Callback):
    """Callback that is closed however a run ends.

    Lightning tears nothing down after an error, so that this class listens to both.
    """

    def close(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give back threads, processes and locks.

        It may be called again.
        """
        raise NotImplementedError

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.close(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.close(trainer, pl_module)
