"""Losses as pure functions, where TorchRL has none, or one that reads the device back."""

from torchrl_gpu.policies.losses.categorical import cross_entropy, project
from torchrl_gpu.policies.losses.policy_gradient import clipped_surrogate, generalized_advantage, standardized
from torchrl_gpu.policies.losses.quantile import quantile_huber
from torchrl_gpu.policies.losses.returns import discounted, weighted_mean

__all__ = [
    "clipped_surrogate",
    "cross_entropy",
    "discounted",
    "generalized_advantage",
    "project",
    "quantile_huber",
    "standardized",
    "weighted_mean",
]
