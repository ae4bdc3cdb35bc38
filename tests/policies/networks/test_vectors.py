"""Networks over vectors.

Shapes, names, limits, dtypes, and an agent that acts by them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchrl_gpu.policies import AgentSpace, VectorActor, VectorCritic, VectorGaussian, VectorScores, VectorValue

VECTORS = {
    "place": ((2,), "float32"),
    "speed": ((3,), "float32"),
    "arrived": ((1,), "bool"),
    "map": ((4, 4), "float32"),
}
DISCRETE = AgentSpace("Somewhere", (), VECTORS, num_actions=5)
CONTINUOUS = AgentSpace("Somewhere", (), VECTORS, low=(-1.0, 0.0), high=(1.0, 2.0))
SHAPES: dict[Any, tuple[int, ...]] = {
    VectorScores: (7, 5),
    VectorActor: (7, 2),
    VectorGaussian: (7, 2),
    VectorValue: (7, 1),
    VectorCritic: (7, 1),
}


def space_of(make: Any) -> AgentSpace:
    return DISCRETE if make is VectorScores else CONTINUOUS


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("make", SHAPES)
def test_vector_networks_read_every_real_dtype_and_give_float32(make: Any, layer_norm: bool) -> None:
    network = make(space_of(make), hidden=(8,), layer_norm=layer_norm)
    assert network.in_keys == ["place", "speed"]
    assert any(isinstance(layer, torch.nn.LayerNorm) for layer in network.modules()) == layer_norm
    given = [torch.randn(7, 2), torch.randn(7, 3), torch.randn(7, 2)][: 2 + (make is VectorCritic)]
    joined = network.net(torch.cat(given, 1))
    for lower in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=lower):
            out = network(*given)
        for each in out if isinstance(out, tuple) else (out,):
            assert each.shape == SHAPES[make]
            assert each.dtype is torch.float32
        if not lower and not isinstance(out, tuple):
            assert torch.equal(out, joined)


def test_the_order_of_names_is_that_of_the_inputs() -> None:
    assert VectorScores(DISCRETE, ["speed", "place"]).in_keys == ["speed", "place"]


@pytest.mark.parametrize("names", [["map"], ["nothing"], []])
@pytest.mark.parametrize("make", [VectorScores, VectorCritic])
def test_vector_networks_refuse_other_observations(make: Any, names: list[str]) -> None:
    wanted = rf"^{make.__name__}: observations .* Somewhere, place, speed, not"
    with pytest.raises(ValueError, match=wanted):
        make(space_of(make), names)


def test_the_spread_of_actions_is_kept_within_limits() -> None:
    network = VectorGaussian(CONTINUOUS, hidden=(8,))
    for weight in network.parameters():
        weight.data.mul_(1e4)
    _, log_std = network(torch.randn(99, 2), torch.randn(99, 3))
    assert log_std.min() >= network.smallest
    assert log_std.max() <= network.largest
