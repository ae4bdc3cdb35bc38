"""The environments under Stable-Baselines3's contract, and MaskablePPO on packing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.envs.adapters.kinds import each_kind, env_of

pytest.importorskip("sb3_contrib")

from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

from torchrl_gpu.envs import GymnasiumVectorEnv, Sb3VecEnv


def rows_of(kind: str, observations: Any = None, **changes: object) -> Sb3VecEnv:
    return Sb3VecEnv(GymnasiumVectorEnv(env_of(kind, **changes), observations))


def test_maskable_ppo_learns_to_pack() -> None:
    env = VecMonitor(rows_of("packing", ["box_heightmap", "item_size"], num_envs=16))
    model = MaskablePPO("MultiInputPolicy", env, n_steps=16, batch_size=128, n_epochs=2, learning_rate=3e-3, seed=0)
    before = [weight.detach().clone() for weight in model.policy.parameters()]
    model.learn(256)
    assert all(weight.isfinite().all() for weight in model.policy.parameters())
    moved = [not w.equal(b) for w, b in zip(model.policy.parameters(), before, strict=True)]
    assert all(moved)
    lengths = [episode["l"] for episode in model.ep_info_buffer or ()]
    assert len(lengths) > 10
    # An illegal action would have ended the episode.
    assert np.mean(lengths) > 2


def test_its_own_ppo_learns_and_its_evaluation_counts_whole_episodes() -> None:
    env = VecMonitor(rows_of("dishes", "observation"))
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=32, n_epochs=2, seed=0)
    model.learn(2 * 8 * env.num_envs)
    assert all(weight.isfinite().all() for weight in model.policy.parameters())
    assert model.num_timesteps == 16 * env.num_envs
    rewards, lengths = evaluate_policy(model, env, n_eval_episodes=16, return_episode_rewards=True)
    assert lengths == [6] * 16
    assert len(rewards) == 16


def test_what_is_legal_is_what_it_chooses_from() -> None:
    env = rows_of("packing", ["box_heightmap", "item_size", "action_mask"])
    env.seed(5)
    seen = env.reset()
    assert is_masking_supported(env)
    assert not is_masking_supported(rows_of("dishes"))
    model = MaskablePPO("MultiInputPolicy", env, n_steps=8, batch_size=32, seed=0)
    for _ in range(10):
        masks = get_action_masks(env)
        assert masks.dtype == bool
        assert np.array_equal(masks, seen["action_mask"])
        action, _ = model.predict(seen, action_masks=masks)
        assert masks[np.arange(8), action].all()
        seen, *_ = env.step(action)


@each_kind
def test_what_ends_is_told_as_it_wants_it(kind: str) -> None:
    """Against the adapter for Gymnasium, from the same seed."""
    rows, plain = rows_of(kind), GymnasiumVectorEnv(env_of(kind))
    rows.seed(7)
    plain.action_space.seed(0)
    seen, (wanted, _) = rows.reset(), plain.reset(seed=7)
    ends = 0
    for _ in range(20):
        assert all(np.array_equal(seen[name], wanted[name], equal_nan=True) for name in wanted)
        action = plain.action_space.sample()
        wanted, reward, terminated, truncated, told = plain.step(action)
        seen, earned, done, infos = rows.step(action)
        assert np.array_equal(earned, reward)
        assert np.array_equal(done, terminated | truncated)
        for row, info in enumerate(infos):
            assert bool(info) is bool(done[row])
            if not info:
                continue
            ends += 1
            assert info["TimeLimit.truncated"] is bool(truncated[row])
            final = told["final_obs"][row]
            assert all(
                np.array_equal(info["terminal_observation"][name], final[name], equal_nan=True) for name in final
            )
            for name in plain.env.outcome_names:
                if told["final_info"][f"_{name}"][row]:
                    assert info[name] == told["final_info"][name][row]
    assert ends > 2


def test_attributes_are_those_of_the_environment() -> None:
    env = rows_of("packing")
    assert env.get_attr("num_envs", [0, 2]) == [8, 8]
    assert env.env_is_wrapped(VecMonitor) == [False] * 8
    with pytest.raises(AttributeError, match=r"Sb3VecEnv: .*action_masks, not play"):
        env.env_method("play")
    with pytest.raises(AttributeError):
        env.get_attr("horizon")
    env.set_attr("note", 3)
    assert env.get_attr("note", 1) == [3]
    assert env.get_images() == [None] * 8
    env.close()
    assert env.env.closed


def test_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Sb3VecEnv: .*output .*'torch'"):
        Sb3VecEnv(GymnasiumVectorEnv(env_of("dishes"), output="torch"))


def test_masks_before_the_first_reset_are_one_line() -> None:
    env = rows_of("packing")
    for ask in (env.action_masks, lambda: env.env_method("action_masks")):
        with pytest.raises(ValueError, match=r"action_masks: .*reset"):
            ask()
    env.reset()
    assert env.action_masks().any(1).all()


def test_masks_where_all_actions_are_legal_are_one_line() -> None:
    env = rows_of("dishes")
    env.reset()
    with pytest.raises(ValueError, match=r"action_masks: env .*masks"):
        env.action_masks()
