"""Placement of irregular items by the value of the resulting pile: a linear function of heightmap features."""

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
from torchrl_gpu.policies.packing.hierarchical.packer import WASTE_WEIGHT, rows_of
from torchrl_gpu.policies.packing.hierarchical.views import PlacementPlanes
from torchrl_gpu.policies.packing.placements import checked_entries, placed_at
from torchrl_gpu.policies.weights import named_weights, register_settings
from torchrl_gpu.system import arguments

WINDOWS = (0.06, 0.10, 0.18, 0.26, 0.38)  # sides of cubes, shares of the bin's longer side
NAMES = (
    *(f"rest_{share:.0%}" for share in WINDOWS),
    *(f"pits_{share:.0%}" for share in WINDOWS),
    "edges",
    "deviation",
    "cubes",
    "growth",
    "base",
)
_SHIPPED = Path(__file__).parent.parent / "weights" / "irregular.json"


class Looked(NamedTuple):
    """Candidate placements of items (B, J), T of each, those that raise the pile least first."""

    item: Tensor  # (B, J) int64
    turn: Tensor  # (B, J, T) int64, orientation
    place: Tensor  # (B, J, T) int64, gx · Gy + gy
    growth: Tensor  # (B, J, T) float32, bin volumes; infinite where none is legal
    base: Tensor  # (B, J, T) float32, where the item rests, metres


@final
class PileValues(nn.Module):
    """Linear value of the pile after a placement: a weighted sum of fifteen features, see `forward`.

    Args:
        weights: One for each of `NAMES`; None for those that come with the package, learned on procedural solids in a
            bin of 0.40 × 0.40 × 0.30 m (docs/environments/packing_irregular.md).
    """

    def __init__(self, weights: Sequence[float] | None = None) -> None:
        super().__init__()
        if weights is None:
            weights = json.loads(_SHIPPED.read_text(encoding="utf-8"))["weights"]
        self.weight: Tensor
        self.register_buffer("weight", named_weights("PileValues", NAMES, weights))

    def forward(self, heights: Tensor, growth: Tensor, base: Tensor) -> Tensor:
        """Values (B,) float32 of piles; comparable only between placements of one item on one pile.

        Args:
            heights: (B, Gx, Gy) float32, the highest cell in each place of the grid, in bin heights.
            growth: (B,) float32, by how much the placement raised the pile, in bin volumes.
            base: (B,) float32, where the item rests, in bin heights.
        """
        return (self.numbers(heights, growth, base) * self.weight).sum(1)  # no product of matrices: as in any batch

    def numbers(self, heights: Tensor, growth: Tensor, base: Tensor) -> Tensor:
        """The fifteen features (B, 15) of piles, arguments as in `forward`.

        Mean height at which a cube of each of five sides would rest, over all places that it may have; volume of the
        pits that no such cube reaches into; mean step between neighbouring places, standard deviation and mean cube of
        the heights; and the last two arguments.
        """
        rest = []
        pits = []
        for share in WINDOWS:
            side = 2 * round((share * max(heights.shape[1:]) - 1) / 2) + 1
            x, y = (min(side, places) for places in heights.shape[1:])
            high = _highest(heights, x, y)
            outside = pad(high, (y - 1, y - 1, x - 1, x - 1), value=torch.inf)  # beyond the walls no cube may stand
            rest.append(high.mean((1, 2)))
            pits.append((-_highest(-outside, x, y) - heights).mean((1, 2)))
        flat = heights.flatten(1)
        none = torch.zeros_like(heights[:, 0, 0])
        # Of one place along an axis there are no steps, and one place alone does not deviate.
        steps = [none if heights.shape[axis] == 1 else heights.diff(dim=axis).abs().mean((1, 2)) for axis in (1, 2)]
        deviation = none if flat.shape[1] == 1 else flat.std(1)
        shape = [steps[0] + steps[1], deviation, heights.pow(3).mean((1, 2))]
        return torch.stack([*rest, *pits, *shape, growth, base], 1)


def _highest(heights: Tensor, x: int, y: int) -> Tensor:
    """The highest of each window of x × y places, (B, Gx − x + 1, Gy − y + 1)."""
    return max_pool2d(max_pool2d(heights[:, None], (x, 1), 1), (1, y), 1)[:, 0]


@final
class PileValuePacker(TensorDictModuleBase):
    """Packing policy: places the item that a rule picks where the resulting pile has the largest value.

    The item is picked by `HierarchicalPacker`'s rule "waste", with `items=1` by its rule "box". Looked at is, in each
    of the orientations that raise the pile least, the placement that raises it least. Afterstates (Sutton and Barto
    2018, 6.8): every pile that one of these would leave is made, and valued by `PileValues`.

    Args:
        env: Gives the bin, the items and the kernels, which an `AgentSpace` does not hold; it includes z_map.
        values: Of piles; None for the shipped ones.
        items: Of which the rule picks, the largest that fit; 1 for the largest alone.
        placements: That are looked at.
    """

    def __init__(self, env: PackingEnv, values: PileValues | None = None, items: int = 8, placements: int = 12) -> None:
        super().__init__()
        where = type(self).__name__
        if "z_map" not in env.include:
            raise ValueError(f"{where}: want an environment that includes z_map; got one of {list(env.include)}")
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
        register_settings(self, box=box.float(), volume=(env.catalogue.volume / env.bin.volume).float())

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        shape = tensordict.shape
        given = checked_entries("PileValuePacker", tensordict, self._forms, self.box.device)
        heightmap, item_id, z_map, legal = (each.reshape(-1, *each.shape[len(shape) :]) for each in given)
        row = item_id.clamp(0, len(self.box) - 1)
        fits = legal.flatten(2).any(2) & (item_id == row)
        slots = torch.where(fits, self.box[row], -1.0).sort(dim=1, descending=True, stable=True).indices
        slots = slots[:, : self.num_items]  # (B, J)
        legal = legal & fits[:, :, None, None, None]
        looked = self.look(heightmap, row.gather(1, slots), rows_of(z_map, slots), rows_of(legal, slots))
        best = self.pick(looked)[:, None]
        looked = Looked(*(rows_of(each, best) for each in looked))  # (B, 1, …)
        there = looked.growth.isfinite()  # (B, 1, T)
        growth = torch.where(there, looked.growth, 0.0)
        piles = self.heights(self.after(heightmap, looked))
        value = self.values(piles, growth.flatten(), looked.base.flatten() / self.bin.size[2]).view_as(growth)
        chosen = torch.where(there, value, -torch.inf).argmax(2)
        per_turn = z_map[0, 0, 0].numel()
        local = looked.turn * per_turn + looked.place
        action = slots.gather(1, best)[:, 0] * z_map[0, 0].numel() + local[:, 0].gather(1, chosen)[:, 0]
        return tensordict.set("action", torch.where(fits.any(1), action, 0).view(shape))

    def look(self, heightmap: Tensor, item: Tensor, z_map: Tensor, legal: Tensor) -> Looked:
        """Candidate placements of items (B, J), given their maps (B, J, O, Gx, Gy)."""
        turns = torch.arange(z_map.shape[2], device=item.device, dtype=torch.int64)
        variants = (item[:, :, None] * len(turns) + turns).flatten(1)  # (B, J·O)
        growth = self.planes.growth(heightmap, variants, z_map.flatten(1, 2)).view_as(z_map)
        least, place = torch.where(legal, growth, torch.inf).flatten(3).min(3)  # (B, J, O)
        order = least.sort(dim=2, stable=True)
        turn = order.indices[..., : self.num_placements]
        place = place.gather(2, turn)
        base = z_map.flatten(2).gather(2, turn * z_map[0, 0, 0].numel() + place)
        return Looked(item, turn, place, order.values[..., : self.num_placements], base)

    def pick(self, looked: Looked) -> Tensor:
        """Index (B,) of the item that the rule picks among items (B, J)."""
        waste = looked.growth[..., 0] - self.volume[looked.item]
        score = self.box[looked.item] - (WASTE_WEIGHT * waste if self.num_items > 1 else 0.0)
        return torch.where(looked.growth[..., 0].isfinite(), score, -torch.inf).argmax(1)

    def after(self, heightmap: Tensor, looked: Looked) -> Tensor:
        """The piles (B·J·T, X, Y) that placements leave, metres."""
        item = looked.item[:, :, None].expand_as(looked.turn)
        placement = placed_at(item, looked.turn, looked.place, looked.base, self.catalogue, self.bin)
        before = heightmap.repeat_interleave(item.shape[1:].numel(), 0)
        return self.kernels.place(before, placement, self.catalogue, self.bin)

    def heights(self, heightmap: Tensor) -> Tensor:
        """The highest cell in each place of the grid, (B, Gx, Gy), in bin heights."""
        step, (x, y) = self.bin.step, heightmap.shape[1:]
        whole = pad(heightmap, (0, -y % step, 0, -x % step))
        return max_pool2d(whole[:, None], step)[:, 0] / self.bin.size[2]
