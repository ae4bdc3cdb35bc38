"""Policies for bin packing."""

from torchrl_gpu.policies.packing.heuristics import (
    BASELINES,
    DeepestBottomLeft,
    FirstFit,
    HeightmapMinimization,
    LeastSurfaceArea,
    RandomLegal,
    VolumeSorted,
    baselines,
)
from torchrl_gpu.policies.packing.hierarchical.packer import HierarchicalPacker, PackerNetworks
from torchrl_gpu.policies.packing.hierarchical.pile_values import PileValuePacker, PileValues
from torchrl_gpu.policies.packing.maximal_spaces import BoundaryRule, MaximalAccessibleSpace, OnlineBinPacking
from torchrl_gpu.policies.packing.placements import PlacementHeuristic

__all__ = [
    "BASELINES",
    "BoundaryRule",
    "DeepestBottomLeft",
    "FirstFit",
    "HeightmapMinimization",
    "HierarchicalPacker",
    "LeastSurfaceArea",
    "MaximalAccessibleSpace",
    "OnlineBinPacking",
    "PackerNetworks",
    "PileValuePacker",
    "PileValues",
    "PlacementHeuristic",
    "RandomLegal",
    "VolumeSorted",
    "baselines",
]
