"""The shipped navigation runs, shortened: what `lightning fit`, `validate` and `test` do with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.deterministic import Deterministic
from torchrl_gpu import configs
from torchrl_gpu.cli.lightning_cli import run

NAVIGATION = [name for name in configs.names() if name.startswith("navigation_")]
REPLAY = {"model.batch_size": 8, "model.replay.capacity": 1000, "model.warmup_frames": 64, "model.updates_per_step": 2}
ROLLOUTS = {"model.rollout_steps": 8, "model.epochs": 1, "model.minibatches": 2}


def shortened(name: str, folder: Path) -> list[str]:
    """Arguments of a run of a few updates with few, short worlds; everything else is as shipped."""
    options = {
        "model.env.num_envs": 4,
        "model.env.pool": 16,
        "model.env.max_steps": 20,
        **(ROLLOUTS if name.startswith("ppo_") else REPLAY),
        "data.steps_per_epoch": 2,
        "data.val_worlds_per_level": 1,
        "data.worlds_per_level": 1,
        "data.max_steps": 10,
        "trainer.default_root_dir": folder,
        "trainer.logger.init_args.save_dir": folder,
        "trainer.log_every_n_steps": 1,
        "trainer.accelerator": "cpu",
    }
    return ["--config", configs.find(name), *(f"--{key}={value}" for key, value in options.items())]


def test_there_is_one_for_every_agent() -> None:
    agents = ("ac_iqn", "ddpg", "dqn", "iqn", "rainbow", "sac")
    assert [f"navigation_{agent}.yaml" for agent in agents] == NAVIGATION
    others = [name for name in configs.names() if name not in NAVIGATION]
    tested = ("packing", "dishwashing", "ppo_packing", "ppo_marine", "bc")
    assert all(name.startswith(tested) for name in others)  # and no run untested


@pytest.mark.parametrize("name", [*NAVIGATION, "ppo_marine.yaml"])
def test_it_trains_shows_and_is_tested(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = shortened(name, tmp_path)
    with Deterministic():
        run("fit", [*options, "--trainer.max_steps=4", "--trainer.deterministic=true"])
    checkpoint = tmp_path / "checkpoints" / "last.ckpt"
    (events,) = (tmp_path / "tensorboard").rglob("events*")
    shown = EventAccumulator(str(events))
    shown.Reload()
    wanted = {"train/loss", "train/success", "train/collided", "val/success", "val/collision_rate", "val/arrived"}
    if name == "ppo_marine.yaml":  # no episode has ended by then
        wanted -= {"train/success", "train/collided"}
    assert wanted <= set(shown.Tags()["scalars"])
    assert "crossings" in shown.Tags()["images"]
    capfd.readouterr()
    run("test", [*options, f"--ckpt_path={checkpoint}"])
    table = capfd.readouterr().out
    assert "success" in table
    assert (tmp_path / "evaluation.json").exists()
    assert (tmp_path / "crossing.gif").exists()


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    options = shortened("navigation_iqn.yaml", tmp_path)
    run("fit", [*options, "--trainer.max_steps=2"])
    checkpoint = tmp_path / "checkpoints" / "last.ckpt"
    run("fit", [*options, "--trainer.max_steps=4", f"--ckpt_path={checkpoint}"])
    run("validate", [*options, f"--ckpt_path={checkpoint}"])
    run("predict", [*options, f"--ckpt_path={checkpoint}"])
    assert (tmp_path / "crossings.json").exists()
