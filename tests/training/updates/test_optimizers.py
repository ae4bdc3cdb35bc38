"""`capturable` follows the device of the weights, also after a state from another device has been loaded."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.optim import Optimizer

from tests.no_host_reads import NoHostReads
from torchrl_gpu.training.updates.optimizers import clip_gradients, keep_capturable, set_capturable

OPTIMIZERS = [torch.optim.Adam, torch.optim.RMSprop, partial(torch.optim.Adam, fused=True)]


def stepped(weight: nn.Parameter, make: type[Optimizer] = torch.optim.Adam) -> Optimizer:
    optimizer = make([weight])  # type: ignore[call-arg]
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    return optimizer


def weight_on(device: str) -> nn.Parameter:
    return nn.Parameter(torch.zeros(2, device=device))


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_what_was_saved_on_cuda_goes_on_on_a_cpu(make: type[Optimizer]) -> None:
    weight = weight_on("cpu")
    optimizer = stepped(weight, make)
    keep_capturable(optimizer)
    state = optimizer.state_dict()
    state["param_groups"][0]["capturable"] = True
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["capturable"] is False
    optimizer.step()
    assert optimizer.state[weight]["step"] == 2


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_what_was_saved_on_a_cpu_counts_on_cuda(make: type[Optimizer]) -> None:
    state = stepped(weight_on("cpu"), make).state_dict()
    with FakeTensorMode(allow_non_fake_inputs=True):
        weight = weight_on("cuda")
        optimizer = make([weight])  # type: ignore[call-arg]
        keep_capturable(optimizer)
        assert optimizer.param_groups[0]["capturable"] is True
        optimizer.load_state_dict(state)
        assert optimizer.param_groups[0]["capturable"] is True
        assert optimizer.state[weight]["step"].device.type == "cuda"


def test_an_optimizer_without_such_a_setting_is_left() -> None:
    optimizer = torch.optim.SGD([weight_on("cpu")])
    set_capturable(optimizer)
    assert "capturable" not in optimizer.param_groups[0]


def weights_with(*gradients: list[float]) -> list[Tensor]:
    weights: list[Tensor] = [nn.Parameter(torch.zeros(len(values))) for values in gradients]
    for weight, values in zip(weights, gradients, strict=True):
        weight.grad = torch.tensor(values)
    return weights


def gradients_of(weights: list[Tensor]) -> list[list[float]]:
    return [weight.grad.tolist() for weight in weights if weight.grad is not None]


def scaler_of(scale: float) -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(torch.ones(()))  # makes its tensor
    return scaler


@pytest.mark.parametrize(("most", "scale", "left"), [(2.5, None, 0.5), (6.0, None, 1.0), (2.5, 64.0, 0.5)])
def test_by_hand(most: float, scale: float | None, left: float) -> None:
    large = scale or 1.0
    weights = weights_with([3.0 * large, 0.0], [4.0 * large])  # norm 5, once unscaled
    weights.append(nn.Parameter(torch.zeros(2)))  # without a gradient
    clip_gradients(weights, most, None if scale is None else scaler_of(scale))
    assert gradients_of(weights) == [[pytest.approx(3.0 * large * left), 0.0], [pytest.approx(4.0 * large * left)]]


def test_what_overflowed_is_still_seen_as_such() -> None:
    weights = weights_with([float("inf"), 1.0])
    clip_gradients(weights, 2.5, scaler_of(64.0))
    assert not weights[0].grad.isfinite().all()  # type: ignore[union-attr]


@pytest.mark.parametrize("scaled", [False, True])
def test_nothing_is_read_back(scaled: bool) -> None:
    weights, scaler = weights_with([3.0, 4.0]), scaler_of(64.0) if scaled else None
    with NoHostReads():
        clip_gradients(weights, 1.0, scaler)
