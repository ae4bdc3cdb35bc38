"""Bins after placements, and values of the placements of given items in them, for look-ahead planners."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.stability.rule import Pile
from torchrl_gpu.envs.packing.types import height_rules
from torchrl_gpu.policies.packing.ntuple.tables import PatchTables
from torchrl_gpu.policies.packing.placements import placed_at


class Afterstates:
    """Simulates placements in bins outside of an environment, and values them by tables.

    Actions are those of one item: numbers from 0 to below A = O·Gx·Gy. Bins are (B, X, Y) float32, metres.

    Args:
        env: Gives items, bin, rules and kernels; nothing of its state.
        tables: Of the same bin.
        where: The planner, for errors.

    Raises:
        ValueError: The stability rule reads more of a bin than its heightmap.
    """

    def __init__(self, env: PackingEnv, tables: PatchTables, where: str) -> None:
        if env.stability not in height_rules():
            known = ", ".join(height_rules())
            raise ValueError(
                f"{where}: stability {env.stability} needs to know which cells bear load, which a look-ahead does not"
                f" follow; plan in an environment of stability {known}, or use the policy without a planner"
            )
        self._fallback = env.fallback
        self.catalogue, self.bin, self.kernels, self.tables = env.catalogue, env.bin, env.kernels, tables
        self.turns, self.grid, self._sizes = env.num_orientations, env.grid, env.item_sizes
        self.num_actions = self.turns * math.prod(self.grid)

    def gain(self, item: Tensor) -> Tensor:
        """Share of the bin that each item (…) int64 fills; 0 for none, −1."""
        return torch.where(item >= 0, self.catalogue.volume[item.clamp_min(0)] / self.bin.volume, 0.0)

    def values(self, heightmap: Tensor, item: Tensor, *, side_by_side: bool = False) -> tuple[Tensor, Tensor]:
        """Values of the placements of items (B, J), each by itself, and the heights at which they come to rest.

        With a `fallback` an item that has no stable placement may stand by that rule; if the items are visible
        `side_by_side`, only where none of them has one. Values are gain plus bin afterwards, (B, J, A) float32 in bin
        volumes, `NEVER` where one is not legal or the item is −1; heights are (B, J, A) float32, metres.
        """
        z_map, legal = self.kernels.maps(
            Pile(heightmap), item, self.catalogue, self.bin, fallback=self._fallback, each_alone=not side_by_side
        )
        values = self.tables(heightmap, self._sizes[item.clamp_min(0)], z_map, legal)
        return values.view(*item.shape, -1), z_map.flatten(2)

    def after(self, heightmap: Tensor, item: Tensor, action: Tensor, z: Tensor) -> Tensor:
        """Bins (B, X, Y) after one placement in each, at base `z` (B,), metres; an item of −1 places nothing."""
        per_turn = math.prod(self.grid)
        turn, place = action // per_turn % self.turns, action % per_turn
        placement = placed_at(item, turn, place, z, self.catalogue, self.bin)
        return self.kernels.place(heightmap, placement, self.catalogue, self.bin)
