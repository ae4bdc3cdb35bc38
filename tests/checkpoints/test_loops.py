"""Runs that are stopped and go on: the same epochs, validations and steps of curves as in one that never stopped."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from tests.training.resuming import differences, everything, last
from tests.training.tiny import data, fit, module
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.training.data.episodes import StepLoader

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory")

# Of the Trainer, and how long its epochs are.
SETTINGS: dict[str, tuple[dict[str, Any], int]] = {
    "epochs of three": ({}, 3),
    "a validation every other epoch": ({"check_val_every_n_epoch": 2}, 3),
    "three of five batches": ({"limit_train_batches": 3}, 5),
    "two validations in an epoch": ({"val_check_interval": 2}, 4),
    "validations across epochs": ({"val_check_interval": 4, "check_val_every_n_epoch": None}, 3),
}


class Story(Callback):
    """What happens: steps and validations, each with the step of the curves, the epoch and the batch."""

    def __init__(self, told: list[tuple[Any, ...]], ends_at: int = 0) -> None:
        self.told, self.ends_at = told, ends_at

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._tell("step", trainer, batch_idx, batch)
        if self.ends_at and trainer.global_step == self.ends_at - 1:
            signal.raise_signal(signal.SIGTERM)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._tell("validation", trainer, trainer.fit_loop.epoch_loop.batch_idx)

    def _tell(self, what: str, trainer: Any, *more: Any) -> None:
        curves = trainer.fit_loop.epoch_loop._batches_that_stepped
        self.told.append((what, trainer.global_step, curves, trainer.current_epoch, *more))


def part(
    folder: Path, name: str, told: list[tuple[Any, ...]], most: int, ckpt_path: Path | None = None, **how: Any
) -> None:
    """A run up to a step, or so many epochs, or until it is asked to end."""
    trainer, epoch = SETTINGS[name]
    ends_at = how.pop("ends_at", 0)
    made = module(rollout_steps=1, updates_per_step=1)
    settings = {"data_module": data(steps_per_epoch=epoch, num_val_episodes=1), "ckpt_path": ckpt_path}
    fit(made, folder, most, Story(told, ends_at), EpisodeCheckpoint(), **settings, **trainer, **how)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of ten steps that is never stopped: its story, and all that it comes to."""
    made: dict[str, Any] = {}

    def of(name: str) -> Any:
        if name not in made:
            folder, told = tmp_path_factory.mktemp("straight"), list[tuple[Any, ...]]()
            part(folder, name, told, 10)
            made[name] = told, everything(last(folder))
        return made[name]

    return of


@pytest.mark.parametrize("how", ["max_steps", "SIGTERM"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_that_stops_and_goes_on_has_the_same_story(straight: Any, tmp_path: Path, name: str, how: str) -> None:
    wanted, whole = straight(name)
    told = list[tuple[Any, ...]]()
    path: Path | None = None
    for stop in (2, 3, 4, 6):
        if how == "max_steps":
            part(tmp_path, name, told, stop, path)
        else:
            with pytest.raises(SIGTERMException):
                part(tmp_path, name, told, 10, path, ends_at=stop)
        path = last(tmp_path)
    part(tmp_path, name, told, 10, path)
    assert told == wanted
    assert differences(everything(last(tmp_path)), whole) == []


def test_epochs_are_counted_once_however_often_a_run_stops(tmp_path: Path) -> None:
    told = list[tuple[Any, ...]]()
    part(tmp_path, "epochs of three", told, 2)
    part(tmp_path, "epochs of three", told, 4, last(tmp_path))
    part(tmp_path, "epochs of three", told, -1, last(tmp_path), max_epochs=3)
    assert [each[1] for each in told if each[0] == "step"] == list(range(9))
    part(tmp_path, "epochs of three", told, -1, last(tmp_path), max_epochs=4)
    assert [each[1] for each in told if each[0] == "step"] == list(range(12))


def test_a_loader_begins_anew_unless_it_goes_on() -> None:
    loader = StepLoader(5)
    for _ in range(2):  # as where only three of its five batches are asked for
        steps = iter(loader)
        assert [next(steps) for _ in range(3)] == [1, 2, 3]
    loader.load_state_dict({"done": 3})
    assert [list(loader), list(loader)] == [[4, 5], [1, 2, 3, 4, 5]]
    with pytest.raises(ValueError, match="done must be at most 5"):
        loader.load_state_dict({"done": 6})
