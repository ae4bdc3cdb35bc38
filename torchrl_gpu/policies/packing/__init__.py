"""Policies that pack bins."""

from torchrl_gpu.policies.packing.heuristics import (
    DeepestBottomLeft,
    HeightmapMinimization,
    LeastSurfaceArea,
    RandomLegal,
    baselines,
)
from torchrl_gpu.policies.packing.hierarchical import HierarchicalPacker, PackerNetworks
from torchrl_gpu.policies.packing.placements import PlacementHeuristic
from torchrl_gpu.policies.packing.spaces import MaximalAccessibleSpace
from torchrl_gpu.policies.packing.volume_sorted import VolumeSorted

__all__ = [
    "DeepestBottomLeft",
    "HeightmapMinimization",
    "HierarchicalPacker",
    "LeastSurfaceArea",
    "MaximalAccessibleSpace",
    "PackerNetworks",
    "PlacementHeuristic",
    "RandomLegal",
    "VolumeSorted",
    "baselines",
]
