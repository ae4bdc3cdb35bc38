"""The shipped runs of robots and dishes, shortened.

What the commands of `lightning` do with them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.deterministic import Deterministic
from torchrl_gpu import configs
from torchrl_gpu.cli.lightning_cli import build, run

NAVIGATION = [f"navigation_{agent}.yaml" for agent in ("ac_iqn", "ddpg", "dqn", "iqn", "rainbow", "sac")]
SHIFTS = ["dishwashing_feasible.yaml", "dishwashing_video.yaml"]
ENCODERS: dict[str, tuple[int, int]] = {"simple2dcnn": (4, 16), "simple3dcnn": (4, 16), "timesformer": (2, 16)}
FILM = ["--trainer.callbacks+=torchrl_gpu.callbacks.TrainingFilm", "--trainer.callbacks.first_after_s=0"]


def shortened(name: str, folder: Path, **more: Any) -> list[str]:
    """Arguments of a run of a few updates with few, short episodes.

    Everything else is as shipped.
    """
    options: dict[str, Any] = {
        "model.env.num_envs": 4,
        "data.steps_per_epoch": 2,
        "data.batch_size": 4,
        "trainer.default_root_dir": folder,
        "trainer.logger.init_args.save_dir": folder,
        "trainer.log_every_n_steps": 1,
        "trainer.accelerator": "cpu",
    }
    if name in SHIFTS:
        options |= {"model.env.max_steps": 8, "data.num_episodes": 3, "data.num_val_episodes": 2}
        options |= {"model.replay.capacity": 100, "model.warmup_frames": 32}
    else:
        options |= {"model.env.pool": 16, "model.env.max_steps": 20, "data.max_steps": 10}
        options |= {"data.val_worlds_per_level": 1, "data.worlds_per_level": 1}
    if name == "dishwashing_video.yaml":
        options |= {"model.env.frame_size": "[16,16]", "model.encoder.num_features": 8}
    if name in NAVIGATION:
        options |= {"model.replay.capacity": 1000, "model.warmup_frames": 64}
    if name.startswith("ppo_"):
        options |= {"model.rollout_steps": 8, "model.epochs": 1, "model.minibatches": 2}
    else:
        options |= {"model.batch_size": 8, "model.updates_per_step": 2}
    return ["--config", configs.find(name), *(f"--{key}={value}" for key, value in {**options, **more}.items())]


def test_every_config_is_tested() -> None:
    # `test_end_to_end` runs the others.
    others = ("packing", "ppo_packing", "bc")
    tested = [*NAVIGATION, "ppo_marine.yaml", *SHIFTS]
    assert sorted(tested) == sorted(name for name in configs.names() if not name.startswith(others))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of the run of a config."""

    @cache
    def folder_of(name: str) -> Path:
        folder, film = tmp_path_factory.mktemp("run"), FILM if name in SHIFTS else []
        with Deterministic():
            run("fit", [*shortened(name, folder), *film, "--trainer.max_steps=4", "--trainer.deterministic=true"])
        return folder

    return folder_of


@pytest.mark.parametrize("name", [*NAVIGATION, "ppo_marine.yaml", *SHIFTS])
def test_config_trains_and_shows_its_run(name: str, trained: Callable[[str], Path]) -> None:
    (events,) = (trained(name) / "tensorboard").glob("*/events*")
    shown = EventAccumulator(str(events))
    shown.Reload()
    scalars, images = set(shown.Tags()["scalars"]), set(shown.Tags()["images"])
    if name in SHIFTS:
        assert {"train/loss", "train/profit", "train/broken", "val/profit", "val/clean"} <= scalars
        assert "training: environment 0" in images
        assert ("training: clip of environment 0" in images) is (name == "dishwashing_video.yaml")
    else:
        assert {"train/loss", "val/success", "val/collision_rate", "val/arrived"} <= scalars
        # PPO ends no episode in this time.
        assert name == "ppo_marine.yaml" or {"train/success", "train/collided"} <= scalars
        assert "crossings" in images


@pytest.mark.parametrize(
    ("name", "score", "files"),
    [
        ("ppo_marine.yaml", "success", ["crossings.json", "crossing.gif"]),
        ("dishwashing_video.yaml", "profit", ["plans.json", "episode.gif"]),
    ],
)
def test_commands_that_go_on_from_a_checkpoint(
    name: str,
    score: str,
    files: list[str],
    trained: Callable[[str], Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained(name), folder)
    options, checkpoint = shortened(name, folder), f"--ckpt_path={folder / 'checkpoints' / 'last.ckpt'}"
    capfd.readouterr()
    for command in ("validate", "test", "predict"):
        run(command, [*options, checkpoint])
        assert score in capfd.readouterr().out or command == "predict"
    assert json.loads((folder / "evaluation.json").read_text())["policies"]
    assert all((folder / file).exists() for file in files)


def test_checkpoints_are_named_by_episodes() -> None:
    config = Path(configs.find("dishwashing_video.yaml")).read_text(encoding="utf-8")
    assert "every_n_episodes: 5000, every_n_minutes: 10, name: sac_video" in config


@pytest.mark.parametrize("arch", ENCODERS)
def test_another_encoder_by_one_option(arch: str, tmp_path: Path) -> None:
    length, side = ENCODERS[arch]
    more = {"model.encoder.arch": arch, "model.env.clip_length": length, "model.env.frame_size": f"[{side},{side}]"}
    model: Any = build("fit", shortened("dishwashing_video.yaml", tmp_path, **more)).model
    assert model.run_config["model"]["init_args"]["encoder"]["arch"] == arch
    assert sum(weight.numel() for weight in model.agent.parameters()) > 0
