"""`PatchTables`: n-tuple network values of bins, and so of every placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from torchrl_gpu.policies.packing.features import bin_of
from torchrl_gpu.policies.packing.ntuple.packed_tables import unpack_table
from torchrl_gpu.policies.packing.ntuple.sweep import sweep_bins
from torchrl_gpu.policies.packing.ntuple.values import (
    PatchPlan,
    Tables,
    learn_bins,
    level_heights,
    value_bins,
    value_placements,
)
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.weights import float32_zeros, register_settings
from torchrl_gpu.system import arguments

# Value of an illegal placement. It is finite, so that it can be drawn and averaged.
NEVER = -1e3

# Levels of a bin unless its cells are fewer than the limit.
_LEVELS = 10
_MOST_LEVELS = 16


class PatchTables(nn.Module):
    """Values of placements: the immediate gain plus the value of the bin afterwards.

    A bin's value is the utilization that is still to come, a sum over patches of neighbouring cells, see
    `ntuple.values`. Items are boxes of whole cells; other heights are rounded to whole levels. With fine cells (a
    pallet in centimetres), `pool` × `pool` of them are seen as one, as high as the highest.

    Args:
        space: Gives the bin and the grid of placements.
        patches: Shapes of patches, see `PatchPlan`.
        levels: Height of the bin in levels; None for its height in cells if that is at most 16, else 10.
        initial: Value of every bin at first: higher than can be reached, so that everything is tried.
        pool: Cells along each side of what is seen as one cell; it divides the bin's.
    """

    in_keys: ClassVar = ["box_heightmap", "item_size", "z_map", "legal_mask"]

    def __init__(
        self,
        space: AgentSpace,
        patches: Sequence[str] = ("2x2", "1x4", "2x3", "1x6"),
        levels: int | None = None,
        initial: float = 0.5,
        pool: int = 1,
    ) -> None:
        super().__init__()
        self.bin = bin_of(space)
        self.pool = arguments.whole("PatchTables", "pool", pool, 1)
        if any(cells % self.pool for cells in self.bin.cells):
            raise ValueError(f"PatchTables: pool must divide {tuple(self.bin.cells)} cells, and {self.pool} does not")
        self.seen = tuple(cells // self.pool for cells in self.bin.cells)
        if levels is None:
            cell = min(self.bin.cell) * self.pool
            cells = round(self.bin.size[2] / cell)
            levels = cells if cells <= _MOST_LEVELS else _LEVELS
        self.plan = PatchPlan(tuple(patches), levels)
        self.plan.check_fits(self.seen)
        self.num_patches = self.plan.patches(self.seen)
        initial = arguments.number("PatchTables", "initial", initial) / self.num_patches
        self.cell: Tensor
        self.weight: Tensor
        self.drift: Tensor
        self.path: Tensor
        register_settings(self, cell=self.bin.cell)
        for name, value in (("weight", initial), ("drift", 0.0), ("path", 0.0)):
            self.register_buffer(name, float32_zeros(self.plan.entries).fill_(value))
        # Made when learning begins: a policy that only acts needs none.
        self._scratch: Tensor | None = None

    def forward(self, box_heightmap: Tensor, item_size: Tensor, z_map: Tensor, legal_mask: Tensor) -> Tensor:
        """Values (…, K·O·Gx·Gy) float32 of all placements, bin volumes.

        An illegal one has the value `NEVER`.
        """
        batch = item_size.shape[:-3]
        items, turns, *grid = legal_mask.shape[-4:]
        sizes = item_size.reshape(-1, items * turns, 4)
        # Boxes are of whole cells; rounding undoes what metres have lost.
        extent = (sizes[..., :2] / self.cell).round().long()
        top = z_map + item_size[..., 2, None, None]
        top = top.reshape(-1, items * turns, *grid)
        heights = self.levels_of(box_heightmap.reshape(-1, *self.bin.cells))
        reached = level_heights(top, self.bin.size[2], self.plan.levels)
        legal = legal_mask.reshape(top.shape)
        after = value_placements(
            heights, extent, reached, legal, self.weight, self.plan, step=self.bin.step, pool=self.pool
        )
        gain = sizes[..., 3] / self.bin.volume
        values = after + gain[..., None, None]
        # Illegal placements come as −∞, which can be neither drawn from nor averaged.
        return values.clamp_min(NEVER).reshape(*batch, -1)

    def levels_of(self, heightmap: Tensor) -> Tensor:
        """Levels (…, X / pool, Y / pool) uint8 of heightmaps (…, X, Y) in metres."""
        if self.pool > 1:
            (x, y), pool = self.seen, self.pool
            blocks = heightmap.unflatten(-1, (y, pool))
            blocks = blocks.unflatten(-3, (x, pool))
            heightmap = blocks.amax((-3, -1))
        return level_heights(heightmap, self.bin.size[2], self.plan.levels)

    def values(self, levels: Tensor) -> Tensor:
        """Values (N,) float32 of bins (N, X / pool, Y / pool) uint8, in levels."""
        return value_bins(levels, self.weight, self.plan)

    @torch.no_grad()
    def learn(self, levels: Tensor, error: Tensor, counts: Tensor, rate: float) -> None:
        """Move the values of bins by about `rate` times their errors.

        Arguments are those of `learn_bins`.
        """
        tables = Tables(self.weight, self.drift, self.path)
        learn_bins(levels, error, counts, tables, self.plan, rate, self._zeros())

    def sweep(self, levels: Tensor, reward: Tensor, done: Tensor, rate: float, lam: float) -> Tensor:
        """Learn from played steps (N, T), as `sweep_bins`."""
        tables = Tables(self.weight, self.drift, self.path)
        return sweep_bins(levels, reward, done, tables, self.plan, rate=rate, lam=lam, scratch=self._zeros())

    def learned(self) -> list[Tensor]:
        """Tensors that learning changes."""
        return [self.weight, self.drift, self.path, self._zeros()]

    def unpack_state(self, where: str, prefix: str, state: Mapping[str, object]) -> dict[str, object]:
        """Undo the sparse form of checkpoints, see `packed_tables`."""
        return unpack_table(where, prefix, self.plan, state)

    def _zeros(self) -> Tensor:
        """Scratch of learning, (E, 2) int64, zeros before and after."""
        if self._scratch is None or self._scratch.device != self.weight.device:
            entries = len(self.weight)
            self._scratch = self.weight.new_zeros(entries, 2, dtype=torch.int64)
        return self._scratch

    def __getstate__(self) -> dict[str, object]:
        # Zeros between calls, which are larger than the tables themselves: a copy makes its own.
        return {**super().__getstate__(), "_scratch": None}
