"""`capturable` follows the device of the weights, also after a state from another device has been loaded."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.optim import Optimizer

from torchrl_gpu.training.updates.optimizers import keep_capturable, set_capturable

OPTIMIZERS = [torch.optim.Adam, torch.optim.RMSprop, partial(torch.optim.Adam, fused=True)]


def stepped(weight: nn.Parameter, make: type[Optimizer] = torch.optim.Adam) -> Optimizer:
    """An optimizer of a weight that has made a step."""
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
