"""Networks of the navigation agents.

The published sizes, any batch shape, what they look at and what not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.policies.navigation_spaces import NavigationSpec, space_of, states
from tests.tolerances import TOLERANCE, assert_near
from torchrl_gpu.policies import (
    AgentSpace,
    NavigationActor,
    NavigationAtoms,
    NavigationCritic,
    NavigationGaussian,
    NavigationQuantileCritic,
    NavigationQuantiles,
    NavigationScores,
)
from torchrl_gpu.policies.marine.networks import encoder_of
from torchrl_gpu.policies.networks.quantile_embedding import TauEmbedding

DISCRETE = [NavigationScores, NavigationAtoms, NavigationQuantiles]
CONTINUOUS = [NavigationActor, NavigationGaussian, NavigationCritic, NavigationQuantileCritic]
each_network = pytest.mark.parametrize("network", [*DISCRETE, *CONTINUOUS])
each_version = pytest.mark.parametrize("version", ["v2", "v3"])


def built(network: Callable, version: str = "v3", **changes: Any) -> nn.Module:
    torch.manual_seed(0)
    return network(space_of(version, num_actions=9 if network in DISCRETE else None), **changes)


def inputs(network: nn.Module, *batch: int, version: str = "v3") -> list[Tensor]:
    seen = states(*batch, version=version)
    given = [seen[key] for key in network.in_keys]  # type: ignore[union-attr]
    torch.manual_seed(3)
    if isinstance(network, NavigationCritic | NavigationQuantileCritic):
        given.append(torch.rand(*batch, 2) * 2 - 1)
    if isinstance(network, NavigationQuantiles | NavigationQuantileCritic):
        given.append(torch.rand(*batch, 6))
    return given


def first(out: Any) -> Tensor:
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize(
    ("network", "spec", "weights"),
    [
        (NavigationScores, space_of("v3", num_actions=25), 53_321),
        (NavigationQuantiles, space_of("v3", num_actions=25), 69_961),
        (NavigationAtoms, space_of("v3", num_actions=25), 540_428),
        (NavigationActor, space_of("v3", num_actions=None), 50_354),
        (NavigationCritic, space_of("v3", num_actions=None), 50_609),
        (NavigationGaussian, space_of("v3", num_actions=None), 50_612),
        (NavigationQuantileCritic, space_of("v3", num_actions=None), 67_249),
        (NavigationScores, space_of("v2", num_actions=9), 80_173),
        (NavigationQuantiles, space_of("v2", num_actions=9), 100_453),
    ],
)
def test_as_many_weights_as_the_published_networks(network: Callable, spec: Any, weights: int) -> None:
    assert sum(weight.numel() for weight in network(spec).parameters()) == weights


SHAPES = {
    NavigationScores: (9,),
    NavigationAtoms: (9, 51),
    NavigationQuantiles: (6, 9),
    NavigationCritic: (1,),
    NavigationQuantileCritic: (6,),
    NavigationActor: (2,),
    NavigationGaussian: (2,),
}


@each_version
@each_network
def test_navigation_networks_take_any_batch_shape(network: Callable, version: str) -> None:
    net = built(network, version)
    expected = first(net(*inputs(net, 12, version=version)))
    shaped = [value.reshape(2, 2, 3, *value.shape[1:]) for value in inputs(net, 12, version=version)]
    came = first(net(*shaped))
    assert expected.shape == (12, *SHAPES[network])
    assert came.shape == (2, 2, 3, *SHAPES[network])
    assert_near(came.reshape(expected.shape), expected)
    alone = first(net(*(value[0] for value in inputs(net, 12, version=version))))
    assert_near(alone, expected[0])


@each_network
def test_an_object_that_is_masked_is_not_seen(network: Callable) -> None:
    net = built(network)
    observation, mask, *rest = inputs(net, 8)
    for wild in (99.0, torch.inf, torch.nan):
        moved = observation.clone()
        moved[..., 7:] = torch.where(mask[..., None], observation[..., 7:].unflatten(-1, (5, 5)), wild).flatten(-2)
        assert not torch.equal(moved, observation)
        assert torch.equal(first(net(moved, mask, *rest)), first(net(observation, mask, *rest)))
        assert not torch.equal(first(net(moved, ~mask, *rest)), first(net(observation, ~mask, *rest)))


@each_version
def test_navigation_networks_use_every_number_of_an_observation(version: str) -> None:
    net = built(NavigationScores, version)
    observation = inputs(net, 4, version=version)[0].requires_grad_()
    mask = [torch.ones(4, 5, dtype=torch.bool)] if version == "v3" else []
    net(observation, *mask).sum().backward()
    assert observation.grad is not None
    assert observation.grad.abs().sum(0).gt(0).all()


@each_version
def test_inputs_are_divided_by_their_usual_size_unless_told_otherwise(version: str) -> None:
    scaled = encoder_of(space_of(version), True)
    raw = encoder_of(space_of(version), False)
    raw.load_state_dict(scaled.state_dict())
    seen = states(6, version=version)
    rest = [seen[key] for key in scaled.in_keys[1:]]
    assert_near(raw(seen["observation"] / scaled.size, *rest), scaled(seen["observation"], *rest))
    assert scaled.size.min() >= 1
    assert raw.size.eq(1).all()


def test_float64_states_are_seen_in_the_precision_of_the_weights() -> None:
    net = built(NavigationScores)
    observation, mask = inputs(net, 3)
    assert_near(net(observation.double(), mask), net(observation, mask))
    # Observations are always float32.
    assert net.double()(observation.double(), mask).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_network
def test_navigation_networks_under_autocast(network: Callable, dtype: torch.dtype) -> None:
    net = built(network)
    exact = first(net(*inputs(net, 6)))
    with torch.autocast("cpu", dtype=dtype):
        came = first(net(*inputs(net, 6)))
    assert came.dtype == torch.float32
    assert (came - exact).abs().max() <= 4 * TOLERANCE[dtype] * exact.abs().max().clamp_min(1)


def test_cosines_by_hand() -> None:
    # τ = 1/2: cos(0), cos(π/2), cos(π) = 1, 0, −1; with weights 1, 2, 3 and 0.5: 1 − 3 + 0.5 < 0, with 3, 2, 1: 2.5
    embedding = TauEmbedding(2, 3)
    with torch.no_grad():
        embedding.layer.weight.copy_(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
        embedding.layer.bias.fill_(0.5)
    assert_near(embedding(torch.tensor([[0.5]])), torch.tensor([[[0.0, 2.5]]]))


def test_noise_is_there_when_exploring_only_and_is_drawn_when_told() -> None:
    net = built(NavigationAtoms, sigma=0.5)
    given = inputs(net, 4)
    quiet = net(*given)
    with set_exploration_type(ExplorationType.RANDOM):
        noisy = net(*given)
        assert torch.equal(net(*given), noisy)
        for layer in net.modules():
            if hasattr(layer, "reset_noise"):
                layer.reset_noise()
        assert not torch.equal(net(*given), noisy)
    assert not torch.equal(noisy, quiet)
    assert torch.equal(net(*given), quiet)


def test_advantages_are_those_over_their_mean() -> None:
    net = built(NavigationAtoms)
    value = net.value(net.encoder(*inputs(net, 4)))  # type: ignore[operator]
    assert_near(net(*inputs(net, 4)).mean(-2), value)


# -- means --


BATCHES = [(), (7,), (2, 3), (0,)]


@each_version
@pytest.mark.parametrize(("batch", "at_once"), [*zip(BATCHES, [1, 12, 1 << 20, 1], strict=True), ((7,), 1)])
def test_means_of_quantiles(
    version: str, batch: tuple[int, ...], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchrl_gpu.policies.networks.quantile_embedding._AT_ONCE", {"cpu": at_once})
    net: Any = built(NavigationQuantiles, version)
    *seen, taus = inputs(net, *batch, version=version)
    assert_near(net.mean(*seen, taus), net(*seen, taus).mean(-2))
    same = torch.tensor([0.1, 0.6, 0.9])
    assert_near(net.mean(*seen, same), net(*seen, same).mean(-2))


@each_version
@pytest.mark.parametrize(("batch", "at_once"), [*zip(BATCHES, [1, 1000, 1 << 20, 1], strict=True), ((7,), 1)])
@pytest.mark.parametrize("mode", [ExplorationType.RANDOM, ExplorationType.DETERMINISTIC])
def test_means_of_atoms(
    version: str, batch: tuple[int, ...], at_once: int, mode: ExplorationType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchrl_gpu.policies.marine.networks._LOGITS_AT_ONCE", at_once)
    net: Any = built(NavigationAtoms, version, num_atoms=11, sigma=0.5)
    seen, atoms = inputs(net, *batch, version=version), torch.linspace(-1, 2, 11)
    with set_exploration_type(mode):
        assert_near(net.mean(*seen, atoms), (net(*seen).softmax(-1) * atoms).sum(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("network", [NavigationQuantiles, NavigationAtoms])
def test_means_under_autocast(network: Callable, dtype: torch.dtype) -> None:
    net: Any = built(network)
    *seen, values = [*inputs(net, 6), torch.linspace(-1, 2, 51)][: len(net.in_keys) + 1]
    exact = net.mean(*seen, values)
    with torch.autocast("cpu", dtype=dtype):
        came = net.mean(*seen, values)
    assert came.dtype == torch.float32
    assert (came - exact).abs().max() <= 4 * TOLERANCE[dtype] * exact.abs().max().clamp_min(1)
    in_double = net.double().mean(*seen, values)
    assert in_double.dtype == torch.float32
    assert_near(in_double, exact)


# -- what is refused --


def test_an_observation_of_another_length() -> None:
    spec = NavigationSpec(flat=True)
    spec.observation_spec["observation"] = spec.observation_spec["clearance"].clone()
    with pytest.raises(ValueError, match=r"encoder_of: observation of NavigationSpec .*39 or 32 .*1$"):
        NavigationScores(AgentSpace.of(spec))  # type: ignore[arg-type]
