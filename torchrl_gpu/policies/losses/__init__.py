"""Losses as pure functions, for what TorchRL has no loss for or one that reads the device back."""

from torchrl_gpu.policies.losses.categorical import cross_entropy, project
from torchrl_gpu.policies.losses.quantile import quantile_huber
from torchrl_gpu.policies.losses.returns import discounted, weighted_mean

__all__ = ["cross_entropy", "discounted", "project", "quantile_huber", "weighted_mean"]
