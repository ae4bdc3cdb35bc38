"""Pictures of evaluation episodes in TensorBoard."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from torchrl_gpu.callbacks.logger_guard import outlives
from torchrl_gpu.envs.packing.viewer import contact_sheet
from torchrl_gpu.evaluation.episodes import has_pictures
from torchrl_gpu.system import arguments
from torchrl_gpu.system.sections import in_section


class EvaluationPictures(Callback):
    """Shows, after each validation, how some of its episodes ended.

    Args:
        num: Episodes side by side.
        width: Of one episode's picture, pixels.
    """

    def __init__(self, num: int = 4, width: int = 320) -> None:
        for name, count in (("num", num), ("width", width)):
            arguments.whole("EvaluationPictures", name, count, 1, 65_536)
        self.num, self.width = num, width

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not has_pictures(pl_module.env):
            got = type(pl_module.env).__name__
            raise ValueError(f"EvaluationPictures: want an environment with pictures; got {got}")

    @in_section("validation")
    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *args: Any
    ) -> None:
        loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if trainer.sanity_checking or not loggers:
            return
        if not hasattr(batch, "pictures"):  # rows of demonstrations
            return
        sheet = contact_sheet(batch.pictures(self.num, self.width), columns=2).cpu()
        for logger in loggers:
            with outlives("EvaluationPictures"):
                logger.experiment.add_image(batch.pictures_tag, sheet, trainer.global_step, dataformats="HWC")
