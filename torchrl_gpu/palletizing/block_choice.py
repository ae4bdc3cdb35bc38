"""Which block comes next: all that fit, and what each is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from torchrl_gpu.palletizing.block_kinds import Kinds
from torchrl_gpu.palletizing.pallet import Pallet

_PER_MM = 1_000_000
_ROUNDING = 1e-6
# Worth of a large box over a small one, as a power of its volume: small ones find a place later, too.
LARGE_FIRST = 0.2
# Height of a block over its least side from which it is slender.
_SLENDER = 3
# Axes along which a block grows, one after the other: rows, walls and whole blocks.
_GROWTH = ((0,), (1,), (2,), (0, 1), (1, 0), (0, 2), (1, 2), (0, 1, 2))
# Share of the tries that lay no box on its side.
_UPRIGHT = 0.3
# How much a taste is varied, as a standard deviation of its logarithm.
_VARIED = 0.3


@dataclass(frozen=True)
class _Stacking:
    """What a try likes of boxes on boxes.

    Attributes:
        heavy_below: Worth of a low place for what weighs much on its base.
        open_top: Worth of boxes on which others may stand.
        broad: Worth of a block that is not slender.
        whole_base: Worth of standing with the whole base.
        overhang: Length that a box may take, as a share of the free one.
        keeps_upright: Whether the listed height stays up where a box may lie on its side. Lists tend to give boxes as
            they stand, and their heights go together.
    """

    heavy_below: float
    open_top: float
    broad: float
    whole_base: float
    overhang: float
    keeps_upright: bool

    @staticmethod
    def draw(generator: np.random.Generator) -> _Stacking:
        return _Stacking(
            heavy_below=_one_of(generator, 0.0, 1.0, 3.0),
            open_top=_one_of(generator, 0.5, 2.0, 8.0),
            broad=_one_of(generator, 0.0, 0.5),
            whole_base=_one_of(generator, 0.0, 0.3),
            overhang=_one_of(generator, 1.0, 1.33),
            keeps_upright=bool(generator.random() < _UPRIGHT),
        )


@dataclass(frozen=True)
class Taste:
    """What a try likes, drawn at random.

    The weights of the greedy choice decide how well a pallet is filled, and which are good depends on the boxes: no
    single set of them does for equal cartons and for parcels. So each try draws its own.

    Attributes:
        tight: Worth of leaving no length that other boxes cannot fill, along x and y.
        tight_up: The same, in height.
        single: Worth of few boxes for a volume.
        level: Worth of a top as high as others.
        low: Worth of a place near the pallet.
        flush: Worth of filling a free rectangle from side to side.
        stacking: How boxes stand on one another.
        noise: Of all worths, a standard deviation.
        hole: Widest hole that a box may bridge, nanometres.
    """

    tight: float
    tight_up: float
    single: float
    level: float
    low: float
    flush: float
    stacking: _Stacking
    noise: float
    hole: int

    @staticmethod
    def draw(generator: np.random.Generator) -> Taste:
        """Draw the taste of a try."""
        tight = 10 ** generator.uniform(-0.5, 1.2)
        tight_up = 10 ** generator.uniform(-1.0, 1.0)
        single = generator.uniform(0.0, 0.7)
        hole_mm = _one_of(generator, 0, 50, 150)
        hole = round(hole_mm) * _PER_MM
        return Taste(
            tight,
            tight_up,
            single,
            hole=hole,
            level=_one_of(generator, 0.0, 0.3, 1.0, 2.0),
            low=_one_of(generator, 0.5, 2.0, 5.0, 15.0),
            flush=_one_of(generator, 0.0, 0.3, 1.0),
            stacking=_Stacking.draw(generator),
            noise=_one_of(generator, 0.0, 0.05, 0.2),
        )

    def vary(self, generator: np.random.Generator) -> Taste:
        """Return a taste that is much like this one."""
        tight, tight_up, low = np.exp(_VARIED * generator.standard_normal(3)).tolist()
        return replace(self, tight=self.tight * tight, tight_up=self.tight_up * tight_up, low=self.low * low)


def _one_of(generator: np.random.Generator, *values: float) -> float:
    return float(generator.choice(values))


@dataclass(frozen=True)
class FillableLengths:
    """Lengths that boxes side by side can fill.

    Attributes:
        filled: The largest sum of sides that fits so many millimetres, millimetres, for each axis.
    """

    filled: tuple[np.ndarray, np.ndarray, np.ndarray]

    @staticmethod
    def of(pallet: Pallet, kinds: Kinds, left: np.ndarray) -> FillableLengths:
        """Find the lengths of the boxes that are left, (K,) of each kind."""
        sides = kinds.sides[left[kinds.kind] > 0]
        beyond = 2 * pallet.overhang + pallet.gap
        rooms = (pallet.length + beyond, pallet.width + beyond, pallet.height)
        filled = []
        for axis, room in enumerate(rooms):
            rounded_up = np.unique(-(-sides[:, axis] // _PER_MM))
            filled.append(_largest_sums(rounded_up.tolist(), math.ceil(1000 * room)))
        return FillableLengths((filled[0], filled[1], filled[2]))

    def wasted(self, left: np.ndarray, axis: int) -> np.ndarray:
        """Return what no box can fill of lengths that are left, nanometres."""
        table = self.filled[axis]
        at = np.clip(left // _PER_MM, 0, len(table) - 1)
        return np.maximum(left - table[at] * _PER_MM, 0)


def _largest_sums(sides: list[int], room: int) -> np.ndarray:
    """The largest sum of sides that fits each length up to a room, (room + 1,) int64."""
    # One bit for each length that is a sum. Shifted by a side, they are the sums with one more of it; by twice the side
    # afterwards, those with up to three more, and so on.
    is_sum = 1
    within_room = (1 << (room + 1)) - 1
    for side in sides:
        shift = side
        while shift <= room:
            is_sum |= is_sum << shift & within_room
            shift *= 2
    bits = [bool(is_sum >> length & 1) for length in range(room + 1)]
    return np.maximum.accumulate(np.where(bits, np.arange(room + 1), 0))


@dataclass(frozen=True)
class Options:
    """Blocks that fit, C of them.

    Attributes:
        space: Height of a free rectangle and the rectangle, nanometres: z, x0, y0, x1, y1, (C, 5) int64.
        room: Lengths of the space along x, y and z, (C, 3) int64.
        way: How the boxes lie, (C,) int64.
        number: Boxes along x, y and z, (C, 3) int64.
    """

    space: np.ndarray
    room: np.ndarray
    way: np.ndarray
    number: np.ndarray


def find_options(
    kinds: Kinds,
    left: np.ndarray,
    space: np.ndarray,
    taste: Taste,
    *,
    bears: np.ndarray | None,
    most_height: int,
) -> Options | None:
    """Return all blocks that fit free rectangles, None where there are none.

    Args:
        kinds: Of the order.
        left: Boxes of each kind that may be placed, (K,) int64.
        space: As in `Options`, (S, 5) int64.
        taste: Of the try.
        bears: Most kilograms that may be put on each space, (S,); None where all bear anything.
        most_height: Of the load, nanometres.
    """
    may_be_placed = left[kinds.kind] > 0
    if taste.stacking.keeps_upright:
        may_be_placed &= kinds.is_upright
    ways = np.flatnonzero(may_be_placed)
    if not len(ways) or not len(space):
        return None
    sides = kinds.sides[ways]
    length = space[:, 3] - space[:, 1]
    width = space[:, 4] - space[:, 2]
    room = np.stack([length, width, most_height - space[:, 0]], 1)
    # A box may stick out over a top, never over the pallet.
    longest = room.copy()
    is_top = space[:, 0] > 0
    longest[is_top, :2] = (room[is_top, :2] * taste.stacking.overhang).astype(np.int64)
    # Most of the free rectangles are too small for any box.
    has_use = (longest >= sides.min(0)).all(1)
    space = space[has_use]
    room = room[has_use]
    fits = np.all(longest[has_use, None] >= sides, axis=2)
    stays_down = kinds.bottom_only[kinds.kind[ways]]
    if stays_down.any():
        fits &= ~(is_top[has_use, None] & stays_down)
    if bears is not None:
        fits &= bears[has_use, None] >= kinds.load[kinds.kind[ways]] * (1 - _ROUNDING)
    at, way = np.nonzero(fits)
    if not len(at):
        return None
    kind = kinds.kind[ways[way]]
    # One box may stick out. Of several in a row none does.
    most = np.maximum(room[at] // sides[way], 1)
    most[:, 2] = np.minimum(most[:, 2], kinds.layers[kind])
    which, number = _grow(most, left[kind])
    at = at[which]
    return Options(space[at], room[at], ways[way[which]], number)


def _grow(most: np.ndarray, left: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of as many boxes as fit and are left.

    Args:
        most: Boxes that fit along x, y and z, (F, 3) int64.
        left: Boxes of the kind, (F,) int64.

    Returns:
        Which of the F each block is for, (C,) int64, and its boxes along x, y and z, (C, 3) int64.
    """
    which = [np.arange(len(most))]
    numbers = [np.ones_like(most)]
    several = np.flatnonzero(left > 1)
    if not len(several):
        return which[0], numbers[0]
    for axes in _GROWTH:
        number = np.ones_like(most[several])
        rest = left[several]
        for axis in axes:
            number[:, axis] = np.minimum(most[several, axis], rest)
            rest = rest // number[:, axis]
        which.append(several)
        numbers.append(number)
    return np.concatenate(which), np.concatenate(numbers)


def worth_of(options: Options, kinds: Kinds, taste: Taste, lengths: FillableLengths, heights: np.ndarray) -> np.ndarray:
    """Return what blocks are worth, (C,).

    The one of most worth is placed.

    Args:
        options: The blocks.
        kinds: Of the order.
        taste: Of the try.
        lengths: Of the boxes that are left.
        heights: Of the load's tops, nanometres.
    """
    kind = kinds.kind[options.way]
    boxes = options.number.prod(1)
    side = kinds.sides[options.way] * options.number
    rest = options.room - side
    volume = kinds.volume[kind]
    worth = np.log(volume * boxes) + LARGE_FIRST * np.log(volume)
    worth -= taste.single * np.log(boxes)

    for axis, weight in enumerate((taste.tight, taste.tight, taste.tight_up)):
        whole = np.maximum(options.room[:, axis], side[:, axis])
        wasted = lengths.wasted(rest[:, axis], axis)
        worth += weight * np.log1p(-wasted / whole)
    for axis in (0, 1):
        worth += taste.flush * (rest[:, axis] == 0)
        worth -= taste.stacking.whole_base * (rest[:, axis] < 0)

    z = options.space[:, 0]
    worth += taste.level * np.isin(z + side[:, 2], heights)
    share_of_height = z / (z + options.room[:, 2])
    stacking = taste.stacking
    weighs = taste.low + stacking.heavy_below * kinds.pressure[options.way]
    worth -= weighs * share_of_height

    is_slender = side[:, 2] > _SLENDER * side[:, :2].min(1)
    worth -= stacking.broad * is_slender
    worth -= stacking.open_top * kinds.is_closed[kind]
    return worth
