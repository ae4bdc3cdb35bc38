"""Networks, by what they look at."""

from torchrl_gpu.policies.networks.navigation import (
    NavigationActor,
    NavigationAtoms,
    NavigationCritic,
    NavigationGaussian,
    NavigationQuantileCritic,
    NavigationQuantiles,
    NavigationScores,
)
from torchrl_gpu.policies.networks.vectors import VectorScores

__all__ = [
    "NavigationActor",
    "NavigationAtoms",
    "NavigationCritic",
    "NavigationGaussian",
    "NavigationQuantileCritic",
    "NavigationQuantiles",
    "NavigationScores",
    "VectorScores",
]
