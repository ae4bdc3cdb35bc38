"""The environment among TorchRL's own tools: rollouts, collectors, transforms, batches of environments."""

from __future__ import annotations

import functools

import pytest
import torch
from tensordict.nn import TensorDictModule
from torchrl.envs import Compose, InitTracker, RewardSum, SerialEnv, StepCounter, TransformedEnv
from torchrl.envs.utils import check_env_specs, check_marl_grouping

from tests.envs.marine.settings import assert_same, marine

ahead = TensorDictModule(
    lambda mask: torch.full(mask.shape[:-1], 7), [("robots", "action_mask")], [("robots", "action")]
)


def test_robots_are_a_group_by_torchrls_convention() -> None:
    env = marine("v2")
    check_marl_grouping(env.group_map, [name for names in env.group_map.values() for name in names])
    assert env.action_keys == [("robots", "action")]
    assert env.reward_keys == [("robots", "reward")]
    assert ("robots", "done") in env.done_keys
    assert "done" in env.done_keys


@pytest.mark.parametrize("setting", ["v2", "v3, discrete"])
def test_rollout_restarts_what_is_done(setting: str) -> None:
    data = marine(setting, num_envs=4, max_steps=30).rollout(70, ahead, break_when_any_done=False)
    assert data.batch_size == (4, 70)
    assert data["robots"].batch_size == (4, 70, 5)
    started = data["next", "done"][:, :-1, 0]
    assert started.sum() >= 4
    assert (data["episode_step"][:, 1:, 0][started] == 0).all()
    assert torch.equal(data["episode_step"][:, 1:, 0][~started], data["next", "episode_step"][:, :-1, 0][~started])


def test_rollout_until_a_world_is_done_is_not_stopped_by_a_robot() -> None:
    data = marine("v2", num_envs=8, max_steps=60).rollout(200, ahead)
    assert data["next", "done"][:, -1].any()
    assert not data["next", "done"][:, :-1].any()
    assert data["next", "robots", "done"][:, :-1].any()


@pytest.mark.filterwarnings("ignore:Creating .* which inherits from WeightUpdaterBase:DeprecationWarning")  # its own
def test_collector() -> None:
    from torchrl.collectors import Collector

    env = marine("v2", num_envs=4, max_steps=15)
    collector = Collector(env, ahead, frames_per_batch=80, total_frames=160, auto_register_policy_transforms=False)
    batches = list(collector)
    collector.shutdown()
    assert [batch.batch_size for batch in batches] == [(4, 20), (4, 20)]
    data = torch.cat([batch.exclude("collector") for batch in batches], 1)
    expected = marine("v2", num_envs=4, max_steps=15).rollout(40, ahead, break_when_any_done=False)
    assert_same(data.select(*expected.keys(True, True)), expected)


def test_transforms() -> None:
    sums = RewardSum(in_keys=[("robots", "reward")], out_keys=[("robots", "episode_reward")])
    transforms = Compose(InitTracker(), sums, StepCounter(step_count_key="steps"))
    env = TransformedEnv(marine("v2", num_envs=4, max_steps=20), transforms)
    check_env_specs(env, seed=0)
    env.set_seed(0)
    data = env.rollout(50, ahead, break_when_any_done=False)
    assert torch.equal(data["next", "steps"], data["next", "episode_step"])
    assert torch.equal(data["is_init"], data["episode_step"] == 0)
    total = env.base_env.state.score.t().unsqueeze(-1)
    assert torch.allclose(data["next", "robots", "episode_reward"][:, -1], total, atol=1e-3)


def test_serial() -> None:
    env = SerialEnv(2, functools.partial(marine, "v2", 2))
    check_env_specs(env, seed=0)
    together = env.rollout(6, ahead, break_when_any_done=False)
    assert together.batch_size == (2, 2, 6)
