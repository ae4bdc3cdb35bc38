"""Policies over TensorDicts."""

from torchrl_gpu.policies.agents import DQN
from torchrl_gpu.policies.exploration import MaskedEpsilonGreedy
from torchrl_gpu.policies.packing.scores import PlacementScores

__all__ = ["DQN", "MaskedEpsilonGreedy", "PlacementScores"]
