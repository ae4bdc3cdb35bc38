"""Heightmap cells under every placement, one footprint cell at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad


class GridWindows:
    """Views of `heightmap[x + i, y + j]` for all placements of all variants at once.

    A window that leaves the bin reads arbitrary cells; such placements do not fit.

    Args:
        heightmap: Metres, (N, X, Y) float32.
        x, y: First cells of the placements, (N, J, Gx) and (N, J, Gy) int64.
        step: Cells between placements; with 1 there is one on every cell, and a window is a contiguous view.
        footprint: Rows and columns that windows have, P and Q.
    """

    def __init__(self, heightmap: Tensor, x: Tensor, y: Tensor, step: int, footprint: tuple[int, int]) -> None:
        self.step = step
        self.footprint = footprint
        self.grid = x.shape[-1], y.shape[-1]
        self.x = x
        self.y = y
        self.heightmap = heightmap
        if step == 1:
            # Cells are numbered through all variants, so that a shift is a step in memory.
            repeated = heightmap[:, None].expand(-1, x.shape[1], -1, -1)
            furthest = (footprint[0] - 1) * heightmap.shape[2] + footprint[1] - 1
            self._cells = pad(repeated.reshape(-1), (0, furthest))
        self._row: tuple[int, Tensor] | None = None

    def offsets(self) -> Iterator[tuple[int, int]]:
        """Yield every (i, j) of the footprint, row by row."""
        return itertools.product(range(self.footprint[0]), range(self.footprint[1]))

    def cells(self, i: int, j: int) -> Tensor:
        """Return the heights under footprint cell (i, j), (N, J, Gx, Gy)."""
        if self.step == 1:
            first = i * self.grid[1] + j
            shape = (*self.x.shape[:2], *self.grid)
            return self._cells[first : first + math.prod(shape)].view(shape)
        row = self._rows(i)
        column = (self.y + j).clamp_max(self.heightmap.shape[2] - 1)
        return row.gather(-1, column[:, :, None].expand(*row.shape[:-1], self.grid[1]))

    def _rows(self, i: int) -> Tensor:
        """Return the rows of the heightmap under row i of the footprints, (N, J, Gx, Y).

        Those of the last i are kept.
        """
        if self._row is None or self._row[0] != i:
            num_envs, cells_x, cells_y = self.heightmap.shape
            base = torch.arange(num_envs, device=self.x.device, dtype=torch.int64)[:, None, None] * cells_x
            at = base + (self.x + i).clamp_max(cells_x - 1)
            rows = self.heightmap.reshape(-1, cells_y).index_select(0, at.flatten())
            self._row = i, rows.view(*self.x.shape, cells_y)
        return self._row[1]
