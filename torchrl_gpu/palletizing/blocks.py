"""Pallets of mixed orders, built of blocks of equal boxes.

A person who builds a mixed pallet puts equal boxes side by side and on one another, and keeps the top flat for the
next ones. So does this search: a block goes to a corner of a largest free rectangle of the load's flat tops, and which
block goes where is a greedy choice by weights that are drawn at random. Each pallet is filled many times, and the
fullest load is kept; the next pallet takes what is left.

To search over single boxes on cells (`search`) takes ten times as long for large orders, and fills less: there a row of
boxes is only found by chance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from torchrl_gpu.palletizing.block_choice import FillableLengths, Taste
from torchrl_gpu.palletizing.block_filling import MOST_KINDS, Filling, Load, Task
from torchrl_gpu.palletizing.block_kinds import PER_METRE, Block, kinds_of, placements_of
from torchrl_gpu.palletizing.layered import StartingPile
from torchrl_gpu.palletizing.packer import Packer
from torchrl_gpu.palletizing.plan import Placements
from torchrl_gpu.palletizing.prepared_boxes import PreparedBoxes

# Rules that are satisfied by a box on a flat top that holds most of its base.
RULES = ("none", "support", "com", "load_bearing")
# Tries of each pallet by default: as many as an order of so many kinds has time for.
_MOST_TRIES = 128
_TRIES_TIMES_KINDS = 8_000
# Tries after the first one that leaves no box: the lowest and steadiest of them is kept.
_TRIES_OF_LAST = 64
# Height that the next of them may have, as a share of the best one's.
_LOWER = 0.97
# Share of the tries that vary what was best for a pallet before.
_REPEATED = 0.5
# Last pallets that are packed anew at most to take one less, and the share of the others' room that may be filled then.
_MOST_AGAIN = 5
_FILLED_AGAIN = 0.92
# Of a pallet, what counts as a few last boxes, how often they are tried to be put on the others, and the pallets that
# are filled in all of these tries.
_FEW_LEFT = 0.1
_TIMES_AGAIN = 6
_PALLETS_AGAIN = 14
# Kinds of an order up to which some of the tries make room for a look ahead, and the share that stays. With more kinds
# there are too few tries.
_KINDS_OF_LOOK_AHEAD = 100
_TRIED_AT_FIRST = 0.4
# Blocks that a look ahead tries in each step, and loads that it goes on from.
_BRANCHES = 4
_BEAM = 2
# Placements of a look ahead, in terms of those of the tries before it.
_TIMES_PLACED = 2


def is_for(packer: Packer) -> bool:
    """Return whether what this search builds satisfies a packer's rule."""
    return packer.bin.stability in RULES


def pack_blocks(
    packer: Packer,
    prepared: PreparedBoxes,
    boxes: np.ndarray,
    *,
    tries: int | None = None,
    seed: int = 0,
    start: StartingPile | None = None,
    spares_light: bool = False,
    report: Callable[[int], None] = lambda boxes: None,
) -> Placements:
    """Pack an order on pallets of blocks.

    Args:
        packer: Of the pallet, the turns and the rule, for which `is_for` holds.
        prepared: All boxes.
        boxes: Numbers of the boxes of the order, (…) int64.
        tries: Of each pallet; None for those that an order of so many kinds has time for.
        seed: Of the draws.
        start: Pallet that the order begins on, which has the number 0 then; None for an empty one.
        spares_light: Whether no box stands on a much lighter one, see `presses_on_lighter`.
        report: Called with the number of boxes that are placed for good.

    Returns:
        Placements; the order has the number 0 in them. Boxes are missing that stand on an empty pallet only by sticking
        out further than blocks do.
    """
    if not len(boxes):
        return Placements.join([])
    order = _Order(packer, prepared, tries, spares_light=spares_light)
    plan = _fill_in_turn(order, boxes, seed, start, report)
    can_be_spared = len(plan.box) == len(boxes) and start is None
    return _spare_last_pallet(order, plan, seed) if can_be_spared else plan


@dataclass(frozen=True)
class _Order:
    """How an order is packed, see `pack_blocks`."""

    packer: Packer
    prepared: PreparedBoxes
    tries: int | None
    spares_light: bool


def _spare_last_pallet(order: _Order, plan: Placements, seed: int) -> Placements:
    """Pack the boxes of the last pallets anew, if that may take one pallet less.

    Each pallet takes what suits it, and what suits none is left for the last ones.
    """
    pallet = order.packer.pallet
    room = (pallet.length + 2 * pallet.overhang) * (pallet.width + 2 * pallet.overhang) * pallet.height
    pallets = int(plan.pallet.max()) + 1
    filled = np.bincount(plan.pallet, weights=plan.sides.prod(1)) / room
    times = _TIMES_AGAIN if filled[-1] < _FEW_LEFT else 1
    tries = itertools.product(range(seed + 1, seed + 1 + times), range(2, min(pallets, _MOST_AGAIN) + 1))
    pallets_filled = 0
    for again_seed, number in tries:
        first = pallets - number
        if filled[first:].sum() > _FILLED_AGAIN * (number - 1):
            continue
        pallets_filled += number
        if pallets_filled > _PALLETS_AGAIN:
            break
        kept = plan.rows(plan.pallet < first)
        boxes = np.sort(plan.box[plan.pallet >= first])
        again = _fill_in_turn(order, boxes, again_seed, None, lambda boxes: None)
        is_whole = len(again.box) == len(boxes)
        if is_whole and int(again.pallet.max()) + 1 < number:
            more = again._replace(pallet=again.pallet + first, step=again.step + len(kept.box))
            return Placements.join([kept, more])
    return plan


def _fill_in_turn(
    order: _Order,
    boxes: np.ndarray,
    seed: int,
    start: StartingPile | None,
    report: Callable[[int], None],
) -> Placements:
    """Fill one pallet after the other, each from what those before it left."""
    packer = order.packer
    kinds = kinds_of(packer, order.prepared, boxes)
    generator = np.random.default_rng(seed)
    left = kinds.count()
    served = np.zeros_like(left)
    tastes: list[Taste] = []
    parts = []
    step = 0
    number = 0
    while left.any():
        lengths = FillableLengths.of(packer.pallet, kinds, left)
        needs_support = packer.bin.stability != "none"
        task = Task(
            packer.pallet,
            kinds,
            left,
            lengths,
            start,
            needs_support=needs_support,
            spares_light=order.spares_light,
        )
        load = _fill(task, order.tries or _tries_for(left), tastes, generator)
        # What fits no empty pallet here would keep the loop for ever.
        if not load.blocks and start is None:
            break
        placed = placements_of(kinds, load.blocks, served, number=number, first_step=step, pallet=packer.pallet)
        parts.append(placed)
        served = served + left - load.left
        left = load.left
        step += len(placed.box)
        number += 1
        start = None
        report(step)
    return Placements.join(parts)


def _tries_for(left: np.ndarray) -> int:
    kinds = min(int((left > 0).sum()), MOST_KINDS)
    return min(_MOST_TRIES, _TRIES_TIMES_KINDS // kinds)


def _fill(task: Task, tries: int, tastes: list[Taste], generator: np.random.Generator) -> Load:
    """Fill a pallet many times, and return the best load.

    Its taste is added to `tastes`.
    """
    looks_ahead = int((task.left > 0).sum()) <= _KINDS_OF_LOOK_AHEAD
    tries_at_first = math.ceil(_TRIED_AT_FIRST * tries)
    best: Load | None = None
    best_taste: Taste | None = None
    after_first = 0
    placed = 0
    ceiling = round(task.pallet.height * PER_METRE)
    for number in range(tries):
        # What leaves no box goes on to become lower and steadier. What leaves some takes the other tries to look ahead.
        if looks_ahead and number >= tries_at_first and best is not None and best.left.any():
            break
        # The best load so far of this pallet, too, shows what to like.
        earlier = tastes if best_taste is None else [*tastes, best_taste]
        if earlier and generator.random() < _REPEATED:
            taste = earlier[int(generator.integers(len(earlier)))].vary(generator)
        else:
            taste = Taste.draw(generator)
        load = Filling(task, taste, generator, ceiling).fill(math.inf if best is None else best.rank[1])
        placed += len(load.blocks)
        if best is None or load.rank < best.rank:
            best = load
            best_taste = taste
            is_steady = not load.left.any() and load.rank[1:3] == (0, 0)
            if is_steady:
                # Lower than this one, or not at all: a person builds a load broad, not high.
                ceiling = math.floor(_LOWER * load.top)
        after_first += not best.left.any()
        if after_first > _TRIES_OF_LAST:
            break
    assert best is not None
    assert best_taste is not None
    if not best.blocks and best_taste.stacking.keeps_upright:
        # Some boxes fit lying down alone, and all of a few tries may have kept them upright.
        lays = replace(best_taste.stacking, keeps_upright=False)
        best = Filling(task, replace(best_taste, stacking=lays), generator, ceiling).fill(math.inf)
    tastes.append(best_taste)
    if looks_ahead and best.left.any():
        best = _look_ahead(Filling(task, replace(best_taste, noise=0.0), generator, ceiling), best, placed)
    return best


def _look_ahead(empty: Filling, best: Load, placed: int) -> Load:
    """Build a load step by step, each time by the best of a few blocks.

    The best ones are those whose completed loads are the best.

    Args:
        empty: The pallet, and the taste that completes loads.
        best: Load so far.
        placed: Blocks that the tries before placed.

    Returns:
        The best load that was met.
    """
    beam = [empty]
    room = _TIMES_PLACED * placed
    while beam and room > 0:
        found: list[tuple[tuple[float, ...], Filling]] = []
        for filling in beam:
            for block in filling.best_blocks(_BRANCHES):
                step = filling.copy()
                step.place(block)
                load = step.copy().fill(best.rank[1])
                room -= len(load.blocks) - len(filling.blocks)
                found.append((load.rank, step))
                if load.rank < best.rank:
                    best = load
        found.sort(key=_rank_of)
        beam = _first_different([step for _, step in found])
    return best


def _rank_of(found: tuple[tuple[float, ...], Filling]) -> tuple[float, ...]:
    return found[0]


def _first_different(fillings: list[Filling]) -> list[Filling]:
    """The first fillings of a beam, of which no two have the same blocks."""
    beam: dict[frozenset[Block], Filling] = {}
    for filling in fillings:
        beam.setdefault(frozenset(filling.blocks), filling)
        if len(beam) == _BEAM:
            break
    return list(beam.values())
