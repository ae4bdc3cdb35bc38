"""The two networks: their outputs, and that every weight is used."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.policies.encoders.scenes import scramble
from tests.tolerances import assert_near
from torchrl_gpu.policies.packing.hierarchical.networks import PlacementUNet, StateValue, ViewResNet

NARROW = [16, 8]


def maps(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@cache
def fresh(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return PlacementUNet(3, channels=NARROW) if kind == "U-Net" else ViewResNet(7)


@pytest.fixture(params=["U-Net", "ResNet"])
def network(request: pytest.FixtureRequest) -> nn.Module:
    return copy.deepcopy(fresh(request.param))


@pytest.fixture
def images(network: nn.Module) -> Tensor:
    return maps(5, 3, 9, 7) if isinstance(network, PlacementUNet) else maps(5, 7, 16, 16)


@pytest.mark.parametrize(("grid", "depth"), [((1, 1), 2), ((5, 5), 3), ((8, 8), 2), ((9, 16), 5), ((13, 3), 3)])
def test_a_score_for_every_place_of_any_grid(grid: tuple[int, int], depth: int) -> None:
    scores = scramble(PlacementUNet(4, channels=[8] * depth))(maps(2, 4, *grid))
    assert scores.shape == (2, *grid)
    assert scores.dtype == torch.float32
    assert scores.isfinite().all()


@pytest.mark.parametrize(("encoder", "depth"), [("resnet18", 2), ("resnet18", 5), ("resnet50", 4)])
def test_every_weight_of_the_u_net_learns(depth: int, encoder: str) -> None:
    network = scramble(PlacementUNet(4, encoder, [8] * depth))
    network(maps(2, 4, 32, 32)).square().sum().backward()
    assert idle(network) == []


def idle(network: nn.Module) -> list[str]:
    return [name for name, weight in network.named_parameters() if weight.grad is None or not weight.grad.any()]


def test_untrained_they_say_nothing_and_the_second_update_reaches_all(network: nn.Module, images: Tensor) -> None:
    assert (network(images) == 0).all()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (network(images) - 1).square().sum().backward()
        optimizer.step()
    assert idle(network) == []


def test_scores_do_not_depend_on_the_rest_of_the_batch_nor_on_the_mode(network: nn.Module, images: Tensor) -> None:
    scramble(network).train()
    with torch.no_grad():
        together, alone = network(images), torch.cat([network(image[None]) for image in images])
        others = network(torch.cat([images[:1], 100 * images[1:]]))
        evaluated = network.eval()(images)
    assert_near(together, alone)
    assert_near(others[:1], together[:1])
    assert together.std() > 1e-4
    assert torch.equal(together, evaluated)
    assert not any("BatchNorm" in type(part).__name__ for part in network.modules())
    # A running mean would be a buffer.
    assert not list(network.buffers())


def test_weights_and_images_are_channels_last(network: nn.Module, images: Tensor) -> None:
    seen: list[Tensor] = []
    first = next(part for part in network.modules() if isinstance(part, nn.Conv2d))
    first.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    network(images)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    kernels = [weight for weight in network.parameters() if weight.ndim == 4]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in kernels)


def test_the_u_net_sees_maps_of_whole_steps() -> None:
    network, seen = PlacementUNet(3, channels=[8] * 3), []
    network.net.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    images = maps(2, 3, 13, 6)
    network(images)
    assert seen[0].shape == (2, 3, 16, 8)
    assert torch.equal(seen[0][:, :, :13, :6], images)
    assert seen[0].count_nonzero() == images.numel()


def test_scores_are_float32_under_mixed_precision(network: nn.Module, images: Tensor) -> None:
    scramble(network)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        mixed = network(images)
    with torch.no_grad():
        exact = network(images)
    assert mixed.dtype == torch.float32
    assert not torch.equal(mixed, exact)
    assert (mixed - exact).abs().amax() < 0.1 * exact.abs().amax()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": []}, r"channels .*2 to 5 widths.*\[\]"),
        ({"channels": [8]}, r"channels .*2 to 5 widths.*\[8\]"),
        ({"channels": [8] * 6}, r"channels .*2 to 5 widths"),
        ({"encoder": "vgg16"}, "encoder must be one of resnet18, resnet34, resnet50, .*; got 'vgg16'"),
    ],
)
def test_depths_and_encoders_that_there_are_not(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^PlacementUNet: {message}"):
        PlacementUNet(4, **changes)


# -- the value of a state ---------------------------------------------------------------------------------------------


def test_the_value_of_a_state_starts_at_zero_and_learns_with_every_weight() -> None:
    network, figures = StateValue(), maps(6, StateValue.num_features)
    assert torch.equal(network(figures), torch.zeros(6))
    values = scramble(network)(figures)
    assert values.unique().numel() == 6
    values.square().sum().backward()
    assert idle(network) == []
    with torch.autocast("cpu", torch.bfloat16):
        assert network(figures).dtype == torch.float32
