"""Linear values of box placements: a weighted sum of a few scale-free features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from torchrl_gpu.policies.packing.features import bin_of
from torchrl_gpu.policies.packing.ntuple.tables import NEVER
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.weights import named_weights, register_settings
from torchrl_gpu.system import arguments

NAMES = (
    "base",
    "top",
    "top_squared",
    "hollow",
    "reach",
    "walls",
    "best_x",
    "best_y",
    "contact",
    "flush",
    "overhang",
    "beside_higher",
    "gaps",
    "on_floor",
    "rise",
    "step",
    "edge_x",
    "edge_y",
    "wedged",
)
WALL = 2.0  # how high a wall counts, bin heights: above whatever a bin may hold
SAMPLES = 5  # cells looked at along each side of a box, and lines under it
NEAR = (0.05, 0.0917)  # how far beside a box a gap is looked for, shares of the bin's longer side
FLUSH = 4e-3  # tops closer than this, in bin heights, are even
SAME = 1e-4  # heights closer than this are one but for rounding


class Candidates(NamedTuple):
    """Candidate placements, (B, M) each; unused slots have `there` false and 0 or more elsewhere."""

    action: Tensor  # int64
    there: Tensor  # bool
    x: Tensor  # int64, first cell
    y: Tensor  # int64
    extent_x: Tensor  # int64, cells
    extent_y: Tensor  # int64
    base: Tensor  # float32, bin heights
    height: Tensor  # float32, bin heights


@final
class LinearPlacementValues(nn.Module):
    """Linear values of box placements: weighted sums of nineteen features of the box and the pile around it.

    They are comparable only between placements of one box on one pile. Valued are the placements that are wedged:
    moved by one place of the grid, one way or the other along x, and one way or the other along y, they would not be
    legal or would rest higher; where anything is legal, one is. Of more than `candidates` the lowest count, then those
    nearest to the corner of the bin. Features are shares of the bin's sides, so that weights fit bins of other sizes.

    Args:
        space: Gives the bin and the grid of placements.
        weights: One for each of `NAMES`.
        candidates: M, most placements that are valued.
    """

    in_keys: ClassVar = ["box_heightmap", "item_size", "z_map", "legal_mask"]

    def __init__(self, space: AgentSpace, weights: Sequence[float], candidates: int = 40) -> None:
        super().__init__()
        where = "LinearPlacementValues"
        self.bin = bin_of(space)
        self.candidates = arguments.whole(where, "candidates", candidates, 1)
        self.near = [max(1, round(share * max(self.bin.cells))) for share in NEAR]  # cells
        self.cell: Tensor
        self.weight: Tensor
        register_settings(self, cell=self.bin.cell)
        self.register_buffer("weight", named_weights(where, NAMES, weights))

    def forward(self, box_heightmap: Tensor, item_size: Tensor, z_map: Tensor, legal_mask: Tensor) -> Tensor:
        """Values (…, K·O·Gx·Gy) float32 of all placements, `NEVER` where one is not legal or no candidate."""
        batch = item_size.shape[:-3]
        maps = legal_mask.shape[-4:]
        heights = box_heightmap.reshape(-1, *self.bin.cells) / self.bin.size[2]
        z_map = z_map.reshape(-1, *maps)
        legal = legal_mask.reshape(-1, *maps)
        found = self.find(item_size.reshape(-1, *item_size.shape[-3:]), z_map, legal)
        value = (self.numbers(heights, found) * self.weight).sum(2)  # no product of matrices: as in any batch
        value = torch.where(found.there, value.clamp_min(NEVER / 2), NEVER)
        every = torch.full_like(z_map.flatten(1), NEVER)
        return every.scatter(1, found.action, value).view(*batch, -1)

    def find(self, item_size: Tensor, z_map: Tensor, legal: Tensor) -> Candidates:
        """The candidates of items (B, K, O, 4) on maps (B, K, O, Gx, Gy)."""
        (cells_x, cells_y), step, (grid_x, grid_y) = self.bin.cells, self.bin.step, z_map.shape[3:]
        level = torch.where(legal, (z_map / self.bin.tolerance).round(), torch.inf)
        wedged = (legal & _edge(level, 3) & _edge(level, 4)).flatten(1)
        place = torch.arange(grid_x * grid_y, device=z_map.device, dtype=torch.int64)
        reach = (place // grid_y + place % grid_y).expand(*z_map.shape[1:3], -1).flatten()
        rank = torch.where(wedged, level.flatten(1), 0.0).long() * (grid_x + grid_y) + reach
        number = torch.arange(wedged.shape[1], device=z_map.device, dtype=torch.int64)
        rank = rank * wedged.shape[1] + number  # no two are equal
        rank = torch.where(wedged, rank, torch.iinfo(torch.int64).max)
        action = rank.topk(min(self.candidates, rank.shape[1]), 1, largest=False).indices
        there = wedged.gather(1, action)
        size = item_size.flatten(1, 2).gather(1, (action // (grid_x * grid_y))[..., None].expand(-1, -1, 4))
        p, q = (size[..., :2] / self.cell).round().long().unbind(2)
        return Candidates(
            action,
            there,
            torch.minimum(action // grid_y % grid_x * step, cells_x - p).clamp_min(0),
            torch.minimum(action % grid_y * step, cells_y - q).clamp_min(0),
            p,
            q,
            torch.where(there, z_map.flatten(1).gather(1, action) / self.bin.size[2], 0.0),
            size[..., 2] / self.bin.size[2],
        )

    def numbers(self, heights: Tensor, found: Candidates) -> Tensor:
        """The nineteen features (B, M, 19) of candidates on piles (B, X, Y) in bin heights.

        Base and top of the box, top squared; volume of the hollow under it, twentieths of the bin, on five lines along
        y; x + y of its corner, share of the bin's; length of its sides at walls. Of its four sides the share that
        neighbours (or walls) cover, times the side's length: the larger along x, the larger along y, the sum of all.
        Shares of the cells around it that are as high as its top, lower than its base, higher than its top. Length of
        the sides where there is nothing beside it but something not far off. Whether it stands on the floor; by how
        much it is above all that was there; height of the steps at its sides, times their lengths; distance to the
        nearer wall along x and y; and the smaller of the best covered shares along x and y.

        Lengths are shares of the bin's side along the same axis. What is around a box is looked at in five cells along
        each side.
        """
        (cells_x, cells_y), f = self.bin.cells, found
        base = f.base
        top = f.base + f.height
        length = f.extent_x.float() / cells_x
        width = f.extent_y.float() / cells_y
        along = torch.stack([width, width, length, length], 2)  # (B, M, 4), of the sides −x, +x, −y, +y
        ring = self._around(heights, f, 1)  # (B, M, 4, S)
        low, high, tall = (each[..., None, None] for each in (base, top, f.height))
        covered = ((ring - low) / tall.clamp_min(1e-6)).clamp(0, 1).mean(3)  # (B, M, 4)
        side = covered * along
        wall = ring[..., 0] >= WALL
        open_ = ring <= low + SAME
        far = torch.stack([self._around(heights, f, cells) > low + SAME for cells in self.near]).any(0)
        inside = ring < WALL
        best = [covered[..., :2].amax(2), covered[..., 2:].amax(2)]
        numbers = [
            base,
            top,
            top * top,
            20 * self._hollow(heights, f),
            (f.x + f.y).float() / (cells_x + cells_y),
            (wall * along).sum(2),
            side[..., :2].amax(2),
            side[..., 2:].amax(2),
            side.sum(2),
            ((ring - high).abs() < FLUSH).float().mean((2, 3)),
            (ring < low - SAME).float().mean((2, 3)),
            ((ring > high + SAME) & inside).float().mean((2, 3)),
            ((open_ & far).float().mean(3) * along).sum(2),
            (base < SAME).float(),
            (top - heights.amax((1, 2))[:, None]).clamp_min(0),
            (torch.where(inside, (ring - high).abs(), 0.0).mean(3) * along).sum(2),
            torch.minimum(f.x, cells_x - f.x - f.extent_x).float() / cells_x,
            torch.minimum(f.y, cells_y - f.y - f.extent_y).float() / cells_y,
            torch.minimum(*best),
        ]
        return torch.stack(numbers, 2)

    def _along(self, found: Candidates) -> tuple[Tensor, Tensor]:
        """The cells (B, M, S) along x and along y at which the sides of boxes are looked at."""
        share = (torch.arange(SAMPLES, device=found.x.device, dtype=torch.float32) + 0.5) / SAMPLES
        x = found.x[..., None] + (found.extent_x[..., None] * share).long()
        return x, found.y[..., None] + (found.extent_y[..., None] * share).long()

    def _around(self, heights: Tensor, found: Candidates, distance: int) -> Tensor:
        """Heights (B, M, 4, S) so many cells beside the sides −x, +x, −y and +y; `WALL` outside the bin."""
        f, (x, y), (cells_x, cells_y) = found, self._along(found), self.bin.cells
        at_x = [(f.x - distance)[..., None], (f.x + f.extent_x - 1 + distance)[..., None], x, x]
        at_y = [y, y, (f.y - distance)[..., None], (f.y + f.extent_y - 1 + distance)[..., None]]
        x, y = (torch.stack([each.expand_as(x) for each in at], 2) for at in (at_x, at_y))
        outside = (x < 0) | (x >= cells_x) | (y < 0) | (y >= cells_y)
        cell = x.clamp(0, cells_x - 1) * cells_y + y.clamp(0, cells_y - 1)
        seen = heights.flatten(1).gather(1, cell.flatten(1)).view(cell.shape)
        return torch.where(outside, WALL, seen)

    def _hollow(self, heights: Tensor, found: Candidates) -> Tensor:
        """Volume (B, M) under boxes and above the pile, bin volumes, by `SAMPLES` lines along y."""
        f, (cells_x, cells_y) = found, self.bin.cells
        x, _ = self._along(found)
        sums = pad(heights.cumsum(2), (1, 0)).flatten(1)  # of each line, up to each cell
        first = (x.clamp_max(cells_x - 1) * (cells_y + 1) + f.y[..., None]).flatten(1)
        last = first + f.extent_y.clamp_max(cells_y).repeat_interleave(SAMPLES, 1)
        under = (sums.gather(1, last) - sums.gather(1, first)).view(x.shape).mean(2)
        return f.extent_x * (f.base * f.extent_y - under) / (cells_x * cells_y)


def _edge(level: Tensor, axis: int) -> Tensor:
    """True where the place before or behind along an axis is higher, or is none."""
    beyond = torch.full_like(level.narrow(axis, 0, 1), torch.inf)
    before = torch.cat([beyond, level.narrow(axis, 0, level.shape[axis] - 1)], axis)
    behind = torch.cat([level.narrow(axis, 1, level.shape[axis] - 1), beyond], axis)
    return (before > level) | (behind > level)
