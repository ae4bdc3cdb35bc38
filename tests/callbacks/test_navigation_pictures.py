"""Pictures of crossed worlds in the event files of TensorBoard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch.loggers import TensorBoardLogger

from tests.callbacks.test_pictures import pictures_in
from tests.evaluation.navigation.test_suite import ROWS, marine_env
from tests.training.crossing_worlds import homing
from tests.training.test_navigation_data import Trained, connected
from tests.training.tiny import trainer
from torchrl_gpu.callbacks.navigation_pictures import NavigationPictures
from torchrl_gpu.evaluation.navigation.suite import NavigationSuite
from torchrl_gpu.training.navigation_data import NavigationWorlds


class Crosser(Trained):
    """Only validates."""

    def validation_step(self, suite: NavigationSuite, batch_idx: int) -> None:
        suite.play(homing(suite.env))


def worlds() -> NavigationWorlds:
    return NavigationWorlds(val_levels=ROWS, val_worlds_per_level=2, max_steps=20)


def test_a_world_of_each_row(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="board")
    runner = trainer(tmp_path, 2, NavigationPictures(num_worlds=3, width=64), logger=logger, enable_checkpointing=False)
    runner.validate(Crosser(marine_env()), datamodule=worlds(), verbose=False)
    logger.finalize("success")
    ((step, picture),) = pictures_in(tmp_path)
    assert step == 0
    assert picture.size == (64 + 8 + 64, 64)  # two rows, of three that would have been shown
    assert len(np.unique(np.asarray(picture).reshape(-1, 3), axis=0)) > 10  # and something on them


def test_nothing_is_drawn_where_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(*args: object, **kwargs: object) -> None:
        raise AssertionError("drawn for nobody")

    monkeypatch.setattr("torchrl_gpu.evaluation.navigation.trajectories.Trails.picture", drawn)
    runner = trainer(tmp_path, 2, NavigationPictures(), enable_checkpointing=False)
    runner.validate(Crosser(marine_env()), datamodule=worlds(), verbose=False)


def test_connected_data_is_what_is_drawn() -> None:
    suite = connected(worlds(), marine_env()).val_suite()
    assert suite.play(homing(suite.env)) is suite.last


@pytest.mark.parametrize("wrong", [{"num_worlds": 0}, {"width": 0}])
def test_numbers_that_cannot_work(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="NavigationPictures: num_worlds and width must be at least 1; got"):
        NavigationPictures(**wrong)
