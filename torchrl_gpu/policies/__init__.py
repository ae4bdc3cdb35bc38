"""Policies over TensorDicts."""

from torchrl_gpu.policies.agents import ACIQN, DDPG, DQN, IQN, SAC, Agent, Rainbow
from torchrl_gpu.policies.exploration import MaskedEpsilonGreedy, UniformEpsilonGreedy
from torchrl_gpu.policies.networks import (
    NavigationActor,
    NavigationAtoms,
    NavigationCritic,
    NavigationGaussian,
    NavigationQuantileCritic,
    NavigationQuantiles,
    NavigationScores,
)
from torchrl_gpu.policies.packing.distributional import PlacementAtoms, PlacementQuantiles
from torchrl_gpu.policies.packing.scores import PlacementScores
from torchrl_gpu.policies.wrapper import PolicyWrapper

__all__ = [
    "ACIQN",
    "DDPG",
    "DQN",
    "IQN",
    "SAC",
    "Agent",
    "MaskedEpsilonGreedy",
    "NavigationActor",
    "NavigationAtoms",
    "NavigationCritic",
    "NavigationGaussian",
    "NavigationQuantileCritic",
    "NavigationQuantiles",
    "NavigationScores",
    "PlacementAtoms",
    "PlacementQuantiles",
    "PlacementScores",
    "PolicyWrapper",
    "Rainbow",
    "UniformEpsilonGreedy",
]
