"""`RefinedTables`: n-tuple values, corrected by a network that sees free places."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from torchrl_gpu import native
from torchrl_gpu.envs.packing.items.boxes import box_catalogue
from torchrl_gpu.envs.packing.kernels import Kernels, get_kernels
from torchrl_gpu.policies.indices import indices
from torchrl_gpu.policies.packing.ntuple.tables import NEVER, PatchTables
from torchrl_gpu.policies.packing.ntuple.values import level_heights
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments

# Levels at which places are counted.
LEVELS = 8
MOST_WIDTH = 2**12
_MOST_SIDES = 16
# Bins whose places are counted together, which bounds the memory of their maps.
_AT_ONCE = 4096
# Places of a box that are told apart; beyond, only their logarithm is seen.
_MANY = 8.0
# Size of the correction, bin volumes.
_SCALE = 0.1


class RefinedTables(PatchTables):
    """Tables whose values of the best placements are corrected by a network.

    A sum over patches does not see whether a box of some size still has a place anywhere, which decides when an episode
    ends. So the placements that tables value most are looked at again: in the bin after each, how many legal places
    boxes of every base have at or below every level, by the bin's rule of stability. A small network turns these
    numbers, the mean height and the tables' value into a correction of that value, which is 0 at first.

    Args:
        space: As in `PatchTables`. Levels are as high as cells are long, and the rule is one of `height_rules`.
        patches, levels, initial: As in `PatchTables`.
        sides: Shortest and longest side of boxes, in cells; at most 16 lengths.
        candidates: Placements of each item that are corrected. Others have the value of the tables less 1.
        width: Width of the two hidden layers.
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
        low, high = sides
        low = arguments.whole(where, "sides", low, 1, min(self.seen))
        high = arguments.whole(where, "sides", high, 1, min(self.seen))
        cell = self.bin.cell[0]
        if not low <= high < low + _MOST_SIDES:
            raise ValueError(
                f"{where}: sides must be the shortest and longest of at most {_MOST_SIDES} lengths, not {tuple(sides)}"
            )
        level = self.bin.size[2] / self.plan.levels
        if abs(level - cell) > 1e-6 * cell:
            raise ValueError(
                f"{where}: levels must be as high as cells are long, and {self.plan.levels} levels of a bin"
                f" {self.bin.size[2]:g} m high are not"
            )
        if self.bin.rule.tracks_bearing:
            raise ValueError(
                f"{where}: stability {self.bin.stability} reads which cells bear load; choose one that reads heights"
            )
        self.sides = (low, high)
        highest = self.plan.levels - low
        # Half a level above each, so that rounding does not matter, metres.
        lowest = highest - LEVELS + 1
        counted_levels = range(lowest, highest + 1)
        self._levels = [(level + 0.5) * cell for level in counted_levels]
        lengths = range(low, high + 1)
        sides_of_bases = itertools.product(lengths, lengths)
        bases = np.array([(x, y, low) for x, y in sides_of_bases], np.int64)
        volumes = bases.prod(1) * cell**3
        self._boxes = box_catalogue(bases, volumes, self.bin, "fixed")
        # Made on the device of the first use, and again after a move.
        self._kernels: Kernels | None = None
        num_inputs = 3 * LEVELS * len(bases) + 2
        first = nn.Linear(num_inputs, width)
        second = nn.Linear(width, width)
        last = nn.Linear(width, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.network = nn.Sequential(first, nn.SiLU(), second, nn.SiLU(), last)

    def forward(self, box_heightmap: Tensor, item_size: Tensor, z_map: Tensor, legal_mask: Tensor) -> Tensor:
        by_tables = super().forward(box_heightmap, item_size, z_map, legal_mask)
        items, turns, *grid = legal_mask.shape[-4:]
        per_turn = grid[0] * grid[1]
        values = by_tables.reshape(-1, turns * per_turn)  # (R, A)
        number = min(self.candidates, values.shape[1])
        best, action = values.topk(number, 1)  # (R, M)
        row = indices(values.shape[0], values.device)
        row = row[:, None].expand_as(action)
        # Here illegal placements cost nothing. On a GPU their number would have to be waited for.
        if native.runs_on(best):
            there = (best > NEVER / 2).nonzero(as_tuple=True)
            best = best[there]
            action = action[there]
            row = row[there]
        best = best.flatten()
        action = action.flatten()
        row = row.flatten()
        sizes = item_size.reshape(values.shape[0], turns, 4)
        size = sizes[row, action // per_turn]
        z = z_map.reshape(values.shape)[row, action]
        top = z + size[:, 2]
        bins = box_heightmap.reshape(-1, *self.bin.cells)
        heights = self.levels_of(bins)[row // items]
        after = self._after(heights, size, action % per_turn, top)
        gain = size[:, 3] / self.bin.volume
        corrected = self.corrected(after, best - gain) + gain
        refined = torch.where(best > NEVER / 2, corrected, NEVER)
        # Below all corrected ones, but still in the tables' order.
        lower = torch.where(values > NEVER / 2, values - 1, NEVER)
        return lower.index_put_((row, action), refined).view(by_tables.shape)

    def values(self, levels: Tensor) -> Tensor:
        value = super().values(levels)
        return self.corrected(levels, value)

    def corrected(self, levels: Tensor, value: Tensor) -> Tensor:
        """Values (N,) of bins (N, X, Y) uint8, levels, whose tables give `value`."""
        places = self.places(levels)
        count = places.float()
        mean = levels.float().mean((1, 2))[:, None]
        mean = mean / self.plan.levels
        # Whether there is a place, how many of few, and the logarithm of many.
        some = (count > 0).float()
        few = count.clamp_max(_MANY) / _MANY
        many = count.log1p() / 4
        by_tables = value[:, None].clamp(-1, 1)
        seen = [some, few, many, mean, by_tables]
        correction = self.network(torch.cat(seen, 1))[:, 0]
        return value + _SCALE * correction

    def places(self, levels: Tensor) -> Tensor:
        """Legal places of each base at or below each of eight levels, (N, F·8) uint8.

        There are F bases; bins are (N, X, Y) uint8, in levels.
        """
        if self._kernels is None or self._boxes.extent.device != levels.device:
            self._boxes = self._boxes.to(levels.device)
            self._kernels = get_kernels(device=levels.device)
        base = indices(self._boxes.num_items, levels.device)
        found = []
        for part in levels.split(_AT_ONCE):
            # The constructor has checked that levels are as high as cells are long.
            heights = part * self.bin.cell[0]
            bases = base.expand(part.shape[0], -1)
            z, legal = self._kernels.drop_map(heights, bases, self._boxes, self.bin)
            z = z.flatten(0, 2).flatten(1)
            legal = legal.flatten(0, 2).flatten(1)
            counts = count_at_most(z, legal, self._levels)
            num_counts = len(base) * LEVELS
            found.append(counts.view(part.shape[0], num_counts))
        return torch.cat(found)

    def _after(self, heights: Tensor, size: Tensor, place: Tensor, top: Tensor) -> Tensor:
        """Bins (R, X, Y) uint8 in levels, each after one more box.

        Args:
            heights: Bins before, (R, X, Y) uint8, levels.
            size: Sizes of the boxes, (R, 4).
            place: Places of the grid, (R,).
            top: How high the boxes reach, metres, (R,).
        """
        inside = []
        along_y = self.bin.grid[1]
        places = (place // along_y, place % along_y)
        for axis, at in enumerate(places):
            cells = self.seen[axis]
            extent = size[:, axis] / self.bin.cell[axis]
            extent = extent.round().long()
            first = torch.minimum(at * self.bin.step, cells - extent)
            first = first[:, None]
            cell = indices(cells, place.device)
            end = first + extent[:, None]
            inside.append((cell >= first) & (cell < end))
        in_x, in_y = inside
        under = in_x[:, :, None] & in_y[:, None, :]
        reached = level_heights(top, self.bin.size[2], self.plan.levels)
        reached = reached[:, None, None]
        return torch.where(under, torch.maximum(heights, reached), heights)

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "_kernels": None}


def count_at_most(values: Tensor, mask: Tensor, bounds: Sequence[float]) -> Tensor:
    """Number of masked values (N, A) float32 at or below each of L bounds.

    Returns:
        (N, L) uint8, 255 for more.
    """
    if native.runs_on(values):
        return native.count_at_most(values, mask, bounds)
    counts = [((values <= bound) & mask).sum(1) for bound in bounds]
    return torch.stack(counts, 1).clamp_max(255).to(torch.uint8)
