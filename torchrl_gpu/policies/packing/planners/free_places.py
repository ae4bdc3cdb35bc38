"""Look-ahead over the places that boxes still find after a placement."""

from __future__ import annotations

from dataclasses import replace

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import FactoryBoxes
from torchrl_gpu.envs.packing.stability.rule import Pile
from torchrl_gpu.envs.packing.types import Catalogue, Placement
from torchrl_gpu.policies.indices import indices
from torchrl_gpu.policies.packing.ntuple.tables import NEVER
from torchrl_gpu.policies.packing.placement_values import LinearPlacementValues
from torchrl_gpu.policies.packing.placements import join_batch, placed_at
from torchrl_gpu.policies.spaces import AgentSpace, greedy_module
from torchrl_gpu.system import arguments

# Piles whose maps are made together, which bounds their memory.
_AT_ONCE = 256


class FreePlaces(TensorDictModuleBase):
    """Look-ahead policy that keeps low places free for boxes to come.

    Weights of a placement see the box and what lies around it. Whether a long box will find any place on the pile
    afterwards, they do not see, and that is how pallets of boards end. So the placements of the largest values are
    looked at again: on the pile after each, how high the lowest legal place of some probe boxes is. The mean over them,
    in bin heights, lowers the value. A probe that has no place counts as one on top of the bin.

    Args:
        env: Gives items, bin, rule and kernels; nothing of its state. Boxes, with `z_map` in `include`.
        values: Weights of placements, for the same bin.
        probes: Boxes that may come, as a catalogue for the bin; None for eight of `known_boxes`, from `probe_boxes`.
        weight: Value that a bin height counts.
        candidates: Placements that are looked at again. All others count less than they.
        step: Cells between the places that are tried for a probe.

    Raises:
        ValueError: The environment has other items than boxes, or does not include `z_map`.
    """

    # Which boxes may come, by the probes.
    knows = "the distribution"

    def __init__(
        self,
        env: PackingEnv,
        values: LinearPlacementValues,
        probes: Catalogue | None = None,
        *,
        weight: float = 2.0,
        candidates: int = 24,
        step: int = 10,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        if not env.catalogue.flat or "z_map" not in env.include:
            raise ValueError(f"{where}: env must be a PackingEnv of boxes that includes z_map")
        self.weight = arguments.number(where, "weight", weight, 0)
        self.candidates = arguments.whole(where, "candidates", candidates, 1, env.num_actions)
        step = arguments.whole(where, "step", step, 1, max(env.bin.cells))
        self.values = values
        self.bin = env.bin
        self.kernels = env.kernels
        self.catalogue = env.catalogue
        self.turns = env.num_orientations
        self._fallback = env.fallback
        self._tried = replace(env.bin, step=step)
        if probes is None:
            probes = probe_boxes(known_boxes(env))
        self._probes = probes.to(env.device)
        self._choose = greedy_module(AgentSpace.of(env))
        self._of_pile = [*values.in_keys, "item_id"]
        if env.bin.rule.tracks_bearing:
            self._of_pile.append("bearing_map")
        self.in_keys = [*self._of_pile, "action_mask"]
        self.out_keys = ["action_value", "action", "chosen_action_value"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write `action_value` (…, K·O·Gx·Gy), the greedy `action` (…) and its value."""
        batch = tensordict.shape
        shown = [tensordict.get(key) for key in self._of_pile]
        by_weights = self.values(*shown[: len(self.values.in_keys)])
        flat = join_batch([by_weights, *shown], len(batch))
        values = self._refined(*flat)
        tensordict.set("action_value", values.view(by_weights.shape))
        written: TensorDictBase = self._choose(tensordict)
        return written

    def _refined(
        self,
        values: Tensor,
        heightmap: Tensor,
        item_size: Tensor,
        z_map: Tensor,
        legal_mask: Tensor,
        item_id: Tensor,
        bears: Tensor | None = None,
    ) -> Tensor:
        """Values (B, A) of which the best are lowered by what comes after them."""
        best, action = values.topk(min(self.candidates, values.shape[1]), 1)
        row = indices(len(values), values.device)
        row = row[:, None].expand_as(action)
        # Here illegal placements cost nothing. On a GPU their number would have to be waited for.
        if native.runs_on(values):
            there = (best > NEVER / 2).nonzero(as_tuple=True)
            row = row[there]
            action = action[there]
        row = row.flatten()
        action = action.flatten()
        rests_at = z_map.flatten(1)[row, action]
        # An illegal place may have no height to rest at.
        legal = legal_mask.flatten(1)[row, action]
        rests_at = torch.where(legal, rests_at, 0.0)
        placement = self._placement(item_id, row, action, rests_at)
        heights = []
        for part in indices(len(row), values.device).split(_AT_ONCE):
            of_part = row[part]
            pile = Pile(heightmap[of_part], None if bears is None else bears[of_part])
            placed = Placement(*(each[part] for each in placement))
            heights.append(self._lowest(self._after(pile, placed)))
        lowest = torch.cat(heights)
        # No placement loses more than the weight, so that all others stay below those that were looked at.
        refined = torch.where(values > NEVER / 2, values - self.weight, NEVER)
        looked_up = values[row, action]
        lowered = torch.where(looked_up > NEVER / 2, looked_up - self.weight * lowest, NEVER)
        return refined.index_put_((row, action), lowered)

    def _placement(self, item_id: Tensor, row: Tensor, action: Tensor, rests_at: Tensor) -> Placement:
        """Placements (R,) of actions that count all visible items."""
        per_turn = self.bin.grid[0] * self.bin.grid[1]
        variant = action // per_turn
        item = item_id[row, variant // self.turns]
        return placed_at(item, variant % self.turns, action % per_turn, rests_at, self.catalogue, self.bin)

    def _after(self, pile: Pile, placement: Placement) -> Pile:
        """Piles after a placement on each."""
        heightmap = self.kernels.place(pile.heightmap, placement, self.catalogue, self.bin)
        if pile.bears is None:
            return Pile(heightmap)
        return Pile(heightmap, self.kernels.bears_after(pile, placement, self.catalogue, self.bin))

    def _lowest(self, pile: Pile) -> Tensor:
        """Mean height (R,) of the lowest legal place of every probe, bin heights."""
        number = indices(self._probes.num_items, pile.heightmap.device)
        number = number.expand(len(pile.heightmap), -1)
        z_map, legal = self.kernels.maps(
            pile, number.contiguous(), self._probes, self._tried, fallback=self._fallback, each_alone=True
        )
        highest = self.bin.size[2]
        places = torch.where(legal, z_map, highest)
        lowest = places.flatten(2).amin(2)
        return lowest.mean(1) / highest


def known_boxes(env: PackingEnv) -> Catalogue:
    """Boxes that a policy may know of.

    Of a factory's boxes they are those of the training rows, or else the environment's.
    """
    items = env.items
    if not isinstance(items, FactoryBoxes) or items.split == "train":
        return env.catalogue
    known = FactoryBoxes(items.data, "train", items.clearance)
    catalogue, _ = known.build(env.bin, "yaw", env.num_items, 1)
    return catalogue


def probe_boxes(catalogue: Catalogue, number: int = 8) -> Catalogue:
    """Choose boxes of a catalogue, from short to long, at equal steps of their rank.

    They are ordered by their longer side, then by their shorter one.

    Args:
        catalogue: M boxes.
        number: Boxes, M at most.
    """
    number = min(arguments.whole("probe_boxes", "number", number, 1), catalogue.num_items)
    sides = catalogue.extent[:, 0]
    longer = sides.amax(1)
    shorter = sides.amin(1)
    order = (longer * (int(sides.max()) + 1) + shorter).argsort(stable=True)
    rank = (2 * indices(number, order.device) + 1) * len(order) // (2 * number)
    chosen = order[rank]
    heights = catalogue.height[chosen, :, None]
    sizes = torch.cat([catalogue.extent[chosen].to(heights.dtype), heights], 2)
    return Catalogue.of_boxes(sizes, catalogue.volume[chosen])
