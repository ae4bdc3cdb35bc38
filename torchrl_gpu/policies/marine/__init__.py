"""Policies that navigate: networks over a robot and the objects in its sight.

Not here: the agents that hold such networks, which know no task (`policies.agents`).
"""

from torchrl_gpu.policies.marine.networks import (
    NavigationActor,
    NavigationAtoms,
    NavigationCritic,
    NavigationGaussian,
    NavigationQuantileCritic,
    NavigationQuantiles,
    NavigationScores,
    NavigationValue,
)

__all__ = [
    "NavigationActor",
    "NavigationAtoms",
    "NavigationCritic",
    "NavigationGaussian",
    "NavigationQuantileCritic",
    "NavigationQuantiles",
    "NavigationScores",
    "NavigationValue",
]
