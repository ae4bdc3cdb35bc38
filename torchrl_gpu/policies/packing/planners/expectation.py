"""Look-ahead over items that are not known.

It is expectimax one item ahead, or the mean over sampled futures.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.policies.indices import indices
from torchrl_gpu.policies.packing.ntuple.tables import NEVER, PatchTables
from torchrl_gpu.policies.packing.placements import join_batch
from torchrl_gpu.policies.packing.planners.afterstates import Afterstates
from torchrl_gpu.policies.packing.planners.next_items import NextItems, cut_as, layer_cells_of, sequences_cut
from torchrl_gpu.system import arguments

# Values of placements at a time.
_MOST_VALUES = 2**24
# Seed of the sequences in which next items are counted, and sequences at a time.
SEED = 0x0DD_17E15
_AT_ONCE = 4096
_MOST_FUTURES = 2**16
_MOST_DEPTH = 2**10
_MOST_SEQUENCES = 1 << 24
# λ of the return of a future.
_LAMBDA = 0.8
# Parts of the bin's volume in which next items are counted apart.
_FILLS = 12
# Next items of any item, on top of which those of each item are counted.
_PRIOR = 20.0
KNOWLEDGE = ("the distribution", "the boxes but not their order")


class ExpectedPlacement(TensorDictModuleBase):
    """Look-ahead policy: the largest expected value among the tables' best placements.

    The expectation is exact over the next item; or, with `futures`, it is the mean over sequences of `depth` items,
    drawn by their probability and packed greedily by the tables (a rollout policy: Bertsekas, Tsitsiklis and Wu,
    Journal of Heuristics 1997). A sequence counts by its λ-return: what its first n items fill and the tables' value
    after them, weighted by λⁿ, since the tables err and long sequences scatter. All placements meet the same sequences.
    After a part of them the better half of the placements goes on, until two are left (sequential halving: Karnin,
    Koren and Somekh, ICML 2013): most of the futures are spent on placements that may be best. In each part, every step
    of the sequences takes its items from equal parts of the probability (a Latin hypercube), always the same ones: the
    same bin gets the same placement.

    What it knows decides how likely each next item is:

    - "the distribution": `RandomBoxes` are equally likely, so that the expectation is exact. For `CutBoxes` a network
      gives the probability of each item after those that came, or shares are counted, see `shares_of_next`.
    - "the boxes but not their order": each box of the episode that has not come yet is as likely as any other. Of the
      observation `future_items` it reads only how often each item is there.

    Args:
        env: Gives items, bin and kernels; one visible item, in sequence. `RandomBoxes` or `CutBoxes` without a pool
            if the distribution is known; `include` with `future_items` if the boxes are.
        tables: Trained ones.
        candidates: Placements that are looked at.
        futures: Sequences of items that the last two placements meet; None for the exact expectation over one item.
            They need a known distribution.
        depth: Items of each sequence; 1 for the exact expectation.
        next_items: Network for `CutBoxes`, in an environment that includes `packed_items`; None for counting.
        sequences: Sequences that are cut to count next items.
        knows: One of `KNOWLEDGE`.
    """

    def __init__(
        self,
        env: PackingEnv,
        tables: PatchTables,
        candidates: int = 6,
        futures: int | None = None,
        depth: int = 1,
        *,
        next_items: NextItems | None = None,
        sequences: int = 200_000,
        knows: str = "the distribution",
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.knows = arguments.choice(where, "knows", knows, KNOWLEDGE)
        _check_known(where, env, knows, next_items)
        self.candidates = arguments.whole(where, "candidates", candidates, 1, env.num_actions)
        sequences = arguments.whole(where, "sequences", sequences, 1, _MOST_SEQUENCES)
        self.draws: list[Tensor] = []
        self.depth = arguments.whole(where, "depth", depth, 1, _MOST_DEPTH)
        if futures is not None:
            if knows != "the distribution":
                raise ValueError(f"{where}: futures are drawn from the distribution, and knows is {knows!r}")
            futures = arguments.whole(where, "futures", futures, 1, _MOST_FUTURES)
            draws = latin_draws(self.candidates, futures, self.depth)
            self.draws = [each.to(env.device) for each in draws]
        elif depth > 1:
            raise ValueError(f"{where}: depth {depth} needs futures: without them it looks one item ahead")
        self.afterstates = Afterstates(env, tables, where)
        self.tables = tables
        self.num_items = env.catalogue.num_items
        self.in_keys = [*tables.in_keys, "item_id"]
        self.out_keys = ["action"]
        self.sequence_shares: Tensor | None = None
        self.next_items = next_items
        if next_items is not None:
            self.in_keys.append("packed_items")
        elif knows == "the boxes but not their order":
            self.in_keys.append("future_items")
        elif cut_as(env) is not None:
            self.sequence_shares = shares_of_next(env, sequences)
            self.in_keys.append("utilization")

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        shown = [tensordict.get(key) for key in self.in_keys]
        rows = shown[0].shape[:-2]
        flat = join_batch(shown, len(rows))
        # Rows of one placement: its futures, or the items of the catalogue.
        lines = max((len(each) for each in self.draws), default=self.num_items)
        per_row = self.candidates * lines * self.afterstates.num_actions
        size = max(1, _MOST_VALUES // per_row)
        parts = zip(*[each.split(size) for each in flat], strict=True)
        chosen = [self._choose(*part) for part in parts]
        return tensordict.set("action", torch.cat(chosen).view(rows))

    def _choose(
        self, heightmap: Tensor, size: Tensor, z_map: Tensor, legal: Tensor, item_id: Tensor, *known: Tensor
    ) -> Tensor:
        """Actions (N,), given the observations of the tables and what is known."""
        values = self.tables(heightmap, size, z_map, legal)  # (N, A)
        best, action = values.topk(self.candidates, 1)  # (N, M)
        is_legal = best > NEVER / 2
        z = z_map.flatten(1).gather(1, action)
        item = item_id.expand_as(action)
        before = heightmap.repeat_interleave(self.candidates, 0)
        placed = (item.flatten(), action.flatten(), z.flatten())
        after = self.afterstates.after(before, *placed)  # (N·M, X, Y)
        if self.draws:
            after = after.unflatten(0, action.shape)
            score = self._halve(after, is_legal, item_id[:, 0], *known)
        else:
            shares = self.shares_after(item_id[:, 0], *known)
            shares = shares[:, None]  # (N, 1, I)
            values_ahead = self.values_ahead(after, shares.expand(*action.shape, -1))
            ahead = (values_ahead * shares).sum(2)
            gain = self.afterstates.gain(item_id[:, :1])
            score = torch.where(is_legal, gain + ahead, NEVER)
        return action.gather(1, score.argmax(1, keepdim=True))[:, 0]

    def shares_after(self, item: Tensor, known: Tensor | None = None) -> Tensor:
        """Probabilities of each next item, (N, I) or (1, I), after `item` (N,).

        What is known depends on the setting: the items that came before, (N, T), for a network; of known boxes those to
        come; of cut ones how full the bin is without `item`, (N, 1).
        """
        number = self.num_items
        if known is None:
            return torch.full((1, number), 1 / number, device=item.device, dtype=torch.float32)
        if self.next_items is not None:
            return self.next_items(known, item).softmax(1)
        if self.sequence_shares is None:
            return shares_among(known, number)
        item = item.clamp_min(0)
        filled = known[:, 0] + self.afterstates.gain(item)
        fill = fill_of(filled)
        return self.sequence_shares[fill, item]

    def values_ahead(self, heightmap: Tensor, shares: Tensor) -> Tensor:
        """Values (N, M, I) of the best placement of each next item that may come.

        Shares are (N, M, I), bins (N·M, X, Y).
        """
        item = indices(self.num_items, heightmap.device)
        item = torch.where(shares > 0, item, -1).flatten(0, 1)
        values, _ = self.afterstates.values(heightmap, item)
        best = values.amax(2).view(shares.shape)
        return torch.where(best > NEVER / 2, best, 0.0)

    def _halve(self, heightmap: Tensor, legal: Tensor, item: Tensor, known: Tensor | None = None) -> Tensor:
        """Mean returns (N, M) of the sequences that bins (N, M, X, Y) meet, by halving.

        Placements that are left behind get `NEVER`.
        """
        total = torch.zeros_like(legal, dtype=torch.float32)
        there = legal
        place = indices(legal.shape[1], legal.device).expand_as(legal)
        for number, draws in enumerate(self.draws):
            if number:
                score = torch.where(there, total, NEVER)
                # The better half of the placements meets further futures.
                keep = score.topk(_half(place.shape[1]), 1).indices
                total = total.gather(1, keep)
                there = there.gather(1, keep)
                place = place.gather(1, keep)
                row = indices(len(keep), keep.device)
                heightmap = heightmap[row[:, None], keep]
            futures = self.draw_futures(draws, item, known)
            # Bins that are done cost nothing more.
            goes_on = legal.any(1)[:, None, None]
            futures = torch.where(goes_on, futures, -1)
            total = total + self.returns_of(heightmap, futures).sum(2)
        num_futures = sum(map(len, self.draws))
        total = torch.where(there, total / num_futures, NEVER)
        return torch.full_like(legal, NEVER, dtype=torch.float32).scatter(1, place, total)

    def draw_futures(self, draws: Tensor, item: Tensor, known: Tensor | None = None) -> Tensor:
        """Items (N, F, D) int64 that may follow `item` (N,) and what is known.

        The draws (F, D) in (0, 1) say where in the probability each item lies. For `known` see `shares_after`.
        """
        rows = len(item)
        futures = len(draws)
        # A bin without an item draws as if it had the first one, and `_halve` drops its futures.
        item = item.clamp_min(0).repeat_interleave(futures)
        known = known if known is None else known.repeat_interleave(futures, 0)
        drawn = []
        for draw in draws.unbind(1):
            until = self.shares_after(item, known).cumsum(1)
            wanted = draw.repeat(rows).view(len(until), -1)
            found = torch.searchsorted(until, wanted)
            # Probabilities are summed with rounding, so that a number next to 1 may lie beyond the sum of all.
            following = found.flatten().clamp_max(self.num_items - 1)
            known = self._with(known, item)
            item = following
            drawn.append(item)
        return torch.stack(drawn, 1).view(rows, futures, -1)

    def _with(self, known: Tensor | None, item: Tensor) -> Tensor | None:
        """Knowledge, as in `shares_after`, with one more item (N,)."""
        if known is None:
            return None
        if self.next_items is None:
            return known + self.afterstates.gain(item)[:, None]
        last = known.shape[1] - 1
        number = (known >= 0).sum(1, keepdim=True).clamp_max(last)
        return known.scatter(1, number, item[:, None])

    def returns_of(self, heightmap: Tensor, futures: Tensor) -> Tensor:
        """λ-returns (N, M, F) of sequences (N, F, D) that are packed greedily."""
        rows, bins = heightmap.shape[:2]
        heightmap = heightmap.flatten(0, 1).repeat_interleave(futures.shape[1], 0)  # (N·M·F, X, Y)
        coming = futures[:, None].expand(-1, bins, -1, -1)
        coming = coming.flatten(0, 2)
        filled = heightmap.new_zeros(len(heightmap))
        ended = torch.zeros_like(filled, dtype=torch.bool)
        mixed = filled
        for step, item in enumerate(coming.unbind(1), 1):
            # A future ends with the first item that fits nowhere.
            item = torch.where(ended, -1, item)
            values, z = self.afterstates.values(heightmap, item[:, None])
            best, action = values[:, 0].max(1)
            ended = best < NEVER / 2
            share = 1 - _LAMBDA if step < self.depth else 1
            weight = _LAMBDA ** (step - 1) * share
            expected = torch.where(ended, 0.0, best)
            mixed = mixed + weight * (filled + expected)
            if step < self.depth:
                item = torch.where(ended, -1, item)
                filled = filled + self.afterstates.gain(item)
                z = z[:, 0].gather(1, action[:, None])
                z = z[:, 0]
                heightmap = self.afterstates.after(heightmap, item, action, z)
        return mixed.view(rows, bins, -1)


def _half(number: int) -> int:
    return max(2, -(-number // 2))


def latin_draws(candidates: int, futures: int, depth: int) -> list[Tensor]:
    """Latin hypercubes (F, D) float32 in (0, 1), one for each halving.

    Together they have `futures` rows, each about twice as many as the last. Each column is the middles of F equal
    parts, in an order of its own.
    """
    rounds = 1
    while candidates > 2:
        candidates = _half(candidates)
        rounds = rounds + 1
    # Futures up to each halving: each has twice as many as the one before.
    whole = 2**rounds - 1
    ends = [round(futures * (2**number - 1) / whole) for number in range(rounds + 1)]
    generator = torch.Generator().manual_seed(SEED)
    parts = []
    for begin, end in pairwise(ends):
        size = end - begin
        if size > 0:
            order = [torch.randperm(size, generator=generator, dtype=torch.int64, device="cpu") for _ in range(depth)]
            parts.append((torch.stack(order, 1).float() + 0.5) / size)
    return parts


def _check_known(where: str, env: PackingEnv, knows: str, next_items: NextItems | None) -> None:
    """Raise ValueError unless an environment shows what the planner knows."""
    found = f"{type(env.items).__name__}, {env.visible_items} visible, order {env.order!r}, include {env.include}"
    is_sequence = env.visible_items == 1 and env.order == "sequence"
    if knows == "the distribution":
        is_known = isinstance(env.items.drawn_as, RandomBoxes) or cut_as(env) is not None
        wanted = "RandomBoxes or, without a pool, CutBoxes, one visible, in sequence"
    else:
        is_known = "future_items" in env.include
        wanted = "one visible item, in sequence, that includes future_items"
    if not (is_known and is_sequence):
        raise ValueError(f"{where}: knowing {knows} takes an environment of {wanted}, not {found}")
    if next_items is None:
        return
    if knows != "the distribution" or "packed_items" not in env.include:
        raise ValueError(f"{where}: next_items needs the distribution known and packed_items included, not {found}")
    if next_items.num_items != env.catalogue.num_items:
        raise ValueError(f"{where}: next_items must be of {env.catalogue.num_items} items, not {next_items.num_items}")
    cells = layer_cells_of(cut_as(env))
    own_cells = (next_items.floor, next_items.height)
    if next_items.floor and own_cells != cells:
        raise ValueError(f"{where}: next_items must be of the layers of this bin, {cells} cells, not {own_cells}")


def shares_among(items: Tensor, number: int) -> Tensor:
    """Relative frequency (N, I) of catalogue rows among items (N, T), −1 for none.

    Rows sum to 1, or to 0 if there is no item.
    """
    there = (items >= 0).float()
    counts = there.new_zeros(len(items), number)
    counts = counts.scatter_add_(1, items.clamp_min(0), there)
    return counts / there.sum(1, keepdim=True).clamp_min(1)


def shares_of_next(env: PackingEnv, sequences: int) -> Tensor:
    """Transition frequencies of items in cut sequences, by how full the bin is.

    Sequences are cut as in the environment, by a seed of their own. A pair of items is rare in a twelfth of the bin's
    volume, so what follows any item there counts as `_PRIOR` items that follow this one.

    Returns:
        (12, I, I) float32: twelfth of the volume that has come, item that came last, next item. Rows sum to 1.
    """
    number = env.catalogue.num_items
    device = env.catalogue.volume.device
    num_counts = _FILLS * number * number
    counts = torch.zeros(num_counts, dtype=torch.float64, device=device)
    for first in range(0, sequences, _AT_ONCE):
        row = sequences_cut(env, SEED, first, min(_AT_ONCE, sequences - first))
        is_item = row >= 0
        each = env.catalogue.volume[row.clamp_min(0)]
        each = torch.where(is_item, each, 0.0)
        volume = each.cumsum(1) / env.bin.volume
        last = row[:, :-1].clamp_min(0)
        after = row[:, 1:].clamp_min(0)
        fill = fill_of(volume[:, :-1])
        pairs = (fill * number + last) * number + after
        both = is_item[:, :-1] & is_item[:, 1:]
        counts.index_add_(0, pairs.flatten(), both.double().flatten())
    counts = counts.view(_FILLS, number, number)
    # A part of the bin in which no pair was seen would give 0 / 0; with this all next items are equally likely there.
    of_any = counts.sum(1, keepdim=True) + 1e-9
    counts = counts + _PRIOR * of_any / of_any.sum(2, keepdim=True)
    return (counts / counts.sum(2, keepdim=True)).float()


def fill_of(share: Tensor) -> Tensor:
    """Part of the bin's volume, out of `_FILLS` equal ones, that a share lies in."""
    # Sums of volumes are rounded.
    return (share * _FILLS + 1e-3).long().clamp(0, _FILLS - 1)
