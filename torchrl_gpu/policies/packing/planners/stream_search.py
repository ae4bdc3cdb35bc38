"""Beam search over boxes that are known to come, in many bins at once."""

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


class StreamSearch(TensorDictModuleBase):
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
        super().__init__()
        where = type(self).__name__
        if env.visible_items > 1 or env.skip_unplaceable or "future_items" not in env.include:
            came = f"{env.visible_items} visible, skip_unplaceable {env.skip_unplaceable}, include {env.include}"
            wanted = "one visible item that includes future_items and passes over nothing"
            raise ValueError(f"{where}: want an environment of {wanted}; got {came}")
        self.depth = arguments.whole(where, "depth", depth, 1)
        self.beam = arguments.whole(where, "beam", beam, 1, _MOST_LINES)
        self.afterstates, self.tables = Afterstates(env, tables), tables
        self.in_keys, self.out_keys = ["box_heightmap", "item_id", "future_items"], ["action"]
        self.numbers: Tensor
        register_settings(self, numbers=_hash_numbers(env))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        shown = [tensordict.get(key) for key in self.in_keys]
        rows = shown[0].shape[:-2]
        heightmap, item, future = (each.reshape(-1, *each.shape[len(rows) :]) for each in shown)
        size = max(1, _MOST_VALUES // (self.beam * self.afterstates.num_actions))
        parts = zip(heightmap.split(size), torch.cat([item, future], 1).split(size), strict=True)
        return tensordict.set("action", torch.cat([self._chosen(*part) for part in parts]).view(rows))

    def _chosen(self, heightmap: Tensor, stream: Tensor) -> Tensor:
        """Actions (N,) in bins (N, X, Y) where items (N, 1 + T) come, −1 behind the last."""
        none = heightmap.new_zeros(len(heightmap), 1)
        lines = Lines(heightmap[:, None], none, none > 0, none.long() - 1)
        for item, following in zip(stream[:, : self.depth].unbind(1), stream[:, 1:].unbind(1), strict=False):
            lines = self._grown(lines, item, following)
        return lines.first[:, 0]

    def _grown(self, lines: Lines, item: Tensor, following: Tensor) -> Lines:
        """Lines with one more item (N,), behind which comes `following` (N,)."""
        (rows, width), number = lines.gain.shape, self.afterstates.num_actions
        placed = torch.where(lines.ended, -1, item[:, None])  # (N, W)
        values, z = self.afterstates.values(lines.heightmap.flatten(0, 1), placed.view(-1, 1))  # (N·W, 1, A)
        legal = values.view(rows, width, number) > NEVER / 2
        gain = self.afterstates.gain(item)[:, None, None]
        ahead = torch.where((following >= 0)[:, None, None], values.view(legal.shape), gain)
        goes_on = torch.where(legal, lines.gain[..., None] + ahead, NEVER)
        stops = torch.where(legal.any(2), NEVER, lines.gain)
        score = torch.cat([goes_on.flatten(1), stops], 1)  # (N, W·A + W)
        best, at = score.topk(min(_SPARE * self.beam, score.shape[1]), 1)  # (N, C)

        ended = (at >= width * number) | (best < NEVER / 2)
        line, action = torch.where(ended, at - width * number, at // number).clamp_min(0), at % number
        placed = torch.where(ended, -1, item[:, None])
        own = (torch.arange(rows, device=at.device, dtype=torch.int64)[:, None] * width + line).flatten()
        after = self.afterstates.after(
            lines.heightmap.flatten(0, 1)[own],
            placed.flatten(),
            action.flatten(),
            z.view(rows, -1).gather(1, line * number + action).flatten(),
        ).view(*at.shape, *lines.heightmap.shape[2:])
        first = lines.first.gather(1, line)
        first = torch.where(first < 0, torch.where(ended, 0, action), first)
        gains = lines.gain.gather(1, line) + self.afterstates.gain(placed)
        grown = Lines(after, torch.where(best < NEVER / 2, NEVER, gains), ended, first)
        keep = self._different(grown).to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, : self.beam]
        kept = (each[torch.arange(rows, device=at.device, dtype=torch.int64)[:, None], keep] for each in grown)
        return Lines(*kept)

    def _different(self, lines: Lines) -> Tensor:
        """True for lines to a bin that no better line leads to, (N, C) bool; of those that have ended, for the best."""
        levels = (lines.heightmap / self.afterstates.bin.tolerance).round().flatten(2).double()
        image = (levels @ self.numbers).amin(2)  # (N, C): the same for every image of a bin
        image, order = torch.where(lines.ended, -1.0, image).sort(dim=1, stable=True)
        new = torch.ones_like(image, dtype=torch.bool)
        new[:, 1:] = image[:, 1:] != image[:, :-1]
        return torch.empty_like(new).scatter_(1, order, new)


def _hash_numbers(env: PackingEnv) -> Tensor:
    """Hash weights of each cell and image of the bin, (X·Y, S) float64: sums of heights by them tell bins apart.

    Whole, and small enough that sums of heights in tolerances are exact: the same in any order.
    """
    cells, levels = env.bin.cells, round(env.bin.size[2] / env.bin.tolerance)
    most = 2**52 // (levels * cells[0] * cells[1])
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(1, most, cells, generator=generator, dtype=torch.int64, device="cpu").double()
    images = [numbers]
    if env.grid_step == 1 and env.catalogue.flat:  # else placements have no mirror images
        images += [numbers.flip(0), numbers.flip(1), numbers.flip(0, 1)]
        if cells[0] == cells[1] and env.bin.cell[0] == env.bin.cell[1] and env.orientations in _TURNED:
            images += [each.T for each in images]
    return torch.stack([each.flatten() for each in images], 1).to(env.device)
