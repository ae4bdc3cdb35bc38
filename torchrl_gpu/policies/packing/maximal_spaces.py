"""Heuristics over the corners of empty maximal spaces: the online packing heuristic, and the boundary rule."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple, final

import torch
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.packing.placements import PlacementHeuristic, Placements, first_best

_MOST_CELLS = 1024  # of a bin's floor: every rectangle of them is looked at
_CHUNK = 1 << 17  # rectangles worked on at once: more leaves a core's cache
NONE = 2.0**52  # a score behind all others


class Spaces(NamedTuple):
    """Rectangles of cells [x0, x1] × [y0, y1], and which of them are empty maximal spaces.

    Attributes:
        level: (N, X, X, Y, Y) by x0, x1, y0, y1: the highest cell of each rectangle; −1 where x1 < x0 or y1 < y0.
        maximal: (N, X, X, Y, Y) bool, whether the space from there to the ceiling is one: no wall moves outwards.
    """

    level: Tensor
    maximal: Tensor


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
        return first_best([self.best(placements), placements.z, placements.reach], placements.legal)

    def best(self, placements: Placements) -> Tensor:
        """Least score of the spaces in whose corner a placement is, (N, K, O, Gx, Gy); `NONE` where there is none."""
        p = placements
        width = max(1, _CHUNK // (self.bin.cells[0] * self.bin.cells[1]) ** 2)
        sizes = (each.reshape(p.legal.shape[:3]).split(width) for each in (p.extent_x, p.extent_y, p.height))
        parts = [self._scores(*each) for each in zip(p.heightmap.split(width), *sizes, strict=True)]
        of_cell = torch.cat(parts)  # (N, K, O, X, Y)
        at = (p.x.clamp(0, self.bin.cells[0] - 1) * self.bin.cells[1] + p.y.clamp(0, self.bin.cells[1] - 1)).flatten(3)
        return of_cell.flatten(3).gather(3, at).view(p.legal.shape)

    def _scores(self, heightmap: Tensor, extent_x: Tensor, extent_y: Tensor, height: Tensor) -> Tensor:
        """Least score of the spaces that begin at each cell and hold the item, (N, K, O, X, Y); `NONE` for none."""
        spaces = maximal_spaces(self.levels(heightmap), self.ceiling)
        score = torch.where(spaces.maximal, self.score(spaces), NONE)
        x, y = (torch.arange(cells, device=heightmap.device, dtype=torch.int64) for cells in self.bin.cells)
        length, breadth = x - x[:, None] + 1, y - y[:, None] + 1  # (x0, x1), (y0, y1)
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
        """Score of a space: base, y and x of its corner, as the digits of a number."""
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
        extent, height = self.catalogue.extent[:, 0], self.levels(self.catalogue.height[:, 0])
        self.steps = height.unique()  # (U,), the heights that there are
        x, y = (torch.arange(cells + 1, device=extent.device, dtype=torch.int64) for cells in self.bin.cells)
        fits = [
            (extent[:, 0] <= x[:, None])[:, None, None, :],
            (extent[:, 1] <= y[:, None])[:, None, :],
            height <= torch.cat([self.steps.new_full((1,), -1.0), self.steps])[:, None],
        ]
        self.fitting = (fits[0] & fits[1] & fits[2]).sum(3)  # (X + 1, Y + 1, U + 1), sizes that fit

    def score(self, spaces: Spaces) -> Tensor:
        """Score of a space: its shortfall from the largest score possible."""
        x, y = (torch.arange(cells, device=spaces.level.device, dtype=torch.int64) for cells in self.bin.cells)
        length = (x - x[:, None] + 1).clamp_min(0)[..., None, None]
        breadth = (y - y[:, None] + 1).clamp_min(0)
        room = self.ceiling - spaces.level
        number = self.fitting[length, breadth, torch.bucketize(room, self.steps, right=True)]
        number = number + 10 * (number == self.catalogue.num_items)
        cell = min(self.bin.cell) / self.bin.tolerance
        most = self.bin.cells[0] * self.bin.cells[1] * self.ceiling + cell * (self.catalogue.num_items + 10)
        return (most - length * breadth * room - cell * number).round()
