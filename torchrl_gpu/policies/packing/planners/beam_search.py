"""Beam search over boxes that are known: those that come, in their order, or the visible ones in any order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.packing.ntuple.tables import NEVER, PatchTables
from torchrl_gpu.policies.packing.planners.afterstates import Afterstates
from torchrl_gpu.policies.weights import register_settings
from torchrl_gpu.system import arguments

_MOST_VALUES = 2**22  # of placements at a time
_MOST_LINES = 2**20
_TURNED = ("yaw", "axis", "cube")  # orientations of which each has its sides along x and y swapped in another
_SPARE = 4  # lines that are grown for each that is kept, since some lead to the same bin


class Lines(NamedTuple):
    """Beam of placement sequences (lines) from the present state of each of N bins: W in each, the best one first."""

    heightmap: Tensor  # (N, W, X, Y) float32, metres, at the end of a line
    gain: Tensor  # (N, W) float32, share of the bin that a line fills; `NEVER` where there is no line
    ended: Tensor  # (N, W) bool, where the item that follows fits nowhere, or none does
    first: Tensor  # (N, W) int64, the action that a line begins with
    left: Tensor  # (N, W, K) int64, visible items that a line has not placed; −1 for others


class _BeamSearch(TensorDictModuleBase):
    """Beam search over sequences of placements, whose last bins count by tables."""

    def __init__(self, env: PackingEnv, tables: PatchTables, depth: int, beam: int, in_keys: list[str]) -> None:
        super().__init__()
        where = type(self).__name__
        self.depth = arguments.whole(where, "depth", depth, 1)
        self.beam = arguments.whole(where, "beam", beam, 1, _MOST_LINES)
        self.afterstates = Afterstates(env, tables, where)
        self.tables = tables
        self.in_keys = ["box_heightmap", *in_keys]
        self.out_keys = ["action"]
        self.numbers: Tensor
        self.item_numbers: Tensor
        generator = torch.Generator().manual_seed(1)
        size = (env.catalogue.num_items + 1,)
        item_numbers = torch.randint(2**62, size, generator=generator, dtype=torch.int64, device="cpu").to(env.device)
        register_settings(self, numbers=_hash_numbers(env), item_numbers=item_numbers)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        shown = [tensordict.get(key) for key in self.in_keys]
        rows = shown[0].shape[:-2]
        heightmap, *items = (each.reshape(-1, *each.shape[len(rows) :]) for each in shown)
        size = max(1, _MOST_VALUES // (self.beam * items[0].shape[1] * self.afterstates.num_actions))
        parts = zip(heightmap.split(size), torch.cat(items, 1).split(size), strict=True)
        return tensordict.set("action", torch.cat([self._searched(*part) for part in parts]).view(rows))

    def _searched(self, heightmap: Tensor, items: Tensor) -> Tensor:
        """Actions (N,) in bins (N, X, Y) where items (N, T) are known, −1 for none."""
        none = heightmap.new_zeros(len(heightmap), 1)
        return self._lines(Lines(heightmap[:, None], none, none > 0, none.long() - 1, items[:, None])).first[:, 0]

    def _lines(self, lines: Lines) -> Lines:
        """The best lines, from bins with the items that are known."""
        raise NotImplementedError

    def _grown(self, lines: Lines, counts: Tensor) -> Lines:
        """Lines with one more item each of those that are left; values of the bins afterwards count where `counts`."""
        (rows, width, items), per_item = lines.left.shape, self.afterstates.num_actions
        number = items * per_item
        placed = torch.where(lines.ended[..., None], -1, lines.left)  # (N, W, K)
        values, z = self.afterstates.values(
            lines.heightmap.flatten(0, 1), placed.flatten(0, 1), side_by_side=True
        )  # (N·W, K, A)
        values = values.view(rows, width, number)
        legal = values > NEVER / 2
        gain = self.afterstates.gain(placed).repeat_interleave(per_item, 2)
        goes_on = torch.where(legal, lines.gain[..., None] + torch.where(counts[:, None, None], values, gain), NEVER)
        stops = torch.where(legal.any(2), NEVER, lines.gain)
        score = torch.cat([goes_on.flatten(1), stops], 1)  # (N, W·K·A + W)
        best, at = score.topk(min(_SPARE * self.beam, score.shape[1]), 1)  # (N, C)

        ended = (at >= width * number) | (best < NEVER / 2)
        line = torch.where(ended, at - width * number, at // number).clamp_min(0)
        action = at % number
        own = (torch.arange(rows, device=at.device, dtype=torch.int64)[:, None] * width + line).flatten()
        slot = torch.where(ended, 0, action // per_item)
        left = lines.left.flatten(0, 1)[own].view(*at.shape, items)
        item = torch.where(ended, -1, left.gather(2, slot[..., None])[..., 0])
        after = self.afterstates.after(
            lines.heightmap.flatten(0, 1)[own],
            item.flatten(),
            (action % per_item).flatten(),
            z.view(rows, -1).gather(1, line * number + action).flatten(),
        ).view(*at.shape, *lines.heightmap.shape[2:])
        first = lines.first.gather(1, line)
        first = torch.where(first < 0, torch.where(ended, 0, action), first)
        gains = lines.gain.gather(1, line) + self.afterstates.gain(item)
        left = torch.where(ended[..., None], left, left.scatter(2, slot[..., None], -1))
        grown = Lines(after, torch.where(best < NEVER / 2, NEVER, gains), ended, first, left)
        keep = self._different(grown).to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, : self.beam]
        kept = (each[torch.arange(rows, device=at.device, dtype=torch.int64)[:, None], keep] for each in grown)
        return Lines(*kept)

    def _different(self, lines: Lines) -> Tensor:
        """True for the best line to each bin and items left, and for the best of those that have ended, (N, C) bool."""
        levels = (lines.heightmap / self.afterstates.bin.tolerance).round().flatten(2).double()
        image = (levels @ self.numbers).amin(2).long()  # (N, C): the same for every image of a bin
        image = image + self.item_numbers[lines.left + 1].sum(2)  # which wraps around
        image, order = torch.where(lines.ended, -1, image).sort(dim=1, stable=True)
        new = torch.ones_like(image, dtype=torch.bool)
        new[:, 1:] = image[:, 1:] != image[:, :-1]
        return torch.empty_like(new).scatter_(1, order, new)


class StreamSearch(_BeamSearch):
    """Beam-search policy: the first placement of the best line over the true coming items.

    Of each length the `beam` best lines go on, by what they fill and the tables' value of the bin after it. A line ends
    where the next item fits nowhere or none is left, with the value of what it fills. Lines to the same bin, or to its
    mirror image where that makes no difference, count once. Nothing is drawn.

    Args:
        env: Gives items, bin and kernels; one visible item, `include` with `future_items`, without `skip_unplaceable`.
        tables: Trained ones.
        depth: Items of a line, the visible one counted; 1 is the policy alone.
        beam: Lines that go on.
    """

    knows = "the true stream"

    def __init__(self, env: PackingEnv, tables: PatchTables, depth: int = 10, beam: int = 32) -> None:
        if env.visible_items > 1 or env.skip_unplaceable or "future_items" not in env.include:
            came = f"{env.visible_items} visible, skip_unplaceable {env.skip_unplaceable}, include {env.include}"
            wanted = "one visible item that includes future_items and passes over nothing"
            raise ValueError(f"{type(self).__name__}: want an environment of {wanted}; got {came}")
        super().__init__(env, tables, depth, beam, ["item_id", "future_items"])

    def _lines(self, lines: Lines) -> Lines:
        stream = lines.left[:, 0]
        for item, following in zip(stream[:, : self.depth].unbind(1), stream[:, 1:].unbind(1), strict=False):
            left = item[:, None, None].expand(*lines.gain.shape, 1)
            lines = self._grown(lines._replace(left=left), following >= 0)
        return lines


class VisibleSearch(_BeamSearch):
    """Beam-search policy: the first placement of the best line over the visible items, in any order.

    As `StreamSearch`, but each line goes on with any item that it has not placed. Items that join are not foreseen, so
    that it knows what the policy alone knows.

    Args:
        env: Gives items, bin and kernels; several visible items.
        tables: Trained ones.
        depth: Items of a line, at most those that are visible; None for up to 4. 1 is the policy alone.
        beam: Lines that go on.
    """

    def __init__(self, env: PackingEnv, tables: PatchTables, depth: int | None = None, beam: int = 16) -> None:
        if env.visible_items < 2:
            raise ValueError(f"{type(self).__name__}: want an environment of several visible items; got one")
        most = env.visible_items
        depth = arguments.whole(type(self).__name__, "depth", min(4, most) if depth is None else depth, 1, most)
        super().__init__(env, tables, depth, beam, ["item_id"])

    def _lines(self, lines: Lines) -> Lines:
        counts = torch.ones(len(lines.gain), dtype=torch.bool, device=lines.gain.device)
        for _ in range(self.depth):
            lines = self._grown(lines, counts)
        return lines


def _hash_numbers(env: PackingEnv) -> Tensor:
    """Hash weights of each cell and image of the bin, (X·Y, S) float64: sums of heights by them tell bins apart.

    Whole, and small enough that sums of heights in tolerances are exact: the same in any order.
    """
    cells = env.bin.cells
    levels = round(env.bin.size[2] / env.bin.tolerance)
    most = 2**52 // (levels * cells[0] * cells[1])
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(1, most, cells, generator=generator, dtype=torch.int64, device="cpu").double()
    images = [numbers]
    if env.grid_step == 1 and env.catalogue.flat:  # else placements have no mirror images
        images += [numbers.flip(0), numbers.flip(1), numbers.flip(0, 1)]
        if cells[0] == cells[1] and env.bin.cell[0] == env.bin.cell[1] and env.orientations in _TURNED:
            images += [each.T for each in images]
    return torch.stack([each.flatten() for each in images], 1).to(env.device)
