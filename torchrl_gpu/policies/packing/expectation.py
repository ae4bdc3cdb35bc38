"""Looking one item ahead: the best placements by what they leave for whatever comes next."""

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
from torchrl_gpu.envs.packing.items.cutting import CutSequences
from torchrl_gpu.envs.packing.types import Placement
from torchrl_gpu.policies.packing.patch_tables import NEVER, PatchTables

_MOST_VALUES = 2**24  # of placements at a time
_SEED = 0x0DD_17E15  # of sequences that next items are counted in
_AT_ONCE = 4096
_FILLS = 12  # parts of the bin's volume, that next items are counted apart in
_PRIOR = 20.0  # items as after any other, that the items after each are counted on top of


class ExpectedPlacement(TensorDictModuleBase):
    """Of the placements that tables value most, the one with the largest expected value one item later.

    So it knows the distribution of the items, and no more: no future is sampled. `RandomBoxes`, as in the protocols
    `rs`, `discrete125` and `free125`, are equally likely and independent of each other, so that the expectation is
    exact. Of `CutBoxes` the share of each next item is counted in sequences of its own, see `shares_of_next`.

    Args:
        env: Gives items, bin and kernels; one visible item, `RandomBoxes` or `CutBoxes` without a pool.
        tables: Trained ones.
        candidates: Placements that are looked at.
        sequences: That are cut to count next items, of `CutBoxes`.

    Raises:
        ValueError: Items of the environment are not drawn so, or several are visible.
    """

    knows = "the distribution"

    def __init__(self, env: PackingEnv, tables: PatchTables, candidates: int = 6, *, sequences: int = 200_000) -> None:
        super().__init__()
        where = type(self).__name__
        is_cut = isinstance(env.item_sequences, CutSequences)
        if not (is_cut or isinstance(env.items, RandomBoxes)) or env.visible_items > 1 or env.order != "sequence":
            came = f"{type(env.items).__name__}, {env.visible_items} visible, order {env.order!r}"
            wanted = "RandomBoxes or, without a pool, CutBoxes, one visible, in sequence"
            raise ValueError(f"{where}: want an environment of {wanted}; got {came}")
        self.candidates = arguments.whole(where, "candidates", candidates, 1, env.num_actions)
        sequences = arguments.whole(where, "sequences", sequences, 1, 1 << 24)
        self.catalogue, self.bin, self.kernels, self.tables = env.catalogue, env.bin, env.kernels, tables
        self.action_shape, self._sizes = env.action_shape, env.item_sizes
        self.in_keys, self.out_keys = [*tables.in_keys, "item_id"], ["action"]
        self._shares: Tensor | None = None
        if is_cut:
            self._shares = shares_of_next(env, sequences)
            self.in_keys.append("utilization")

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes `action`, of the batch shape of `tensordict`."""
        shown = [tensordict.get(key) for key in self.in_keys]
        rows = shown[0].shape[:-2]
        flat = [each.reshape(-1, *each.shape[len(rows) :]) for each in shown]
        size = max(1, _MOST_VALUES // (self.candidates * self.catalogue.num_items * math.prod(self.action_shape)))
        chosen = [self._chosen(*part) for part in zip(*(each.split(size) for each in flat), strict=True)]
        return tensordict.set("action", torch.cat(chosen).view(rows))

    def _chosen(
        self, heightmap: Tensor, size: Tensor, z_map: Tensor, legal: Tensor, item_id: Tensor, *packed: Tensor
    ) -> Tensor:
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
        worth = self._worth(after).view(*action.shape, -1)  # (N, M, I)
        ahead = (worth * self._shares_after(item_id[:, 0], *packed)[:, None]).sum(2)
        gain = size[..., 3].flatten(1).gather(1, turn) / self.bin.volume
        score = torch.where(best > NEVER / 2, gain + ahead, NEVER)
        return action.gather(1, score.argmax(1, keepdim=True))[:, 0]

    def _shares_after(self, item: Tensor, packed: Tensor | None = None) -> Tensor:
        """Of each next item, (N, I) or (1, I), after `item` (N,), without which `packed` (N, 1) of a bin is full."""
        number = self.catalogue.num_items
        if self._shares is None or packed is None:
            return self._sizes.new_full((1, number), 1 / number)
        item = item.clamp_min(0)
        came = packed[:, 0] + self.catalogue.volume[item] / self.bin.volume
        return self._shares[_fill(came), item]

    def _worth(self, heightmap: Tensor) -> Tensor:
        """What the best placement of each next item is worth, (B, I), in bins (B, X, Y)."""
        number = self.catalogue.num_items
        item = torch.arange(number, device=heightmap.device).expand(len(heightmap), -1)
        z_map, legal = self.kernels.drop_map(heightmap, item, self.catalogue, self.bin)
        values = self.tables(heightmap, self._sizes[item], z_map, legal)
        best = values.view(len(heightmap), number, -1).amax(2)
        return torch.where(best > NEVER / 2, best, 0.0)


def shares_of_next(env: PackingEnv, sequences: int) -> Tensor:
    """How often each item follows each other in cut sequences, by how much of the bin has come until then.

    Sequences are cut as in the environment, by a seed of their own. A pair of items is rare in a twelfth of the bin's
    volume, so that what follows any item there stands in for `_PRIOR` of those that follow this one.

    Args:
        env: Of `CutBoxes` without a pool.
        sequences: That are cut.

    Returns:
        (12, I, I) float32: twelfth of the volume that has come, item that came last, next item. Rows sum to 1.
    """
    cut = env.item_sequences
    assert isinstance(cut, CutSequences)
    number, device = env.catalogue.num_items, env.catalogue.volume.device
    counts = torch.zeros(_FILLS * number * number, dtype=torch.float64, device=device)
    for first in range(0, sequences, _AT_ONCE):
        which = torch.arange(first, min(first + _AT_ONCE, sequences), device=device)
        row = cut.rows(cut.begin(_SEED, which, torch.zeros_like(which)))[:, : cut.length]
        volume = torch.where(row >= 0, env.catalogue.volume[row.clamp_min(0)], 0.0).cumsum(1) / env.bin.volume
        last, after = row[:, :-1].clamp_min(0), row[:, 1:].clamp_min(0)
        pairs = (_fill(volume[:, :-1]) * number + last) * number + after
        both = (row[:, :-1] >= 0) & (row[:, 1:] >= 0)
        counts.index_add_(0, pairs.flatten(), both.double().flatten())
    counts = counts.view(_FILLS, number, number)
    of_any = counts.sum(1, keepdim=True) + 1e-9
    counts = counts + _PRIOR * of_any / of_any.sum(2, keepdim=True)
    return (counts / counts.sum(2, keepdim=True)).float()


def _fill(share: Tensor) -> Tensor:
    """Which part of the bin's volume a share of it is in."""
    return (share * _FILLS + 1e-3).long().clamp(0, _FILLS - 1)  # sums are rounded
