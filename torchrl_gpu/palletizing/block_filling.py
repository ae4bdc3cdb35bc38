"""One try to fill a pallet with blocks.

A block goes to a corner of a largest free rectangle of the load's flat tops. Which block goes where is a greedy choice
by the weights of a taste; a copy of a load that is half built may go on in another way.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torchrl_gpu.palletizing.block_choice import LARGE_FIRST, FillableLengths, Options, Taste, find_options, worth_of
from torchrl_gpu.palletizing.block_kinds import PER_METRE, Block, BlockBoxes, Kinds, unfold
from torchrl_gpu.palletizing.block_weights import BlockWeights
from torchrl_gpu.palletizing.centring import MOST_OFF_MIDDLE, off_middle
from torchrl_gpu.palletizing.column_loads import ColumnLoads
from torchrl_gpu.palletizing.flat_tops import FlatTops, Rectangle
from torchrl_gpu.palletizing.layered import StartingPile
from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.scores import ROAD_G, most_slender_column, presses_on_lighter

# Kinds that a try chooses from. Of more it draws so many, and sees the others once these fit no more.
MOST_KINDS = 1000
# Choices that turn out not to stand before a pallet is closed.
_MOST_REFUSED = 200
_ROUNDING = 1e-6
# Share of a load's worth that a free column costs, one that a centre of gravity off the middle does, and one that each
# box on a much lighter one does.
_LOOSE = 0.03
_OFF_MIDDLE = 0.01
_PRESSES = 0.002
# What all of these cost at most.
_MOST_PRESSES = 0.01
# A block, and the parts of its top that bear load.
Standing = tuple[Block, list[Rectangle]]


@dataclass(frozen=True)
class Task:
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
class Load:
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


class Filling:
    """One try to fill a pallet."""

    def __init__(self, task: Task, taste: Taste, generator: np.random.Generator, ceiling: int) -> None:
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

    def copy(self) -> Filling:
        """Return a load that goes on from here in its own way."""
        other = copy.copy(self)
        other.left = self.left.copy()
        other.blocks = list(self.blocks)
        other.tops = self.tops.copy()
        other.loads = copy.copy(self.loads)
        other.weights = None if self.weights is None else self.weights.copy()
        return other

    def fill(self, to_beat: float) -> Load:
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
        return Load(self.blocks, self.left, self.tops.height, self._rank(to_beat))

    def _draw_kinds(self) -> np.ndarray:
        """Mask of the kinds that the try chooses from at first, (K,) bool."""
        waiting = np.flatnonzero(self.left)
        if len(waiting) <= MOST_KINDS:
            return np.ones(len(self.left), dtype=bool)
        is_seen = np.zeros(len(self.left), dtype=bool)
        is_seen[self.generator.choice(waiting, MOST_KINDS, replace=False)] = True
        return is_seen

    def _place_next(self, is_seen: np.ndarray) -> bool:
        """Place one block, and return whether one fits."""
        best = next(self._standing_blocks(is_seen), None)
        if best is None:
            return False
        self.place(best)
        return True

    def best_blocks(self, number: int) -> list[Standing]:
        """Return the blocks of most worth that stand, up to a number."""
        found: dict[Block, Standing] = {}
        for standing in self._standing_blocks(np.ones(len(self.left), dtype=bool)):
            # Rectangles overlap: a block may be found in several.
            found.setdefault(standing[0], standing)
            if len(found) == number:
                break
        return list(found.values())

    def _standing_blocks(self, is_seen: np.ndarray) -> Iterator[Standing]:
        """Blocks of the kinds that are seen that stand, the one of most worth first."""
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
            return
        heights = np.array(list(self.tops.free))
        worth = worth_of(options, kinds, self.taste, self.task.lengths, heights)
        if self.taste.noise:
            worth += self.taste.noise * self.generator.standard_normal(len(worth))
        for _ in range(min(_MOST_REFUSED, len(worth))):
            best = int(worth.argmax())
            standing = self._first_that_stands(self._at_corners(options, best))
            if standing is not None:
                yield standing
            worth[best] = -math.inf

    def _first_that_stands(self, blocks: Sequence[Block]) -> Standing | None:
        for block in blocks:
            bearing = self._bearing(block)
            if bearing is not None:
                return block, bearing
        return None

    def _count_allowed(self, is_seen: np.ndarray) -> np.ndarray:
        """Boxes of each kind that the pallet still bears, (K,) int64."""
        left = np.where(is_seen, self.left, 0)
        if math.isinf(self.weight_left):
            return left
        # A box of unknown weight counts as one without weight.
        weight = np.maximum(self.task.kinds.weight, 1e-9)
        borne = np.floor(max(self.weight_left, 0.0) / weight)
        return np.minimum(left, borne).astype(np.int64)

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

    def place(self, standing: Standing) -> None:
        """Place a block that stands."""
        block, bearing = standing
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

        The best load leaves nothing, has no free column that tips on the road, lies on the middle of the pallet, has no
        heavy box on a light one, and has its middle low. Of loads that leave something the fullest one is the best, and
        one that lacks one of these counts as somewhat less full.
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
                if self._off_middle(boxes) > MOST_OFF_MIDDLE:
                    worth *= 1 - _OFF_MIDDLE
            return 1.0, -worth
        share = volume + kinds.weight[boxes.kind]
        middle = boxes.corner[:, 2] + boxes.sides[:, 2] / 2
        mean_height = float((share * middle).sum() / share.sum())
        column = most_slender_column(boxes.corner, boxes.sides)
        # Whole tenths, so that among all but equal columns the lower load is the better one.
        missing_g = max(0.0, math.ceil(10 * (ROAD_G - column.tips_at_g)) / 10)
        # A twentieth of a side too far off the middle counts as much as a box on a much lighter one.
        too_far = max(0, math.ceil(20 * (self._off_middle(boxes) - MOST_OFF_MIDDLE)))
        return 0.0, missing_g, too_far + self._count_pressing(boxes), mean_height

    def _off_middle(self, boxes: BlockBoxes) -> float:
        """How far off the middle the load stays, as a share of the side."""
        corner = boxes.corner
        sides = boxes.sides
        weight = self.task.kinds.weight[boxes.kind]
        below = self.task.start
        if below is not None:
            corner = np.concatenate([below.corner, corner])
            sides = np.concatenate([below.sides, sides])
            weight = np.concatenate([below.weights, weight])
        return off_middle(corner, sides, weight, self.task.pallet)

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
