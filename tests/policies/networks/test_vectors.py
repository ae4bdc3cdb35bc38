"""Values of actions from vectors."""

from __future__ import annotations

import pytest
import torch

from torchrl_gpu.policies import AgentSpace, VectorScores

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
