"""Films of training in the event files of TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image

from tests.callbacks.test_pictures import pictures_in
from tests.evaluation.counting_env import CountingEnv
from tests.training.tiny import data, fit, module, trainer
from torchrl_gpu.callbacks import TrainingFilm
from torchrl_gpu.envs import DishwashingEnv
from torchrl_gpu.policies import SAC, ClipEncoder, VectorCritic, VectorGaussian
from torchrl_gpu.training import ClipReplay, OffPolicy


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
    with pytest.raises(ValueError, match="TrainingFilm: want an environment with pictures; got CountingEnv"):
        film.on_fit_start(None, blind)
