"""Orders whose boxes are all known: full layers first, and blocks for the rest.

Blocks alone find few layer patterns, and layers alone leave what is mixed. Where blocks of the whole order need fewer
pallets than both together, their plan is taken. Rules that blocks do not satisfy have a search on cells in their place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from torchrl_gpu.palletizing import blocks
from torchrl_gpu.palletizing.centring import MOST_OFF_MIDDLE, off_middle
from torchrl_gpu.palletizing.layered import LayeredOrder, StartingPile, layer_order
from torchrl_gpu.palletizing.packer import Packer
from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.plan import Placements
from torchrl_gpu.palletizing.prepared_boxes import PreparedBoxes
from torchrl_gpu.palletizing.scores import ROAD_G, most_slender_column, plan_score, presses_on_lighter
from torchrl_gpu.palletizing.search import ROUNDS, TRIES, search

# Boxes of an order up to which all tries are made.
_BOXES_OF_ALL_TRIES = 25
# Boxes of an order up to which it is planned a second time to put no heavy box on a light one.
_MOST_BOXES_TWICE = 300
_ROUNDING = 1e-6
Report = Callable[[str], None]


def pack_known_orders(
    packer: Packer,
    prepared: PreparedBoxes,
    orders: Sequence[np.ndarray],
    tries: int | None = None,
    report: Report = lambda words: None,
    *,
    interlocked: bool = False,
) -> Placements:
    """Pack each order on few pallets, in layers where it has them.

    Args:
        packer: Of the pallet, the turns and the rule.
        prepared: All boxes.
        orders: Numbers of the boxes of each order, (…) int64.
        tries: Of each pallet of blocks, or candidates of a search; None for those that an order has time for.
        report: Called with a line about the progress.
        interlocked: Whether layers of an article are turned in turn, see `layer_order`.
    """
    layered = [layer_order(packer, prepared, boxes, interlocked=interlocked) for boxes in orders]
    if blocks.is_for(packer):
        plans = _plan_with_blocks(packer, prepared, orders, layered, tries, report)
    else:
        plans = _plan_with_search(packer, prepared, orders, layered, tries, report)
    numbered = [plan._replace(order=np.full_like(plan.order, i)) for i, plan in enumerate(plans)]
    return Placements.join(numbered)


def better_of_each_order(one: Placements, other: Placements, prepared: PreparedBoxes, pallet: Pallet) -> Placements:
    """Return the plan of each order that is the better one.

    That is the one with more boxes, and of as many the one with fewer pallets, fewer towers and fewer loads off the
    middle, then the one with the least `plan_score`. It is `one` where both are equal.

    Args:
        one, other: Plans of the same orders.
        prepared: All boxes.
        pallet: That they are on.
    """
    chosen = []
    for order in np.union1d(one.order, other.order):
        mine = _rows_of(one, order)
        theirs = _rows_of(other, order)
        is_better = _rank(theirs, prepared, pallet) < _rank(mine, prepared, pallet)
        chosen.append(theirs if is_better else mine)
    return Placements.join(chosen)


def _rank(plan: Placements, prepared: PreparedBoxes, pallet: Pallet) -> tuple[float, ...]:
    """Rank of an order's plan, the least of which is the best."""
    pallets = _num_pallets(plan)
    last = plan.pallet == plan.pallet.max(initial=0)
    last_volume = float(plan.sides[last].prod(1).sum())
    _, towers, last_volume, mean_height = plan_score(pallets, last_volume, plan, prepared.boxes.weights.numpy())
    off = _count_off_middle(plan, prepared, pallet)
    return -len(plan.box), pallets, towers, off, last_volume, mean_height


def _plan_with_blocks(
    packer: Packer,
    prepared: PreparedBoxes,
    orders: Sequence[np.ndarray],
    layered: Sequence[LayeredOrder],
    tries: int | None,
    report: Report,
) -> list[Placements]:
    """Plan layers and blocks of the rest, or blocks alone if those take fewer pallets."""
    total = sum(len(boxes) for boxes in orders)
    before = 0
    plans = []
    for boxes, layers in zip(orders, layered, strict=True):
        say = partial(_report_boxes, report, before, total)
        rest = blocks.pack_blocks(packer, prepared, layers.left, tries=tries, start=layers.start, report=say)
        plan = _join(layers, rest)
        missing = np.setdiff1d(boxes, plan.box)
        if len(missing):
            plan = _add_pallets(plan, _search(packer, prepared, [missing], tries, [None], report))
        fewest = _fewest_pallets(packer.pallet, prepared, boxes)
        if layers.pallets and _num_pallets(plan) > fewest:
            whole = blocks.pack_blocks(packer, prepared, boxes, tries=tries, report=say)
            if len(whole.box) == len(boxes) and _num_pallets(whole) < _num_pallets(plan):
                plan = whole
        if len(boxes) <= _MOST_BOXES_TWICE:
            plan = _spare_light_boxes(packer, prepared, boxes, layers, plan, tries)
        plans.append(plan)
        before += len(boxes)
    return plans


def _spare_light_boxes(
    packer: Packer,
    prepared: PreparedBoxes,
    boxes: np.ndarray,
    layers: LayeredOrder,
    plan: Placements,
    tries: int | None,
) -> Placements:
    """Return the plan, or one as good that has fewer heavy boxes on light ones."""
    if _count_pressing(prepared, plan):
        left = layers.left
        rest = blocks.pack_blocks(packer, prepared, left, tries=tries, start=layers.start, spares_light=True)
        sparing = _join(layers, rest)
        if _is_kinder(sparing, plan, prepared, packer.pallet):
            plan = sparing
    # The layers themselves may press on lighter ones.
    if layers.pallets and _count_pressing(prepared, plan):
        sparing = blocks.pack_blocks(packer, prepared, boxes, tries=tries, spares_light=True)
        if _is_kinder(sparing, plan, prepared, packer.pallet):
            plan = sparing
    return plan


def _is_kinder(sparing: Placements, plan: Placements, prepared: PreparedBoxes, pallet: Pallet) -> bool:
    """Whether a plan has fewer faults than another one, and is no worse otherwise.

    Faults are heavy boxes on light ones and loads off the middle.
    """
    if len(sparing.box) < len(plan.box) or _num_pallets(sparing) > _num_pallets(plan):
        return False
    if _count_loose(sparing) > _count_loose(plan):
        return False
    faults = _count_pressing(prepared, sparing) + _count_off_middle(sparing, prepared, pallet)
    return faults < _count_pressing(prepared, plan) + _count_off_middle(plan, prepared, pallet)


def _count_loose(plan: Placements) -> int:
    """Pallets with a free column that tips on the road."""
    return sum(most_slender_column(load.corner, load.sides).tips_at_g < ROAD_G for load in _loads(plan))


def _count_off_middle(plan: Placements, prepared: PreparedBoxes, pallet: Pallet) -> int:
    """Pallets whose load lies too far off the middle."""
    weights = prepared.boxes.weights.numpy()
    off = [off_middle(load.corner, load.sides, weights[load.box], pallet) for load in _loads(plan)]
    return sum(each > MOST_OFF_MIDDLE for each in off)


def _count_pressing(prepared: PreparedBoxes, plan: Placements) -> int:
    """Boxes that stand on much lighter ones."""
    weights = prepared.boxes.weights.numpy()
    return sum(int(presses_on_lighter(load.corner, load.sides, weights[load.box]).sum()) for load in _loads(plan))


def _loads(plan: Placements) -> list[Placements]:
    """Boxes of each pallet of an order's plan."""
    return [plan.rows(plan.pallet == number) for number in np.unique(plan.pallet)]


def _add_pallets(plan: Placements, more: Placements) -> Placements:
    """Put the pallets of a plan behind those of another one."""
    pallet = more.pallet + plan.pallet.max(initial=-1) + 1
    step = more.step + len(plan.box)
    return Placements.join([plan, more._replace(pallet=pallet, step=step)])


def _report_boxes(report: Report, before: int, total: int, done: int) -> None:
    report(f"{before + done:,} of {total:,} boxes")


def _plan_with_search(
    packer: Packer,
    prepared: PreparedBoxes,
    orders: Sequence[np.ndarray],
    layered: Sequence[LayeredOrder],
    tries: int | None,
    report: Report,
) -> list[Placements]:
    """Plan layers and a search for the rest, or one for all if it takes fewer pallets."""
    rest = [each.left for each in layered]
    starts = [each.start for each in layered]
    searched = _search(packer, prepared, rest, tries, starts, report)
    plans = [_join(each, _rows_of(searched, i)) for i, each in enumerate(layered)]
    # Layers are in doubt only where fewer pallets might do.
    doubtful = []
    for i, each in enumerate(layered):
        fewest = _fewest_pallets(packer.pallet, prepared, orders[i])
        if each.pallets and _num_pallets(plans[i]) > fewest:
            doubtful.append(i)
    whole = [boxes if i in doubtful else boxes[:0] for i, boxes in enumerate(orders)]
    searched = _search(packer, prepared, whole, tries, [None] * len(whole), report)
    for i in doubtful:
        found = _rows_of(searched, i)
        if _num_pallets(found) < _num_pallets(plans[i]):
            plans[i] = found
    return plans


def _search(
    packer: Packer,
    prepared: PreparedBoxes,
    orders: Sequence[np.ndarray],
    tries: int | None,
    starts: Sequence[StartingPile | None],
    report: Report,
) -> Placements:
    """Search for each order with the tries that it has.

    How many those are, its own boxes decide, so that its plan does not depend on the other orders.
    """
    by_tries: dict[int, list[int]] = {}
    for i, boxes in enumerate(orders):
        by_tries.setdefault(tries or _tries_for(len(boxes)), []).append(i)
    parts = []
    for number, chosen in by_tries.items():
        of_these = [boxes if i in chosen else boxes[:0] for i, boxes in enumerate(orders)]
        parts.append(search(packer, prepared, of_these, number, starts=starts, report=report))
    return Placements.join(parts)


def _tries_for(boxes: int) -> int:
    """Candidates of an order.

    They are half as many for each doubling of its boxes beyond 25: a search takes seconds, not minutes.
    """
    doublings = math.ceil(math.log2(max(1.0, boxes / _BOXES_OF_ALL_TRIES)))
    return max(ROUNDS, TRIES >> doublings)


def _rows_of(placed: Placements, order: int) -> Placements:
    return placed.rows(placed.order == order)


def _num_pallets(placed: Placements) -> int:
    return len(np.unique(placed.pallet))


def _join(layered: LayeredOrder, searched: Placements) -> Placements:
    """Put the boxes that were searched for behind those in layers.

    They are on the pallet of layers that the search began on, or on more pallets.
    """
    if layered.start is None:
        pallet = searched.pallet + layered.pallets
    else:
        # The search counts from the pallet that it began on.
        is_more = searched.pallet > 0
        pallet = np.where(is_more, searched.pallet - 1 + layered.pallets, layered.start.number)
    step = searched.step + len(layered.placements.box)
    zero = np.zeros_like(searched.order)
    behind = searched._replace(order=zero, step=step, pallet=pallet)
    return Placements.join([layered.placements, behind])


def _fewest_pallets(pallet: Pallet, prepared: PreparedBoxes, boxes: np.ndarray) -> int:
    """Pallets that boxes need at best, by their volume and by their weight."""
    length = pallet.length + 2 * pallet.overhang
    width = pallet.width + 2 * pallet.overhang
    volume = float(prepared.boxes.sizes[boxes].prod(1).sum())
    by_volume = math.ceil(volume / (length * width * pallet.height) - _ROUNDING)
    by_weight = 0
    if math.isfinite(pallet.weight):
        by_weight = math.ceil(float(prepared.boxes.weights[boxes].sum()) / pallet.weight - _ROUNDING)
    return max(1, by_volume, by_weight)
