"""Placement of irregular items by a linear value of the resulting pile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, final

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, pad

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.indices import indices
from torchrl_gpu.policies.packing.hierarchical.packer import WASTE_WEIGHT, rows_of
from torchrl_gpu.policies.packing.hierarchical.views import PlacementPlanes
from torchrl_gpu.policies.packing.placements import checked_entries, join_batch, placed_at
from torchrl_gpu.policies.weights import named_weights, register_settings
from torchrl_gpu.system import arguments

# Sides of the cubes that heights are looked at with, shares of the bin's longer side.
WINDOWS = (0.06, 0.10, 0.18, 0.26, 0.38)
_RESTS = [f"rest_{share:.0%}" for share in WINDOWS]
_PITS = [f"pits_{share:.0%}" for share in WINDOWS]
NAMES = (*_RESTS, *_PITS, "edges", "deviation", "cubes", "growth", "base")
SHIPPED = Path(__file__).parent.parent / "weights" / "irregular.json"


class CandidatePlacements(NamedTuple):
    """Candidate placements of items (B, J), T of each, the least growth first.

    Attributes:
        item: (B, J) int64.
        turn: Orientation, (B, J, T) int64.
        place: gx · Gy + gy, (B, J, T) int64.
        growth: Growth of the pile, (B, J, T) float32, bin volumes; infinite if none is legal.
        base: Height at which the item rests, (B, J, T) float32, metres.
    """

    item: Tensor
    turn: Tensor
    place: Tensor
    growth: Tensor
    base: Tensor


@final
class PileValues(nn.Module):
    """Linear value of the pile after a placement: fifteen weighted features.

    Args:
        weights: One for each of `NAMES`; None for those that come with the package, learned on procedural solids in a
            bin of 0.40 × 0.40 × 0.30 m (docs/environments/packing_irregular.md).
    """

    def __init__(self, weights: Sequence[float] | None = None) -> None:
        super().__init__()
        if weights is None:
            weights = json.loads(SHIPPED.read_text(encoding="utf-8"))["weights"]
        self.weight: Tensor
        self.register_buffer("weight", named_weights("PileValues", NAMES, weights))

    def forward(self, heights: Tensor, growth: Tensor, base: Tensor) -> Tensor:
        """Values (B,) float32 of piles.

        They are comparable only between placements of one item on one pile.

        Args:
            heights: Highest cell in each place of the grid, (B, Gx, Gy) float32, bin heights.
            growth: Growth of the pile by the placement, (B,) float32, bin volumes.
            base: Height at which the item rests, (B,) float32, bin heights.
        """
        # Not a product of matrices, whose sums depend on the batch.
        return (self.numbers(heights, growth, base) * self.weight).sum(1)

    def numbers(self, heights: Tensor, growth: Tensor, base: Tensor) -> Tensor:
        """Fifteen features (B, 15) of piles, with the arguments of `forward`.

        Mean height at which a cube of each of five sides would rest, over all places that it may have; volume of the
        pits that no such cube reaches into; mean step between neighbouring places, standard deviation and mean cube of
        the heights; and the last two arguments.
        """
        grid_x, grid_y = heights.shape[1:]
        rest = []
        pits = []
        for share in WINDOWS:
            # An odd number of places, so that a window has a middle.
            side = share * max(grid_x, grid_y)
            side = 2 * round((side - 1) / 2) + 1
            x = min(side, grid_x)
            y = min(side, grid_y)
            high = _highest(heights, x, y)
            # Beyond the walls no cube may stand.
            beyond_x = x - 1
            beyond_y = y - 1
            outside = pad(high, (beyond_y, beyond_y, beyond_x, beyond_x), value=torch.inf)
            # A maximum under each cube, then a minimum over the cubes above a place: in image processing, a closing.
            reached = -_highest(-outside, x, y)
            rest.append(high.mean((1, 2)))
            pits.append((reached - heights).mean((1, 2)))
        flat = heights.flatten(1)
        none = torch.zeros_like(heights[:, 0, 0])
        # One place along an axis has no steps, and one place alone does not deviate.
        step_x = step_y = none
        if grid_x > 1:
            step_x = heights.diff(dim=1).abs().mean((1, 2))
        if grid_y > 1:
            step_y = heights.diff(dim=2).abs().mean((1, 2))
        deviation = none if flat.shape[1] == 1 else flat.std(1)
        cubes = heights.pow(3).mean((1, 2))
        shape = [step_x + step_y, deviation, cubes]
        # In the order of `NAMES`.
        numbers = [*rest, *pits, *shape, growth, base]
        return torch.stack(numbers, 1)


def _highest(heights: Tensor, x: int, y: int) -> Tensor:
    """Highest of each window of x × y places, (B, Gx − x + 1, Gy − y + 1)."""
    along_x = max_pool2d(heights[:, None], (x, 1), 1)
    return max_pool2d(along_x, (1, y), 1)[:, 0]


@final
class PileValuePacker(TensorDictModuleBase):
    """Packing policy: a rule picks the item, the value of the pile its place.

    The item is picked by `HierarchicalPacker`'s rule "waste", with `items=1` by its rule "box". In each of the
    orientations that raise the pile least, the placement that raises it least is a candidate. Afterstates (Sutton and
    Barto 2018, 6.8): every pile that a candidate would leave is made, and valued by `PileValues`.

    Args:
        env: Gives the bin, the items and the kernels, which an `AgentSpace` does not hold; it includes z_map.
        values: Values of piles; None for the shipped ones.
        items: Items out of which the rule picks, the largest that fit; 1 for the largest alone.
        placements: Candidate placements.
    """

    def __init__(self, env: PackingEnv, values: PileValues | None = None, items: int = 8, placements: int = 12) -> None:
        super().__init__()
        where = type(self).__name__
        if "z_map" not in env.include:
            raise ValueError(f"{where}: the environment must include z_map, not only {list(env.include)}")
        self.num_items = min(arguments.whole(where, "items", items, 1), env.visible_items)
        self.num_placements = min(arguments.whole(where, "placements", placements, 1), env.num_orientations)
        self.values = (PileValues() if values is None else values).to(env.device)
        self.planes = PlacementPlanes(env)
        self.bin = env.bin
        self.kernels = env.kernels
        self.catalogue = env.catalogue
        maps = env.action_shape
        self._forms = {
            "box_heightmap": (torch.float32, env.bin.cells),
            "item_id": (torch.int64, maps[:1]),
            "z_map": (torch.float32, maps),
            "legal_mask": (torch.bool, maps),
        }
        self.in_keys = list(self._forms)
        self.out_keys = ["action"]
        self.box: Tensor
        self.volume: Tensor
        box = env.catalogue.box_volume(env.bin) / env.bin.volume
        volume = env.catalogue.volume / env.bin.volume
        register_settings(self, box=box.float(), volume=volume.float())

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        shape = tensordict.shape
        given = checked_entries("PileValuePacker", tensordict, self._forms, self.box.device)
        flat = join_batch(given, len(shape))
        heightmap, item_id, z_map, legal = flat
        # An id that is no row of the catalogue, such as that of an empty slot, fits nowhere.
        row = item_id.clamp(0, len(self.box) - 1)
        fits = legal.flatten(2).any(2) & (item_id == row)
        box = torch.where(fits, self.box[row], -1.0)
        slots = box.sort(dim=1, descending=True, stable=True).indices
        slots = slots[:, : self.num_items]  # (B, J)
        legal = legal & fits[:, :, None, None, None]
        item = row.gather(1, slots)
        z_maps = rows_of(z_map, slots)
        found = self.candidates(heightmap, item, z_maps, rows_of(legal, slots))
        best = self.pick(found)[:, None]
        # Those of the item that was picked, (B, 1, T).
        found = CandidatePlacements(*[rows_of(each, best) for each in found])
        there = found.growth.isfinite()
        growth = torch.where(there, found.growth, 0.0)
        # Every candidate is placed and valued at once: bins times candidates are the rows.
        after = self.after(heightmap, found)
        piles = self.heights(after)
        base = found.base.flatten() / self.bin.size[2]
        value = self.values(piles, growth.flatten(), base).view_as(growth)
        chosen = torch.where(there, value, -torch.inf).argmax(2)
        per_turn = z_map[0, 0, 0].numel()
        local = found.turn * per_turn + found.place
        slot = slots.gather(1, best)[:, 0]
        per_item = z_map[0, 0].numel()
        action = slot * per_item + local[:, 0].gather(1, chosen)[:, 0]
        any_fits = fits.any(1)
        action = torch.where(any_fits, action, 0)
        return tensordict.set("action", action.view(shape))

    def candidates(self, heightmap: Tensor, item: Tensor, z_map: Tensor, legal: Tensor) -> CandidatePlacements:
        """Candidate placements of items (B, J), given their maps (B, J, O, Gx, Gy)."""
        turns = indices(z_map.shape[2], item.device)
        variants = item[:, :, None] * len(turns) + turns
        variants = variants.flatten(1)  # (B, J·O)
        growth = self.planes.growth(heightmap, variants, z_map.flatten(1, 2))
        growth = growth.view_as(z_map)
        # Of each orientation, (B, J, O).
        legal_growth = torch.where(legal, growth, torch.inf)
        least, place = legal_growth.flatten(3).min(3)
        order = least.sort(dim=2, stable=True)
        turn = order.indices[..., : self.num_placements]
        place = place.gather(2, turn)
        per_turn = z_map[0, 0, 0].numel()
        base = z_map.flatten(2).gather(2, turn * per_turn + place)
        least = order.values[..., : self.num_placements]
        return CandidatePlacements(item, turn, place, least, base)

    def pick(self, found: CandidatePlacements) -> Tensor:
        """Index (B,) of the item that the rule picks among items (B, J)."""
        growth = found.growth[..., 0]
        # What the pile grows by without being filled by the item is lost.
        waste = growth - self.volume[found.item]
        score = self.box[found.item]
        score = score - (WASTE_WEIGHT * waste if self.num_items > 1 else 0.0)
        return torch.where(growth.isfinite(), score, -torch.inf).argmax(1)

    def after(self, heightmap: Tensor, found: CandidatePlacements) -> Tensor:
        """Piles (B·J·T, X, Y) that placements leave, metres."""
        item = found.item[:, :, None].expand_as(found.turn)
        placement = placed_at(item, found.turn, found.place, found.base, self.catalogue, self.bin)
        before = heightmap.repeat_interleave(item.shape[1:].numel(), 0)
        return self.kernels.place(before, placement, self.catalogue, self.bin)

    def heights(self, heightmap: Tensor) -> Tensor:
        """Highest cell in each place of the grid, (B, Gx, Gy), in bin heights."""
        step = self.bin.step
        x, y = heightmap.shape[1:]
        # The last places of the grid may be narrower than a step.
        more_x = -x % step
        more_y = -y % step
        whole = pad(heightmap, (0, more_y, 0, more_x))
        highest = max_pool2d(whole[:, None], step)[:, 0]
        return highest / self.bin.size[2]
