"""Pictures of evaluation episodes and films of training, in TensorBoard."""

from __future__ import annotations

import time
from collections import deque
from io import BytesIO
from typing import TYPE_CHECKING, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from torch import Tensor

from torchrl_gpu.callbacks.logger_guard import outlives
from torchrl_gpu.envs.pictures import contact_sheet
from torchrl_gpu.envs.viewable import Overlaid, viewable
from torchrl_gpu.evaluation.episodes import has_pictures
from torchrl_gpu.system import arguments
from torchrl_gpu.system.sections import in_section

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import FileWriter, SummaryWriter

    from torchrl_gpu.evaluation.suite import Suite


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
        check_pictures(pl_module.env, "EvaluationPictures")

    @in_section("validation")
    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, *args: object
    ) -> None:
        loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if trainer.sanity_checking or not loggers:
            return
        # Rows of demonstrations have no pictures of their own.
        if not hasattr(batch, "pictures"):
            return
        suite = cast("Suite", batch)
        sheet = contact_sheet(suite.pictures(self.num, self.width), columns=2).cpu()
        for logger in loggers:
            with outlives("EvaluationPictures"):
                logger.experiment.add_image(suite.pictures_tag, sheet, trainer.global_step, dataformats="HWC")


def check_pictures(env: object, where: str) -> None:
    """Refuse an environment that draws no pictures."""
    if not has_pictures(env):
        raise ValueError(
            f"{where}: the environment {type(env).__name__} has no `pictures`. Add the method, or leave it out"
        )


class TrainingFilm(Callback):
    """Shows the last steps of one environment as training plays them, as a GIF.

    It has one picture a training step.

    Where the environment shows its policy a clip, that is a film of its own. The first one comes after a few seconds,
    so that one sees at once what is being trained. Pictures stay on the device until a film is written.

    Args:
        every_n_minutes: Between films.
        num_pictures: Of a film.
        width, height: Of a picture, pixels.
        fps: Pictures shown a second.
        first_after_s: Seconds of training after which the first film is written, however short it is.
    """

    def __init__(
        self,
        every_n_minutes: float = 5.0,
        num_pictures: int = 60,
        width: int = 192,
        height: int = 192,
        fps: float = 10.0,
        first_after_s: float = 10.0,
    ) -> None:
        for name, amount in (("every_n_minutes", every_n_minutes), ("fps", fps)):
            arguments.number("TrainingFilm", name, amount, above=0)
        for name, count in (("num_pictures", num_pictures), ("width", width), ("height", height)):
            arguments.whole("TrainingFilm", name, count, 1, 65_536)
        arguments.number("TrainingFilm", "first_after_s", first_after_s, 0)
        self.every_s = every_n_minutes * 60
        self.first_after_s = first_after_s
        self.width = width
        self.height = height
        self.fps = fps
        self._films: dict[str, deque[Tensor]] = {}
        self._num_pictures = num_pictures
        self._due = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        check_pictures(pl_module.env, "TrainingFilm")
        self._view = viewable(pl_module.env)
        overlays = self._view.overlays if isinstance(self._view, Overlaid) else {}
        names = ["environment 0"]
        if "seen" in overlays:
            names.append("clip of environment 0")
        self._films = {name: deque(maxlen=self._num_pictures) for name in names}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._due = time.monotonic() + self.first_after_s

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if not loggers or not trainer.is_global_zero:
            return
        size = self.width, self.height
        for name, film in self._films.items():
            if name == "environment 0":
                picture = self._view.pictures([0], *size)[0]
            else:
                picture = cast("Overlaid", self._view).overlay("seen", 0, *size, None)
            film.append(torch.as_tensor(picture, device="cpu"))
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self.every_s
        for name, film in self._films.items():
            for logger in loggers:
                with outlives("TrainingFilm"):
                    pictures = torch.stack(list(film))
                    add_film(logger.experiment, f"training: {name}", pictures, trainer.global_step, self.fps)


def add_film(writer: SummaryWriter, tag: str, pictures: Tensor, step: int, fps: float) -> None:
    """Add a film to TensorBoard, as a GIF among its images.

    TensorBoard's own films need another package.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

    # The one read of the device for a whole film.
    frames = [Image.fromarray(picture) for picture in pictures.cpu().numpy()]
    file = BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=round(1000 / fps), loop=0)
    height, width = pictures.shape[1:3]
    image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=file.getvalue())
    cast("FileWriter", writer.file_writer).add_summary(Summary(value=[Summary.Value(tag=tag, image=image)]), step)
