"""Networks that do not learn."""

from __future__ import annotations

import torch
from torch import nn

from tests.no_host_reads import NoHostReads
from tests.tolerances import assert_near
from torchrl_gpu.policies.targets import Targets, fixed, target_of


def pair() -> tuple[nn.Linear, nn.Linear]:
    online = nn.Linear(2, 1)
    target = target_of(online)
    nn.init.constant_(online.weight, 8.0)
    nn.init.constant_(online.bias, 4.0)
    nn.init.zeros_(target.weight)
    nn.init.zeros_(target.bias)
    return online, target


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
    follower = Targets([(online, target)], 0.25, 1000)
    follower.follow(1)
    assert target.weight.tolist() == [[2.0, 2.0]]
    follower.follow(2)
    assert target.bias.tolist() == [1.75]  # 1, then 1 + 3/4


def test_hard_targets_by_hand() -> None:
    online, target = pair()
    follower, came = Targets([(online, target)], None, 2), []
    for update in range(1, 5):
        follower.follow(update)
        came.append(target.bias.item())
        nn.init.constant_(online.bias, 10.0 * update)
    assert came == [0.0, 10.0, 10.0, 30.0]


def test_targets_follow_weights_that_were_moved_elsewhere() -> None:
    online, target = pair()
    follower = Targets([(online, target)], None, 1)
    online.double(), target.double()
    follower.follow(1)
    assert target.weight.dtype == torch.float64
    assert target.weight.tolist() == [[8.0, 8.0]]


def test_nothing_is_read_back() -> None:
    for tau in (None, 0.1):
        follower = Targets([pair()], tau, 1)
        with NoHostReads():
            follower.follow(1)
