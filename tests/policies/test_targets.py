"""Networks that do not learn."""

from __future__ import annotations

import torch
from torch import nn

from tests.tolerances import assert_near
from torchrl_gpu.policies.targets import PeriodicTargets, SoftTargets, TargetUpdate, fixed, target_of, weight_pairs


def pair() -> tuple[nn.Linear, nn.Linear]:
    online = nn.Linear(2, 1)
    target = target_of(online)
    nn.init.constant_(online.weight, 8.0)
    nn.init.constant_(online.bias, 4.0)
    nn.init.zeros_(target.weight)
    nn.init.zeros_(target.bias)
    return online, target


@torch.no_grad()
def update(rule: TargetUpdate, networks: tuple[nn.Module, nn.Module], number: int) -> None:
    online, targets = zip(*weight_pairs(networks), strict=True)
    rule.update(online, targets, number)


def test_a_target_is_a_copy_without_gradients() -> None:
    online = nn.Linear(2, 1)
    target = target_of(online)
    assert_near(target(torch.ones(3, 2)), online(torch.ones(3, 2)).detach())
    assert not target(torch.ones(3, 2)).requires_grad
    assert target.weight.data_ptr() != online.weight.data_ptr()
    assert online.weight.requires_grad


def test_gradients_pass_through_what_is_fixed() -> None:
    online, inputs = nn.Linear(2, 1), torch.ones(3, 2, requires_grad=True)
    out = fixed(online, inputs)
    assert_near(out, online(inputs))
    out.sum().backward()
    assert online.weight.grad is None
    assert_near(inputs.grad, online.weight.detach().expand(3, -1))


def test_soft_targets_by_hand() -> None:
    online, target = pair()
    assert SoftTargets.every_step
    update(SoftTargets(0.25), (online, target), 1)
    assert target.weight.tolist() == [[2.0, 2.0]]
    update(SoftTargets(0.25), (online, target), 2)
    # 1, then 1 + 3/4.
    assert target.bias.tolist() == [1.75]


def test_periodic_targets_by_hand() -> None:
    online, target = pair()
    came = []
    assert not PeriodicTargets.every_step
    for number in range(1, 5):
        update(PeriodicTargets(2), (online, target), number)
        came.append(target.bias.item())
        nn.init.constant_(online.bias, 10.0 * number)
    assert came == [0.0, 10.0, 10.0, 30.0]
