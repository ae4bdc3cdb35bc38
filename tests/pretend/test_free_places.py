"""Free places on the pretended device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.pretend_cuda import waits
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import OrderBoxes
from torchrl_gpu.policies import AgentSpace
from torchrl_gpu.policies.packing.placement_values import NAMES, LinearPlacementValues
from torchrl_gpu.policies.packing.planners.free_places import FreePlaces


def played(device: str, rule: str) -> torch.Tensor:
    """Play ten boxes of three bins.

    Once warm, no decision may wait for the device.
    """
    env = PackingEnv(
        3,
        bin_size=(1.2, 0.8, 1.5),
        resolution=(30, 20),
        orientations="yaw",
        stability=rule,
        include=["z_map"],
        items=OrderBoxes(num_articles=30),
        num_items=60,
        backend="eager",
        device=device,
        seed=3,
    )
    weights = np.random.default_rng(0).normal(0, 1, len(NAMES)).tolist()
    values = LinearPlacementValues(AgentSpace.of(env), weights).to(device)
    policy = FreePlaces(env, values, candidates=5, step=4)
    shown = env.reset()
    policy(shown)
    actions = []
    with waits() as counted:
        for _ in range(10):
            shown = policy(shown)
            actions.append(shown["action"])
            shown = env.step(shown)["next"]
    assert counted.total == 0, counted.report()
    return torch.stack(actions).cpu()


@pytest.mark.parametrize("rule", ["support", "load_bearing"])
def test_it_decides_as_on_a_cpu_and_never_waits(rule: str) -> None:
    assert played("cuda", rule).equal(played("cpu", rule))
