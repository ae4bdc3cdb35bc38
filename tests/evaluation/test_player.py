"""Playing a step at a time.

It gives the episodes that the environment would play, and has no side effects.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.training.tiny import dqn, module, packing_env
from tests.training.tiny_navigation import marine_env, navigation, short_env, tiny_networks
from torchrl_gpu.envs.viewable import viewable
from torchrl_gpu.evaluation.packing.episodes import evaluate
from torchrl_gpu.evaluation.player import Decisions, Player, decisions_of, has_values
from torchrl_gpu.policies import PolicyWrapper
from torchrl_gpu.policies.packing import DeepestBottomLeft, HierarchicalPacker, RandomLegal


def ends(player: Player, steps: int) -> list[tuple[int, int, float]]:
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
    one = ends(Player(packing_env(2), agent.policy, 0), 12)
    other = ends(Player(packing_env(2), agent.policy, 1), 12)
    # Nothing is drawn.
    assert one == other
    assert modes == [False] * 24
    assert agent.policy.training
    assert not frozen.training


# Agents that draw.
DISCRETE, CONTINUOUS = ("Rainbow", "IQN"), ("SAC", "ACIQN")


def test_a_packing_agent_says_what_it_would_do_and_what_that_is_worth() -> None:
    made = module()
    decide, view = decisions_of(made), viewable(made.env)
    assert decide is not None
    assert made.has_values
    current = made.env.reset()
    for _ in range(3):
        greedy = made.policy_for(made.env)(current.clone())
        for i in (0, 5):
            decision = decide(view.observation(i))
            assert decision.values is not None
            assert decision.values.shape == (made.env.num_actions,)
            assert int(decision.action) == int(greedy["action"][i])
            legal = current["action_mask"][i]
            assert int(torch.where(legal, decision.values, -torch.inf).argmax()) == int(decision.action)
        current = made.env.step_and_maybe_reset(greedy)[1]


@pytest.mark.parametrize("name", [*DISCRETE, *CONTINUOUS])
def test_navigators(name: str) -> None:
    made = navigation(name)
    made.train()
    view, before = viewable(made.env), torch.get_rng_state()
    made.env.reset()
    decide = decisions_of(made)
    assert decide is not None
    decision = decide(view.observation(2))
    robots = made.env.num_robots
    assert made.has_values == (name in DISCRETE)
    if name in DISCRETE:
        assert decision.action.shape == (robots,)
        assert decision.values is not None
        assert decision.values.shape == (robots, made.env.num_actions)
    else:
        assert decision.action.shape == (robots, 2)
        assert decision.values is None
    assert torch.equal(torch.get_rng_state(), before)
    assert made.agent.training
    assert view.overlay("action", 2, 160, 120, decision).shape == (120, 160, 3)


@pytest.mark.parametrize("shortlist", [None, 1])
def test_the_hierarchical_packer_values_the_item_that_it_chooses(shortlist: int | None) -> None:
    env = short_env()
    packer = HierarchicalPacker(env, tiny_networks(), shortlist=shortlist)
    current = env.reset()
    for _ in range(3):
        chosen = packer(current.clone())
        decided = packer.decide(current.clone())
        assert torch.equal(chosen["action"], decided["action"])
        values = decided["action_value"]
        assert values.shape == (env.num_envs, env.num_actions)
        assert torch.equal(values.argmax(1), decided["action"])
        slots = torch.isfinite(values).view(env.num_envs, *env.action_shape).any(-1).any(-1)  # (N, K, O)
        assert torch.equal(slots.any(2).nonzero()[:, 1], chosen["slot"])
        assert shortlist is None or bool((slots.sum((1, 2)) <= shortlist).all())
        current = env.step_and_maybe_reset(chosen)[1]
    rule = packer.choosing("box", "growth")
    assert not rule.has_values
    assert "action_value" not in rule.decide(current.clone())


def test_a_heuristic_has_no_values() -> None:
    env = packing_env(2)
    current, heuristic = env.reset(), DeepestBottomLeft(env)
    assert not has_values(heuristic)
    decision = Decisions(lambda: heuristic, env.device, has_values(heuristic))(env.observation(1))
    assert decision.values is None
    assert int(decision.action) == int(heuristic(current)["action"][1])
    assert has_values(module().policy_for(env))
    assert not has_values(lambda tensordict: tensordict)
    wrapped = PolicyWrapper(navigation("SAC").agent)
    assert not has_values(wrapped)


def test_what_a_player_shows_next_is_what_it_does_next() -> None:
    env = packing_env(1)
    policy = RandomLegal(env)
    player = Player(env, policy)
    decide = Decisions(lambda: policy, env.device, False, lambda: player.generators)
    for _ in range(6):
        player.skip()
        shown = decide(env.observation(0)).action
        before = torch.get_rng_state()
        player.step()
        assert torch.equal(before, torch.get_rng_state())
        _, orientation, x, y = env.placements[0, 0].tolist()
        place = [int(part) for part in torch.unravel_index(shown, env.action_shape)]
        assert place == [0, orientation, x, y]


def test_it_is_made_when_it_is_asked_for() -> None:
    made: list[Any] = []
    env = packing_env(1)
    env.reset()

    def make() -> Any:
        # For example, the weights of a network.
        torch.rand(3)
        made.append(DeepestBottomLeft(env))
        return made[-1]

    decide = Decisions(make, env.device, False)
    assert not made
    before = torch.get_rng_state()
    decide(env.observation(0))
    decide(env.observation(0))
    assert len(made) == 1
    assert torch.equal(before, torch.get_rng_state())


def test_a_module_without_a_policy() -> None:
    assert decisions_of(object()) is None
    assert marine_env().num_actions == 9
