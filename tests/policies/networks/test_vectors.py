"""Values of actions from vectors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchrl_gpu.policies import AgentSpace, VectorActor, VectorCritic, VectorGaussian, VectorScores, VectorValue

SPACE = AgentSpace(
    "Somewhere",
    (),
    {"place": ((2,), "float32"), "speed": ((3,), "float32"), "arrived": ((1,), "bool"), "map": ((4, 4), "float32")},
    num_actions=5,
)


def test_every_vector_of_real_numbers_is_seen_and_nothing_else() -> None:
    network = VectorScores(SPACE, hidden=(8,))
    assert network.in_keys == ["place", "speed"]
    place, speed = torch.randn(7, 2), torch.randn(7, 3)
    values = network(place, speed)
    assert values.shape == (7, 5)
    assert torch.allclose(values, network.net(torch.cat([place, speed], 1)))


def test_the_order_of_names_is_that_of_the_inputs() -> None:
    assert VectorScores(SPACE, ["speed", "place"]).in_keys == ["speed", "place"]


@pytest.mark.parametrize("names", [["map"], ["nothing"], []])
def test_what_is_no_vector_is_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^VectorScores: want observations among .* Somewhere, place, speed; got"):
        VectorScores(SPACE, names)


def test_a_continuous_action_is_refused() -> None:
    space = AgentSpace("Somewhere", (), {"place": ((2,), "float32")}, low=(-1.0,), high=(1.0,))
    with pytest.raises(ValueError, match="want a discrete action"):
        VectorScores(space)


@pytest.mark.parametrize("make", [VectorScores, VectorActor, VectorGaussian, VectorValue, VectorCritic])
def test_outputs_are_float32_under_autocast(make: Any) -> None:
    bounds: Any = {"num_actions": 3} if make is VectorScores else {"low": (-1.0,), "high": (1.0,)}
    network = make(AgentSpace("Test", (), {"place": ((4,), "float32")}, **bounds))
    given = [torch.zeros(2, 4), torch.zeros(2, 1)][: 1 + (make is VectorCritic)]
    with torch.autocast("cpu", torch.bfloat16):
        out = network(*given)
    for each in out if isinstance(out, tuple) else (out,):
        assert each.dtype is torch.float32
