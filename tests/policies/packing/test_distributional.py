"""Distributions behind placements: shapes, what they have in common with scores, and that their agents train."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from tensordict import TensorDictBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.no_host_reads import NoHostReads
from tests.tolerances import assert_near
from tests.training.tiny import STEPS, fit, packing_env, with_replay
from torchrl_gpu.policies import (
    IQN,
    Agent,
    AgentSpace,
    EpsilonGreedy,
    PlacementAtoms,
    PlacementQuantiles,
    PolicyWrapper,
    Rainbow,
)
from torchrl_gpu.policies.packing import RandomLegal
from torchrl_gpu.training import OffPolicy

quantiles = partial(PlacementQuantiles, channels=4, blocks=1)
atoms = partial(PlacementAtoms, num_atoms=7, channels=4, blocks=1)


def rainbow(space: AgentSpace, **changes: object) -> Rainbow:
    return Rainbow(space, network=atoms, v_min=0.0, v_max=1.0, **changes)  # type: ignore[arg-type]


def iqn(space: AgentSpace, **changes: object) -> IQN:
    return IQN(space, network=quantiles, num_taus=3, acting_taus=5, **changes)  # type: ignore[arg-type]


each_agent = pytest.mark.parametrize("agent", [rainbow, iqn])


def states(num_envs: int = 6) -> TensorDictBase:
    """Bins that are filling up."""
    env = packing_env(num_envs, visible_items=2)
    torch.manual_seed(1)
    return env.rollout(3, RandomLegal(env), break_when_any_done=False)[:, -1]["next"]


def test_quantiles_of_every_placement() -> None:
    env, seen = packing_env(6, visible_items=2), states()
    network = quantiles(AgentSpace.of(env))
    torch.nn.init.normal_(network.scores.advantage.weight)
    given = [seen[key] for key in network.in_keys]
    taus = torch.tensor([0.1, 0.5, 0.9])
    values = network(*given, taus)
    assert values.shape == (6, 3, env.num_actions)
    assert_near(network(*given, taus.expand(6, 3)), values)
    assert_near(network(*given, taus[1:2])[:, 0], values[:, 1])
    assert_near(network(*(value[4] for value in given), taus), values[4])
    assert not torch.equal(values[:, 0], values[:, 2])


def test_atoms_of_every_placement() -> None:
    env, seen = packing_env(6, visible_items=2), states()
    network = atoms(AgentSpace.of(env))
    given = [seen[key] for key in network.in_keys]
    logits = network(*given)
    assert logits.shape == (6, env.num_actions, 7)
    assert_near(network(*(value.reshape(2, 3, *value.shape[1:]) for value in given)).flatten(0, 1), logits)
    assert not [name for name, _ in network.named_parameters() if "trunk.value" in name or "trunk.advantage" in name]


@each_agent
def test_placements_are_legal_whether_greedy_or_not(agent: partial) -> None:
    env = packing_env(6, visible_items=2)
    made: Agent = agent(AgentSpace.of(env), exploration=EpsilonGreedy(0.5))
    for mode in (ExplorationType.RANDOM, ExplorationType.DETERMINISTIC):
        with set_exploration_type(mode), torch.no_grad():
            steps = env.rollout(6, PolicyWrapper(made), break_when_any_done=False)
        legal = steps["action_mask"].gather(-1, steps["action"][..., None]).squeeze(-1)
        assert legal[steps["action_mask"].any(-1)].all()


@each_agent
def test_nothing_is_read_back(agent: partial) -> None:
    made, seen = agent(AgentSpace.of(packing_env(6, visible_items=2))), states()
    with set_exploration_type(ExplorationType.RANDOM), NoHostReads():
        PolicyWrapper(made)(seen)


@each_agent
def test_it_trains(agent: partial, tmp_path: Path) -> None:
    torch.manual_seed(7)
    settings = {"batch_size": 8, "capacity": 96, "warmup_frames": 24, "prioritized": True, **STEPS}
    exploring = partial(agent, exploration=EpsilonGreedy(0.5))
    module = OffPolicy(packing_env(), exploring, partial(torch.optim.Adam, lr=1e-2), **with_replay(settings))
    before = [weight.clone() for weight in module.agent.parameters_to_train]
    fit(module, tmp_path, max_steps=4)
    moved = [not torch.equal(a, b) for a, b in zip(before, module.agent.parameters_to_train, strict=True)]
    assert all(moved)
    assert module.frames > 24
