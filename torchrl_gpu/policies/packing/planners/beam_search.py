"""Beam search over boxes that are known.

They are the coming ones in their order, or the visible ones in any order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.indices import indices
from torchrl_gpu.policies.packing.ntuple.tables import NEVER, PatchTables
from torchrl_gpu.policies.packing.placements import join_batch
from torchrl_gpu.policies.packing.planners.afterstates import Afterstates
from torchrl_gpu.policies.weights import register_settings
from torchrl_gpu.system import arguments

# Values of placements at a time.
_MOST_VALUES = 2**22
_MOST_LINES = 2**20
# Sets of orientations in which each has its sides along x and y swapped in another.
_TURNED = ("yaw", "axis", "cube")
# Lines that are grown for each that is kept, as some lead to the same bin.
_SPARE = 4
# Depth of a search among visible items that does not say.
_DEPTH = 4


class Lines(NamedTuple):
    """Beam of placement sequences (lines) from the present state of each of N bins.

    There are W lines in each bin, the best one first.

    Attributes:
        heightmap: Bin at the end of a line, (N, W, X, Y) float32, metres.
        gain: Share of the bin that a line fills, (N, W) float32; `NEVER` in place of a missing line.
        ended: Whether the next item fits nowhere, or there is none, (N, W) bool.
        first: Action that a line begins with, (N, W) int64.
        left: Visible items that a line has not placed, (N, W, K) int64; −1 for others.
    """

    heightmap: Tensor
    gain: Tensor
    ended: Tensor
    first: Tensor
    left: Tensor


class _BeamSearch(TensorDictModuleBase):
    """Beam search over sequences of placements, whose last bins are valued by tables."""

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
        # Always the same numbers, as a search decides alike whenever it is made.
        generator = torch.Generator().manual_seed(1)
        size = (env.catalogue.num_items + 1,)
        item_numbers = torch.randint(2**62, size, generator=generator, dtype=torch.int64, device="cpu")
        item_numbers = item_numbers.to(env.device)
        register_settings(self, numbers=_hash_numbers(env), item_numbers=item_numbers)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        shown = [tensordict.get(key) for key in self.in_keys]
        rows = shown[0].shape[:-2]
        flat = join_batch(shown, len(rows))
        heightmap = flat[0]
        items = torch.cat(flat[1:], 1)
        visible = flat[1].shape[1]
        per_bin = self.beam * visible * self.afterstates.num_actions
        size = max(1, _MOST_VALUES // per_bin)
        parts = zip(heightmap.split(size), items.split(size), strict=True)
        actions = []
        for bins, known in parts:
            actions.append(self._search(bins, known))
        return tensordict.set("action", torch.cat(actions).view(rows))

    def _search(self, heightmap: Tensor, items: Tensor) -> Tensor:
        """Actions (N,) in bins (N, X, Y) with known items (N, T), −1 for none."""
        none = heightmap.new_zeros(len(heightmap), 1)
        # One line without a placement in each bin: its first action is still −1.
        first = none.long() - 1
        start = Lines(heightmap[:, None], none, none > 0, first, items[:, None])
        return self._lines(start).first[:, 0]

    def _lines(self, lines: Lines) -> Lines:
        """Return the best lines that start from bins with their known items."""
        raise NotImplementedError

    def _grow(self, lines: Lines, counts: Tensor) -> Lines:
        """Lines with one more item each, out of those that are left.

        Values of the bins afterwards count if `counts`.
        """
        rows, width, items = lines.left.shape
        per_item = self.afterstates.num_actions
        number = items * per_item
        device = lines.left.device
        placed = torch.where(lines.ended[..., None], -1, lines.left)  # (N, W, K)
        # (N·W, K, A) each.
        bins = lines.heightmap.flatten(0, 1)
        items_of_bins = placed.flatten(0, 1)
        values, z = self.afterstates.values(bins, items_of_bins, side_by_side=True)
        values = values.view(rows, width, number)
        legal = values > NEVER / 2
        gain = self.afterstates.gain(placed).repeat_interleave(per_item, 2)
        added = torch.where(counts[:, None, None], values, gain)
        gains = lines.gain[..., None] + added
        goes_on = torch.where(legal, gains, NEVER)
        stops = torch.where(legal.any(2), NEVER, lines.gain)
        # Each line with each item on each placement, and each line that ends here, (N, W·K·A + W).
        score = torch.cat([goes_on.flatten(1), stops], 1)
        num_grown = min(_SPARE * self.beam, score.shape[1])
        best, at = score.topk(num_grown, 1)  # (N, C)

        # What each of the best ones is: the line that it continues, and the item and action that it adds.
        ended = (at >= width * number) | (best < NEVER / 2)
        ended_line = at - width * number
        line = torch.where(ended, ended_line, at // number)
        line = line.clamp_min(0)
        action = at % number
        row = indices(rows, device)[:, None]
        own = (row * width + line).flatten()
        slot = torch.where(ended, 0, action // per_item)[..., None]
        left = lines.left.flatten(0, 1)[own]
        left = left.view(*at.shape, items)
        item = left.gather(2, slot)[..., 0]
        item = torch.where(ended, -1, item)
        choice = line * number + action
        base = z.view(rows, -1).gather(1, choice)
        before = lines.heightmap.flatten(0, 1)[own]
        place = (action % per_item).flatten()
        after = self.afterstates.after(before, item.flatten(), place, base.flatten())
        cells = lines.heightmap.shape[2:]
        after = after.view(*at.shape, *cells)
        first = lines.first.gather(1, line)
        own_first = torch.where(ended, 0, action)
        first = torch.where(first < 0, own_first, first)
        gains = lines.gain.gather(1, line) + self.afterstates.gain(item)
        remaining = left.scatter(2, slot, -1)
        left = torch.where(ended[..., None], left, remaining)
        gains = torch.where(best < NEVER / 2, NEVER, gains)
        grown = Lines(after, gains, ended, first, left)
        # Different lines first, each kind in the order of its score.
        is_different = self.distinct(grown).to(torch.uint8)
        order = is_different.sort(dim=1, descending=True, stable=True)
        keep = order.indices[:, : self.beam]
        return Lines(*[each[row, keep] for each in grown])

    def distinct(self, lines: Lines) -> Tensor:
        """Whether a line is the best one to its bin and items left, (N, C) bool.

        Lines that have ended count as one. Bins are compared by sums of random numbers, as comparing all pairs of bins
        would take C² times their cells; two different bins get the same sum with a probability of about 2⁻⁵².
        """
        levels = (lines.heightmap / self.afterstates.bin.tolerance).round()
        levels = levels.flatten(2).double()
        # The same for every image of a bin, (N, C). Adding the items left wraps around.
        image = (levels @ self.numbers).amin(2).long()
        image = image + self.item_numbers[lines.left + 1].sum(2)
        image = torch.where(lines.ended, -1, image)
        image, order = image.sort(dim=1, stable=True)
        new = torch.ones_like(image, dtype=torch.bool)
        new[:, 1:] = image[:, 1:] != image[:, :-1]
        return torch.empty_like(new).scatter_(1, order, new)


class StreamSearch(_BeamSearch):
    """Beam-search policy over the true coming items.

    It takes the first placement of the best line. Of each length the `beam` best lines go on, by what they fill and the
    tables' value of the bin after them. A line ends when the next item fits nowhere or none is left, with the value of
    what it fills. Lines to the same bin, or to its mirror image if that makes no difference, count once. Nothing is
    drawn.

    Args:
        env: Gives items, bin and kernels; one visible item, `include` with `future_items`, without `skip_unplaceable`.
        tables: Trained ones.
        depth: Items of a line, the visible one included; 1 is the policy alone.
        beam: Lines that go on.
    """

    knows = "the true stream"

    def __init__(self, env: PackingEnv, tables: PatchTables, depth: int = 10, beam: int = 32) -> None:
        if env.visible_items > 1 or env.skip_unplaceable or "future_items" not in env.include:
            raise ValueError(
                f"{type(self).__name__}: the environment must show one item, include future_items and have no"
                f" skip_unplaceable, not {env.visible_items} visible, include {env.include}, skip_unplaceable"
                f" {env.skip_unplaceable}"
            )
        super().__init__(env, tables, depth, beam, ["item_id", "future_items"])

    def _lines(self, lines: Lines) -> Lines:
        stream = lines.left[:, 0]
        items = stream[:, : self.depth].unbind(1)
        following_items = stream[:, 1:].unbind(1)
        for item, following in zip(items, following_items, strict=False):
            left = item[:, None, None].expand(*lines.gain.shape, 1)
            lines = self._grow(lines._replace(left=left), following >= 0)
        return lines


class VisibleSearch(_BeamSearch):
    """Beam-search policy over the visible items, in any order.

    As `StreamSearch`, but each line goes on with any item that it has not placed. Items that join later are not
    predicted: it knows what the policy alone knows.

    Args:
        env: Gives items, bin and kernels; several visible items.
        tables: Trained ones.
        depth: Items of a line, at most the visible ones; None for up to 4. 1 is the policy alone.
        beam: Lines that go on.
    """

    def __init__(self, env: PackingEnv, tables: PatchTables, depth: int | None = None, beam: int = 16) -> None:
        where = type(self).__name__
        most = env.visible_items
        if most < 2:
            raise ValueError(f"{where}: visible_items must be 2 or more, as it searches among them, not {most}")
        depth = min(_DEPTH, most) if depth is None else depth
        depth = arguments.whole(where, "depth", depth, 1, most)
        super().__init__(env, tables, depth, beam, ["item_id"])

    def _lines(self, lines: Lines) -> Lines:
        rows = len(lines.gain)
        counts = torch.ones(rows, dtype=torch.bool, device=lines.gain.device)
        for _ in range(self.depth):
            lines = self._grow(lines, counts)
        return lines


def _hash_numbers(env: PackingEnv) -> Tensor:
    """Hash weights of each cell and image of the bin, (X·Y, S) float64.

    Sums of heights by these weights tell bins apart. They are whole, and small enough that sums of heights in
    tolerances are exact: the same in any order.
    """
    cells = env.bin.cells
    levels = round(env.bin.size[2] / env.bin.tolerance)
    full_bin = levels * cells[0] * cells[1]
    most = 2**52 // full_bin
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(1, most, cells, generator=generator, dtype=torch.int64, device="cpu")
    numbers = numbers.double()
    images = [numbers]
    # Otherwise placements have no mirror images.
    if env.grid_step == 1 and env.catalogue.flat:
        images += [numbers.flip(0), numbers.flip(1), numbers.flip(0, 1)]
        is_square = cells[0] == cells[1] and env.bin.cell[0] == env.bin.cell[1]
        if is_square and env.orientations in _TURNED:
            images += [each.T for each in images]
    columns = [each.flatten() for each in images]
    return torch.stack(columns, 1).to(env.device)
