"""Actors and critics over vectors: shapes, names, limits, and an agent that acts by them."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from torchrl_gpu.policies import SAC, AgentSpace, PolicyWrapper, VectorActor, VectorCritic, VectorGaussian

SPACE = AgentSpace(
    "Somewhere",
    (),
    {"place": ((2,), "float32"), "speed": ((3,), "float32"), "map": ((4, 4), "float32")},
    low=(-1.0, 0.0),
    high=(1.0, 2.0),
)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_shapes(layer_norm: bool) -> None:
    place, speed, action = torch.randn(7, 2), torch.randn(7, 3), torch.randn(7, 2)
    assert VectorActor(SPACE, hidden=(8,), layer_norm=layer_norm)(place, speed).shape == (7, 2)
    mean, log_std = VectorGaussian(SPACE, hidden=(8,), layer_norm=layer_norm)(place, speed)
    assert mean.shape == log_std.shape == (7, 2)
    critic = VectorCritic(SPACE, hidden=(8,), layer_norm=layer_norm)
    assert critic(place, speed, action).shape == (7, 1)
    assert critic.in_keys == ["place", "speed"]
    assert any(isinstance(layer, torch.nn.LayerNorm) for layer in critic.modules()) == layer_norm


def test_the_spread_of_actions_is_kept_within_limits() -> None:
    network = VectorGaussian(SPACE, hidden=(8,))
    for weight in network.parameters():
        weight.data.mul_(1e4)
    _, log_std = network(torch.randn(99, 2), torch.randn(99, 3))
    assert log_std.min() >= network.smallest
    assert log_std.max() <= network.largest


def test_no_vector_is_refused_by_the_networks_own_name() -> None:
    with pytest.raises(ValueError, match=r"^VectorCritic: want observations among"):
        VectorCritic(SPACE, ["map"])


def test_an_agent_acts_by_them() -> None:
    agent = SAC(SPACE, actor=VectorGaussian, critic=VectorCritic)
    policy = PolicyWrapper(agent).eval()
    rows = TensorDict({"place": torch.randn(5, 2), "speed": torch.randn(5, 3)}, [5])
    action = policy(rows)["action"]
    assert action.shape == (5, 2)
    assert (action >= torch.tensor([-1.0, 0.0])).all()
    assert (action <= torch.tensor([1.0, 2.0])).all()
