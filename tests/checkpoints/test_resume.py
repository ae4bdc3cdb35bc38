"""Checkpoints of strangers.

What is wrong with one is said in a line, before or while it is restored.
"""

from __future__ import annotations

import copy
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from tests.training.resuming import check_checkpoint, differences, everything, last
from tests.training.tiny import data, fit, module, trainer
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.system.archives import ENTRY
from torchrl_gpu.training.data.episodes import StepLoader

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("run")
    fit(module(), folder, 4, EpisodeCheckpoint())
    found: dict[str, Any] = torch.load(last(folder), weights_only=True)
    return found


def restored(path: Path, folder: Path) -> None:
    """Checks a checkpoint and goes on from it for an update, as the command line does."""
    made, runner = module(), trainer(folder, 6, EpisodeCheckpoint())
    check_checkpoint(path, made)
    runner.fit(made, datamodule=data(), ckpt_path=path, weights_only=True)


_WEIGHT = ("optimizer_states", 0, "state", 0)
_LOOP = ("loops", "fit_loop")


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_weights_that_are_no_numbers_are_refused(content: dict[str, Any], tmp_path: Path, bad: str) -> None:
    state = {name: value.clone() for name, value in content["state_dict"].items()}
    name = next(name for name, value in state.items() if value.is_floating_point() and value.ndim)
    state[name][-1] = float(bad)
    torch.save({**content, "state_dict": state}, tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match=f"{name} .*finite"):
        check_checkpoint(tmp_path / "x.ckpt", module())


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("loops",), 7),
        (("loops",), {}),
        (_LOOP, [7]),
        ((*_LOOP, "epoch_progress"), None),
        ((*_LOOP, "epoch_progress", "current", "ready"), "x"),
        ((*_LOOP, "epoch_progress", "current", "completed"), -3),
        ((*_LOOP, "epoch_progress", "current"), {"ready": 1}),
        ((*_LOOP, "epoch_loop.batch_progress", "is_last_batch"), 3),
        ((*_LOOP, "epoch_loop.batch_progress", "current", "reset"), 3),
        ((*_LOOP, "state_dict", "combined_loader"), 3),
        ((*_LOOP, "state_dict", "combined_loader"), [{"done": "x"}]),
        ((*_LOOP, "state_dict", "combined_loader"), [{}]),
        (("pytorch-lightning_version",), "0.0.1"),
        (("pytorch-lightning_version",), "newest"),
        (("pytorch-lightning_version",), None),
        (("global_step",), "x"),
        (("callbacks",), 7),
        (("callbacks", "EpisodeCheckpoint"), 7),
        (("optimizer_states",), None),
        (("optimizer_states", 0, "param_groups", 0, "lr"), "fast"),
        (("optimizer_states", 0, "param_groups", 0, "weight_decay"), None),
        ((*_WEIGHT, "exp_avg"), None),
        ((*_WEIGHT, "exp_avg"), torch.zeros(3)),
        ((*_WEIGHT, "step"), torch.tensor(-3.0)),
        (("lr_schedulers",), 7),
        (("lr_schedulers",), None),
    ],
)
def test_any_malformed_part_is_one_line(content: dict[str, Any], tmp_path: Path, place: Any, value: Any) -> None:
    changed = copy.deepcopy(content)
    node = changed
    for name in place[:-1]:
        node = node[name]
    node[place[-1]] = value
    torch.save(changed, tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match=r"^checkpoint(: done|.*x\.ckpt)") as error:
        restored(tmp_path / "x.ckpt", tmp_path)
    assert "\n" not in str(error.value)


def test_a_missing_part_is_one_line(content: dict[str, Any], tmp_path: Path) -> None:
    for name in ("pytorch-lightning_version", "optimizer_states", "lr_schedulers"):
        torch.save({key: value for key, value in content.items() if key != name}, tmp_path / "x.ckpt")
        with pytest.raises(ValueError, match=r"x\.ckpt: Lightning .*\(\w+: "):
            restored(tmp_path / "x.ckpt", tmp_path)


def config(learner: str, env: str = "PackingEnv", **options: Any) -> dict[str, Any]:
    path = "torchrl_gpu.training.OffPolicy"
    parts = {"agent": {"class_path": f"torchrl_gpu.policies.{learner}"}, "env": {"class_path": f"a.b.{env}"}}
    return {"model": {"class_path": path, "init_args": {**parts, **options}}}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (config("SAC", "MarineNavEnv"), r"; its options were others: model.agent.class_path .*DQN → .*SAC"),
        (config("DQN", batch_size=7), r"strange of OffPolicy; its options were others: model.batch_size 3 → 7$"),
        (config("DQN", batch_size=3), "no weights for strange of OffPolicy$"),
        (None, "no weights for strange of OffPolicy$"),
    ],
)
def test_a_checkpoint_of_another_run_says_which(content: dict[str, Any], tmp_path: Path, now: Any, said: str) -> None:
    made = module()
    made.run_config, made.strange = now, torch.nn.Parameter(torch.zeros(3))
    record = {**content[ENTRY], "config": config("DQN", batch_size=3)}
    torch.save({**content, ENTRY: record}, tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match=said):
        check_checkpoint(tmp_path / "x.ckpt", made)


def test_weights_alone_are_no_checkpoint(tmp_path: Path) -> None:
    torch.save({"model_state_dict": {}, "obs_dim": 3}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match=r"x\.pt .*\(model_state_dict\)"):
        check_checkpoint(tmp_path / "x.pt")


# Of the Trainer, and how long its epochs are.
SETTINGS: dict[str, tuple[dict[str, Any], int]] = {
    "epochs of three": ({}, 3),
    "a validation every other epoch": ({"check_val_every_n_epoch": 2}, 3),
    "three of five batches": ({"limit_train_batches": 3}, 5),
    "two validations in an epoch": ({"val_check_interval": 2}, 4),
    "validations across epochs": ({"val_check_interval": 4, "check_val_every_n_epoch": None}, 3),
}


class Story(Callback):
    """Diary of steps and validations.

    Each has the step of the curves, the epoch and the batch.
    """

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


@pytest.mark.parametrize(("number", "name"), list(enumerate(SETTINGS)))
def test_a_run_that_stops_and_goes_on_has_the_same_story(tmp_path: Path, number: int, name: str) -> None:
    """It stops where its steps are made, and where it is asked to end, in turn."""
    wanted, told = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    part(tmp_path / "straight", name, wanted, 10)
    path: Path | None = None
    for turn, stop in enumerate((2, 3, 4, 6), number):
        if turn % 2:
            with pytest.raises(SIGTERMException):
                part(tmp_path, name, told, 10, path, ends_at=stop)
        else:
            part(tmp_path, name, told, stop, path)
        path = last(tmp_path)
    part(tmp_path, name, told, 10, path)
    assert told == wanted
    assert differences(everything(last(tmp_path)), everything(last(tmp_path / "straight"))) == []


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
    # A run asks for only three of its five batches, too.
    for _ in range(2):
        steps = iter(loader)
        assert [next(steps) for _ in range(3)] == [1, 2, 3]
    loader.load_state_dict({"done": 3})
    assert [list(loader), list(loader)] == [[4, 5], [1, 2, 3, 4, 5]]
    with pytest.raises(ValueError, match=r"steps_per_epoch .*\b6\b.* not 5"):
        loader.load_state_dict({"done": 6})
