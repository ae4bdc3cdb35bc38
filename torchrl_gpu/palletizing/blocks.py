"""Pallets of mixed orders, built of blocks of equal boxes.

A person who builds a mixed pallet puts equal boxes side by side and on one another, and keeps the top flat for the
next ones. So does this search: a block goes to a corner of a largest free rectangle of the load's flat tops, and which
block goes where is a greedy choice by weights that are drawn at random. Each pallet is filled many times, and the
fullest load is kept; the next pallet takes what is left.

To search over single boxes on cells (`search`) takes ten times as long for large orders, and fills less: there a row of
boxes is only found by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from torchrl_gpu.palletizing.block_choice import (
    LARGE_FIRST,
    FillableLengths,
    Options,
    Taste,
    find_options,
    worth_of,
)
from torchrl_gpu.palletizing.block_kinds import PER_METRE, Block, BlockBoxes, Kinds, kinds_of, placements_of, unfold
from torchrl_gpu.palletizing.block_weights import BlockWeights
from torchrl_gpu.palletizing.column_loads import ColumnLoads
from torchrl_gpu.palletizing.flat_tops import FlatTops, Rectangle
from torchrl_gpu.palletizing.layered import StartingPile
from torchrl_gpu.palletizing.packer import Packer
from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.plan import Placements
from torchrl_gpu.palletizing.prepared_boxes import PreparedBoxes
from torchrl_gpu.palletizing.scores import ROAD_G, most_slender_column, presses_on_lighter

# Rules that are satisfied by a box on a flat top that holds most of its base.
RULES = ("none", "support", "com", "load_bearing")
# Tries of each pallet by default: as many as an order of so many kinds has time for.
_MOST_TRIES = 128
_TRIES_TIMES_KINDS = 10_000
# Tries after the first one that leaves no box: the lowest and steadiest of them is kept.
_TRIES_OF_LAST = 64
# Height that the next of them may have, as a share of the best one's.
_LOWER = 0.97
# Kinds that a try chooses from. Of more it draws so many, and sees the others once these fit no more.
_MOST_KINDS = 1000
# Share of the tries that vary what was best for a pallet before.
_REPEATED = 0.5
# Choices that turn out not to stand before a pallet is closed.
_MOST_REFUSED = 200
_ROUNDING = 1e-6
# Share of a load's worth that a free column costs, and one that each box on a much lighter one does.
_LOOSE = 0.03
_PRESSES = 0.002
# What all of these cost at most.
_MOST_PRESSES = 0.01


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
    kinds = kinds_of(packer, prepared, boxes)
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
        task = _Task(packer.pallet, kinds, left, lengths, start, needs_support=needs_support, spares_light=spares_light)
        load = _fill(task, tries or _tries_for(left), tastes, generator)
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
    kinds = min(int((left > 0).sum()), _MOST_KINDS)
    return min(_MOST_TRIES, _TRIES_TIMES_KINDS // kinds)


@dataclass(frozen=True)
class _Task:
    """A pallet to fill.

    Attributes:
        pallet: Its size.
        kinds: Of the order.
        left: Boxes of each kind that wait, (K,) int64.
        lengths: Of these boxes.
        start: What is on the pallet, None for nothing.
        needs_support: Whether boxes must stand.
        spares_light: Whether no box stands on a much lighter one.
    """

    pallet: Pallet
    kinds: Kinds
    left: np.ndarray
    lengths: FillableLengths
    start: StartingPile | None
    needs_support: bool
    spares_light: bool


@dataclass(frozen=True)
class _Load:
    """What a try put on a pallet.

    Attributes:
        blocks: In the sequence in which they were placed.
        left: Boxes of each kind that are left, (K,) int64.
        top: Height of the load, nanometres.
        rank: The least of which is the best load.
    """

    blocks: list[Block]
    left: np.ndarray
    top: int
    rank: tuple[float, ...]


def _fill(task: _Task, tries: int, tastes: list[Taste], generator: np.random.Generator) -> _Load:
    """Fill a pallet many times, return the best load, and add its taste to `tastes`."""
    best: _Load | None = None
    best_taste: Taste | None = None
    after_first = 0
    ceiling = round(task.pallet.height * PER_METRE)
    for _ in range(tries):
        # The best load so far of this pallet, too, shows what to like.
        earlier = tastes if best_taste is None else [*tastes, best_taste]
        if earlier and generator.random() < _REPEATED:
            taste = earlier[int(generator.integers(len(earlier)))].vary(generator)
        else:
            taste = Taste.draw(generator)
        load = _Filling(task, taste, generator, ceiling).fill(math.inf if best is None else best.rank[1])
        if best is None or load.rank < best.rank:
            best = load
            best_taste = taste
            is_steady = not load.left.any() and load.rank[1] == 0
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
        best = _Filling(task, replace(best_taste, stacking=lays), generator, ceiling).fill(math.inf)
    tastes.append(best_taste)
    return best


class _Filling:
    """One try to fill a pallet."""

    def __init__(self, task: _Task, taste: Taste, generator: np.random.Generator, ceiling: int) -> None:
        pallet = task.pallet
        self.task = task
        self.taste = taste
        self.generator = generator
        self.left = task.left.copy()
        self.blocks: list[Block] = []
        # Most height of the load, nanometres.
        self.ceiling = ceiling
        self.weight_left = pallet.weight * (1 + _ROUNDING)
        floor, room = _floor_and_room(pallet, task.kinds)
        self.tops = FlatTops(floor, room, taste.hole, needs_support=task.needs_support)
        # Loads take their time, and most lists limit none.
        self.loads = ColumnLoads() if bool(np.isfinite(task.kinds.max_load).any()) else None
        self.weights = BlockWeights() if task.spares_light else None
        if task.start is not None:
            _begin_on(self.tops, task.start)
            self.weight_left -= task.start.weight

    def fill(self, to_beat: float) -> _Load:
        """Place blocks until none fits.

        Args:
            to_beat: Second number of the rank of the best load so far.
        """
        is_seen = self._draw_kinds()
        while True:
            if self._place_next(is_seen):
                continue
            if is_seen.all():
                break
            is_seen = np.ones_like(is_seen)
        return _Load(self.blocks, self.left, self.tops.height, self._rank(to_beat))

    def _draw_kinds(self) -> np.ndarray:
        """Mask of the kinds that the try chooses from at first, (K,) bool."""
        waiting = np.flatnonzero(self.left)
        if len(waiting) <= _MOST_KINDS:
            return np.ones(len(self.left), dtype=bool)
        is_seen = np.zeros(len(self.left), dtype=bool)
        is_seen[self.generator.choice(waiting, _MOST_KINDS, replace=False)] = True
        return is_seen

    def _place_next(self, is_seen: np.ndarray) -> bool:
        """Place one block, and return whether one fits."""
        kinds = self.task.kinds
        spaces: list[tuple[int, ...]] = []
        for height, free in self.tops.free.items():
            spaces += [(height, *rectangle) for rectangle in free]
        space = np.array(spaces, dtype=np.int64).reshape(-1, 5)
        options = find_options(
            kinds,
            self._count_allowed(is_seen),
            space,
            self.taste,
            bears=None if self.loads is None else self.loads.most_room(space[:, 0]),
            most_height=self.ceiling,
        )
        if options is None:
            return False
        heights = np.array(list(self.tops.free))
        worth = worth_of(options, kinds, self.taste, self.task.lengths, heights)
        if self.taste.noise:
            worth += self.taste.noise * self.generator.standard_normal(len(worth))
        return self._place_best(options, worth)

    def _count_allowed(self, is_seen: np.ndarray) -> np.ndarray:
        """Boxes of each kind that the pallet still bears, (K,) int64."""
        left = np.where(is_seen, self.left, 0)
        if math.isinf(self.weight_left):
            return left
        # A box of unknown weight counts as one without weight.
        weight = np.maximum(self.task.kinds.weight, 1e-9)
        borne = np.floor(max(self.weight_left, 0.0) / weight)
        return np.minimum(left, borne).astype(np.int64)

    def _place_best(self, options: Options, worth: np.ndarray) -> bool:
        """Place the block of most worth that stands, and return whether one does."""
        for _ in range(min(_MOST_REFUSED, len(worth))):
            best = int(worth.argmax())
            for block in self._at_corners(options, best):
                bearing = self._bearing(block)
                if bearing is not None:
                    self._place(block, bearing)
                    return True
            worth[best] = -math.inf
        return False

    def _at_corners(self, options: Options, which: int) -> list[Block]:
        """The block at each corner of its free rectangle.

        The corner that is nearest to a corner of the pallet comes first: what is left stays in one piece.
        """
        z, x0, y0, x1, y1 = options.space[which].tolist()
        way = int(options.way[which])
        along_x, along_y, along_z = options.number[which].tolist()
        side_x, side_y, _ = self.task.kinds.sides[way].tolist()
        length = along_x * side_x
        width = along_y * side_y
        left, lower, right, upper = self.tops.room
        x_of = [x0, x1 - length]
        y_of = [y0, y1 - width]
        if x0 - left > right - x1:
            x_of.reverse()
        if y0 - lower > upper - y1:
            y_of.reverse()
        blocks = []
        for x in x_of:
            for y in y_of:
                is_inside_x = left <= x and x + length <= right
                is_inside_y = lower <= y and y + width <= upper
                if is_inside_x and is_inside_y:
                    blocks.append(Block(way, x, y, z, (along_x, along_y, along_z)))
        return blocks

    def _base(self, block: Block) -> Rectangle:
        side_x, side_y, _ = self.task.kinds.sides[block.way].tolist()
        along_x, along_y, _ = block.number
        return (block.x, block.y, block.x + along_x * side_x, block.y + along_y * side_y)

    def _bearing(self, block: Block) -> list[Rectangle] | None:
        """Parts of a block's top that bear load.

        None where one of its boxes would not stand.
        """
        base = self._base(block)
        if not self.tops.is_clear(base, block.z):
            return None
        if self.weights is not None and self.weights.has_lighter_below(base, block.z, self._weight_of_box(block)):
            return None
        columns = self._columns(block)
        parts = []
        for column in columns:
            part = self.tops.bearing_part(column, block.z)
            if part is None:
                return None
            parts.append(part)
        if self.loads is not None and not self.loads.takes(columns, block.z, self._weight_of_column(block)):
            return None
        return [base] if parts == columns else parts

    def _columns(self, block: Block) -> list[Rectangle]:
        """Bases of the lowest boxes of a block."""
        side_x, side_y, _ = self.task.kinds.sides[block.way].tolist()
        columns = []
        for i in range(block.number[0]):
            for j in range(block.number[1]):
                x = block.x + i * side_x
                y = block.y + j * side_y
                columns.append((x, y, x + side_x, y + side_y))
        return columns

    def _weight_of_box(self, block: Block) -> float:
        return float(self.task.kinds.weight[self.task.kinds.kind[block.way]])

    def _weight_of_column(self, block: Block) -> float:
        kind = int(self.task.kinds.kind[block.way])
        return block.number[2] * float(self.task.kinds.load[kind])

    def _place(self, block: Block, bearing: list[Rectangle]) -> None:
        kinds = self.task.kinds
        kind = int(kinds.kind[block.way])
        boxes = math.prod(block.number)
        height = int(kinds.sides[block.way, 2]) * block.number[2]
        top = self.tops.top_of(block.z + height)
        self.tops.place(self._base(block), top, [] if kinds.is_closed[kind] else bearing)
        if self.weights is not None:
            self.weights.place(self._base(block), top, self._weight_of_box(block))
        if self.loads is not None:
            # The lowest box of a column bears the others of it.
            others = (block.number[2] - 1) * float(kinds.weight[kind])
            room = float(kinds.max_load[kind]) - others
            self.loads.place(self._columns(block), block.z, top, self._weight_of_column(block), room)
        self.left[kind] -= boxes
        self.weight_left -= boxes * float(kinds.weight[kind])
        self.blocks.append(block)

    def _rank(self, to_beat: float) -> tuple[float, ...]:
        """Rank of the load.

        The best load leaves nothing, has no free column that tips on the road, no heavy box on a light one, and has
        its middle low. Of loads that leave something the fullest one is the best, and one with such a column or such
        boxes counts as somewhat less full.
        """
        kinds = self.task.kinds
        # Nothing may fit on a pallet that has layers already.
        if not self.blocks:
            return 1.0, 0.0
        boxes = unfold(kinds, self.blocks)
        volume = kinds.volume[boxes.kind]
        if self.left.any():
            worth = float((volume ** (1 + LARGE_FIRST)).sum())
            # To look for columns takes as long as to fill the pallet: not where the load is worse anyway.
            if -worth < to_beat:
                worth *= 1 - min(_PRESSES * self._count_pressing(boxes), _MOST_PRESSES)
                if most_slender_column(boxes.corner, boxes.sides).tips_at_g < ROAD_G:
                    worth *= 1 - _LOOSE
            return 1.0, -worth
        share = volume + kinds.weight[boxes.kind]
        middle = boxes.corner[:, 2] + boxes.sides[:, 2] / 2
        mean_height = float((share * middle).sum() / share.sum())
        column = most_slender_column(boxes.corner, boxes.sides)
        # Whole tenths, so that among all but equal columns the lower load is the better one.
        missing_g = max(0.0, math.ceil(10 * (ROAD_G - column.tips_at_g)) / 10)
        return 0.0, missing_g, self._count_pressing(boxes), mean_height

    def _count_pressing(self, boxes: BlockBoxes) -> int:
        """Boxes that stand on much lighter ones."""
        weight = self.task.kinds.weight[boxes.kind]
        return int(presses_on_lighter(boxes.corner, boxes.sides, weight).sum())


def _floor_and_room(pallet: Pallet, kinds: Kinds) -> tuple[Rectangle, Rectangle]:
    """What bears load of a pallet, and what boxes may take, nanometres."""
    # The last box has no neighbour, and so its share of the gap may lie beyond the edge.
    length = round((pallet.length + pallet.gap) * PER_METRE)
    width = round((pallet.width + pallet.gap) * PER_METRE)
    overhang = round(pallet.overhang * PER_METRE)
    # The middles of boxes stay over the pallet.
    is_safe = 4 * overhang <= int(kinds.sides[:, :2].min())
    beyond = overhang if is_safe else 0
    return (0, 0, length, width), (-beyond, -beyond, length + beyond, width + beyond)


def _begin_on(tops: FlatTops, start: StartingPile) -> None:
    """Put the layers of a pallet under what is still to come."""
    for rectangles, top in start.layers:
        height = tops.top_of(round(top * PER_METRE))
        for x0, y0, x1, y1 in np.round(rectangles * PER_METRE).astype(np.int64).tolist():
            base = (x0, y0, x1, y1)
            tops.place(base, height, [base])
