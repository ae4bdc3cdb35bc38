from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.policies import checkpoints
from tests.training.tiny import packing_env
from tests.training.tiny_navigation import marine_env
from torchrl_gpu.envs import DishwashingEnv
from torchrl_gpu.policies import AgentSpace, InferencePolicy, load_policy
from torchrl_gpu.policies.export.manifest import elements_of, manifest_of
from torchrl_gpu.policies.networks.vectors import perceptron
from torchrl_gpu.policies.policy import Entry


def of(space: AgentSpace, *names: str) -> InferencePolicy:
    """A policy that reads these entries, as far as a manifest describes it."""
    policy = Entry("action", perceptron([1, 1]))
    policy.in_keys = list(names)
    return InferencePolicy(policy, space, "test")


def test_a_packer_says_what_its_actions_stand_for(tmp_path: Path) -> None:
    agent, init_args = checkpoints.packer("DQN")
    items = {"class_path": "torchrl_gpu.envs.packing.items.RandomBoxes", "init_args": {"min_side": 1, "max_side": 3}}
    init_args["env"] = {
        "class_path": "torchrl_gpu.envs.PackingEnv",
        "init_args": {"items": items, "orientations": "yaw"},
    }
    torch.save(checkpoints.content_of(agent, init_args), tmp_path / "last.ckpt")
    told = manifest_of(load_policy(tmp_path / "last.ckpt", "cpu"))
    assert told["action_shape"] == {"visible_items": 1, "orientations": 2, "placements_x": 5, "placements_y": 5}
    assert told["bin"]["size_m"] == [5.0, 5.0, 5.0]
    assert told["bin"]["cells"] == [5, 5]
    assert told["environment_settings"] == init_args["env"]
    assert "action_mask" in told["mask"]
    turned = np.abs(np.array(told["orientation_table"]))[1] @ [3, 2, 1]
    assert turned.tolist() == [2, 3, 1]
    assert told["outputs"][0] | {"meaning": "", "frame": ""} == {
        "name": "action",
        "shape": ["batch"],
        "dtype": "int64",
        "low": 0,
        "high": 49,
        "meaning": "",
        "unit": None,
        "frame": "",
        "elements": None,
    }


@pytest.mark.parametrize(
    "env",
    [
        packing_env(1),
        marine_env("v2", 1),
        marine_env("v3", 1, actions="continuous"),
        DishwashingEnv(1, device="cpu"),
        DishwashingEnv(1, device="cpu", observe_as="video", frame_size=(16, 16)),
    ],
    ids=lambda env: f"{type(env).__name__} {getattr(env, 'version', getattr(env, 'observe_as', ''))}",
)
def test_every_entry_that_a_network_reads_is_explained(env: object) -> None:
    space = AgentSpace.of(env)  # type: ignore[arg-type]
    read = {"box_heightmap", "item_size", "z_map", "legal_mask", "action_mask", "observation", "object_mask", "clip"}
    policy = of(space, *(name for name in space.observations if name in read))
    told = manifest_of(policy)
    for entry in (*told["inputs"], *told["outputs"]):
        assert entry["meaning"] != "an entry of the environment's own"
        elements = elements_of(policy, entry["name"])
        assert elements is None or len(elements) == entry["shape"][-1]


def test_an_environment_of_ones_own_is_described_by_its_shapes() -> None:
    space = AgentSpace("Mine", (), {"height": ((3,), "float32")}, low=(-1.0,), high=(float("inf"),))
    told = manifest_of(of(space, "height"))
    assert told["inputs"][0]["shape"] == ["batch", 3]
    assert told["outputs"][0]["high"] == [None]
    assert "bin" not in told
