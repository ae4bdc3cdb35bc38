"""Policies that pack bins."""

from torchrl_gpu.policies.packing.heuristics import (
    DeepestBottomLeft,
    HeightmapMinimization,
    LeastSurfaceArea,
    RandomLegal,
    baselines,
)
from torchrl_gpu.policies.packing.placements import PlacementHeuristic
from torchrl_gpu.policies.packing.spaces import MaximalAccessibleSpace
from torchrl_gpu.policies.packing.volume_sorted import VolumeSorted

__all__ = [
    "DeepestBottomLeft",
    "HeightmapMinimization",
    "LeastSurfaceArea",
    "MaximalAccessibleSpace",
    "PlacementHeuristic",
    "RandomLegal",
    "VolumeSorted",
    "baselines",
]
