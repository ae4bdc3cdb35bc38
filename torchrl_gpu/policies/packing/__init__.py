"""Policies for bin packing: heuristics, networks and trained tables.

The environment is in `envs/packing`, training in `training/packing`. Read `pretrained.py` first (a policy that values
bins), then `heuristics.py`. n-tuple tables are in `ntuple`, look-ahead in `planners`, the U-Net packer in
`hierarchical`.
"""

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
from torchrl_gpu.policies.packing.ntuple.refined import RefinedTables
from torchrl_gpu.policies.packing.ntuple.tables import PatchTables
from torchrl_gpu.policies.packing.placements import PlacementHeuristic
from torchrl_gpu.policies.packing.pretrained import PackingPolicy
from torchrl_gpu.policies.packing.reading import packing_policy
from torchrl_gpu.policies.packing.scores import (
    PlacementAtoms,
    PlacementLogits,
    PlacementQuantiles,
    PlacementScores,
    PlacementValue,
)

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
    "PackingPolicy",
    "PatchTables",
    "PileValuePacker",
    "PileValues",
    "PlacementAtoms",
    "PlacementHeuristic",
    "PlacementLogits",
    "PlacementQuantiles",
    "PlacementScores",
    "PlacementValue",
    "RandomLegal",
    "RefinedTables",
    "VolumeSorted",
    "baselines",
    "packing_policy",
]
