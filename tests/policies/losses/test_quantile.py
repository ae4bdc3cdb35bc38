"""Quantile regression: the loss by hand, and that its minimum is where the quantiles are."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn
from torchrl.modules import TanhNormal
from torchrl.objectives import SoftUpdate, TQCLoss

from tests.tolerances import assert_near
from torchrl_gpu.policies.losses import quantile_error, quantile_huber
from torchrl_gpu.policies.risk import midpoints


def test_by_hand() -> None:
    # Value 1 at τ = 0.25, targets 1.5 and −2: errors 0.5 and −3, Huber 0.125 and 2.5, shares 0.25 and 1 − 0.25, so
    #   (0.25 · 0.125 + 0.75 · 2.5) / 2 = 0.953125.
    # Value 0 at τ = 0.5: errors 1.5 and −2, Huber 1 and 1.5, shares 0.5: (0.5 + 0.75) / 2 = 0.625.
    values, taus, targets = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.25, 0.5]]), torch.tensor([[1.5, -2.0]])
    assert quantile_huber(values, taus, targets).tolist() == pytest.approx([0.953125 + 0.625])
    assert quantile_error(values, targets).tolist() == pytest.approx([(0.5 + 3 + 1.5 + 2) / 4])


def test_a_smaller_kappa_is_nearer_to_the_quantile_loss() -> None:
    # At κ = 0.5: an error of 0.25 costs τ · 0.25² / 2 / 0.5, one of 2 costs τ · (2 − 0.25).
    values, taus = torch.zeros(1), torch.tensor([0.8])
    assert quantile_huber(values, taus, torch.tensor([0.25]), 0.5).item() == pytest.approx(0.8 * 0.0625)
    assert quantile_huber(values, taus, torch.tensor([2.0]), 0.5).item() == pytest.approx(0.8 * 1.75)


def test_more_dimensions_are_more_rows() -> None:
    values, taus, targets = torch.randn(2, 3, 4), torch.rand(2, 3, 4), torch.randn(2, 3, 6)
    flat = quantile_huber(values.flatten(0, 1), taus.flatten(0, 1), targets.flatten(0, 1))
    assert_near(quantile_huber(values, taus, targets).flatten(), flat)


class _Constant(nn.Module):
    """An actor or a critic that looks at nothing."""

    def __init__(self, *outputs: Tensor) -> None:
        super().__init__()
        self.outputs = nn.ParameterList(outputs)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...] | Tensor:
        rows = [output.expand(len(inputs[0]), -1) for output in self.outputs]
        return rows[0] if len(rows) == 1 else tuple(rows)


def test_torchrl_has_the_same_mean_over_quantiles() -> None:
    # TQCLoss regresses the quantiles at midpoints, averaged, here on nothing but the reward: all transitions end.
    quantiles, taus, reward = torch.randn(5), midpoints(5), 2 * torch.randn(7, 1)
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(_Constant(torch.zeros(2), torch.ones(2)), ["observation"], ["loc", "scale"]),
        ProbabilisticTensorDictModule(
            ["loc", "scale"], ["action"], distribution_class=TanhNormal, return_log_prob=True
        ),
    )
    critic = TensorDictModule(_Constant(quantiles), ["observation", "action"], ["state_action_value"])
    theirs = TQCLoss(actor, [critic], num_qvalue_nets=1, top_quantiles_to_drop_per_net=0, target_entropy=-2.0)
    theirs.make_value_estimator(gamma=0.9)
    SoftUpdate(theirs, tau=0.1)  # it warns where there is none
    seen, ended = torch.zeros(7, 3), torch.ones(7, 1, dtype=torch.bool)
    after = {"observation": seen, "reward": reward, "done": ended, "terminated": ended}
    loss = theirs(TensorDict({"observation": seen, "action": torch.zeros(7, 2), "next": after}, [7]))["loss_qvalue"]
    assert_near(quantile_huber(quantiles.expand(7, -1), taus, reward).mean() / 5, loss.detach())


def test_descent_ends_at_the_quantiles() -> None:
    # Of 0, 1, …, 99, with κ too small to matter: the share τ lies below τ · 100 − 0.5, within one of them.
    taus, targets = torch.tensor([0.1, 0.5, 0.85]), torch.arange(100.0)
    values = torch.full((3,), 50.0, requires_grad=True)
    optimizer = torch.optim.SGD([values], lr=2.0)
    for _ in range(400):
        optimizer.zero_grad()
        quantile_huber(values, taus, targets, 1e-3).backward()
        optimizer.step()
    assert (values - (100 * taus - 0.5)).abs().max() <= 1


def test_nothing_flows_into_targets() -> None:
    values, targets = torch.zeros(4, requires_grad=True), torch.ones(4, requires_grad=True)
    quantile_huber(values, torch.full((4,), 0.5), targets).backward()
    assert targets.grad is None
    assert values.grad is not None
