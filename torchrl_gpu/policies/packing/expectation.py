"""Looking one item ahead, exactly: the best placements by what they leave for whatever comes next."""

from __future__ import annotations

import math

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu import arguments
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.geometry import grid_positions
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.envs.packing.types import Placement
from torchrl_gpu.policies.packing.patch_tables import NEVER, PatchTables

_MOST_VALUES = 2**24  # of placements at a time


class ExpectedPlacement(TensorDictModuleBase):
    """Of the placements that tables value most, the one with the largest expected value one item later.

    Each of the next items is equally likely and independent of those before, as in the protocols `rs`, `discrete125`
    and `free125`; the expectation is exact, no future is sampled. So it knows the distribution of the items.

    Args:
        env: Gives items, bin and kernels; one visible item, `RandomBoxes`.
        tables: Trained ones.
        candidates: Placements that are looked at.

    Raises:
        ValueError: Items of the environment are not drawn so, or several are visible.
    """

    knows = "the distribution"

    def __init__(self, env: PackingEnv, tables: PatchTables, candidates: int = 6) -> None:
        super().__init__()
        where = type(self).__name__
        if not isinstance(env.items, RandomBoxes) or env.visible_items > 1 or env.order != "sequence":
            came = f"{type(env.items).__name__}, {env.visible_items} visible, order {env.order!r}"
            raise ValueError(f"{where}: want an environment of RandomBoxes, one visible, in sequence; got {came}")
        self.candidates = arguments.whole(where, "candidates", candidates, 1, env.num_actions)
        self.catalogue, self.bin, self.kernels, self.tables = env.catalogue, env.bin, env.kernels, tables
        self.action_shape, self._sizes = env.action_shape, env.item_sizes
        self.in_keys, self.out_keys = [*tables.in_keys, "item_id"], ["action"]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes `action`, of the batch shape of `tensordict`."""
        shown = [tensordict.get(key) for key in self.in_keys]
        rows = shown[0].shape[:-2]
        flat = [each.reshape(-1, *each.shape[len(rows) :]) for each in shown]
        size = max(1, _MOST_VALUES // (self.candidates * self.catalogue.num_items * math.prod(self.action_shape)))
        chosen = [self._chosen(*part) for part in zip(*(each.split(size) for each in flat), strict=True)]
        return tensordict.set("action", torch.cat(chosen).view(rows))

    def _chosen(self, heightmap: Tensor, size: Tensor, z_map: Tensor, legal: Tensor, item_id: Tensor) -> Tensor:
        values = self.tables(heightmap, size, z_map, legal)  # (N, A)
        best, action = values.topk(self.candidates, 1)  # (N, M)
        _, turns, along_x, along_y = self.action_shape
        turn, x, y = action // (along_x * along_y) % turns, action // along_y % along_x, action % along_y
        item = item_id.expand_as(action)
        sides = self.catalogue.extent[item.clamp_min(0), turn]  # (N, M, 2)
        first = [
            grid_positions(sides[..., axis], self.bin.cells[axis], self.bin.step)[0].gather(-1, at[..., None])[..., 0]
            for axis, at in ((0, x), (1, y))
        ]
        z = z_map.flatten(1).gather(1, action)
        placement = Placement(*(each.flatten() for each in (item, turn, *first, z)))
        before = heightmap.repeat_interleave(self.candidates, 0)
        after = self.kernels.place(before, placement, self.catalogue, self.bin)  # (N·M, X, Y)
        ahead = self._ahead(after).view(action.shape)
        gain = size[..., 3].flatten(1).gather(1, turn) / self.bin.volume
        score = torch.where(best > NEVER / 2, gain + ahead, NEVER)
        return action.gather(1, score.argmax(1, keepdim=True))[:, 0]

    def _ahead(self, heightmap: Tensor) -> Tensor:
        """Expected value (B,) of bins (B, X, Y) before the next item is known."""
        number = self.catalogue.num_items
        item = torch.arange(number, device=heightmap.device).expand(len(heightmap), -1)
        z_map, legal = self.kernels.drop_map(heightmap, item, self.catalogue, self.bin)
        values = self.tables(heightmap, self._sizes[item], z_map, legal)
        best = values.view(len(heightmap), number, -1).amax(2)
        return torch.where(best > NEVER / 2, best, 0.0).mean(1)
