"""The dueling score map.

What dueling means, what it does not depend on, and the bins that its weights fit.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from tests.no_host_reads import NoHostReads
from tests.tolerances import TOLERANCE, assert_near
from tests.training import tiny
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies import AgentSpace, PlacementAtoms, PlacementQuantiles, PlacementScores
from torchrl_gpu.policies.packing import RandomLegal

packing_env = partial(tiny.packing_env, 6, visible_items=2, seed=0)


def scores_of(env: PackingEnv, seed: int = 0) -> PlacementScores:
    torch.manual_seed(seed)
    network = PlacementScores(AgentSpace.of(env), channels=4, blocks=1)
    nn.init.normal_(network.advantage.weight)
    return network


def states(env: PackingEnv, steps: int = 4) -> TensorDictBase:
    """Return states (N,) of bins that are filling up.

    A full one is among them.
    """
    torch.manual_seed(1)
    return env.rollout(steps, RandomLegal(env), break_when_any_done=False)[:, -1]["next"]


def q_of(network: PlacementScores, state: TensorDictBase) -> Tensor:
    return network(*(state[key] for key in network.in_keys))


def test_advantages_of_legal_actions_sum_to_0() -> None:
    env = packing_env()
    network, state = scores_of(env), states(env)
    values: list[Tensor] = []
    network.value.register_forward_hook(lambda module, args, out: values.append(out))
    q, legal = q_of(network, state), state["action_mask"]
    advantage = torch.where(legal, q - values[0], 0.0)
    assert legal.any(1).all()
    assert not legal.all()
    # They are not all 0.
    assert advantage.abs().amax(1).min() > 0.01
    assert_near(advantage.sum(1) / legal.sum(1), torch.zeros(len(q)))


def test_a_fresh_network_prefers_nothing_and_scores_are_finite_where_nothing_is_legal() -> None:
    env = packing_env()
    state = states(env)
    q = q_of(PlacementScores(AgentSpace.of(env), channels=4, blocks=1), state)
    assert_near(q, q[:, :1].expand_as(q))
    state["legal_mask"] = torch.zeros_like(state["legal_mask"])
    assert q_of(scores_of(env), state).isfinite().all()


def test_scores_do_not_depend_on_the_slot_of_an_item() -> None:
    env = packing_env(visible_items=3)
    network, state = scores_of(env), states(env)
    order = torch.tensor([2, 0, 1])
    turned = state.clone()
    for key in ("item_size", "z_map", "legal_mask"):
        turned[key] = state[key][:, order]
    per_item = q_of(network, state).unflatten(1, (3, -1))
    assert not torch.allclose(per_item[:, 0], per_item[:, 1])
    assert_near(q_of(network, turned).unflatten(1, (3, -1)), per_item[:, order])


@pytest.mark.parametrize(
    "other",
    [
        {"bin_size": (8.0, 6.0, 9.0), "resolution": (8, 6)},
        {"bin_size": (9.0, 7.0, 5.0), "resolution": (9, 7), "grid_step": 2},
        {"visible_items": 1, "orientations": "axis"},
    ],
    ids=["bin", "grid", "items"],
)
def test_its_weights_fit_any_other_bin(other: dict[str, Any]) -> None:
    trained, env = scores_of(packing_env()), packing_env(**other)
    network = scores_of(env, seed=1)
    network.load_state_dict(trained.state_dict())
    q = q_of(network, states(env))
    assert q.shape == (6, env.num_actions)
    assert q.isfinite().all()


@pytest.mark.parametrize("batch", [(6,), (2, 3), (1, 6, 1)])
def test_scores_take_any_batch_shape(batch: tuple[int, ...]) -> None:
    env = packing_env()
    network, state = scores_of(env), states(env)
    shaped = [state[key].reshape(*batch, *state[key].shape[1:]) for key in network.in_keys]
    with NoHostReads():
        q = network(*shaped)
    assert q.shape == (*batch, env.num_actions)
    assert_near(q.reshape(6, -1), q_of(network, state))


def test_mixed_precision_gives_float32() -> None:
    env = packing_env()
    network, state = scores_of(env), states(env)
    exact = q_of(network, state)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = q_of(network, state)
    assert mixed.dtype == torch.float32
    assert not torch.equal(mixed, exact)
    assert (mixed - exact).abs().max() < 2 * TOLERANCE[torch.bfloat16] * exact.abs().max().clamp_min(1)


def test_every_weight_of_scores_learns() -> None:
    env = packing_env()
    network = scores_of(env)
    q_of(network, states(env)).square().sum().backward()
    assert [name for name, weight in network.named_parameters() if weight.grad is None] == []
    # a constant shift of all advantages is taken out again by their mean
    assert all(w.grad.abs().sum() > 0 for name, w in network.named_parameters() if name != "advantage.bias")


# -- distributions --


def test_quantiles_of_every_placement() -> None:
    env = packing_env()
    seen, network = states(env), PlacementQuantiles(AgentSpace.of(env), channels=4, blocks=1)
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
    env = packing_env()
    seen, network = states(env), PlacementAtoms(AgentSpace.of(env), num_atoms=7, channels=4, blocks=1)
    given = [seen[key] for key in network.in_keys]
    logits = network(*given)
    assert logits.shape == (6, env.num_actions, 7)
    assert_near(network(*(value.reshape(2, 3, *value.shape[1:]) for value in given)).flatten(0, 1), logits)
    assert not [name for name, _ in network.named_parameters() if "trunk.value" in name or "trunk.advantage" in name]
