"""The baselines of packing: heuristics over all placements of a batch of bins, on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.exploration import random_legal
from torchrl_gpu.policies.packing.maximal_spaces import BoundaryRule, OnlineBinPacking
from torchrl_gpu.policies.packing.placements import PlacementHeuristic, Placements, first_best
from torchrl_gpu.policies.packing.spaces import MaximalAccessibleSpace
from torchrl_gpu.policies.packing.volume_sorted import VolumeSorted


@final
class RandomLegal(TensorDictModuleBase):
    """Uniform over the legal actions, drawn on the device from torch's generator; 0 where nothing is legal."""

    def __init__(self, env: PackingEnv) -> None:
        super().__init__()
        self.in_keys, self.out_keys = ["legal_mask"], ["action"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        legal = tensordict.get("legal_mask")
        return tensordict.set("action", random_legal(legal.flatten(-4)))


@final
class FirstFit(PlacementHeuristic):
    """The first legal placement: the first orientation that has one, then least x, then least y."""

    def choose(self, placements: Placements) -> Tensor:
        return first_best([], placements.legal)


@final
class DeepestBottomLeft(PlacementHeuristic):
    """Lowest base, then nearest to the corner: least z, then least x + y (cells).

    Departs from the released code of Zhao et al. (ICLR 2022): that scores x + y + 100·z in cells, which is the same
    order while x + y < 100; here the order is exact at any size.
    """

    def choose(self, placements: Placements) -> Tensor:
        return first_best([placements.z, placements.reach], placements.legal)


@final
class HeightmapMinimization(PlacementHeuristic):
    """Least sum of the heightmap after the placement, then least x + y (cells).

    Sums are compared in whole cells: rounding errors of a sum decide nothing. Wang & Hauser, "Stable bin packing of
    non-convex 3D objects with a robot manipulator", ICRA 2019, arXiv 1812.04093.

    Departs from the paper: c·(x + y) with a small c is there a term of the sum; here it only breaks ties.
    """

    def choose(self, placements: Placements) -> Tensor:
        p = placements
        growth = self.kernels.pile_growth(p.heightmap, p.item_id, p.z_map, self.catalogue, self.bin)  # metres
        return first_best([(growth.double() / min(self.bin.cell)).round(), p.reach], p.legal)


@final
class LeastSurfaceArea(PlacementHeuristic):
    """Least surface of the box around all that is packed and the candidate, as high as the candidate's top.

    With X and Y the extents of the bounding rectangle, the score is X·Y + X·top + Y·top, half that surface. Hu et al.,
    "Solving a new 3D bin packing problem with deep reinforcement learning method", arXiv 1708.05930, as released with
    Zhao et al. (ICLR 2022).

    Departs from the paper: ties go to the deepest-bottom-left placement, not to the empty maximal space that is left
    with the least margin, since no such spaces are kept; and every placement is a candidate, not only their corners.
    """

    def choose(self, placements: Placements) -> Tensor:
        return first_best([self.area(placements), placements.z, placements.reach], placements.legal)

    def area(self, placements: Placements) -> Tensor:
        """Half the surface after each placement, (N, K, O, Gx, Gy) float64, whole squares of tolerances."""
        p = placements
        occupied = p.heightmap > self.bin.tolerance  # (N, X, Y)
        length = _joint_extent(occupied.any(2), p.x, p.extent_x) * (self.bin.cell[0] / self.bin.tolerance)
        width = _joint_extent(occupied.any(1), p.y, p.extent_y) * (self.bin.cell[1] / self.bin.tolerance)
        return (length * width + (p.z + p.height) * (length + width)).round()


def _joint_extent(occupied: Tensor, first: Tensor, extent: Tensor) -> Tensor:
    """Cells from the first to the last that is occupied (N, X) or under a footprint `first` (N, K, O, …); float64."""
    cells = occupied.shape[1]
    at = torch.arange(cells, device=occupied.device, dtype=torch.int64)
    low = torch.where(occupied, at, cells).amin(1)[:, None, None, None, None]
    high = torch.where(occupied, at + 1, 0).amax(1)[:, None, None, None, None]
    return (torch.maximum(high, first + extent) - torch.minimum(low, first)).double()


BASELINES: dict[str, tuple[str, Callable[[PackingEnv], TensorDictModuleBase]]] = {
    "random": ("random legal", RandomLegal),
    "first-fit": ("first fit", FirstFit),
    "bph": ("online BPH", OnlineBinPacking),
    "br": ("boundary rule", BoundaryRule),
    "dbl": ("deepest bottom left", DeepestBottomLeft),
    "hm": ("heightmap minimisation", HeightmapMinimization),
    "lsah": ("least surface area", LeastSurfaceArea),
    "macs": ("maximal accessible space", MaximalAccessibleSpace),
}
"""All baselines by the word that `torchrl-gpu evaluate bpp10 --policy` takes: their names, and what makes them."""

SHOWN = ("random", "dbl", "hm", "lsah", "macs")


def baselines(env: PackingEnv, words: Sequence[str] = SHOWN) -> dict[str, TensorDictModuleBase]:
    """Baselines by name, keys of `BASELINES`; with several visible items, the largest that fits goes first."""
    made = {BASELINES[word][0]: BASELINES[word][1](env) for word in words}
    return made if env.visible_items == 1 else {name: VolumeSorted(env, policy) for name, policy in made.items()}
