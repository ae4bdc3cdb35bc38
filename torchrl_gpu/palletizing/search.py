"""Orders whose boxes are all known: many sequences and places are tried side by side, and the best is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.palletizing.packer import Choice, Packer, Pallets
from torchrl_gpu.palletizing.plan import Placements
from torchrl_gpu.palletizing.prepared_boxes import Boxes, PreparedBoxes
from torchrl_gpu.policies.packing.placements import placed_at

TRIES, ROUNDS = 64, 4
_CHUNK = 2**22  # elements of the maps of all placements that are made at once
_LOOK = 8  # steps between two looks at which rows are done
_LIKE = 0.5  # share of a round's tries that vary the best one so far


Scored = tuple[tuple[int, float], Placements]  # pallets, cubic metres on the last one, and the placements


class _Genome(NamedTuple):
    """Candidate solutions (R rows): sequence of the variants, turn and preferred place of each."""

    rank: Tensor  # (R, V) float32, variants of the order, the least first; inf where there are no more
    turn: Tensor  # (R, V) int64, 0 or 1: the only turn about the vertical that is tried at first; 2: both
    weight: Tensor  # (R, 3) float32, of x, y and z in the score of a place, whose least is taken

    @staticmethod
    def stacked(parts: Sequence[_Genome]) -> _Genome:
        """The candidates of all parts, padded to the most variants."""
        most = max(part.rank.shape[1] for part in parts)
        ranks, turns = [], []
        for part in parts:
            missing = most - part.rank.shape[1]
            ranks.append(torch.nn.functional.pad(part.rank, (0, missing), value=math.inf))
            turns.append(torch.nn.functional.pad(part.turn, (0, missing)))
        return _Genome(torch.cat(ranks), torch.cat(turns), torch.cat([part.weight for part in parts]))


class _Variants(NamedTuple):
    """Kinds of boxes with each side up that may be, as boxes that stay upright."""

    prepared: PreparedBoxes
    kind: Tensor  # (V,) int64, row of the catalogue of all boxes
    along: Tensor  # (V, 3) int64, listed sides that are length, width and height of the variant
    of_order: list[Tensor]  # of each order (V',) int64, variants of its kinds


def search(
    packer: Packer,
    prepared: PreparedBoxes,
    orders: Sequence[np.ndarray],
    tries: int = TRIES,
    seed: int = 0,
    say: Callable[[str], None] = lambda words: None,
) -> Placements:
    """The best found packing of the boxes (…) int64 of each order: fewest pallets, then least on the last one.

    A try is a sequence of the kinds of boxes, a turn of each, and the weights of x, y and z by which places are
    scored: the first kind is placed as often as it fits, then the next; kinds that do not fit at first are tried once
    more, in both turns, before the pallet is closed. Tries of a round are rows of one batch. The first round draws them
    at random, later ones vary the best of each order. The plan of an order does not depend on the other orders.
    """
    used = [i for i, each in enumerate(orders) if len(each)]
    if not used:
        return Placements.join([])
    boxes = [orders[i] for i in used]
    upright = Packer(
        packer.pallet,
        turns="fixed" if packer.turns == "fixed" else "yaw",
        stability=packer.bin.stability,
        device=packer.device,
    )
    variants = _variants(packer, upright, prepared, boxes)
    # Every order draws from a generator of its own, all with the same seed: one generator for all would give an order
    # other draws beside other orders than alone.
    generators = [torch.Generator(device="cpu").manual_seed(seed) for _ in used]
    each_round = max(1, tries // ROUNDS)
    rows = torch.arange(len(used), dtype=torch.int64, device="cpu").repeat_interleave(each_round)
    best: dict[int, tuple[Scored, _Genome]] = {}
    for turn in range(ROUNDS):
        candidates = []
        for at, generator in enumerate(generators):
            drawn = _drawn(variants, variants.of_order[at], each_round, generator)
            candidates.append(_varied(drawn, best[at][1], generator) if at in best else drawn)
        found = _tried(upright, variants, prepared, boxes, rows, _Genome.stacked(candidates))
        for at, genome in enumerate(candidates):
            scored = found[at * each_round : (at + 1) * each_round]
            scores = [score for score, _ in scored]
            winner = scores.index(min(scores))
            if at not in best or scores[winner] < best[at][0][0]:
                best[at] = scored[winner], _Genome(*(each[winner : winner + 1] for each in genome))
        say(f"{(turn + 1) * each_round} of {ROUNDS * each_round} tries of every order")
    parts = []
    for at, i in enumerate(used):
        placed = best[at][0][1]
        parts.append(placed._replace(order=np.full_like(placed.order, i)))
    return Placements.join(parts)


def _variants(packer: Packer, upright: Packer, prepared: PreparedBoxes, orders: Sequence[np.ndarray]) -> _Variants:
    """Every side up that is allowed and differs, of every kind."""
    row = prepared.row.cpu()
    shown = np.unique(row.numpy(), return_index=True)[1]  # a box of each kind
    along_of = packer.rotations.argmax(2)  # (O, 3)
    kinds, along, sides = [], [], []
    for kind, box in enumerate(shown.tolist()):
        seen = set()
        for turn in np.flatnonzero(prepared.turns[kind].cpu().numpy()).tolist():
            listed = along_of[turn].tolist()
            size = tuple(prepared.boxes.sizes[box][listed].tolist())
            if (key := (size if packer.turns == "fixed" else tuple(sorted(size[:2])), size[2])) not in seen:
                seen.add(key)
                kinds.append(kind)
                along.append(listed)
                sides.append(size)
    of_kind = torch.tensor(kinds, dtype=torch.int64, device="cpu")
    max_load = prepared.boxes.max_load[torch.from_numpy(shown)][of_kind]
    made = upright.prepare(Boxes.of(sides, max_load=max_load), test_fit=False)
    mine = [torch.isin(of_kind, row[torch.from_numpy(boxes)]).nonzero()[:, 0] for boxes in orders]
    return _Variants(made, of_kind, torch.tensor(along, dtype=torch.int64, device="cpu"), mine)


def _drawn(variants: _Variants, mine: Tensor, number: int, draw: torch.Generator) -> _Genome:
    """Candidates of one order with variants (V,): kinds by falling volume, base or height, fragile ones last."""
    sizes = variants.prepared.boxes.sizes[mine]
    keys = torch.stack([sizes.prod(1), sizes[:, :2].prod(1), sizes[:, 2], torch.ones_like(sizes[:, 0])])
    chosen = torch.randint(len(keys), (number,), generator=draw, dtype=torch.int64, device="cpu")
    key = keys[chosen].log()  # (R, V)
    # Kinds are numbered within the order: numbers in the whole list would depend on the other orders.
    kind = variants.kind[mine].unique(return_inverse=True)[1]
    kinds = torch.randn(number, int(kind.max()) + 1, generator=draw, dtype=torch.float64, device="cpu")
    scale = 10 ** (2 * torch.rand(number, 1, generator=draw, dtype=torch.float32, device="cpu") - 2)
    noise = kinds[:, kind] * scale
    noise = noise + 0.01 * torch.randn(number, len(mine), generator=draw, dtype=torch.float32, device="cpu")
    rank = noise - key + 100.0 * (variants.prepared.boxes.max_load[mine] == 0)
    turn = torch.randint(3, rank.shape, generator=draw, dtype=torch.int64, device="cpu")
    weight = 10 ** (3 * torch.rand(number, 3, generator=draw, dtype=torch.float32, device="cpu"))
    return _Genome(rank.float(), turn, weight)


def _varied(drawn: _Genome, best: _Genome, draw: torch.Generator) -> _Genome:
    """Next candidates of one order: some of the random ones, the rest mutations of the best (1 row)."""
    share = torch.rand(drawn.rank.shape, generator=draw, dtype=torch.float32, device="cpu")
    number, kinds = share.shape
    some = share < 1.5 / kinds  # variants that change, one or two
    shift = torch.randn(share.shape, generator=draw, dtype=torch.float32, device="cpu")
    rank = torch.where(some, best.rank + shift, best.rank)
    turn = torch.where(share.roll(1, 1) < 1.5 / kinds, drawn.turn, best.turn)
    jitter = torch.randn(number, 3, generator=draw, dtype=torch.float32, device="cpu")
    jitter = jitter * (torch.rand(number, 1, generator=draw, dtype=torch.float32, device="cpu") < 0.5)
    like = torch.rand(number, 1, generator=draw, dtype=torch.float32, device="cpu") < _LIKE
    mutated = _Genome(rank, turn, best.weight * jitter.exp())
    return _Genome(*(torch.where(like, a, b) for a, b in zip(mutated, drawn, strict=True)))


def _tried(
    packer: Packer,
    variants: _Variants,
    prepared: PreparedBoxes,
    orders: Sequence[np.ndarray],
    rows: Tensor,
    genome: _Genome,
) -> list[Scored]:
    """Score and placements of every try, some of them side by side."""
    at_once = max(1, _CHUNK // (2 * math.prod(packer.bin.cells)))
    found: list[Scored] = []
    for part in torch.arange(len(rows), dtype=torch.int64, device="cpu").split(at_once):
        found += _side_by_side(
            packer, variants, prepared, orders, rows[part], _Genome(*(each[part] for each in genome))
        )
    return found


def _side_by_side(
    packer: Packer,
    variants: _Variants,
    prepared: PreparedBoxes,
    orders: Sequence[np.ndarray],
    rows: Tensor,
    genome: _Genome,
) -> list[Scored]:
    device = packer.device
    rank, order = genome.rank.sort(1)
    padded = torch.nn.utils.rnn.pad_sequence(variants.of_order, batch_first=True, padding_value=-1)
    mine = torch.where(rank.isfinite(), padded[rows].gather(1, order), -1)
    sequence = torch.cat([mine, mine], 1).to(device)  # (R, E) variants: once as they were drawn, once in both turns
    turns = torch.cat([genome.turn.gather(1, order), torch.full_like(mine, 2)], 1).to(device)
    kinds, weight = variants.kind.to(device)[sequence.clamp_min(0)], genome.weight.to(device)
    queue, left = (each.to(device) for each in _queues(prepared, [orders[i] for i in rows.tolist()]))
    state, number = packer.begin(prepared, [orders[i] for i in rows.tolist()]), len(rows)
    every, places = (torch.arange(size, device=device, dtype=torch.int64) for size in sequence.shape)
    entry, pallet = torch.zeros((2, number), dtype=torch.int64, device=device)
    served = torch.zeros_like(left)
    steps: list[tuple[Tensor, Choice]] = []
    none, ended = torch.zeros_like(entry), left.sum(1) == 0
    while len(steps) % _LOOK or not bool(ended.all()):
        waiting = (left.gather(1, kinds) > 0) & (sequence >= 0) & (places >= entry[:, None])
        closing = ~waiting.any(1) & ~ended  # nothing fits any more: begin the sequence again on an empty pallet
        entry = waiting.byte().argmax(1)
        state, pallet = packer.clear(state, closing[:, None]), pallet + closing
        variant, kind = sequence[every, entry], kinds[every, entry]
        box = queue[every, kind, served[every, kind].clamp_max(queue.shape[2] - 1)]
        kilograms = prepared.weight[box.clamp_min(0)]
        heavy = state.weight[:, 0] + kilograms > packer.pallet.weight * (1 + 1e-6)
        fits, turn, x, y, z = _least(packer, variants, state, variant, turns[every, entry], weight, kilograms)
        fits = fits & ~closing & ~ended & ~heavy
        chosen = torch.where(fits, variant, -1)
        choice = Choice(chosen, none, none, pallet, fits & False, turn, x, y, z - packer.pallet.deck)
        state = packer.place(state, variants.prepared, choice, kilograms)
        steps.append((torch.where(fits, box, -1), choice))
        moved = fits.long()
        served[every, kind] += moved
        left[every, kind] -= moved
        entry = torch.where(closing, 0, entry + (~fits).long())
        ended = left.sum(1) == 0
    scores = zip((pallet + 1).tolist(), state.volume[:, 0].tolist(), strict=True)
    return list(zip(scores, _read_back(packer, variants, steps), strict=True))


def _least(
    packer: Packer,
    variants: _Variants,
    state: Pallets,
    variant: Tensor,
    turn: Tensor,
    weight: Tensor,
    kilograms: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Mask of rows of which a variant fits, (R,) bool, and its turn, x, y and base at the place of least score."""
    row = torch.where(variant >= 0, variants.prepared.row[variant.clamp_min(0)], -1)
    z_map, legal = packer.maps(state, variants.prepared, row[:, None], kilograms[:, None])
    z_map, legal = z_map[:, 0], legal[:, 0]  # (R, O, Gx, Gy)
    turns, (grid_x, grid_y) = z_map.shape[1], z_map.shape[2:]
    if turns == 2:
        each = torch.arange(2, device=turn.device, dtype=torch.int64)
        legal = legal & ((turn == 2)[:, None] | (each == turn[:, None]))[..., None, None]
    x, y = (torch.arange(size, device=turn.device, dtype=torch.int64) / size for size in (grid_x, grid_y))
    wx, wy, wz = weight[..., None, None].unbind(1)  # (R, 1, 1)
    score = z_map * (wz / packer.bin.size[2])[:, None] + (wx * x[:, None] + wy * y)[:, None]
    least, action = torch.where(legal, score, torch.inf).flatten(1).min(1)
    z = z_map.flatten(1).gather(1, action[:, None])[:, 0]
    per_turn = grid_x * grid_y
    at = placed_at(row, action // per_turn, action % per_turn, z, variants.prepared.catalogue, packer.bin)
    return least < torch.inf, at.orientation, at.x, at.y, z


def _read_back(packer: Packer, variants: _Variants, steps: Sequence[tuple[Tensor, Choice]]) -> list[Placements]:
    """Placements of every row; their order is 0."""
    yaw, along = packer.rotations.argmax(2), variants.along
    boxes = torch.stack([box for box, _ in steps], 1).cpu()  # (R, T)
    corners = [packer.corner(choice, variants.prepared) for _, choice in steps]
    corner, sides = (torch.stack(each, 1).cpu().numpy() for each in zip(*corners, strict=True))
    variant, turn, pallet = (
        torch.stack([getattr(choice, name) for _, choice in steps], 1).cpu() for name in ("box", "turn", "number")
    )
    listed = along[variant.clamp_min(0)].gather(2, yaw[turn]).numpy()  # (R, T, 3)
    found = []
    for row, mine in enumerate((boxes >= 0).numpy()):
        step = np.arange(int(mine.sum()))
        numbers = boxes[row].numpy()[mine], pallet[row].numpy()[mine]
        found.append(Placements(step * 0, step, *numbers, listed[row, mine], corner[row, mine], sides[row, mine]))
    return found


def _queues(prepared: PreparedBoxes, orders: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Boxes of every kind of each order, (R, kinds, most) int64, and how many there are, (R, kinds) int64."""
    row, kinds = prepared.row.cpu().numpy(), len(prepared.turns)
    counts = np.stack([np.bincount(row[boxes], minlength=kinds) for boxes in orders])
    queue = np.full((len(orders), kinds, int(counts.max())), -1)
    for i, boxes in enumerate(orders):
        by_kind = boxes[np.argsort(row[boxes], kind="stable")]
        at = np.arange(len(boxes)) - np.repeat(np.cumsum(counts[i]) - counts[i], counts[i])
        queue[i, row[by_kind], at] = by_kind
    return torch.from_numpy(queue), torch.from_numpy(counts)
