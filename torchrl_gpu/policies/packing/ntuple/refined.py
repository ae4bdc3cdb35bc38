"""`RefinedTables`: n-tuple values, corrected by a network that sees which boxes a bin still has a place for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchrl_gpu import native
from torchrl_gpu.envs.packing.items.boxes import box_catalogue
from torchrl_gpu.envs.packing.kernels import Kernels, get_kernels
from torchrl_gpu.policies.packing.ntuple.tables import NEVER, PatchTables
from torchrl_gpu.policies.packing.ntuple.values import level_heights
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments

LEVELS = 8  # at which places are counted
MOST_WIDTH = 2**12
_MOST_SIDES = 16
_AT_ONCE = 4096  # bins whose places are counted together: bounds the memory of their maps
_MANY = 8.0  # places of a box that are told apart; beyond, their logarithm
_SCALE = 0.1  # bin volumes, of the correction


class RefinedTables(PatchTables):
    """Tables, with the values of the best placements corrected by a network over numbers of places.

    A sum over patches does not see whether a box of some size still has a place anywhere, which decides when an episode
    ends. So the placements that tables value most are looked at again: in the bin after each, how many legal places
    boxes of every base have at or below every level, by the bin's rule of stability. A small network turns these
    numbers, the mean height and the tables' value into a correction of that value. It begins with 0.

    Args:
        space: As in `PatchTables`; levels as high as cells are long, and another rule than `load_bearing`.
        patches, levels, initial: As in `PatchTables`.
        sides: Shortest and longest side of boxes, in cells; at most 16 lengths.
        candidates: Placements of each item that are corrected. Others have the value of the tables less 1.
        width: Of the two hidden layers.
    """

    def __init__(
        self,
        space: AgentSpace,
        patches: Sequence[str] = ("2x2", "1x4", "2x3", "1x6"),
        levels: int | None = None,
        initial: float = 0.5,
        *,
        sides: tuple[int, int] = (2, 5),
        candidates: int = 8,
        width: int = 128,
    ) -> None:
        super().__init__(space, patches, levels, initial)
        where = type(self).__name__
        self.candidates = arguments.whole(where, "candidates", candidates, 1, 2**16)
        self.width = arguments.whole(where, "width", width, 1, MOST_WIDTH)
        low, high = (arguments.whole(where, "sides", side, 1, min(self.seen)) for side in sides)
        cell = self.bin.cell[0]
        if not low <= high < low + _MOST_SIDES or abs(self.bin.size[2] / self.plan.levels - cell) > 1e-6 * cell:
            wanted = (
                f"at most {_MOST_SIDES} sides from the shortest on, in a bin whose levels are as high as cells are long"
            )
            raise ValueError(f"{where}: want {wanted}; got sides={tuple(sides)}, {self.plan.levels} levels")
        if self.bin.stability == "load_bearing":
            raise ValueError(f"{where}: want a rule of stability that heights decide; got load_bearing")
        self.sides = (low, high)
        highest = self.plan.levels - low
        self._levels = [(level + 0.5) * cell for level in range(highest - LEVELS + 1, highest + 1)]  # metres, rounded
        bases = np.array([(x, y, low) for x in range(low, high + 1) for y in range(low, high + 1)], np.int64)
        self._boxes = box_catalogue(bases, bases.prod(1) * cell**3, self.bin, "fixed")
        self._kernels: Kernels | None = None
        hidden = nn.Linear(3 * LEVELS * len(bases) + 2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        last = nn.Linear(width, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.network = nn.Sequential(*hidden, last)

    def forward(self, box_heightmap: Tensor, item_size: Tensor, z_map: Tensor, legal_mask: Tensor) -> Tensor:
        by_tables = super().forward(box_heightmap, item_size, z_map, legal_mask)
        items, turns, *grid = legal_mask.shape[-4:]
        per_turn = grid[0] * grid[1]
        values = by_tables.reshape(-1, turns * per_turn)  # (R, A) of all items
        best, action = values.topk(min(self.candidates, values.shape[1]), 1)  # (R, M)
        row = torch.arange(values.shape[0], device=values.device, dtype=torch.int64)[:, None].expand_as(action)
        if native.runs_on(best):  # what is not legal costs nothing; a GPU would have to be waited for
            there = (best > NEVER / 2).nonzero(as_tuple=True)
            best = best[there]
            action = action[there]
            row = row[there]
        best, action, row = (each.flatten() for each in (best, action, row))
        size = item_size.reshape(values.shape[0], turns, 4)[row, action // per_turn]
        top = z_map.reshape(values.shape)[row, action] + size[:, 2]
        heights = self.levels_of(box_heightmap.reshape(-1, *self.bin.cells))[row // items]
        after = self._after(heights, size, action % per_turn, top)
        gain = size[:, 3] / self.bin.volume
        refined = torch.where(best > NEVER / 2, self.corrected(after, best - gain) + gain, NEVER)
        lower = torch.where(values > NEVER / 2, values - 1, NEVER)
        return lower.index_put_((row, action), refined).view(by_tables.shape)

    def values(self, levels: Tensor) -> Tensor:
        return self.corrected(levels, super().values(levels))

    def corrected(self, levels: Tensor, value: Tensor) -> Tensor:
        """Values (N,) of bins (N, X, Y) uint8, levels, whose tables give `value`."""
        count = self.places(levels).float()
        mean = levels.float().mean((1, 2))[:, None] / self.plan.levels
        seen = (count > 0).float(), count.clamp_max(_MANY) / _MANY, count.log1p() / 4, mean, value[:, None].clamp(-1, 1)
        return value + _SCALE * self.network(torch.cat(seen, 1))[:, 0]

    def places(self, levels: Tensor) -> Tensor:
        """Numbers (N, F·8) uint8 of legal places of F bases at or below each of eight levels in bins (N, X, Y)."""
        if self._kernels is None or self._boxes.extent.device != levels.device:
            self._boxes = self._boxes.to(levels.device)
            self._kernels = get_kernels(device=levels.device)
        base = torch.arange(self._boxes.num_items, device=levels.device, dtype=torch.int64)
        found = []
        for part in levels.split(_AT_ONCE):
            heights = part * self.bin.cell[0]
            bases = base.expand(part.shape[0], -1)
            z, legal = self._kernels.drop_map(heights, bases, self._boxes, self.bin)
            maps = z.flatten(0, 2).flatten(1), legal.flatten(0, 2).flatten(1)  # (N·F, Gx·Gy)
            found.append(count_at_most(*maps, self._levels).view(part.shape[0], len(base) * LEVELS))
        return torch.cat(found)

    def _after(self, heights: Tensor, size: Tensor, place: Tensor, top: Tensor) -> Tensor:
        """Bins (R, X, Y) uint8, levels, each after a box of `size` (R, 4) at a grid place, up to `top`, metres."""
        inside = []
        for axis, at in enumerate((place // self.bin.grid[1], place % self.bin.grid[1])):
            cells = self.seen[axis]
            extent = (size[:, axis] / self.bin.cell[axis]).round().long()
            first = torch.minimum(at * self.bin.step, cells - extent)[:, None]
            cell = torch.arange(cells, device=place.device, dtype=torch.int64)
            inside.append((cell >= first) & (cell < first + extent[:, None]))
        under = inside[0][:, :, None] & inside[1][:, None, :]
        reached = level_heights(top, self.bin.size[2], self.plan.levels)[:, None, None]
        return torch.where(under, torch.maximum(heights, reached), heights)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_kernels": None}


def count_at_most(values: Tensor, mask: Tensor, bounds: Sequence[float]) -> Tensor:
    """Numbers of masked values (N, A) float32 of each row at or below L bounds, (N, L) uint8, 255 for more."""
    if native.runs_on(values):
        return native.count_at_most(values, mask, bounds)
    counts = [((values <= bound) & mask).sum(1) for bound in bounds]
    return torch.stack(counts, 1).clamp_max(255).to(torch.uint8)
