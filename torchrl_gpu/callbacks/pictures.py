"""Pictures of packed bins in TensorBoard."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from torchrl_gpu.envs.packing import viewer


class PackingPictures(Callback):
    """Shows, after each validation, the bins that the policy has packed.

    Args:
        num_bins: Bins side by side.
        width: Of one bin's picture, pixels.
    """

    def __init__(self, num_bins: int = 4, width: int = 320) -> None:
        if min(num_bins, width) < 1:
            raise ValueError(f"PackingPictures: num_bins and width must be at least 1; got {num_bins} and {width}")
        self.num_bins, self.width = num_bins, width

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *args: Any
    ) -> None:
        """Draws the bins that the suite has just packed."""
        loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if trainer.sanity_checking or not loggers:
            return
        shown = list(range(min(self.num_bins, batch.num_episodes)))
        bins = viewer.render(batch.played, shown, width=self.width, height=self.width * 3 // 4)
        sheet = viewer.contact_sheet(bins, columns=2)
        for logger in loggers:
            logger.experiment.add_image("packed bins", sheet.cpu(), trainer.global_step, dataformats="HWC")
