"""Every shipped config on the pretended device, through Lightning's own `accelerator=gpu`, in small."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.test_end_to_end import SMALL, write_demonstrations, write_orders
from torchrl_gpu import cli, configs

REPLAY = {"model.batch_size": 8, "model.replay.capacity": 200, "model.warmup_frames": 16, "model.updates_per_step": 2}
ROLLOUTS = {"model.rollout_steps": 4, "model.epochs": 1, "model.minibatches": 2}
UPDATES = {
    "data.steps_per_epoch": 2,
    "data.pictures": "false",
    "trainer.log_every_n_steps": 1,
    "trainer.max_steps": 4,
    "trainer.accelerator": "gpu",
    "trainer.devices": 1,
}
PACKING = {"data.num_episodes": 1, "data.num_val_episodes": 1}
COARSE = {  # an operator takes as long as on a CPU and its wrapping as long again, so fewer cells and fewer pieces
    "packing.yaml": {"model.env.bin_size": "[6.0,6.0,6.0]", "model.env.resolution": 6, "model.env.items.max_side": 4},
    "packing_orders.yaml": {"model.env.resolution": "[12,8]", "model.env.num_items": 3},
    "packing_irregular.yaml": {
        "model.env.num_items": 3,
        "model.env.visible_items": 2,
        "model.env.items.num_objects": 4,
        "model.env.orientations": "fixed",
        "model.n_steps": 3,
    },
}
NAVIGATION = {
    "model.env.num_envs": 2,
    "model.env.pool": 8,
    "model.env.max_steps": 10,
    "data.worlds_per_level": 1,
    "data.val_worlds_per_level": 1,
    "data.test_levels": "own",
    "data.max_steps": 6,
}


ALL_WORDS = ("packing_dqn.yaml", "packing_irregular.yaml", "navigation_sac.yaml")  # of each kind of suite


def small(name: str) -> list[str]:
    """Command line of a shipped config in small."""
    options = (
        UPDATES
        | (ROLLOUTS if name.startswith("ppo_") else {} if name == "packing.yaml" else REPLAY)
        | COARSE.get(name, {})
    )
    options |= NAVIGATION if name.startswith(("navigation", "ppo_marine")) else PACKING
    if name == "bc.yaml":  # which plays nothing
        options = {
            key: value for key, value in options.items() if key not in ("model.replay.capacity", "model.warmup_frames")
        }
    return ["--config", name, *SMALL.get(name, []), *(f"--{key}={value}" for key, value in options.items())]


@pytest.mark.parametrize("name", configs.names())
def test_it_trains_and_is_tested(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_orders(tmp_path / "orders.json")
    write_demonstrations(tmp_path)
    assert cli.main(["fit", *small(name)]) is None
    (checkpoint,) = tmp_path.rglob("last.ckpt")
    content = torch.load(checkpoint, weights_only=True)
    assert content["global_step"] == 4
    assert {value.device.type for value in content["state_dict"].values()} == {"cuda"}
    for word in ("validate", "test", "predict") if name in ALL_WORDS else ("test",):
        assert cli.main([word, *small(name), f"--ckpt_path={checkpoint}"]) is None
    assert list(tmp_path.rglob("evaluation.json"))
    predicted = list(tmp_path.rglob("plans.json")) + list(tmp_path.rglob("crossings.json"))
    assert bool(predicted) is (name in ALL_WORDS)
