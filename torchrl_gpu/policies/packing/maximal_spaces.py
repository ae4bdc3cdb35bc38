"""Heuristics by free space: corners of empty maximal spaces, and the largest space left accessible."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.packing.placements import PlacementHeuristic, Placements, first_best

_MOST_CELLS = 1024  # of a bin's floor: every rectangle of them is looked at
_COARSE_SIDE = 10  # cells a side that MACS seeks free rectangles on
# Rectangles, and elements of MACS's largest tensor, worked on at once: more leaves a core's cache.
_RECTANGLES_AT_ONCE = 1 << 17
_ELEMENTS_AT_ONCE = 1 << 20
NONE = 2.0**52  # a score behind all others


class Spaces(NamedTuple):
    """Rectangles of cells [x0, x1] × [y0, y1], and which of them are empty maximal spaces; (N, X, X, Y, Y) each."""

    level: Tensor  # the highest cell of each rectangle; −1 where x1 < x0 or y1 < y0
    maximal: Tensor  # bool, whether the space from there to the ceiling is one: no wall moves outwards


def maximal_spaces(heights: Tensor, ceiling: float) -> Spaces:
    """Empty maximal spaces, open from above, over heights (N, X, Y) ≥ 0 of a pile, equal where they count as equal."""
    x, y = (torch.arange(cells, device=heights.device, dtype=torch.int64) for cells in heights.shape[1:])
    level = heights[:, None].expand(-1, heights.shape[1], -1, -1)  # (N, x0, x, Y)
    level = torch.where((x >= x[:, None])[..., None], level, -1.0).cummax(2).values  # (N, x0, x1, Y)
    level = level[..., None, :].expand(*level.shape[:3], heights.shape[2], -1)  # (N, x0, x1, y0, y)
    rising = y >= y[:, None]
    level = torch.where(rising & (level >= 0), level, -1.0).cummax(4).values
    maximal = (level >= 0) & (level < ceiling) & rising
    for axis, step in ((1, -1), (2, 1), (3, -1), (4, 1)):  # a wall that moves outwards
        wider = level.roll(-step, axis)
        edge = wider.select(axis, 0 if step < 0 else -1)
        edge.fill_(-1.0)
        maximal &= wider != level
    return Spaces(level, maximal)


class _Corners(PlacementHeuristic):
    """Base class of heuristics that place a box into an empty maximal space, at its corner nearest to the bin's own.

    Spaces are those that are open from above. Where no such placement is legal, the deepest-bottom-left one is made,
    where the code released with Zhao et al. (ICLR 2022) ends the episode.
    """

    def __init__(self, env: PackingEnv) -> None:
        super().__init__(env)
        cells = self.bin.cells[0] * self.bin.cells[1]
        if cells > _MOST_CELLS:
            raise ValueError(f"{type(self).__name__}: want a bin of at most {_MOST_CELLS:,} cells; got {cells:,}")
        self.ceiling = round(self.bin.size[2] / self.bin.tolerance)

    @abstractmethod
    def score(self, spaces: Spaces) -> Tensor:
        """Score of each space, least in the best one, from 0 on, float64, the shape of `spaces.level`."""

    def choose(self, placements: Placements) -> Tensor:
        p = placements
        width = max(1, _RECTANGLES_AT_ONCE // (self.bin.cells[0] * self.bin.cells[1]) ** 2)
        sizes = (each.reshape(p.legal.shape[:3]).split(width) for each in (p.extent_x, p.extent_y, p.height))
        parts = [self._scores(*each) for each in zip(p.heightmap.split(width), *sizes, strict=True)]
        of_cell = torch.cat(parts)  # (N, K, O, X, Y)
        at = (p.x.clamp(0, self.bin.cells[0] - 1) * self.bin.cells[1] + p.y.clamp(0, self.bin.cells[1] - 1)).flatten(3)
        best = of_cell.flatten(3).gather(3, at).view(p.legal.shape)  # of the spaces in whose corner a placement is
        return first_best([best, p.z, p.reach], p.legal)

    def _scores(self, heightmap: Tensor, extent_x: Tensor, extent_y: Tensor, height: Tensor) -> Tensor:
        """Least score of the spaces that begin at each cell and hold the item, (N, K, O, X, Y); `NONE` for none."""
        spaces = maximal_spaces(self.levels(heightmap), self.ceiling)
        score = torch.where(spaces.maximal, self.score(spaces), NONE)
        x, y = (torch.arange(cells, device=heightmap.device, dtype=torch.int64) for cells in self.bin.cells)
        # (x0, x1), (y0, y1)
        length = x - x[:, None] + 1
        breadth = y - y[:, None] + 1
        found = []
        for k in range(height.shape[1]):
            for o in range(height.shape[2]):
                p, q, h = (each[:, k, o, None, None] for each in (extent_x, extent_y, height))
                holds = (length >= p)[..., None, None] & (breadth >= q)[:, None, None]
                holds = holds & (spaces.level + h[..., None, None] <= self.ceiling)
                found.append(torch.where(holds, score, NONE).amin((2, 4)))
        return torch.stack(found, 1).unflatten(1, height.shape[1:])


@final
class OnlineBinPacking(_Corners):
    """The first empty maximal space that holds the box, by z, then y, then x of its corner; orientations in order.

    Online BPH of Ha, Nguyen, Bui and Wang, "An online packing heuristic for the three-dimensional container loading
    problem in dynamic environments and the Physical Internet", EvoApplications 2017, doi 10.1007/978-3-319-55792-2_10.
    """

    def score(self, spaces: Spaces) -> Tensor:
        x, y = (torch.arange(cells, device=spaces.level.device, dtype=torch.int64) for cells in self.bin.cells)
        return (spaces.level * len(y) + y[:, None]) * len(x) + x[:, None, None, None]


@final
class BoundaryRule(_Corners):
    """Boundary rule: the empty maximal space that holds the box and scores best by volume and fitting item sizes.

    A space scores its volume in cells, one for each size of the catalogue that fits into it, and 10 more where all do.
    The rule "BR" that Zhao et al. (AAAI 2021) compare with, as released with Zhao et al. (ICLR 2022).
    """

    def __init__(self, env: PackingEnv) -> None:
        super().__init__(env)
        extent = self.catalogue.extent[:, 0]
        height = self.levels(self.catalogue.height[:, 0])
        self.steps = height.unique()  # (U,), the heights that there are
        x, y = (torch.arange(cells + 1, device=extent.device, dtype=torch.int64) for cells in self.bin.cells)
        fits = [
            (extent[:, 0] <= x[:, None])[:, None, None, :],
            (extent[:, 1] <= y[:, None])[:, None, :],
            height <= torch.cat([self.steps.new_full((1,), -1.0), self.steps])[:, None],
        ]
        self.fitting = (fits[0] & fits[1] & fits[2]).sum(3)  # (X + 1, Y + 1, U + 1), sizes that fit

    def score(self, spaces: Spaces) -> Tensor:
        x, y = (torch.arange(cells, device=spaces.level.device, dtype=torch.int64) for cells in self.bin.cells)
        length = (x - x[:, None] + 1).clamp_min(0)[..., None, None]
        breadth = (y - y[:, None] + 1).clamp_min(0)
        room = self.ceiling - spaces.level
        number = self.fitting[length, breadth, torch.bucketize(room, self.steps, right=True)]
        number = number + 10 * (number == self.catalogue.num_items)
        cell = min(self.bin.cell) / self.bin.tolerance
        most = self.bin.cells[0] * self.bin.cells[1] * self.ceiling + cell * (self.catalogue.num_items + 10)
        return (most - length * breadth * room - cell * number).round()


class Candidates(NamedTuple):
    """Candidate placements, deepest-bottom-left first, (N, C)."""

    action: Tensor  # int64
    legal: Tensor  # bool
    item: Tensor  # int64, catalogue row
    orientation: Tensor  # int64
    x: Tensor  # int64, cells
    y: Tensor  # int64, cells
    z: Tensor  # float32, metres


@final
class MaximalAccessibleSpace(PlacementHeuristic):
    """Most accessible space left: the sum over height levels of the largest rectangle that is open from above there.

    MACS of Hu et al., "TAP-Net: transport-and-pack using reinforcement learning", ACM TOG 39(6), 2020,
    doi 10.1145/3414685.3417796. Ties go to the deepest-bottom-left placement.

    Departs from the paper: the sum runs over all levels of the bin, where the code released with Zhao et al. (ICLR
    2022) stops at the base of the candidate; candidates are placements on the grid, not corners of empty maximal
    spaces; above 10 cells a side the rectangles are sought on the heightmap's maxima over blocks of cells.
    """

    num_candidates = 256  # most placements that are scored, the deepest-bottom-left ones

    def __init__(self, env: PackingEnv) -> None:
        super().__init__(env)
        self.block = tuple(-(-cells // _COARSE_SIDE) for cells in self.bin.cells)

    def choose(self, placements: Placements) -> Tensor:
        candidates = self._candidates(placements)
        coarse = max_pool2d(placements.heightmap[:, None], self.block, ceil_mode=True)[:, 0]  # (N, U, V)
        per_row = coarse[0].numel() + math.prod(self.catalogue.footprint)
        width = max(1, _ELEMENTS_AT_ONCE // (len(coarse) * per_row))  # candidates at once
        parts = zip(*(field.split(width, 1) for field in candidates), strict=True)
        spaces = [self._space(coarse, Candidates(*part)) for part in parts]
        space = torch.where(candidates.legal, torch.cat(spaces, 1), -1.0)
        return candidates.action.gather(1, space.argmax(1, keepdim=True)).squeeze(1)

    def _candidates(self, p: Placements) -> Candidates:
        """The legal placements by z, then x + y, then action; behind them, by action, those that are not legal."""
        num_orientations, grid_x, grid_y = p.legal.shape[2:]
        num_actions = p.legal[0].numel()
        number = torch.arange(num_actions, device=p.legal.device, dtype=torch.int64)
        rank = (p.z * sum(self.bin.cells) + p.reach).long().flatten(1) * num_actions + number
        rank = torch.where(p.legal.flatten(1), rank, torch.iinfo(torch.int64).max - num_actions + number)
        action = rank.topk(min(self.num_candidates, num_actions), largest=False, sorted=True).indices
        k = action // (num_orientations * grid_x * grid_y)

        def taken(values: Tensor) -> Tensor:
            return values.expand(p.legal.shape).flatten(1).gather(1, action)

        return Candidates(
            action=action,
            legal=taken(p.legal),
            item=p.item_id.gather(1, k),
            orientation=action // (grid_x * grid_y) % num_orientations,
            x=taken(p.x),
            y=taken(p.y),
            z=taken(p.z_map),
        )

    def _space(self, coarse: Tensor, candidates: Candidates) -> Tensor:
        """Accessible space after each candidate, (N, C) float64; `coarse` is (N, U, V) in metres."""
        after = self.levels(self._placed(coarse, candidates)).float()  # (N, C, U, V), whole numbers
        ceiling = round(self.bin.size[2] / self.bin.tolerance)
        return accessible_space(after.flatten(0, 1), ceiling).view(after.shape[:2])

    def _placed(self, coarse: Tensor, c: Candidates) -> Tensor:
        """Heightmap by blocks after each candidate, (N, C, U, V): maxima of blocks rise as their cells do."""
        shape = (*c.action.shape, *coarse.shape[1:])
        top, bottom = self.catalogue.maps(c.item, c.orientation)  # (N, C, P, Q)
        raised = torch.where(bottom.isfinite(), c.z[..., None, None] + top, 0.0).flatten(2)
        i = torch.arange(top.shape[2], device=top.device, dtype=torch.int64)
        j = torch.arange(top.shape[3], device=top.device, dtype=torch.int64)
        u = ((c.x[..., None] + i) // self.block[0]).clamp_max(shape[2] - 1)  # (N, C, P)
        v = ((c.y[..., None] + j) // self.block[1]).clamp_max(shape[3] - 1)  # (N, C, Q)
        at = (u[..., :, None] * shape[3] + v[..., None, :]).flatten(2)
        before = coarse.flatten(1)[:, None].expand(-1, shape[1], -1)
        return before.scatter_reduce(2, at, raised, "amax", include_self=True).view(shape)


def accessible_space(heights: Tensor, ceiling: float) -> Tensor:
    """Sum over levels of the area of the largest rectangle of cells that is open from above at that level.

    A w×d rectangle is open from the least, over its positions, of the highest cell in it. With the sizes in falling
    order of area a and M the least such level so far, the sum is Σ (ceiling − M)·(a − next a): no loop over levels.
    Heights are (B, U, V) float32, the result is (B,) float64, cells times their unit.
    """
    sizes = []
    opens = []
    columns = heights.permute(1, 2, 0).contiguous()  # (U, V, B): windows are slices of leading axes
    slab = columns
    for w in range(1, columns.shape[0] + 1):
        slab = columns if w == 1 else torch.maximum(slab[:-1], columns[w - 1 :])  # (U − w + 1, V, B)
        window = slab
        for d in range(1, columns.shape[1] + 1):
            window = slab if d == 1 else torch.maximum(window[:, :-1], slab[:, d - 1 :])
            sizes.append(w * d)
            opens.append(window.flatten(0, 1).amin(0))
    order = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    space = torch.zeros(heights.shape[0], dtype=torch.float64, device=heights.device)
    lowest = torch.full_like(heights[:, 0, 0], ceiling)
    for index, following in zip(order, [*order[1:], None], strict=True):
        lowest = torch.minimum(lowest, opens[index])
        step = sizes[index] - (0 if following is None else sizes[following])
        if step:
            space += (ceiling - lowest).double() * step
    return space
