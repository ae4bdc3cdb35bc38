"""Baselines of packing: heuristics over all placements, on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.env import SORT_KEYS
from torchrl_gpu.policies.exploration import random_legal
from torchrl_gpu.policies.indices import indices
from torchrl_gpu.policies.packing.hierarchical.packer import HierarchicalPacker
from torchrl_gpu.policies.packing.hierarchical.pile_values import PileValuePacker
from torchrl_gpu.policies.packing.maximal_spaces import BoundaryRule, MaximalAccessibleSpace, OnlineBinPacking
from torchrl_gpu.policies.packing.placements import (
    Form,
    PackingPlaces,
    PlacementHeuristic,
    Placements,
    checked_entries,
    first_best,
)
from torchrl_gpu.system import arguments

# Rows of the table of irregular items.
RANDOM = "random"
DEEPEST = "deepest bottom left"
RULE = "box order + HM"
LESS_WASTE = "least waste + HM"
VALUES = "pile values"
WORKER = "box order + worker"
MANAGER = "manager + HM"
BOTH = "manager + worker"
_PER_ITEM = ("item_id", "item_size", "legal_mask", "z_map", "item_top", "item_bottom")


@final
class RandomLegal(TensorDictModuleBase):
    """Uniform over the legal actions, 0 if nothing is legal.

    The draw is made on the device, from torch's generator.
    """

    def __init__(self, env: PackingEnv) -> None:
        super().__init__()
        self.in_keys = ["legal_mask"]
        self.out_keys = ["action"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        legal = tensordict.get("legal_mask")
        action = random_legal(legal.flatten(-4))
        return tensordict.set("action", action)


@final
class FirstFit(PlacementHeuristic):
    """The first legal placement, by orientation, then x, then y."""

    def choose(self, placements: Placements) -> Tensor:
        return first_best([], placements.legal)


@final
class DeepestBottomLeft(PlacementHeuristic):
    """Lowest base, then nearest to the corner: least z, then least x + y (cells).

    Departs from the released code of Zhao et al. (ICLR 2022): that scores x + y + 100·z in cells, which is the same
    order as long as x + y < 100; here the order is exact at any size.
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
        # Metres.
        growth = self.kernels.pile_growth(p.heightmap, p.item_id, p.z_map, self.catalogue, self.bin)
        cells = (growth.double() / min(self.bin.cell)).round()
        return first_best([cells, p.reach], p.legal)


@final
class LeastSurfaceArea(PlacementHeuristic):
    """Least surface of the box around the pile and the candidate.

    The box is as high as the candidate's top.

    With X and Y the extents of the bounding rectangle, the score is X·Y + X·top + Y·top, half that surface. Hu et al.,
    "Solving a new 3D bin packing problem with deep reinforcement learning method", arXiv 1708.05930, as released with
    Zhao et al. (ICLR 2022).

    Departs from the paper: ties go to the deepest-bottom-left placement, not to the empty maximal space that is left
    with the least margin, since no such spaces are kept; and every placement is a candidate, not only their corners.
    """

    def choose(self, placements: Placements) -> Tensor:
        p = placements
        occupied = p.heightmap > self.bin.tolerance  # (N, X, Y)
        # Lengths in tolerances, as heights are.
        tolerances_x = self.bin.cell[0] / self.bin.tolerance
        tolerances_y = self.bin.cell[1] / self.bin.tolerance
        length = _joint_extent(occupied.any(2), p.x, p.extent_x) * tolerances_x
        width = _joint_extent(occupied.any(1), p.y, p.extent_y) * tolerances_y
        # Whole squares of tolerances.
        top = p.z + p.height
        area = (length * width + top * (length + width)).round()
        return first_best([area, p.z, p.reach], p.legal)


def _joint_extent(occupied: Tensor, first: Tensor, extent: Tensor) -> Tensor:
    """Cells from the first to the last that is occupied or under a footprint.

    Args:
        occupied: (N, X) bool.
        first: First cell of footprints, (N, K, O, …).
        extent: Cells of footprints.

    Returns:
        float64, the shape of `first`.
    """
    cells = occupied.shape[1]
    at = indices(cells, occupied.device)
    # An empty bin has no occupied cell: then the footprint alone counts.
    low = torch.where(occupied, at, cells).amin(1)
    low = low[:, None, None, None, None]
    high = torch.where(occupied, at + 1, 0).amax(1)
    high = high[:, None, None, None, None]
    end = torch.maximum(high, first + extent)
    begin = torch.minimum(low, first)
    return (end - begin).double()


@final
class VolumeSorted(TensorDictModuleBase):
    """Wrapper policy: the largest visible item that fits, placed by another policy.

    The other policy sees that item alone, as an environment with K = 1 would show it. Of equal volumes the first slot
    goes first; if nothing is legal the action is 0.

    Args:
        env: Gives the volumes of the items, which an `AgentSpace` does not hold.
        inner: Places the item; reads and writes what a policy of an environment with K = 1 does.
        by: "volume", or "box" for that of the bounding box.
    """

    def __init__(self, env: PackingPlaces, inner: TensorDictModuleBase, by: str = "volume") -> None:
        super().__init__()
        key = SORT_KEYS[arguments.choice("VolumeSorted", "by", by, SORT_KEYS)]
        self.volume = key(env.catalogue, env.bin)
        self._maps = env.action_shape
        self.inner = inner
        self.in_keys = list(dict.fromkeys(["legal_mask", "item_id", *inner.in_keys]))
        self.out_keys = ["action"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        batch = tensordict.shape
        forms: dict[str, Form] = {"legal_mask": (torch.bool, self._maps), "item_id": (torch.int64, self._maps[:1])}
        if tensordict.get("z_map", None) is not None:
            forms["z_map"] = torch.float32, self._maps
        # The policy behind this one sees one item: what it needs of the others is selected here.
        device = self.volume.device
        legal, item_id, *_ = checked_entries("VolumeSorted", tensordict, forms, device)
        # An empty slot reads the volume of some item, and counts for nothing, as it has no legal placement.
        row = item_id.clamp(0, len(self.volume) - 1)
        volume = self.volume[row]  # (…, K)
        fits = legal.flatten(-3).any(-1)
        slot = torch.where(fits, volume, -1.0).argmax(-1)
        entries = tensordict.select(*self.in_keys, strict=False).items()
        alone = {}
        for key, value in entries:
            alone[key] = _take(value, slot) if key in _PER_ITEM else value
        alone["action_mask"] = alone["legal_mask"].flatten(len(batch))
        shown = TensorDict(alone, batch_size=batch, device=tensordict.device)
        placed = self.inner(shown).get("action")
        per_item = legal.shape[-3:].numel()
        return tensordict.set("action", slot * per_item + placed)


def _take(value: Tensor, slot: Tensor) -> Tensor:
    """Slot (…) of values (…, K, rest), kept as an axis of one."""
    missing = value.ndim - slot.ndim
    index = slot[(..., *[None] * missing)]
    rest = value.shape[slot.ndim + 1 :]
    shape = (*slot.shape, 1, *rest)
    return value.take_along_dim(index.expand(shape), slot.ndim)


_Make = Callable[[PackingEnv], TensorDictModuleBase]
_MAKERS: dict[str, _Make] = {
    "random": RandomLegal,
    "first-fit": FirstFit,
    "bph": OnlineBinPacking,
    "br": BoundaryRule,
    "dbl": DeepestBottomLeft,
    "hm": HeightmapMinimization,
    "lsah": LeastSurfaceArea,
    "macs": MaximalAccessibleSpace,
}
_NAMES = {
    "random": "random legal",
    "first-fit": "first fit",
    "bph": "online BPH",
    "br": "boundary rule",
    "dbl": "deepest bottom left",
    "hm": "heightmap minimisation",
    "lsah": "least surface area",
    "macs": "maximal accessible space",
}
# All baselines by the word that `torchrl-gpu evaluate bpp10 --policy` takes: their names, and what makes them.
BASELINES = {word: (_NAMES[word], make) for word, make in _MAKERS.items()}

SHOWN = ("random", "dbl", "hm", "lsah", "macs")


def baselines(env: PackingEnv, words: Sequence[str] = SHOWN) -> dict[str, TensorDictModuleBase]:
    """Baselines by name, out of the keys of `BASELINES`.

    With several visible items the largest that fits goes first.
    """
    policies = {}
    for word in words:
        name, make = BASELINES[word]
        policy = make(env)
        policies[name] = policy if env.visible_items == 1 else VolumeSorted(env, policy)
    return policies


@final
class RandomItem(TensorDictModuleBase):
    """A visible item drawn from those that fit, at a placement drawn from its own.

    The action is 0 if nothing is legal. `RandomLegal` draws from the placements of all items at once, and so small
    items, which have more of them, more often.
    """

    def __init__(self, env: PackingEnv) -> None:
        super().__init__()
        self.in_keys = ["legal_mask"]
        self.out_keys = ["action"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        legal = tensordict.get("legal_mask").flatten(-3)
        fits = legal.any(-1)
        slot = random_legal(fits)
        # Two draws: the item first, all equally likely, and then one of its placements.
        index = slot[..., None, None]
        of_item = legal.take_along_dim(index, -2).squeeze(-2)
        place = random_legal(of_item)
        return tensordict.set("action", slot * legal.shape[-1] + place)


def irregular_baselines(
    env: PackingEnv, packer: HierarchicalPacker, learned: bool = True
) -> dict[str, TensorDictModuleBase]:
    """Policies for irregular items, by name.

    Those that Huang et al., RA-L 8(1), 2023, compare, deepest bottom left and two of ours.

    Args:
        env: Shows the largest items, `order="box"`; with one visible item there is no choice, and no manager.
        packer: Made for `env`; the others share its networks and what it knows of the items.
        learned: Whether the networks are trained; if not they repeat the rules, and their rows are left out. Pile
            values come with the package.
    """
    deepest = VolumeSorted(env, DeepestBottomLeft(env), by="box")
    policies: dict[str, TensorDictModuleBase] = {RANDOM: RandomItem(env), DEEPEST: deepest}
    policies[RULE] = packer.choosing("box", "growth")
    if env.visible_items > 1:
        policies[LESS_WASTE] = packer.choosing("waste", "growth")
    # Pile values are shipped with the package and need no training.
    policies[VALUES] = PileValuePacker(env)
    if learned:
        policies[WORKER] = packer.choosing("box", "learned")
    if learned and env.visible_items > 1:
        policies[MANAGER] = packer.choosing("learned", "growth")
        policies[BOTH] = packer.choosing("learned", "learned")
    return policies
