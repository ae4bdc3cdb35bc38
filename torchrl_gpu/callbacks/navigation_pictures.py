"""Pictures of crossed worlds in TensorBoard."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from torchrl_gpu.envs.packing.viewer import contact_sheet


class NavigationPictures(Callback):
    """Shows, after each validation, how the policy has crossed some worlds: the first of each row, with trails.

    Args:
        num_worlds: Worlds side by side, of the last rows.
        width: Of one world's picture, pixels.
    """

    def __init__(self, num_worlds: int = 4, width: int = 320) -> None:
        if min(num_worlds, width) < 1:
            raise ValueError(
                f"NavigationPictures: num_worlds and width must be at least 1; got {num_worlds} and {width}"
            )
        self.num_worlds, self.width = num_worlds, width

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *args: Any
    ) -> None:
        """Draws the worlds that the suite has just crossed."""
        loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if trainer.sanity_checking or not loggers:
            return
        trails = batch.last.trails
        worlds = range(len(trails.index))[-self.num_worlds :]
        pictures = torch.stack([trails.picture(which, width=self.width) for which in worlds])
        sheet = contact_sheet(pictures, columns=2)
        for logger in loggers:
            logger.experiment.add_image("crossings", sheet, trainer.global_step, dataformats="HWC")
