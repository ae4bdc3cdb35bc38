"""Heuristics by free space.

They look for corners of empty maximal spaces, or for the largest space left accessible.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.indices import indices
from torchrl_gpu.policies.packing.placements import PlacementHeuristic, Placements, first_best

# Cells of a bin's floor: every rectangle of them is looked at.
_MOST_CELLS = 1024
# Cells along a side on which MACS looks for free rectangles.
_COARSE_SIDE = 10
# Rectangles, and elements of MACS's largest tensor, worked on at once: more leaves a core's cache.
_RECTANGLES_AT_ONCE = 1 << 17
_ELEMENTS_AT_ONCE = 1 << 20
# A score behind all others.
NONE = 2.0**52
# What the boundary rule adds for a space that all sizes fit into.
_ALL_FIT = 10


class Spaces(NamedTuple):
    """Rectangles of cells [x0, x1] × [y0, y1], and which are empty maximal spaces.

    Attributes:
        level: Highest cell of each rectangle, (N, X, X, Y, Y); −1 where x1 < x0 or y1 < y0.
        maximal: Whether the space from there to the ceiling is one, (N, X, X, Y, Y) bool: no wall can move outwards.
    """

    level: Tensor
    maximal: Tensor


def maximal_spaces(heights: Tensor, ceiling: float) -> Spaces:
    """Empty maximal spaces over a pile, open from above.

    All rectangles are looked at together, by running maxima along both axes. A space is maximal if moving any of its
    walls by one cell raises its floor.

    Args:
        heights: (N, X, Y), 0 or more, equal if they count as equal.
        ceiling: Height of the bin in the same unit.
    """
    x = indices(heights.shape[1], heights.device)
    y = indices(heights.shape[2], heights.device)
    # Running maxima along x, then along y, of rectangles that begin at every cell.
    level = heights[:, None].expand(-1, len(x), -1, -1)  # (N, X, X, Y)
    rising_x = (x >= x[:, None])[..., None]
    level = torch.where(rising_x, level, -1.0).cummax(2).values
    level = level[..., None, :]
    level = level.expand(-1, -1, -1, len(y), -1)  # (N, X, X, Y, Y)
    rising = y >= y[:, None]
    is_rectangle = rising & (level >= 0)
    level = torch.where(is_rectangle, level, -1.0).cummax(4).values
    maximal = (level >= 0) & (level < ceiling) & rising
    walls = ((1, -1), (2, 1), (3, -1), (4, 1))
    for axis, step in walls:
        # The same rectangles with one wall moved outwards by one cell.
        wider = level.roll(-step, axis)
        # `roll` brings in the other end, where a wall at the border of the bin cannot move at all.
        edge = wider.select(axis, 0 if step < 0 else -1)
        edge.fill_(-1.0)
        maximal &= wider != level
    return Spaces(level, maximal)


class _Corners(PlacementHeuristic):
    """Base class of heuristics that place a box at a corner of an empty maximal space.

    It is the corner nearest to the bin's own. Spaces are those that are open from above. If no such placement is legal,
    the deepest-bottom-left one is made; the code released with Zhao et al. (ICLR 2022) ends the episode then.
    """

    def __init__(self, env: PackingEnv) -> None:
        super().__init__(env)
        cells = self.bin.cells[0] * self.bin.cells[1]
        if cells > _MOST_CELLS:
            raise ValueError(
                f"{type(self).__name__}: a bin of {cells:,} cells is too fine: it looks at every rectangle of at most"
                f" {_MOST_CELLS:,}"
            )
        height = self.bin.size[2]
        self.ceiling = round(height / self.bin.tolerance)

    @abstractmethod
    def score(self, spaces: Spaces) -> Tensor:
        """Score of each space, 0 or more and least for the best, float64."""

    def choose(self, placements: Placements) -> Tensor:
        p = placements
        cells_x, cells_y = self.bin.cells
        # Environments at a time.
        width = max(1, _RECTANGLES_AT_ONCE // (cells_x * cells_y) ** 2)
        extent_x = p.extent_x.reshape(p.legal.shape[:3])
        extent_y = p.extent_y.reshape(p.legal.shape[:3])
        height = p.height.reshape(p.legal.shape[:3])
        parts = []
        for begin in range(0, max(1, len(height)), width):
            rows = slice(begin, begin + width)
            score = self._scores(p.heightmap[rows], extent_x[rows], extent_y[rows], height[rows])
            parts.append(score)
        of_cell = torch.cat(parts)  # (N, K, O, X, Y)
        x = p.x.clamp(0, cells_x - 1)
        y = p.y.clamp(0, cells_y - 1)
        # Best of the spaces in whose corner a placement is.
        corner = (x * cells_y + y).flatten(3)
        best = of_cell.flatten(3).gather(3, corner).view(p.legal.shape)
        return first_best([best, p.z, p.reach], p.legal)

    def _scores(self, heightmap: Tensor, extent_x: Tensor, extent_y: Tensor, height: Tensor) -> Tensor:
        """Least score of the spaces that begin at each cell and hold the item.

        Returns:
            (N, K, O, X, Y); `NONE` where there is no such space.
        """
        heights = self.levels(heightmap)
        spaces = maximal_spaces(heights, self.ceiling)
        score = torch.where(spaces.maximal, self.score(spaces), NONE)
        x, y = self._cells(heightmap.device)
        # Sides of the rectangles, (X, X) and (Y, Y).
        length = x - x[:, None] + 1
        breadth = y - y[:, None] + 1
        found = []
        num_items, num_turns = height.shape[1:]
        # One item and turn at a time, as the rectangles of these environments alone are what a core's cache holds.
        for k, o in itertools.product(range(num_items), range(num_turns)):
            p = extent_x[:, k, o, None, None]
            q = extent_y[:, k, o, None, None]
            h = height[:, k, o, None, None]
            is_long = (length >= p)[..., None, None]
            is_broad = (breadth >= q)[:, None, None]
            is_low = spaces.level + h[..., None, None] <= self.ceiling
            holds = is_long & is_broad & is_low
            found.append(torch.where(holds, score, NONE).amin((2, 4)))
        return torch.stack(found, 1).unflatten(1, height.shape[1:])

    def _cells(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Numbers of the cells along x and along y, int64."""
        x = indices(self.bin.cells[0], device)
        y = indices(self.bin.cells[1], device)
        return x, y


@final
class OnlineBinPacking(_Corners):
    """The first empty maximal space that holds the box, in the order of its corner.

    Corners are ordered by z, then y, then x; orientations keep their order. Online BPH of Ha, Nguyen, Bui and Wang, "An
    online packing heuristic for the three-dimensional container loading problem in dynamic environments and the
    Physical Internet", EvoApplications 2017, doi 10.1007/978-3-319-55792-2_10.
    """

    def score(self, spaces: Spaces) -> Tensor:
        x, y = self._cells(spaces.level.device)
        rows = spaces.level * len(y) + y[:, None]
        return rows * len(x) + x[:, None, None, None]


@final
class BoundaryRule(_Corners):
    """Boundary rule: the best empty maximal space by volume and fitting item sizes.

    A space scores its volume in cells, one for each size of the catalogue that fits into it, and 10 more if all fit.
    The rule "BR" that Zhao et al. (AAAI 2021) compare with, as released with Zhao et al. (ICLR 2022).
    """

    def __init__(self, env: PackingEnv) -> None:
        super().__init__(env)
        extent = self.catalogue.extent[:, 0]
        height = self.levels(self.catalogue.height[:, 0])
        # The different heights of items, (U,).
        self.steps = height.unique()
        x = indices(self.bin.cells[0] + 1, extent.device)
        y = indices(self.bin.cells[1] + 1, extent.device)
        # Room below the lowest item, in which none fits, and room for the items of each height.
        none = self.steps.new_full((1,), -1.0)
        room = torch.cat([none, self.steps])
        fits_x = extent[:, 0] <= x[:, None]
        fits_y = extent[:, 1] <= y[:, None]
        fits_z = height <= room[:, None]
        # Number of sizes that fit into each space, (X + 1, Y + 1, U + 1).
        fits_floor = fits_x[:, None] & fits_y
        fits = fits_floor[:, :, None] & fits_z
        self.fitting = fits.sum(3)

    def score(self, spaces: Spaces) -> Tensor:
        x, y = self._cells(spaces.level.device)
        length = (x - x[:, None] + 1).clamp_min(0)
        length = length[..., None, None]
        breadth = (y - y[:, None] + 1).clamp_min(0)
        room = self.ceiling - spaces.level
        step = torch.bucketize(room, self.steps, right=True)
        number = self.fitting[length, breadth, step]
        number = number + _ALL_FIT * (number == self.catalogue.num_items)
        cell = min(self.bin.cell) / self.bin.tolerance
        cells_x, cells_y = self.bin.cells
        largest = cells_x * cells_y * self.ceiling
        most = largest + cell * (self.catalogue.num_items + _ALL_FIT)
        volume = length * breadth * room
        return (most - volume - cell * number).round()


class Candidates(NamedTuple):
    """Candidate placements, deepest-bottom-left first, (N, C).

    Attributes:
        action: int64.
        legal: bool.
        item: Catalogue row, int64.
        orientation: int64.
        x, y: First cell, int64.
        z: Base, metres, float32.
    """

    action: Tensor
    legal: Tensor
    item: Tensor
    orientation: Tensor
    x: Tensor
    y: Tensor
    z: Tensor


@final
class MaximalAccessibleSpace(PlacementHeuristic):
    """Most accessible space left: largest open rectangles, summed over height levels.

    MACS of Hu et al., "TAP-Net: transport-and-pack using reinforcement learning", ACM TOG 39(6), 2020,
    doi 10.1145/3414685.3417796. Ties go to the deepest-bottom-left placement.

    Departs from the paper: the sum runs over all levels of the bin, where the code released with Zhao et al. (ICLR
    2022) stops at the base of the candidate; candidates are placements on the grid, not corners of empty maximal
    spaces; above 10 cells a side the rectangles are sought on the heightmap's maxima over blocks of cells.

    Attributes:
        num_candidates: Most placements that are scored, the deepest-bottom-left ones.
    """

    num_candidates = 256

    def __init__(self, env: PackingEnv) -> None:
        super().__init__(env)
        self.block = tuple(-(-cells // _COARSE_SIDE) for cells in self.bin.cells)

    def choose(self, placements: Placements) -> Tensor:
        candidates = self._candidates(placements)
        heightmap = placements.heightmap[:, None]
        coarse = max_pool2d(heightmap, self.block, ceil_mode=True)[:, 0]  # (N, U, V)
        per_row = coarse[0].numel() + math.prod(self.catalogue.footprint)
        # Candidates that are worked on at once.
        width = max(1, _ELEMENTS_AT_ONCE // (len(coarse) * per_row))
        fields = [field.split(width, 1) for field in candidates]
        parts = [Candidates(*part) for part in zip(*fields, strict=True)]
        spaces = [self._space(coarse, part) for part in parts]
        space = torch.where(candidates.legal, torch.cat(spaces, 1), -1.0)
        return candidates.action.gather(1, space.argmax(1, keepdim=True)).squeeze(1)

    def _candidates(self, p: Placements) -> Candidates:
        """Legal placements by z, then x + y, then action, and the others behind them."""
        num_orientations, grid_x, grid_y = p.legal.shape[2:]
        num_actions = p.legal[0].numel()
        number = indices(num_actions, p.legal.device)
        # `topk` takes one key, so that depth and number are one integer, of which no two are equal.
        depth = p.z * sum(self.bin.cells) + p.reach
        depth = depth.long().flatten(1)
        behind = torch.iinfo(torch.int64).max - num_actions + number
        ahead = depth * num_actions + number
        # Legal placements by depth, the others behind all of them.
        rank = torch.where(p.legal.flatten(1), ahead, behind)
        action = rank.topk(min(self.num_candidates, num_actions), largest=False, sorted=True).indices
        k = action // (num_orientations * grid_x * grid_y)

        def take(values: Tensor) -> Tensor:
            return values.expand(p.legal.shape).flatten(1).gather(1, action)

        item = p.item_id.gather(1, k)
        orientation = action // (grid_x * grid_y) % num_orientations
        legal = take(p.legal)
        x = take(p.x)
        y = take(p.y)
        return Candidates(action, legal, item, orientation, x, y, take(p.z_map))

    def _space(self, coarse: Tensor, candidates: Candidates) -> Tensor:
        """Accessible space after each candidate, (N, C) float64.

        `coarse` is (N, U, V), metres.
        """
        # Whole numbers, (N, C, U, V).
        after = self.levels(self._place(coarse, candidates)).float()
        ceiling = round(self.bin.size[2] / self.bin.tolerance)
        return accessible_space(after.flatten(0, 1), ceiling).view(after.shape[:2])

    def _place(self, coarse: Tensor, c: Candidates) -> Tensor:
        """Heightmap by blocks after each candidate, (N, C, U, V).

        The maximum of a block rises as its cells do.
        """
        shape = (*c.action.shape, *coarse.shape[1:])
        top, bottom = self.catalogue.maps(c.item, c.orientation)  # (N, C, P, Q)
        raised = c.z[..., None, None] + top
        raised = torch.where(bottom.isfinite(), raised, 0.0).flatten(2)
        i = indices(top.shape[2], top.device)
        j = indices(top.shape[3], top.device)
        num_x, num_y = coarse.shape[1:]
        block_x, block_y = self.block
        u = (c.x[..., None] + i) // block_x
        u = u.clamp_max(num_x - 1)  # (N, C, P)
        v = (c.y[..., None] + j) // block_y
        v = v.clamp_max(num_y - 1)  # (N, C, Q)
        row = u[..., :, None] * num_y
        block = row + v[..., None, :]
        block = block.flatten(2)
        before = coarse.flatten(1)[:, None]
        before = before.expand(-1, shape[1], -1)
        return before.scatter_reduce(2, block, raised, "amax", include_self=True).view(shape)


def accessible_space(heights: Tensor, ceiling: float) -> Tensor:
    """Sum over levels of the area of the largest rectangle that is open there.

    A w×d rectangle is open from the least, over its positions, of the highest cell in it. With the sizes in falling
    order of area a and M the least such level so far, the sum is Σ (ceiling − M)·(a − next a). So there is no loop over
    levels, which may be thousands.

    Args:
        heights: (B, U, V) float32.
        ceiling: Height of the bin in the same unit.

    Returns:
        (B,) float64, cells times the unit of heights.
    """
    sizes = []
    opens = []
    # Batch last, so that windows are slices of leading axes.
    columns = heights.permute(1, 2, 0).contiguous()
    slab = columns
    for w in range(1, columns.shape[0] + 1):
        # The highest cell of each w columns, from that of w − 1 columns.
        if w > 1:
            slab = torch.maximum(slab[:-1], columns[w - 1 :])
        window = slab
        for d in range(1, columns.shape[1] + 1):
            if d == 1:
                window = slab
            else:
                window = torch.maximum(window[:, :-1], slab[:, d - 1 :])
            sizes.append(w * d)
            opens.append(window.flatten(0, 1).amin(0))
    order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    next_sizes = [*(sizes[index] for index in order[1:]), 0]
    rows = heights.shape[0]
    space = torch.zeros(rows, dtype=torch.float64, device=heights.device)
    lowest = torch.full_like(heights[:, 0, 0], ceiling)
    for index, next_size in zip(order, next_sizes, strict=True):
        lowest = torch.minimum(lowest, opens[index])
        step = sizes[index] - next_size
        # Of sizes of one area the last alone counts: only then is the least level of all of them known.
        if step:
            space += (ceiling - lowest).double() * step
    return space
