"""Bins after placements and values of placements, for look-ahead planners."""

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
    """Placements in bins outside of an environment, valued by tables.

    Actions are those of one item: numbers from 0 to below A = O·Gx·Gy. Bins are (B, X, Y) float32, metres.

    Args:
        env: Gives items, bin, rules and kernels; nothing of its state.
        tables: Trained for the same bin.
        where: Name of the planner, for errors.

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
        # The rule that counts for items that have no stable placement.
        self._fallback = env.fallback
        self.catalogue = env.catalogue
        self.bin = env.bin
        self.kernels = env.kernels
        self.tables = tables
        self.turns = env.num_orientations
        self.grid = env.grid
        self._sizes = env.item_sizes
        self.num_actions = self.turns * math.prod(self.grid)

    def gain(self, item: Tensor) -> Tensor:
        """Share of the bin that each item (…) int64 fills, 0 for none (−1)."""
        volume = self.catalogue.volume[item.clamp_min(0)]
        share = volume / self.bin.volume
        return torch.where(item >= 0, share, 0.0)

    def values(self, heightmap: Tensor, item: Tensor, *, side_by_side: bool = False) -> tuple[Tensor, Tensor]:
        """Values of the placements of items (B, J), each by itself, and resting heights.

        With a `fallback` an item that has no stable placement may stand by that rule; if the items are visible
        `side_by_side`, only if none of them has one.

        Returns:
            Values, gain plus bin afterwards, (B, J, A) float32 in bin volumes, `NEVER` for placements that are not
            legal and for an item of −1; resting heights, (B, J, A) float32, metres.
        """
        z_map, legal = self.kernels.maps(
            Pile(heightmap), item, self.catalogue, self.bin, fallback=self._fallback, each_alone=not side_by_side
        )
        # An item of −1 reads the size of another, and has no legal placement.
        sizes = self._sizes[item.clamp_min(0)]
        values = self.tables(heightmap, sizes, z_map, legal)
        return values.view(*item.shape, -1), z_map.flatten(2)

    def after(self, heightmap: Tensor, item: Tensor, action: Tensor, z: Tensor) -> Tensor:
        """Bins (B, X, Y) after one placement in each.

        Args:
            heightmap: Bins before, (B, X, Y), metres.
            item: (B,) int64; −1 places nothing.
            action: (B,) int64.
            z: Base, (B,), metres.
        """
        per_turn = math.prod(self.grid)
        turn = action // per_turn % self.turns
        place = action % per_turn
        placement = placed_at(item, turn, place, z, self.catalogue, self.bin)
        return self.kernels.place(heightmap, placement, self.catalogue, self.bin)
