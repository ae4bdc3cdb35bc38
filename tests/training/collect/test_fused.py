"""Rollouts that a function plays whole: those of the plain loop to the bit, or the plain loop itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from tensordict import NestedKey, TensorDictBase

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.policies import PackingPolicy, PatchTables
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.collect.steps import play_steps

Played = tuple[TensorDictBase, TensorDictBase]


def packing_env(seed: int = 3) -> PackingEnv:
    return PackingEnv(4, items=RandomBoxes(1, 3), bin_size=(4.0, 4.0, 4.0), resolution=4, seed=seed, device="cpu")


def greedy_tables(env: PackingEnv) -> PackingPolicy:
    space = AgentSpace.of(env)
    return PackingPolicy(space, PatchTables(space, ["2x2"]))


class PlainPlayer:
    """Plays whole rollouts by the plain loop, and counts them; `spoil` changes what it gives."""

    def __init__(self, reason: str = "", spoil: Callable[[BatchedEnv, Played], Played] | None = None) -> None:
        self.reason, self.spoil = reason, spoil
        self.calls = 0

    def problem(self, env: BatchedEnv, policy: Policy, keys: Sequence[NestedKey], more: Sequence[NestedKey]) -> str:
        return self.reason

    def play(self, env: BatchedEnv, policy: Policy, current: TensorDictBase, steps: int) -> Played:
        self.calls += 1
        played = play_steps(env, policy, current, steps, ["box_heightmap"])
        return played if self.spoil is None else self.spoil(env, played)


def another_reward(env: BatchedEnv, played: Played) -> Played:
    played[0]["next", "reward"][0, 0] += 2**-20
    return played


def another_count(env: BatchedEnv, played: Played) -> Played:
    env._state = replace(env.state, step_count=env.state.step_count + 1)
    return played


def nothing_shown(env: BatchedEnv, played: Played) -> Played:
    return played[0], played[1].exclude("num_packed")


def failing(env: BatchedEnv, played: Played) -> Played:
    raise RuntimeError("out of registers")


def rollouts_of(player: PlainPlayer | None, calls: int = 3) -> list[torch.Tensor]:
    """Every tensor that a rollout gives in some calls, and the state behind them."""
    env = packing_env()
    rollout = Rollout(env, ["box_heightmap"], n_steps=1, gamma=1.0, player=player)
    policy = greedy_tables(env)
    found = []
    for _ in range(calls):
        found += list(rollout.play(policy, 5)[1].values(True, True))
    found += list(env.env_state().values())
    return [value.clone() for value in [*found, *rollout.current.values(True, True)]]


def assert_same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs)


def test_a_whole_rollout_is_that_of_single_steps() -> None:
    player = PlainPlayer()
    assert_same(rollouts_of(player), rollouts_of(None))
    assert player.calls == 4  # three, and one that was tried beside single steps


@pytest.mark.parametrize("spoil", [another_reward, another_count, nothing_shown, failing])
def test_a_player_that_plays_something_else_is_given_up(
    spoil: Callable[[BatchedEnv, Played], Played], caplog: pytest.LogCaptureFixture
) -> None:
    player = PlainPlayer(spoil=spoil)
    assert_same(rollouts_of(player), rollouts_of(None))
    assert player.calls == 1
    assert len([line for line in caplog.messages if "FusedRollout" in line]) == 1


def test_a_player_that_does_not_cover_the_policy_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    player = PlainPlayer("refined tables are not covered")
    with caplog.at_level(logging.INFO):
        assert_same(rollouts_of(player), rollouts_of(None))
    assert player.calls == 0
    assert len([line for line in caplog.messages if player.reason in line]) == 1
