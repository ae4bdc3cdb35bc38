"""Pictures of packed bins in the event files of TensorBoard."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image

from tests.training.tiny import data, fit, module, trainer
from torchrl_gpu.callbacks import PackingPictures


def pictures_in(folder: Path) -> list[tuple[int, Image.Image]]:
    """Step and picture of every image event below a folder."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found = []
    for path in folder.rglob("events.out.tfevents.*"):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "images":
                    width, height, *encoded = value.tensor.string_val
                    image = Image.open(BytesIO(encoded[0]))
                    assert image.size == (int(width), int(height))
                    found.append((event.step, image))
    return found


def test_one_after_every_validation(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="board")
    # 4 updates, 2 a training step, 1 training step an epoch: validations after updates 2 and 4
    made, callback = module(), PackingPictures(num_bins=2, width=64)
    fit(made, tmp_path, 4, callback, logger=logger, data_module=data(steps_per_epoch=1), enable_checkpointing=False)
    logger.finalize("success")
    pictures = pictures_in(tmp_path)
    assert sorted(step for step, _ in pictures) == [2, 4]
    for _, picture in pictures:
        assert picture.size[0] >= 2 * 64  # two bins side by side
        assert len(np.unique(np.asarray(picture).reshape(-1, 3), axis=0)) > 10  # and something on it


def test_nothing_is_drawn_where_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(*args: object, **kwargs: object) -> None:
        raise AssertionError("drawn for nobody")

    monkeypatch.setattr("torchrl_gpu.envs.packing.viewer.render", drawn)
    runner = trainer(tmp_path, 2, PackingPictures(), enable_checkpointing=False)
    runner.validate(module(), datamodule=data(), verbose=False)


@pytest.mark.parametrize("wrong", [{"num_bins": 0}, {"width": 0}])
def test_numbers_that_cannot_work(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="PackingPictures: num_bins and width must be at least 1; got"):
        PackingPictures(**wrong)
