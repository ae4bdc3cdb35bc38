"""Targets and weighted means, by hand."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from torchrl_gpu.policies.losses import discounted, weighted_mean

BATCH = TensorDict(
    {
        "steps_to_next_obs": torch.tensor([[1], [2], [3], [1]]),
        "next": {
            "reward": torch.tensor([[1.0], [2.0], [3.0], [4.0]]),
            "terminated": torch.tensor([[False], [False], [True], [False]]),
            "done": torch.tensor([[False], [True], [True], [False]]),
        },
    },
    [4],
)
VALUES = torch.tensor([[8.0, 4.0]]).expand(4, 2)


def test_targets_by_hand() -> None:
    # γ = 1/2: 1 + 8/2, 2 + 8/4, the end, 4 + 8/2; and the same with 4
    assert discounted(BATCH, VALUES, 0.5).tolist() == [[5, 3], [4, 3], [3, 3], [8, 6]]


def test_one_step_where_nobody_counts() -> None:
    assert discounted(BATCH.exclude("steps_to_next_obs"), VALUES, 0.5).tolist() == [[5, 3], [6, 4], [3, 3], [8, 6]]


def test_no_value_behind_the_end_can_do_harm() -> None:
    values = torch.where(BATCH["next", "terminated"], torch.nan, VALUES)
    assert discounted(BATCH, values, 0.5).tolist() == discounted(BATCH, VALUES, 0.5).tolist()


def test_mean_by_weights() -> None:
    losses = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert weighted_mean(losses, BATCH).item() == 2.5
    weighted = BATCH.clone().set("priority_weight", torch.tensor([1.0, 0.5, 0.0, 0.5]))
    assert weighted_mean(losses, weighted).item() == pytest.approx((1 + 1 + 0 + 2) / 2)


def test_no_weight_at_all_is_no_loss() -> None:
    assert weighted_mean(torch.ones(4), BATCH.clone().set("priority_weight", torch.zeros(4))).item() == 0


def test_a_loss_without_weight_may_be_infinite() -> None:
    losses = torch.tensor([1.0, torch.inf, torch.nan])
    assert weighted_mean(losses, TensorDict({"priority_weight": torch.tensor([2.0, 0.0, 0.0])}, [3])) == 1.0
