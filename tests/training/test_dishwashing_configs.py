"""The shifts at the sink, shortened: what `lightning fit`, `test` and a resume do with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.deterministic import Deterministic
from torchrl_gpu import configs
from torchrl_gpu.cli.lightning_cli import run

SHIFTS = [name for name in configs.names() if name.startswith("dishwashing_")]
ENCODERS: dict[str, tuple[int, int]] = {"simple2dcnn": (4, 16), "simple3dcnn": (4, 16), "timesformer": (2, 16)}


def shortened(name: str, folder: Path, **more: Any) -> list[str]:
    """Arguments of a run of a few updates in few, short shifts; everything else is as shipped."""
    options = {
        "model.env.num_envs": 4,
        "model.env.max_steps": 8,
        "model.batch_size": 8,
        "model.replay.capacity": 100,
        "model.warmup_frames": 32,
        "model.updates_per_step": 2,
        "data.steps_per_epoch": 2,
        "data.num_episodes": 3,
        "data.num_val_episodes": 2,
        "trainer.default_root_dir": folder,
        "trainer.logger.init_args.save_dir": folder,
        "trainer.log_every_n_steps": 1,
        "trainer.accelerator": "cpu",
    }
    if name == "dishwashing_video.yaml":
        options |= {"model.env.frame_size": "[16,16]", "model.encoder.num_features": 8}
    return ["--config", configs.find(name), *(f"--{key}={value}" for key, value in {**options, **more}.items())]


def test_there_are_two() -> None:
    assert SHIFTS == ["dishwashing_feasible.yaml", "dishwashing_video.yaml"]


@pytest.mark.parametrize("name", SHIFTS)
def test_it_trains_shows_and_is_tested(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = shortened(name, tmp_path)
    film = "--trainer.callbacks+=torchrl_gpu.callbacks.TrainingFilm", "--trainer.callbacks.first_after_s=0"
    with Deterministic():
        run("fit", [*options, *film, "--trainer.max_steps=4", "--trainer.deterministic=true"])
    checkpoint = tmp_path / "checkpoints" / "last.ckpt"
    (events,) = (tmp_path / "tensorboard").rglob("events*")
    shown = EventAccumulator(str(events))
    shown.Reload()
    scalars = {"train/loss", "train/profit", "train/broken", "val/profit", "val/clean"}
    assert scalars <= set(shown.Tags()["scalars"])
    assert "training: environment 0" in shown.Tags()["images"]
    assert ("training: clip of environment 0" in shown.Tags()["images"]) is (name == "dishwashing_video.yaml")
    capfd.readouterr()
    run("test", [*options, f"--ckpt_path={checkpoint}"])
    assert "profit" in capfd.readouterr().out
    assert json.loads((tmp_path / "evaluation.json").read_text())["policies"][0]["num_episodes"] == 3


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    return state["state_dict"] | {"frames": torch.tensor(state["frames"])}


def test_how_often_it_is_validated_changes_nothing(tmp_path: Path) -> None:
    for steps in (1, 3):
        options = {"data.steps_per_epoch": steps, "trainer.max_steps": 8}
        run("fit", shortened("dishwashing_feasible.yaml", tmp_path / str(steps), **options))
    often, seldom = weights(tmp_path / "1"), weights(tmp_path / "3")
    assert all(torch.equal(often[key], seldom[key]) for key in often)


def test_checkpoints_are_named_by_episodes(tmp_path: Path) -> None:
    options = shortened("dishwashing_video.yaml", tmp_path, **{"model.rollout_steps": 8, "trainer.max_steps": 8})
    config = Path(configs.find("dishwashing_video.yaml")).read_text(encoding="utf-8")
    assert "every_n_episodes: 5000, every_n_minutes: 10, name: sac_video" in config
    changed = tmp_path / "often.yaml"
    changed.write_text(config.replace("every_n_episodes: 5000,", "every_n_episodes: 4,"))
    run("fit", ["--config", str(changed), *options[2:]])
    names = {path.stem for path in (tmp_path / "checkpoints").glob("sac_video_ep*.ckpt")}
    assert names == {"sac_video_ep16", "sac_video_ep20"}


@pytest.mark.parametrize("arch", ENCODERS)
def test_another_encoder_by_one_option(arch: str, tmp_path: Path) -> None:
    length, side = ENCODERS[arch]
    more = {"model.encoder.arch": arch, "model.env.clip_length": length, "model.env.frame_size": f"[{side},{side}]"}
    run("fit", [*shortened("dishwashing_video.yaml", tmp_path, **more), "--trainer.max_steps=2"])
    hyper = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["torchrl_gpu"]["config"]
    assert hyper["model"]["init_args"]["encoder"]["arch"] == arch
