"""What bins are worth by tables and a small convolutional network, and so what every placement is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from torchrl_gpu import arguments
from torchrl_gpu.envs.packing.geometry import grid_positions
from torchrl_gpu.envs.packing.kernels.afterstates import level_heights
from torchrl_gpu.policies.packing.features import bin_of
from torchrl_gpu.policies.packing.next_items import NextItems
from torchrl_gpu.policies.packing.patch_tables import NEVER, PatchTables
from torchrl_gpu.policies.spaces import AgentSpace

_MOST_CHANNELS, _MOST_LAYERS, _HIDDEN = 1024, 32, 64
_SAME = 1e-5  # bin volumes: values closer than this are about equal
_MANY = 32  # items that count as 1


class ConvValues(nn.Module):  # not final: jsonargparse reads a final class as one of plain data
    """Values of placements: those of tables, and for the best of them what a convolutional network adds.

    A bin's value is the utilization that is still to come: a sum of table entries (`PatchTables`) and a number by a
    small network. That sees the whole bin, how many items are in it and, where items are cut from one bin, how likely
    each comes next (`NextItems`). Tables propose, the network decides: it looks at the `candidates` placements that
    tables value most; without tables at all. Learned by `ConvAfterstateLearning`, which leaves tables as they are.

    Args:
        space: Gives the bin and the grid of placements.
        patches: Shapes of patches, see `PatchPlan`; none for the network alone.
        levels: Levels that a bin is high; as in `PatchTables`.
        channels: Of each layer of the network.
        layers: Convolutions of 3×3 cells.
        candidates: Placements that the network looks at; None for all.
        foretold: Items of the catalogue where the network sees how likely each comes next; 0 where it does not. With
            one visible item; the environment includes `packed_items`.

    Raises:
        ValueError: A number is out of range, or several items are visible where the next one is foretold.
    """

    def __init__(
        self,
        space: AgentSpace,
        patches: Sequence[str] = ("2x2", "1x4", "2x3", "1x6", "3x3:2", "2x4:2"),
        levels: int | None = None,
        *,
        channels: int = 48,
        layers: int = 3,
        candidates: int | None = 8,
        foretold: int = 0,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        channels = arguments.whole(where, "channels", channels, 1, _MOST_CHANNELS)
        layers = arguments.whole(where, "layers", layers, 1, _MOST_LAYERS)
        self.bin = bin_of(space)
        self.action_shape = tuple(space.extras["action_shape"])
        self.num_items = arguments.whole(where, "foretold", foretold, 0)
        if foretold and self.action_shape[0] > 1:
            raise ValueError(f"{where}: foretold wants one visible item; got {self.action_shape[0]}")
        if candidates is not None:
            candidates = arguments.whole(where, "candidates", candidates, 1)
        self.candidates = candidates if patches else None
        tables = PatchTables(space, patches or ["1x1"], levels, initial=0.0)
        self.levels = tables.plan.levels
        self.tables = tables if patches else None
        self.next_items = NextItems(foretold, 24).requires_grad_(False) if foretold else None
        self.network = _BinNetwork(self.levels, channels, layers, 1 + foretold)
        self.cell: Tensor
        self.register_buffer(
            "cell",
            torch.tensor(self.bin.cell, dtype=torch.float32, device=torch.get_default_device()),
            persistent=False,
        )
        self.settings = {"channels": channels, "layers": layers, "candidates": candidates, "foretold": foretold}
        self.in_keys = ["box_heightmap", "item_size", "z_map", "legal_mask", "num_packed"]
        self.in_keys += ["packed_items", "item_id"] if foretold else []

    @property
    def included(self) -> list[str]:
        """Observations that an environment gives only where its `include` names them."""
        return ["z_map", *(["packed_items"] if self.num_items else [])]

    @property
    def state_keys(self) -> list[str]:
        """What a bin after a placement is known by, of the observations that follow it."""
        return ["box_heightmap", "num_packed", *(["packed_items"] if self.num_items else [])]

    def forward(
        self,
        box_heightmap: Tensor,
        item_size: Tensor,
        z_map: Tensor,
        legal_mask: Tensor,
        num_packed: Tensor,
        packed_items: Tensor | None = None,
        item_id: Tensor | None = None,
    ) -> Tensor:
        """Values of all placements, in bin volumes.

        Args:
            box_heightmap: (…, X, Y) float32, metres.
            item_size: (…, K, O, 4) float32, metres.
            z_map: (…, K, O, Gx, Gy) float32, metres.
            legal_mask: (…, K, O, Gx, Gy) bool.
            num_packed: (…, 1) int64.
            packed_items: (…, T) int64, where the next item is foretold.
            item_id: (…, 1) int64, likewise.

        Returns:
            (…, K·O·Gx·Gy) float32: of placements that the network does not look at 1 less than the tables say, behind
            all others; `NEVER` where a placement is not legal.
        """
        batch = item_size.shape[:-3]
        heightmap = box_heightmap.reshape(-1, *self.bin.cells)
        sizes, z_map, legal = (each.reshape(-1, *each.shape[len(batch) :]) for each in (item_size, z_map, legal_mask))
        by_tables = self._by_tables(heightmap, sizes, z_map, legal)  # (N, A)
        count = by_tables.shape[1] if self.candidates is None else min(self.candidates, by_tables.shape[1])
        rank = (by_tables / _SAME).round()  # equal ones come in the order of actions, whatever adds them up
        action = rank.sort(dim=1, descending=True, stable=True).indices[:, :count]  # (N, M)
        best = by_tables.gather(1, action)
        context = (num_packed.reshape(-1, 1) + 1).float() / _MANY
        if packed_items is not None and item_id is not None:
            likely = self._likely(packed_items.reshape(-1, packed_items.shape[-1]), item_id.reshape(-1))
            context = torch.cat([context, likely], 1)
        context = context[:, None].expand(-1, count, -1)
        after = self._after(heightmap, sizes, z_map, action)
        found = best + self.network(after.flatten(0, 1), context.flatten(0, 1)).view(best.shape)
        values = (by_tables - 1).scatter(1, action, found)
        return torch.where(legal.flatten(1), values, NEVER).view(*batch, -1)

    def _by_tables(self, heightmap: Tensor, sizes: Tensor, z_map: Tensor, legal: Tensor) -> Tensor:
        """(N, A) float32: gains, and what tables say of the bin after them; `NEVER` where not legal."""
        if self.tables is not None:
            return self.tables(heightmap, sizes, z_map, legal)
        gain = (sizes[..., 3] / self.bin.volume)[..., None, None].expand(legal.shape)
        return torch.where(legal, gain, NEVER).flatten(1)

    def _after(self, heightmap: Tensor, sizes: Tensor, z_map: Tensor, action: Tensor) -> Tensor:
        """Bins (N, M, X, Y) uint8, levels, after the placements `action` (N, M) of boxes."""
        _, _, along_x, along_y = self.action_shape
        x, y = action // along_y % along_x, action % along_y
        size = sizes.flatten(1, 2).gather(1, (action // (along_x * along_y))[..., None].expand(-1, -1, 4))  # (N, M, 4)
        top = level_heights(z_map.flatten(1).gather(1, action) + size[..., 2], self.bin.size[2], self.levels)
        inside = []
        for axis, at in ((0, x), (1, y)):
            extent = (size[..., axis] / self.cell[axis]).round().long()
            first, _ = grid_positions(extent, self.bin.cells[axis], self.bin.step)  # (N, M, G)
            first = first.gather(2, at[..., None])
            cells = torch.arange(self.bin.cells[axis], device=first.device, dtype=torch.int64)
            inside.append((cells >= first) & (cells < first + extent[..., None]))  # (N, M, cells)
        under = inside[0][..., :, None] & inside[1][..., None, :]
        before = level_heights(heightmap, self.bin.size[2], self.levels)[:, None]
        return torch.where(under, torch.maximum(before, top[..., None, None]), before)

    def _likely(self, packed_items: Tensor, item_id: Tensor) -> Tensor:
        """(N, I) float32: of each item how much more likely it comes next than by chance, at most some."""
        assert self.next_items is not None
        with torch.no_grad():
            return self.next_items(packed_items, item_id).float().softmax(1) * (self.num_items / 16)

    def states(self, after: TensorDictBase) -> TensorDictBase:
        """Bins after placements, as the network and the tables see them.

        Args:
            after: (…) with the observations `state_keys` that follow the placements.

        Returns:
            (B,) with `levels` (B, X, Y) uint8 and `context` (B, 1 + I) float32.
        """
        heightmap = after.get("box_heightmap").flatten(0, -3)
        levels = level_heights(heightmap, self.bin.size[2], self.levels)
        context = after.get("num_packed").reshape(-1, 1).float() / _MANY
        if self.num_items:
            packed = after.get("packed_items").flatten(0, -2)
            last = (packed >= 0).sum(1, keepdim=True) - 1
            item = packed.gather(1, last.clamp_min(0))[:, 0]
            before = torch.arange(packed.shape[1], device=packed.device, dtype=torch.int64) < last
            context = torch.cat([context, self._likely(torch.where(before, packed, -1), item)], 1)
        return TensorDict({"levels": levels, "context": context}, [len(levels)])

    def table_values(self, states: TensorDictBase) -> Tensor:
        """What tables say that bins (B,) are worth, (B,) float32; 0 without tables."""
        if self.tables is None:
            return states["context"].new_zeros(len(states))
        return self.tables.values(states["levels"])

    def values(self, states: TensorDictBase) -> Tensor:
        """What bins (B,) are worth, (B,) float32."""
        return self.table_values(states) + self.network(states["levels"], states["context"])


@final
class _BinNetwork(nn.Module):
    """A number for each bin: convolutions over which cells are free at each level, and what else is known of the bin.

    Outside the walls nothing is free, as in a frame of full height. The last layer is 0 at first.
    """

    def __init__(self, levels: int, channels: int, layers: int, context: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(levels, channels, 3, padding=1)
        self.context = nn.Linear(context, channels)
        self.others = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(layers - 1))
        self.hidden = nn.Linear(channels, _HIDDEN)
        self.hidden_context = nn.Linear(context, _HIDDEN)
        self.out = nn.Linear(_HIDDEN, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.to(memory_format=torch.channels_last)

    def forward(self, levels: Tensor, context: Tensor) -> Tensor:
        """(B,) float32 of bins (B, X, Y) uint8, levels, and (B, F) float32."""
        level = torch.arange(self.first.in_channels, dtype=torch.uint8, device=levels.device)
        free = (levels[:, None] <= level[:, None, None]).to(self.first.weight.dtype)  # (B, L, X, Y)
        x = (
            self.first(free.contiguous(memory_format=torch.channels_last)) + self.context(context)[..., None, None]
        ).relu()
        for layer in self.others:
            x = layer(x).relu()
        hidden = self.hidden(x.mean((2, 3))) + self.hidden_context(context)
        return self.out(hidden.relu())[:, 0].float()
