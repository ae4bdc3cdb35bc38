"""Linear values of box placements: a weighted sum of a few scale-free features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from torchrl_gpu.policies.indices import indices
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
# Height that a wall counts as, bin heights: above whatever a bin may hold.
WALL = 2.0
# Cells looked at along each side of a box, and lines under it.
SAMPLES = 5
# Distances from a box at which something closes a gap, shares of the bin's longer side.
NEAR = (0.05, 0.0917)
# Tops closer than this are even, bin heights.
FLUSH = 4e-3
# Heights closer than this are the same but for rounding, bin heights.
SAME = 1e-4
# Factor that brings the volume of a hollow to the size of other features.
_HOLLOW = 20


class Candidates(NamedTuple):
    """Candidate placements, (B, M) each.

    Unused slots have `there` false and 0 or more elsewhere.

    Attributes:
        action: int64.
        there: bool.
        x, y: First cell, int64.
        extent_x, extent_y: Cells, int64.
        base: Height of the base, bin heights, float32.
        height: Height of the box, bin heights, float32.
    """

    action: Tensor
    there: Tensor
    x: Tensor
    y: Tensor
    extent_x: Tensor
    extent_y: Tensor
    base: Tensor
    height: Tensor


@final
class LinearPlacementValues(nn.Module):
    """Linear values of box placements: nineteen features of the box and the pile.

    They are comparable only between placements of one box on one pile. Features are shares of the bin's sides, so that
    weights fit bins of other sizes.

    Only wedged placements are valued: moved by one place of the grid, one way or the other along x, and one way or the
    other along y, they would not be legal or would rest higher. If anything is legal, one such placement is. If there
    are more than `candidates`, the lowest count, then those nearest to the corner of the bin.

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
        # Cells.
        longest = max(self.bin.cells)
        self.near = [max(1, round(share * longest)) for share in NEAR]
        self.cell: Tensor
        self.weight: Tensor
        register_settings(self, cell=self.bin.cell)
        self.register_buffer("weight", named_weights(where, NAMES, weights))

    def forward(self, box_heightmap: Tensor, item_size: Tensor, z_map: Tensor, legal_mask: Tensor) -> Tensor:
        """Values (…, K·O·Gx·Gy) float32 of all placements.

        One that is not legal or no candidate has the value `NEVER`.
        """
        batch = item_size.shape[:-3]
        maps = legal_mask.shape[-4:]
        heights = box_heightmap.reshape(-1, *self.bin.cells)
        heights = heights / self.bin.size[2]
        z_map = z_map.reshape(-1, *maps)
        legal = legal_mask.reshape(-1, *maps)
        sizes = item_size.reshape(-1, *item_size.shape[-3:])
        # Only candidates are valued.
        found = self.find(sizes, z_map, legal)
        # Not a product of matrices, whose sums depend on the batch.
        value = (self.numbers(heights, found) * self.weight).sum(2)
        # Whatever the weights, a candidate goes before a placement that is none.
        value = torch.where(found.there, value.clamp_min(NEVER / 2), NEVER)
        values = torch.full_like(z_map.flatten(1), NEVER)
        return values.scatter(1, found.action, value).view(*batch, -1)

    def find(self, item_size: Tensor, z_map: Tensor, legal: Tensor) -> Candidates:
        """Candidates among the placements of items (B, K, O, 4) on maps (B, K, O, Gx, Gy)."""
        cells_x, cells_y = self.bin.cells
        grid_x, grid_y = z_map.shape[3:]
        level = (z_map / self.bin.tolerance).round()
        level = torch.where(legal, level, torch.inf)
        wedged = legal & _edge(level, 3) & _edge(level, 4)
        wedged = wedged.flatten(1)
        place = indices(grid_x * grid_y, z_map.device)
        reach = place // grid_y + place % grid_y
        variants = z_map.shape[1:3]
        reach = reach.expand(*variants, -1).flatten()
        # Ranks by level, then by distance from the corner, then by number: no two are equal.
        rank = torch.where(wedged, level.flatten(1), 0.0).long()
        rank = rank * (grid_x + grid_y) + reach
        number = indices(wedged.shape[1], z_map.device)
        rank = rank * wedged.shape[1] + number
        rank = torch.where(wedged, rank, torch.iinfo(torch.int64).max)
        num_candidates = min(self.candidates, rank.shape[1])
        action = rank.topk(num_candidates, 1, largest=False).indices
        there = wedged.gather(1, action)
        variant = action // (grid_x * grid_y)
        variant = variant[..., None].expand(-1, -1, 4)
        size = item_size.flatten(1, 2).gather(1, variant)
        extent = (size[..., :2] / self.cell).round().long()
        p, q = extent.unbind(2)
        at_x = action // grid_y % grid_x
        at_y = action % grid_y
        x = torch.minimum(at_x * self.bin.step, cells_x - p)
        y = torch.minimum(at_y * self.bin.step, cells_y - q)
        rests_at = z_map.flatten(1).gather(1, action)
        base = rests_at / self.bin.size[2]
        # The item of an unused slot may be longer than the bin, and its place is looked at like any other.
        x = x.clamp_min(0)
        y = y.clamp_min(0)
        base = torch.where(there, base, 0.0)
        height = size[..., 2] / self.bin.size[2]
        return Candidates(action, there, x, y, p, q, base, height)

    def numbers(self, heights: Tensor, found: Candidates) -> Tensor:
        """Nineteen features (B, M, 19) of candidates on piles (B, X, Y) in bin heights.

        In the order of `NAMES`: base and top of the box, top squared; volume of the hollow under it, twentieths of the
        bin, on five lines along y; x + y of its corner, share of the bin's; length of its sides at walls. Of its four
        sides the share that neighbours (or walls) cover, times the side's length: the larger along x, the larger along
        y, the sum of all. Shares of the cells around it that are as high as its top, lower than its base, higher than
        its top. Length of the sides with a gap: nothing next to the box, but something a little further away. Whether
        it stands on the floor; how far it rises above the highest cell; height of the steps at its sides, times their
        lengths; distance to the nearer wall along x and y; and the smaller of the best covered shares along x and y.

        Lengths are shares of the bin's side along the same axis. Five cells are looked at along each side of a box.
        """
        cells_x, cells_y = self.bin.cells
        f = found
        base = f.base
        top = f.base + f.height
        length = f.extent_x.float() / cells_x
        width = f.extent_y.float() / cells_y
        # Lengths of the sides −x, +x, −y, +y, (B, M, 4), and heights next to them, (B, M, 4, S).
        along = torch.stack([width, width, length, length], 2)
        ring = self._around(heights, f, 1)
        low = base[..., None, None]
        high = top[..., None, None]
        tall = f.height[..., None, None]
        # The item of an unused slot has no height to divide by.
        covered = (ring - low) / tall.clamp_min(1e-6)
        covered = covered.clamp(0, 1).mean(3)  # (B, M, 4)
        covered_x = covered[..., :2].amax(2)
        covered_y = covered[..., 2:].amax(2)
        side = covered * along
        is_wall = ring[..., 0] >= WALL
        is_inside = ring < WALL
        is_open = ring <= low + SAME
        floor = low + SAME
        beyond = [self._around(heights, f, cells) for cells in self.near]
        is_closed = [each > floor for each in beyond]
        has_gap = is_open & torch.stack(is_closed).any(0)
        is_higher = (ring > high + SAME) & is_inside
        steps = torch.where(is_inside, (ring - high).abs(), 0.0)
        behind_x = cells_x - f.x - f.extent_x
        behind_y = cells_y - f.y - f.extent_y
        edge_x = torch.minimum(f.x, behind_x)
        edge_y = torch.minimum(f.y, behind_y)
        hollow = self._hollow(heights, f)
        corner = (f.x + f.y).float() / (cells_x + cells_y)
        at_walls = (is_wall * along).sum(2)
        side_x = side[..., :2].amax(2)
        side_y = side[..., 2:].amax(2)
        is_flush = (ring - high).abs() < FLUSH
        is_lower = ring < low - SAME
        kinds = (is_flush, is_lower, is_higher)
        around = [each.float().mean((2, 3)) for each in kinds]
        gaps = (has_gap.float().mean(3) * along).sum(2)
        highest = heights.amax((1, 2))[:, None]
        rise = (top - highest).clamp_min(0)
        step = (steps.mean(3) * along).sum(2)
        # In the order of `NAMES`.
        shape = [base, top, top * top, _HOLLOW * hollow]
        contact = [corner, at_walls, side_x, side_y, side.sum(2)]
        pile = [*around, gaps, (base < SAME).float(), rise, step]
        edges = [edge_x.float() / cells_x, edge_y.float() / cells_y]
        wedged = torch.minimum(covered_x, covered_y)
        numbers = [*shape, *contact, *pile, *edges, wedged]
        return torch.stack(numbers, 2)

    def _along(self, found: Candidates) -> tuple[Tensor, Tensor]:
        """Cells (B, M, S) along x and along y at which the sides of boxes are looked at."""
        number = torch.arange(SAMPLES, device=found.x.device, dtype=torch.float32)
        share = (number + 0.5) / SAMPLES
        within_x = (found.extent_x[..., None] * share).long()
        within_y = (found.extent_y[..., None] * share).long()
        x = found.x[..., None] + within_x
        y = found.y[..., None] + within_y
        return x, y

    def _around(self, heights: Tensor, found: Candidates, distance: int) -> Tensor:
        """Heights (B, M, 4, S) `distance` cells away from the sides −x, +x, −y and +y.

        Outside the bin it is `WALL`.
        """
        f = found
        cells_x, cells_y = self.bin.cells
        along_x, along_y = self._along(found)
        before_x = (f.x - distance)[..., None].expand_as(along_x)
        behind_x = f.x + f.extent_x - 1 + distance
        behind_x = behind_x[..., None].expand_as(along_x)
        before_y = (f.y - distance)[..., None].expand_as(along_y)
        behind_y = f.y + f.extent_y - 1 + distance
        behind_y = behind_y[..., None].expand_as(along_y)
        x = torch.stack([before_x, behind_x, along_x, along_x], 2)
        y = torch.stack([along_y, along_y, before_y, behind_y], 2)
        outside_x = (x < 0) | (x >= cells_x)
        outside = outside_x | (y < 0) | (y >= cells_y)
        row = x.clamp(0, cells_x - 1)
        cell = row * cells_y + y.clamp(0, cells_y - 1)
        seen = heights.flatten(1).gather(1, cell.flatten(1))
        seen = seen.view(cell.shape)
        return torch.where(outside, WALL, seen)

    def _hollow(self, heights: Tensor, found: Candidates) -> Tensor:
        """Volume (B, M) under boxes and above the pile, bin volumes.

        It is estimated on `SAMPLES` lines along y. Running sums give what lies under a line in two look-ups, however
        long the line is.
        """
        f = found
        cells_x, cells_y = self.bin.cells
        x, _ = self._along(found)
        # Sums up to each cell of a line: what lies under a box is the difference of two of them.
        sums = pad(heights.cumsum(2), (1, 0)).flatten(1)
        row = x.clamp_max(cells_x - 1) * (cells_y + 1)
        first = (row + f.y[..., None]).flatten(1)
        last = first + f.extent_y.clamp_max(cells_y).repeat_interleave(SAMPLES, 1)
        under = sums.gather(1, last) - sums.gather(1, first)
        under = under.view(x.shape).mean(2)
        hollow = f.base * f.extent_y - under
        return f.extent_x * hollow / (cells_x * cells_y)


def _edge(level: Tensor, axis: int) -> Tensor:
    """Whether the place before or behind along an axis is higher, or does not exist."""
    beyond = torch.full_like(level.narrow(axis, 0, 1), torch.inf)
    number = level.shape[axis] - 1
    before = torch.cat([beyond, level.narrow(axis, 0, number)], axis)
    behind = torch.cat([level.narrow(axis, 1, number), beyond], axis)
    return (before > level) | (behind > level)
