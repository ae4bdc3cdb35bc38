"""Pictures of evaluation episodes in the event files of TensorBoard."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image

from tests.demonstrations.mcap_files import read
from tests.evaluation.counting_env import CountingEnv
from tests.evaluation.marine.test_suite import ROWS
from tests.training.crossing_worlds import homing, marine_env
from tests.training.data.test_episodes import Trained
from tests.training.tiny import data, fit, module, trainer
from torchrl_gpu.callbacks import EpisodeMcap, EvaluationPictures, TrainingFilm
from torchrl_gpu.envs import DishwashingEnv, MarineNavEnv
from torchrl_gpu.evaluation.random_actions import RandomActions
from torchrl_gpu.evaluation.suite import Suite
from torchrl_gpu.policies import SAC, ClipEncoder, VectorCritic, VectorGaussian
from torchrl_gpu.training import ClipReplay, Episodes, NavigationWorlds, OffPolicy


def pictures_in(folder: Path) -> list[tuple[int, str, Image.Image]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found = []
    for path in folder.rglob("events.out.tfevents.*"):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "images":
                    width, height, *encoded = value.tensor.string_val
                    image = Image.open(BytesIO(encoded[0]))
                    assert image.size == (int(width), int(height))
                    found.append((event.step, value.tag, image))
    return found


def test_picture_is_logged_after_every_validation(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="board")
    # 4 updates, 2 a training step, 1 training step an epoch: validations after updates 2 and 4
    made, callback = module(), EvaluationPictures(num=2, width=64)
    fit(made, tmp_path, 4, callback, logger=logger, data_module=data(steps_per_epoch=1), enable_checkpointing=False)
    logger.finalize("success")
    pictures = pictures_in(tmp_path)
    assert sorted((step, tag) for step, tag, _ in pictures) == [(2, "packed bins"), (4, "packed bins")]
    for _, _, picture in pictures:
        # Two bins stand side by side, with something in them.
        assert picture.size == (64 + 8 + 64, 48)
        assert len(np.unique(np.asarray(picture).reshape(-1, 3), axis=0)) > 10


class Player(Trained):
    def validation_step(self, suite: Suite[Any, Any], batch_idx: int) -> None:
        suite.play(homing(suite.env) if isinstance(suite.env, MarineNavEnv) else RandomActions(suite.env))


WORLDS = {"val_levels": ROWS, "val_worlds_per_level": 2, "max_steps": 20}
RUNS = {
    # Two rows, of three that there are.
    "crossings": (marine_env(), NavigationWorlds(**WORLDS), (64 + 8 + 64, 64)),
    "episodes": (CountingEnv(2), Episodes(num_val_episodes=5), (64 + 8 + 64, 48 + 8 + 48)),
}


@pytest.mark.parametrize("tag", RUNS)
def test_every_environment_has_pictures(tag: str, tmp_path: Path) -> None:
    env, episodes, size = RUNS[tag]
    logger = TensorBoardLogger(tmp_path, name="board")
    runner = trainer(tmp_path, 2, EvaluationPictures(num=3, width=64), logger=logger, enable_checkpointing=False)
    runner.validate(Player(env), datamodule=episodes, verbose=False)
    logger.finalize("success")
    ((step, found, picture),) = pictures_in(tmp_path)
    assert (step, found, picture.size) == (0, tag, size)
    # There is something on them.
    assert len(np.unique(np.asarray(picture).reshape(-1, 3), axis=0)) >= 2


def test_nothing_is_drawn_where_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(*args: object, **kwargs: object) -> None:
        raise AssertionError("drawn for nobody")

    monkeypatch.setattr(CountingEnv, "pictures", drawn)
    runner = trainer(tmp_path, 2, EvaluationPictures(), enable_checkpointing=False)
    runner.validate(Player(CountingEnv(2)), datamodule=Episodes(num_val_episodes=2), verbose=False)


def test_an_environment_that_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(CountingEnv, "pictures")
    with pytest.raises(ValueError, match=r"EvaluationPictures: .*CountingEnv"):
        EvaluationPictures().on_fit_start(trainer(tmp_path), Player(CountingEnv(2)))


def num_frames(picture: Image.Image) -> int:
    return int(getattr(picture, "n_frames", 1))


def test_the_first_film_comes_soon_and_others_later(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path, name="board")
    film = TrainingFilm(every_n_minutes=1e-9, num_pictures=3, width=64, height=48, first_after_s=0.0)
    fit(module(), tmp_path, 8, film, logger=logger, data_module=data(steps_per_epoch=4), enable_checkpointing=False)
    logger.finalize("success")
    films = [each for each in pictures_in(tmp_path) if each[1] == "training: environment 0"]
    assert [step for step, _, _ in films] == [2, 4, 6, 8]
    assert all(picture.size == (64, 48) for _, _, picture in films)
    assert [num_frames(picture) for _, _, picture in films] == [1, 2, 3, 3]


def test_a_clip_is_a_film_of_its_own(tmp_path: Path) -> None:
    env = DishwashingEnv(4, observe_as="video", frame_size=(16, 16), device="cpu", seed=0)
    made = OffPolicy(
        env,
        lambda space: SAC(space, actor=VectorGaussian, critic=VectorCritic),
        encoder=ClipEncoder(num_features=8),
        shift=1,
        replay=lambda *given: ClipReplay(*given, capacity=100),
        batch_size=8,
        warmup_frames=16,
        updates_per_step=1,
    )
    logger = TensorBoardLogger(tmp_path, name="board")
    film = TrainingFilm(every_n_minutes=10, num_pictures=5, width=96, height=64, first_after_s=0.0)
    options: Any = {"logger": logger, "enable_checkpointing": False, "limit_val_batches": 0}
    trainer(tmp_path, 2, film, **options).fit(made, data(steps_per_epoch=2))
    logger.finalize("success")
    assert {(step, tag) for step, tag, _ in pictures_in(tmp_path)} == {
        (1, "training: environment 0"),
        (1, "training: clip of environment 0"),
    }


def test_without_pictures_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(CountingEnv, "pictures")
    film: Any = TrainingFilm()
    blind: Any = type("Blind", (), {"env": CountingEnv(2)})()
    with pytest.raises(ValueError, match=r"TrainingFilm: .*CountingEnv"):
        film.on_fit_start(None, blind)


class Scores(EpisodeMcap):
    def on_validation_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *args: Any) -> None:
        assert isinstance(batch, Suite)
        assert batch.last is not None
        self.utilization = batch.last.utilization.tolist()
        super().on_validation_batch_end(trainer, pl_module, outputs, batch, *args)


def test_the_worst_of_every_validation(tmp_path: Path) -> None:
    made, callback = module(), Scores(str(tmp_path / "kept"), most=2, size=(48, 64))
    # 4 updates, 2 a training step, 1 training step an epoch: validations after updates 2 and 4
    fit(made, tmp_path, 4, callback, data_module=data(steps_per_epoch=1), enable_checkpointing=False)
    assert sorted(each.name for each in (tmp_path / "kept").iterdir()) == ["step-000000002", "step-000000004"]
    paths = sorted((tmp_path / "kept" / "step-000000004").iterdir())
    worst = sorted(range(4), key=lambda i: callback.utilization[i])[:2]
    assert [path.name for path in paths] == [f"episode-{i:06d}.mcap" for i in sorted(worst)]
    about = read(paths[0]).metadata["episode"]
    assert (about["step"], about["policy"]) == ("4", made.policy_name)
    assert float(about["utilization"]) == pytest.approx(callback.utilization[min(worst)])


def test_pictures_change_no_weights(tmp_path: Path) -> None:
    runs = []
    for name, callbacks in (("with", [EpisodeMcap(most=1, size=(32, 32))]), ("without", [])):
        made = module()
        options = {"data_module": data(steps_per_epoch=1), "enable_checkpointing": False}
        fit(made, tmp_path / name, 4, *callbacks, **options)
        runs.append(made.agent.state_dict())
    assert all(torch.equal(value, runs[1][key]) for key, value in runs[0].items())
    assert len(list((tmp_path / "with").rglob("*.mcap"))) == 2
    assert not list((tmp_path / "without").rglob("*.mcap"))


@pytest.mark.parametrize("size", [(480,), (8, 640), 480, "big", (480, 640.5)])
def test_pictures_refuse_wrong_sizes(size: Any) -> None:
    with pytest.raises(ValueError, match=r"EpisodeMcap: size "):
        EpisodeMcap(size=size)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "speed"}, "by must be one of utilization, return; got 'speed'"),
        ({"choose": "failures"}, "below.*utilization"),
        ({"choose": "failures", "by": "return"}, "below.*return"),
    ],
)
def test_pictures_that_would_fail_are_refused_before_training(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fit(module(warmup_frames=10**9), tmp_path, 2, EpisodeMcap(**options))
