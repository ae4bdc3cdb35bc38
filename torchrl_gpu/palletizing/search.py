"""Search for the plan of orders whose boxes are all known.

Many sequences of the boxes are packed side by side, and the best plan is kept. A search over single placements would
need their number to the power of the boxes; here a candidate says in which sequence boxes come and which places they
like, and a greedy rule turns it into a legal plan at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.palletizing.layered import StartingPile
from torchrl_gpu.palletizing.packer import Choice, Packer, Pallets
from torchrl_gpu.palletizing.plan import Placements
from torchrl_gpu.palletizing.prepared_boxes import Boxes, PreparedBoxes
from torchrl_gpu.palletizing.scores import Score, plan_score
from torchrl_gpu.policies.packing.placements import placed_at

# Candidates of every order, over all rounds, by default.
TRIES = 64
ROUNDS = 4
# Elements of the maps of all placements that are made at once.
_CHUNK = 2**22
# Steps between two looks at which rows are done, since a look waits for the device.
_LOOK = 8
# Share of the candidates of a later round that are mutations of the best one so far.
_MUTATED = 0.5
# A turn that stands for both turns about the vertical.
_BOTH_TURNS = 2
# Rank of variants that a candidate tries last: nothing may lie on them.
_FRAGILE_RANK = 100.0


class _Candidates(NamedTuple):
    """Candidate solutions (R rows): sequence, turn and place of every box.

    Attributes:
        rank: Rank of each variant of the order, the least first, inf where there are no more, (R, V) float32.
        turn: 0 or 1, the only turn about the vertical that is tried at first, or 2 for both, (R, V) int64.
        weight: Weights of x, y and z in the score of a place, (R, 3) float32. The place of least score is taken.
    """

    rank: Tensor
    turn: Tensor
    weight: Tensor

    @staticmethod
    def stack(parts: Sequence[_Candidates]) -> _Candidates:
        """Stack the candidates of all parts, padded to the most variants."""
        most = max(part.rank.shape[1] for part in parts)
        ranks = []
        turns = []
        weights = []
        for part in parts:
            missing = most - part.rank.shape[1]
            ranks.append(torch.nn.functional.pad(part.rank, (0, missing), value=math.inf))
            turns.append(torch.nn.functional.pad(part.turn, (0, missing)))
            weights.append(part.weight)
        return _Candidates(torch.cat(ranks), torch.cat(turns), torch.cat(weights))

    def rows(self, chosen: Tensor | slice) -> _Candidates:
        """Some of the rows."""
        return _Candidates(self.rank[chosen], self.turn[chosen], self.weight[chosen])

    def where(self, mask: Tensor, other: _Candidates) -> _Candidates:
        """Rows of these where the mask (R, 1) is set, and of the others elsewhere."""
        rank = torch.where(mask, self.rank, other.rank)
        turn = torch.where(mask, self.turn, other.turn)
        weight = torch.where(mask, self.weight, other.weight)
        return _Candidates(rank, turn, weight)


@dataclass(frozen=True)
class _Variants:
    """Kinds of boxes with each side up that may be, as boxes that stay upright.

    Attributes:
        prepared: The variants, V boxes.
        kind: Row of each variant in the catalogue of all boxes, (V,) int64.
        along: Listed sides that are length, width and height of the variant, (V, 3) int64.
        of_order: Variants of the kinds of each order, (V',) int64 each.
    """

    prepared: PreparedBoxes
    kind: Tensor
    along: Tensor
    of_order: list[Tensor]


@dataclass(frozen=True)
class _Problem:
    """What is packed, and by whom.

    Attributes:
        packer: Of boxes that stay upright.
        variants: Boxes as that packer places them.
        prepared: Boxes as they are listed.
        orders: Numbers of the boxes of each order that has any, (…) int64 each.
        starts: Pallet that each order begins on, None for an empty one.
    """

    packer: Packer
    variants: _Variants
    prepared: PreparedBoxes
    orders: list[np.ndarray]
    starts: list[StartingPile | None]


@dataclass(frozen=True)
class _Found:
    """Plan that a candidate gives.

    Attributes:
        score: Of the plan, see `plan_score`. The least is the best.
        placements: Of the order, which has the number 0 in them.
    """

    score: Score
    placements: Placements


@dataclass(frozen=True)
class _Best:
    """Candidate with the least score so far, 1 row, and its plan."""

    candidate: _Candidates
    found: _Found


def search(
    packer: Packer,
    prepared: PreparedBoxes,
    orders: Sequence[np.ndarray],
    tries: int = TRIES,
    seed: int = 0,
    starts: Sequence[StartingPile | None] | None = None,
    report: Callable[[str], None] = lambda words: None,
) -> Placements:
    """Search for the packing of each order on the fewest pallets.

    Among equals the one without towers, with the least on its last pallet, and the lowest one is the best. A candidate
    is a sequence of the kinds of boxes, a turn of each, and the weights of x, y and z by which places are scored: the
    first kind is placed as often as it fits, then the next. Kinds that do not fit at first are tried once more, in both
    turns, before the pallet is closed.

    Candidates of a round are rows of one batch. The first round draws them at random, later ones mutate the best of
    each order. The plan of an order does not depend on the other orders.

    Args:
        packer: Of the pallet and the rule.
        prepared: All boxes.
        orders: Numbers of the boxes of each order, (…) int64.
        tries: Candidates of each order.
        seed: Of the draws.
        starts: Pallet that each order begins on, which has the number 0 then; None for an empty one.
        report: Called with a line about the progress.
    """
    used = [i for i, boxes in enumerate(orders) if len(boxes)]
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
    begun = [None if starts is None else starts[i] for i in used]
    problem = _Problem(upright, variants, prepared, boxes, begun)
    # Every order draws from its own generator, all with the same seed. With one generator for all, the plan of an order
    # would depend on the orders before it in the list.
    generators = [torch.Generator(device="cpu").manual_seed(seed) for _ in used]
    each_round = max(1, tries // ROUNDS)
    rows = torch.arange(len(used), dtype=torch.int64, device="cpu").repeat_interleave(each_round)
    best: dict[int, _Best] = {}
    for number in range(ROUNDS):
        candidates = []
        for at, generator in enumerate(generators):
            drawn = _draw(variants, variants.of_order[at], each_round, generator)
            if at in best:
                drawn = _mutate(drawn, best[at].candidate, generator)
            candidates.append(drawn)
        found = _try_all(problem, rows, _Candidates.stack(candidates))
        for at, candidate in enumerate(candidates):
            first = at * each_round
            winner = _best_of(candidate, found[first : first + each_round])
            if at not in best or winner.found.score < best[at].found.score:
                best[at] = winner
        report(f"{(number + 1) * each_round} of {ROUNDS * each_round} tries of every order")
    parts = []
    for at, i in enumerate(used):
        placed = best[at].found.placements
        parts.append(placed._replace(order=np.full_like(placed.order, i)))
    return Placements.join(parts)


def _best_of(candidates: _Candidates, found: Sequence[_Found]) -> _Best:
    """Candidate of one order with the least score, the first of equal ones."""
    scores = [each.score for each in found]
    winner = scores.index(min(scores))
    return _Best(candidates.rows(slice(winner, winner + 1)), found[winner])


# -- candidates ------------------------------------------------------------------------------------------------------


def _variants(packer: Packer, upright: Packer, prepared: PreparedBoxes, orders: Sequence[np.ndarray]) -> _Variants:
    """Make a variant of each kind for every side up that is allowed and differs."""
    row = prepared.row.cpu()
    # A box of each kind.
    _, shown = np.unique(row.numpy(), return_index=True)
    along_of_turn = packer.rotations.argmax(2)  # (O, 3)
    kinds = []
    along = []
    sides = []
    for kind, box in enumerate(shown.tolist()):
        seen = set()
        turns = np.flatnonzero(prepared.turns[kind].cpu().numpy())
        for turn in turns.tolist():
            listed = along_of_turn[turn].tolist()
            size = tuple(prepared.boxes.sizes[box][listed].tolist())
            # Where variants may turn about the vertical, length and width may be swapped.
            base = size if packer.turns == "fixed" else tuple(sorted(size[:2]))
            key = (base, size[2])
            if key not in seen:
                seen.add(key)
                kinds.append(kind)
                along.append(listed)
                sides.append(size)
    of_kind = torch.tensor(kinds, dtype=torch.int64, device="cpu")
    max_load = prepared.boxes.max_load[torch.from_numpy(shown)][of_kind]
    bottom_only = prepared.boxes.bottom_only[torch.from_numpy(shown)][of_kind]
    made = upright.prepare(Boxes.of(sides, max_load=max_load, bottom_only=bottom_only), test_fit=False)
    of_order = []
    for boxes in orders:
        is_mine = torch.isin(of_kind, row[torch.from_numpy(boxes)])
        of_order.append(is_mine.nonzero()[:, 0])
    sides_along = torch.tensor(along, dtype=torch.int64, device="cpu")
    return _Variants(made, of_kind, sides_along, of_order)


def _draw(variants: _Variants, mine: Tensor, number: int, generator: torch.Generator) -> _Candidates:
    """Draw candidates of one order with variants (V,).

    Kinds come by falling volume, base or height, or in any order, all of that with noise. Fragile ones come last.
    """
    boxes = variants.prepared.boxes
    sizes = boxes.sizes[mine]
    volume = sizes.prod(1)
    base = sizes[:, :2].prod(1)
    height = sizes[:, 2]
    keys = torch.stack([volume, base, height, torch.ones_like(height)])
    chosen = torch.randint(len(keys), (number,), generator=generator, dtype=torch.int64, device="cpu")
    key = keys[chosen].log()  # (R, V)
    # Kinds are numbered within the order: numbers in the whole list would depend on the other orders.
    _, kind = variants.kind[mine].unique(return_inverse=True)
    of_kind = torch.randn(number, int(kind.max()) + 1, generator=generator, dtype=torch.float64, device="cpu")
    scale = 10 ** (2 * _uniform(number, 1, generator) - 2)
    of_variant = torch.randn(number, len(mine), generator=generator, dtype=torch.float32, device="cpu")
    noise = of_kind[:, kind] * scale
    noise = noise + 0.01 * of_variant
    rank = noise - key + _FRAGILE_RANK * (boxes.max_load[mine] == 0)
    turn = torch.randint(3, rank.shape, generator=generator, dtype=torch.int64, device="cpu")
    weight = 10 ** (3 * _uniform(number, 3, generator))
    return _Candidates(rank.float(), turn, weight)


def _mutate(drawn: _Candidates, best: _Candidates, generator: torch.Generator) -> _Candidates:
    """Next candidates of one order: some random ones, the rest mutations.

    A mutation of the best one (1 row) moves one or two variants in the sequence, turns one or two others, and changes
    the weights every second time.
    """
    number, variants = drawn.rank.shape
    share = 1.5 / variants
    draw = _uniform(number, variants, generator)
    moves = draw < share
    turns = draw.roll(1, 1) < share
    shift = torch.randn(draw.shape, generator=generator, dtype=torch.float32, device="cpu")
    rank = torch.where(moves, best.rank + shift, best.rank)
    turn = torch.where(turns, drawn.turn, best.turn)
    jitter = torch.randn(number, 3, generator=generator, dtype=torch.float32, device="cpu")
    jitter = jitter * (_uniform(number, 1, generator) < 0.5)
    mutated = _Candidates(rank, turn, best.weight * jitter.exp())
    is_mutated = _uniform(number, 1, generator) < _MUTATED
    return mutated.where(is_mutated, drawn)


def _uniform(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.rand(rows, columns, generator=generator, dtype=torch.float32, device="cpu")


# -- packing them ----------------------------------------------------------------------------------------------------


def _try_all(problem: _Problem, rows: Tensor, candidates: _Candidates) -> list[_Found]:
    """Pack all candidates, as many at once as `_CHUNK` allows.

    `rows` (R,) is the order of each candidate.
    """
    # Maps of both turns of one variant for each row.
    at_once = max(1, _CHUNK // (2 * math.prod(problem.packer.bin.cells)))
    found: list[_Found] = []
    for part in torch.arange(len(rows), dtype=torch.int64, device="cpu").split(at_once):
        found += _pack_side_by_side(problem, rows[part], candidates.rows(part))
    return found


@dataclass(frozen=True)
class _Step:
    """What a step places in each row.

    Attributes:
        box: Number in the list, −1 for none, (R,) int64.
        choice: Its variant, and where.
    """

    box: Tensor
    choice: Choice


@dataclass(frozen=True)
class _Sequence:
    """E entries that each row goes through.

    These are all variants in one turn, then all of them in both.

    Attributes:
        variant: −1 behind the end, (R, E) int64.
        kind: Of the variant, (R, E) int64.
        turn: That may be taken, (R, E) int64.
    """

    variant: Tensor
    kind: Tensor
    turn: Tensor

    @staticmethod
    def of(variants: _Variants, rows: Tensor, candidates: _Candidates, device: torch.device) -> _Sequence:
        rank, order = candidates.rank.sort(1)
        padded = torch.nn.utils.rnn.pad_sequence(variants.of_order, batch_first=True, padding_value=-1)
        in_turn = padded[rows].gather(1, order)
        mine = torch.where(rank.isfinite(), in_turn, -1)
        one_turn = candidates.turn.gather(1, order)
        both = torch.full_like(mine, _BOTH_TURNS)
        variant = torch.cat([mine, mine], 1).to(device)
        turn = torch.cat([one_turn, both], 1).to(device)
        kind = variants.kind.to(device)[variant.clamp_min(0)]
        return _Sequence(variant, kind, turn)


def _pack_side_by_side(problem: _Problem, rows: Tensor, candidates: _Candidates) -> list[_Found]:
    """Pack the orders `rows` (R,) as their candidates say.

    In every step each row places one box of the first entry of its sequence that has boxes left and is not passed, or
    passes an entry that does not fit, or closes its pallet where all are passed. So rows need not wait for each other,
    and a step has the same operators for all of them.
    """
    packer = problem.packer
    variants = problem.variants
    prepared = problem.prepared
    device = packer.device
    mine = [problem.orders[i] for i in rows.tolist()]
    sequence = _Sequence.of(variants, rows, candidates, device)
    weight = candidates.weight.to(device)
    queue, left = _queues(prepared, mine)
    queue = queue.to(device)
    left = left.to(device)
    state = _on_starts(packer.begin(prepared, mine), [problem.starts[i] for i in rows.tolist()])
    number, entries = sequence.variant.shape
    every = torch.arange(number, device=device, dtype=torch.int64)
    places = torch.arange(entries, device=device, dtype=torch.int64)
    entry, pallet = torch.zeros((2, number), dtype=torch.int64, device=device)
    served = torch.zeros_like(left)
    none = torch.zeros_like(entry)
    ended = left.sum(1) == 0
    steps: list[_Step] = []
    while len(steps) % _LOOK or not bool(ended.all()):
        has_boxes = left.gather(1, sequence.kind) > 0
        waiting = has_boxes & (sequence.variant >= 0) & (places >= entry[:, None])
        # Where nothing fits any more the sequence begins again, on an empty pallet.
        closing = ~waiting.any(1) & ~ended
        entry = waiting.byte().argmax(1)
        state = packer.clear(state, closing[:, None])
        pallet = pallet + closing
        variant = sequence.variant[every, entry]
        kind = sequence.kind[every, entry]
        next_box = served[every, kind].clamp_max(queue.shape[2] - 1)
        box = queue[every, kind, next_box]
        kilograms = prepared.weight[box.clamp_min(0)]
        is_heavy = state.weight[:, 0] + kilograms > packer.pallet.weight * (1 + 1e-6)
        turn = sequence.turn[every, entry]
        place = _best_place(problem, state, variant=variant, turn=turn, weight=weight, kilograms=kilograms)
        fits = place.fits & ~closing & ~ended & ~is_heavy
        chosen = torch.where(fits, variant, -1)
        z = place.z - packer.pallet.deck
        no_fresh = fits & False
        choice = Choice(chosen, none, none, pallet, no_fresh, place.turn, place.x, place.y, z)
        state = packer.place(state, variants.prepared, choice, kilograms)
        steps.append(_Step(torch.where(fits, box, -1), choice))
        moved = fits.long()
        served[every, kind] += moved
        left[every, kind] -= moved
        entry = torch.where(closing, 0, entry + (~fits).long())
        ended = left.sum(1) == 0
    pallets = (pallet + 1).tolist()
    volumes = state.volume[:, 0].tolist()
    weights = prepared.boxes.weights.numpy()
    found = []
    for row, placed in enumerate(_read_back(problem, steps)):
        score = plan_score(pallets[row], volumes[row], placed, weights)
        found.append(_Found(score, placed))
    return found


def _on_starts(state: Pallets, starts: Sequence[StartingPile | None]) -> Pallets:
    """Put the pallets that some rows begin on in the place of empty ones."""
    for row, start in enumerate(starts):
        if start is None:
            continue
        state.heightmap[row, 0] = start.heightmap.to(state.heightmap.device)
        if state.bears.numel():
            state.bears[row, 0] = start.bears.to(state.bears.device)
        state.weight[row, 0] = start.weight
        state.volume[row, 0] = start.volume
    return state


@dataclass(frozen=True)
class _PlaceOfRow:
    """Place of least score of a variant in each row, (R,) each.

    Attributes:
        fits: Whether there is one, bool.
        turn: Orientation, int64.
        x, y: First cell, int64.
        z: Base, metres, float32.
    """

    fits: Tensor
    turn: Tensor
    x: Tensor
    y: Tensor
    z: Tensor


def _best_place(
    problem: _Problem, state: Pallets, *, variant: Tensor, turn: Tensor, weight: Tensor, kilograms: Tensor
) -> _PlaceOfRow:
    """Find the legal place of least score of a variant (R,) in each row.

    Args:
        problem: Of all orders.
        state: R rows.
        variant: (R,) int64, −1 for none.
        turn: That may be taken, (R,) int64.
        weight: Of x, y and z in the score, (R, 3).
        kilograms: Of the box, (R,).
    """
    packer = problem.packer
    prepared = problem.variants.prepared
    device = turn.device
    row = torch.where(variant >= 0, prepared.row[variant.clamp_min(0)], -1)
    z_map, legal = packer.maps(state, prepared, row[:, None], kilograms[:, None])
    z_map = z_map[:, 0]
    legal = legal[:, 0]
    _, turns, grid_x, grid_y = z_map.shape
    if turns == 2:
        each = torch.arange(2, device=device, dtype=torch.int64)
        may_take = (turn == _BOTH_TURNS)[:, None] | (each == turn[:, None])
        legal = legal & may_take[..., None, None]
    x = torch.arange(grid_x, device=device, dtype=torch.int64) / grid_x
    y = torch.arange(grid_y, device=device, dtype=torch.int64) / grid_y
    weight_x, weight_y, weight_z = weight[..., None, None].unbind(1)  # (R, 1, 1)
    of_height = z_map * (weight_z / packer.bin.size[2])[:, None]
    of_place = weight_x * x[:, None] + weight_y * y
    score = of_height + of_place[:, None]
    least, action = torch.where(legal, score, torch.inf).flatten(1).min(1)
    z = z_map.flatten(1).gather(1, action[:, None])[:, 0]
    per_turn = grid_x * grid_y
    best_turn = action // per_turn
    best_place = action % per_turn
    found = placed_at(row, best_turn, best_place, z, prepared.catalogue, packer.bin)
    return _PlaceOfRow(least < torch.inf, found.orientation, found.x, found.y, z)


def _read_back(problem: _Problem, steps: Sequence[_Step]) -> list[Placements]:
    """Read the placements of every row from the device."""
    packer = problem.packer
    variants = problem.variants
    yaw = packer.rotations.argmax(2)
    boxes = torch.stack([step.box for step in steps], 1).cpu()  # (R, T)
    corners = []
    sides = []
    for step in steps:
        corner, side = packer.corner(step.choice, variants.prepared)
        corners.append(corner)
        sides.append(side)
    corner_m = torch.stack(corners, 1).cpu().numpy()  # (R, T, 3)
    sides_m = torch.stack(sides, 1).cpu().numpy()
    variant = torch.stack([step.choice.box for step in steps], 1).cpu()
    turn = torch.stack([step.choice.turn for step in steps], 1).cpu()
    pallet = torch.stack([step.choice.number for step in steps], 1).cpu()
    listed = variants.along[variant.clamp_min(0)].gather(2, yaw[turn]).numpy()  # (R, T, 3)
    found = []
    for row, is_placed in enumerate((boxes >= 0).numpy()):
        number = np.arange(int(is_placed.sum()))
        box = boxes[row].numpy()[is_placed]
        on_pallet = pallet[row].numpy()[is_placed]
        along = listed[row, is_placed]
        placed = Placements(
            number * 0, number, box, on_pallet, along, corner=corner_m[row, is_placed], sides=sides_m[row, is_placed]
        )
        found.append(placed)
    return found


def _queues(prepared: PreparedBoxes, orders: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Queues of the boxes of every kind of each order, and their lengths.

    Returns:
        Boxes (R, kinds, most) int64, −1 behind the end of a queue, and lengths (R, kinds) int64.
    """
    row = prepared.row.cpu().numpy()
    kinds = len(prepared.turns)
    counts = np.stack([np.bincount(row[boxes], minlength=kinds) for boxes in orders])
    queue = np.full((len(orders), kinds, int(counts.max())), -1)
    for i, boxes in enumerate(orders):
        by_kind = boxes[np.argsort(row[boxes], kind="stable")]
        first = np.cumsum(counts[i]) - counts[i]
        place = np.arange(len(boxes)) - np.repeat(first, counts[i])
        queue[i, row[by_kind], place] = by_kind
    return torch.from_numpy(queue), torch.from_numpy(counts)
