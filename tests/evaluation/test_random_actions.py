"""The baseline that every environment has."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.evaluation.counting_env import CountingEnv
from tests.training.tiny import packing_env
from tests.training.tiny_navigation import marine_env
from torchrl_gpu.envs import BatchedEnv
from torchrl_gpu.evaluation.random_actions import RandomActions
from torchrl_gpu.policies.exploration import keyed_draws


@pytest.mark.parametrize(
    "env",
    [
        CountingEnv(64),
        CountingEnv(64, masked=False),
        packing_env(64),
        marine_env("v2", 64),
        marine_env("v3", 64),
        marine_env("v3", 64, curriculum=None, robots=1, flat=True, min_distance=5.0),
    ],
    ids=["mask", "no mask", "packing", "group", "continuous", "flat"],
)
def test_what_it_does_is_in_the_spec_legal_and_not_always_the_same(env: BatchedEnv) -> None:
    torch.manual_seed(0)
    chosen = RandomActions(env)(env.reset())
    for key in env.action_keys:
        action = chosen[key]
        spec: Any = env.full_action_spec[key]
        assert spec.is_in(action)
        assert len(action.reshape(64, -1).unique(dim=0)) > 1
        mask = chosen.get("action_mask" if isinstance(key, str) else (*key[:-1], "action_mask"), None)
        assert mask is None or mask.take_along_dim(action[..., None], -1).any(-1)[mask.any(-1)].all()
    env.step(chosen)


@pytest.mark.parametrize("env", [CountingEnv(4, masked=False), marine_env("v3", 4)], ids=["discrete", "continuous"])
def test_a_row_draws_the_same_whatever_is_beside_it(env: BatchedEnv) -> None:
    keys = torch.arange(4)
    policy = RandomActions(env)
    current = env.reset()
    with keyed_draws(keys):
        whole = policy(current.clone())
    with keyed_draws(keys[2:]):
        part = policy(current[2:].clone())
    for key in env.action_keys:
        assert torch.equal(whole[key][2:], part[key])
