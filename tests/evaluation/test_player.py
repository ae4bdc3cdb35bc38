"""Playing a step at a time gives the episodes that the environment would play, and leaves no trace."""

from __future__ import annotations

import torch
from torch import nn

from tests.training.tiny import dqn, packing_env
from torchrl_gpu.evaluation.packing.episodes import evaluate
from torchrl_gpu.evaluation.player import Player
from torchrl_gpu.policies.packing import DeepestBottomLeft, RandomLegal


def ends(player: Player, steps: int) -> list[tuple[int, int, float]]:
    """Step, row and utilization of every end of an episode."""
    found = []
    for step in range(steps):
        done, state = player.step(), player.env.state
        found += [(step, int(row), float(state.volume[row])) for row in done.nonzero()]
    return found


def test_the_last_state_of_an_episode_stays_to_be_seen() -> None:
    env = packing_env(5)
    expected = evaluate(packing_env(5), DeepestBottomLeft(env))
    first: dict[int, float] = {}
    for _, row, volume in ends(Player(env, DeepestBottomLeft(env)), 60):
        first.setdefault(row, volume / env.bin.volume)
    torch.testing.assert_close(torch.tensor([first[row] for row in range(5)]), expected.utilization)


def test_the_same_again_after_a_restart() -> None:
    env = packing_env(3)
    player = Player(env, DeepestBottomLeft(env))
    before = ends(player, 25)
    player.restart()
    assert int(env.state.episode.max()) == 1
    assert ends(player, 25) == before


def test_skip_leaves_the_running_episodes() -> None:
    env = packing_env(2)
    player = Player(env, DeepestBottomLeft(env))
    for _ in range(2):
        player.step()
    player.skip()
    assert env.state.episode.tolist() == [2, 2]
    assert env.num_packed.tolist() == [0, 0]
    player.step()
    assert env.state.episode.tolist() == [2, 2]
    assert env.num_packed.tolist() == [1, 1]


def test_no_trace_in_the_generators_and_a_seed_of_its_own() -> None:
    def played(seed: int, others: int) -> list[tuple[int, int, float]]:
        torch.manual_seed(others)
        before = torch.get_rng_state()
        env = packing_env(2)
        found = ends(Player(env, RandomLegal(env), seed), 30)
        assert torch.equal(before, torch.get_rng_state())
        return found

    assert played(0, others=1) == played(0, others=2)
    assert played(0, others=1) != played(3, others=1)


def test_a_policy_acts_greedily_and_stays_in_its_mode() -> None:
    env = packing_env(2)
    agent = dqn(env)
    modes = []
    agent.policy.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    agent.policy.train()
    frozen = next(each for each in agent.policy.modules() if isinstance(each, nn.Conv2d))
    frozen.eval()
    one, other = (ends(Player(packing_env(2), agent.policy, seed), 12) for seed in (0, 1))
    assert one == other  # nothing is drawn
    assert modes == [False] * 24
    assert agent.policy.training
    assert not frozen.training
