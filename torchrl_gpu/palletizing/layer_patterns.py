"""Patterns of a layer: equal boxes side by side on a rectangle, by exact lengths.

This is the manufacturer's pallet loading problem. A greedy rule on cells gets 6 of the 8 cartons of 400 × 300 mm that a
EUR pallet holds, since it lays the first ones all alike. Five blocks around a middle one, each cut into five again,
give the best known number for nearly all sizes of practice (Morabito and Morales 1998). All rectangles whose sides are
sums of the box's sides are solved from the smallest up, so that every block is looked up. Where they miss an upper
bound of the number, L-shaped pieces are searched for one box more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from torchrl_gpu.palletizing.l_shapes import LShapeSearch, raster_points
from torchrl_gpu.palletizing.layer_bounds import bar_bound, line_bound

# Lengths are whole nanometres, so that sums of sides are exact: a third of an inch is no decimal number.
_PER_METRE = 1_000_000_000
# What rounding up to them may add to a row of boxes.
_TOLERANCE = 20
# Noise of float64 in a length, nanometres.
_NOISE = 1e-3
# Rectangles whose five blocks are searched at once, and those where they are if one cut, which costs little, leaves a
# box to gain. Beyond it many small boxes leave little room.
_FEW_RECTANGLES = 2500
_MOST_RECTANGLES = 6400
# Rectangles in which L-shaped pieces are searched for: those have the square of this number of shapes.
_MOST_L_RECTANGLES = 3600
# No layer of fewer boxes is known on which L-shaped pieces beat five blocks.
_FEWEST_IN_L = 53
# Areas above it are no whole numbers of 64 bits any more.
_MOST_AREA = 2**62
# Boxes along a side beyond which all lie alike.
_MOST_ALONG = 200
# Patterns that are looked at for layers that interlock.
_MOST_OTHERS = 16


# Lower corner of a box, and whether it is turned.
_Box = tuple[int, int, bool]


@dataclass(frozen=True)
class LayerPattern:
    """Equal boxes side by side.

    Attributes:
        x, y: Lower corners, metres, (P,) float64.
        turned: Whether the longer listed side of a box lies along y, (P,) bool.
        length, width: What the boxes take together, metres.
    """

    x: np.ndarray
    y: np.ndarray
    turned: np.ndarray
    length: float
    width: float

    @property
    def number(self) -> int:
        return len(self.x)


def best_pattern(length: float, width: float, along: float, across: float, *, may_turn: bool = True) -> LayerPattern:
    """Return the fullest pattern of boxes on a rectangle.

    Args:
        length, width: Sides of the rectangle along x and y, metres.
        along, across: Sides of a box that is not turned along x and y, metres.
        may_turn: Whether boxes may lie the other way.
    """
    room_x = round(length * _PER_METRE) + _TOLERANCE
    room_y = round(width * _PER_METRE) + _TOLERANCE
    side_x = math.ceil(along * _PER_METRE - _NOISE)
    side_y = math.ceil(across * _PER_METRE - _NOISE)
    return _solve(room_x, room_y, side_x, side_y, may_turn)


def equal_patterns(length: float, width: float, along: float, across: float) -> list[LayerPattern]:
    """Return patterns with as many boxes as the fullest one, some of them turned.

    Arguments are those of `best_pattern`. There are none where only rows of boxes that all lie alike hold so many.
    """
    room_x = round(length * _PER_METRE) + _TOLERANCE
    room_y = round(width * _PER_METRE) + _TOLERANCE
    side_x = math.ceil(along * _PER_METRE - _NOISE)
    side_y = math.ceil(across * _PER_METRE - _NOISE)
    return _solve_others(room_x, room_y, side_x, side_y)


@lru_cache(256)
def _solve_others(room_x: int, room_y: int, along: int, across: int) -> list[LayerPattern]:
    is_tiny = max(room_x, room_y) // min(along, across) > _MOST_ALONG
    if along == across or is_tiny:
        return []
    layout = _Layout(room_x, room_y, along, across)
    most = _solve(room_x, room_y, along, across, True).number
    patterns = [_pattern(boxes, along, across) for boxes in layout.other_boxes(most)]
    return [pattern for pattern in patterns if pattern.turned.any() and not pattern.turned.all()]


@lru_cache(4096)
def _solve(room_x: int, room_y: int, along: int, across: int, may_turn: bool) -> LayerPattern:
    is_tiny = max(room_x, room_y) // min(along, across) > _MOST_ALONG
    if not may_turn or along == across or is_tiny:
        boxes = _rows(0, 0, room_x, room_y, along, across, turned=False)
    else:
        layout = _Layout(room_x, room_y, along, across)
        boxes = layout.l_shaped_boxes() or layout.boxes()
    return _pattern(boxes, along, across)


def _pattern(boxes: list[_Box], along: int, across: int) -> LayerPattern:
    if not boxes:
        none = np.zeros(0)
        return LayerPattern(none, none, none.astype(bool), 0.0, 0.0)
    columns = list(zip(*boxes, strict=True))
    x = np.array(columns[0])
    y = np.array(columns[1])
    turned = np.array(columns[2])
    right = x + np.where(turned, across, along)
    upper = y + np.where(turned, along, across)
    return LayerPattern(x / _PER_METRE, y / _PER_METRE, turned, right.max() / _PER_METRE, upper.max() / _PER_METRE)


def _rows(x: int, y: int, room_x: int, room_y: int, along: int, across: int, *, turned: bool) -> list[_Box]:
    """Rows of boxes that all lie alike."""
    side_x, side_y = (across, along) if turned else (along, across)
    found: list[_Box] = []
    for column in range(room_x // side_x):
        left = x + column * side_x
        found += [(left, y + row * side_y, turned) for row in range(room_y // side_y)]
    return found


def _sums(room: int, along: int, across: int) -> np.ndarray:
    """All sums of sides that fit a length, and 0, in rising order."""
    sums = set()
    for many in range(room // along + 1):
        left = room - many * along
        for more in range(left // across + 1):
            sums.add(many * along + more * across)
    return np.array(sorted(sums))


class _Layout:
    """Fullest layouts of all rectangles whose sides are sums of a box's sides.

    A rectangle is cut at x1 ≤ x2 and y1 ≤ y2 into five blocks, as the sails of a windmill:

        ┌──────────┬───┐ Y
        │    4     │   │
        ├───┬──────┤   │ y2
        │   │  3   │ 5 │
        │ 1 ├──────┴───┤ y1
        │   │    2     │
        └───┴──────────┘
           x1     x2   X

    Cuts at 0 or at the end leave fewer blocks, so that all guillotine cuts are among them.
    """

    def __init__(self, room_x: int, room_y: int, along: int, across: int) -> None:
        self.along = along
        self.across = across
        self.sums_x = _sums(room_x, along, across)
        self.sums_y = _sums(room_y, along, across)
        x = self.sums_x[:, None]
        y = self.sums_y[None]
        straight = (x // along) * (y // across)
        turned = (x // across) * (y // along)
        # Most boxes of each rectangle that are known, those that all lie alike, and cuts that have been asked for.
        self.number = np.maximum(straight, turned).astype(np.int32)
        self.alike = self.number.copy()
        self.is_turned = turned > straight
        self.cuts: dict[tuple[int, int], tuple[int, int, int, int]] = {}
        # Rectangle that is left over behind a cut, by number of the sum.
        self.left_x = self._left(self.sums_x)
        self.left_y = self._left(self.sums_y)
        # In the largest unit of all sums.
        self.unit = math.gcd(along, across)
        self.is_huge = int(self.sums_x[-1]) * int(self.sums_y[-1]) > _MOST_AREA * self.unit**2
        dtype = object if self.is_huge else np.int64
        units_x = (x // self.unit).astype(dtype)
        units_y = (y // self.unit).astype(dtype)
        self.bound = bar_bound(units_x, units_y, along // self.unit, across // self.unit).astype(np.int64)
        self._search()

    @staticmethod
    def _left(sums: np.ndarray) -> np.ndarray:
        """Number of the largest sum that fits from a cut to an end, at [end, cut].

        It is 0 where the cut is behind the end.
        """
        rest = sums[:, None] - sums[None]
        return np.maximum(np.searchsorted(sums, rest, side="right") - 1, 0)

    def _search(self) -> None:
        last_x = len(self.sums_x) - 1
        last_y = len(self.sums_y) - 1
        if self.number.size > _FEW_RECTANGLES:
            self._cut_once(last_x, last_y)
            if self.number.size > _MOST_RECTANGLES or self.number[-1, -1] >= self._most_of_all():
                return
            self.cuts.clear()
        at_x = raster_points(self.left_x)
        at_y = raster_points(self.left_y)
        for i in range(last_x + 1):
            for j in range(last_y + 1):
                bound = int(self.bound[i, j])
                if self.number[i, j] < bound:
                    best, _ = self._five_blocks(i, j, np.flatnonzero(at_x[i]), np.flatnonzero(at_y[j]), bound)
                    self.number[i, j] = best

    def _most_of_all(self) -> int:
        """Boxes that no layout of the whole rectangle exceeds."""
        length = int(self.sums_x[-1]) // self.unit
        width = int(self.sums_y[-1]) // self.unit
        by_lines = line_bound(length, width, self.along // self.unit, self.across // self.unit)
        return min(int(self.bound[-1, -1]), by_lines)

    def _cut_once(self, i: int, j: int) -> None:
        """Find the best two blocks of a rectangle, in each of which all boxes lie alike."""
        upright = self.number[: i + 1, j] + self.number[self.left_x[i, : i + 1], j]
        level = self.number[i, : j + 1] + self.number[i, self.left_y[j, : j + 1]]
        at_x = int(upright.argmax())
        at_y = int(level.argmax())
        if max(upright[at_x], level[at_y]) <= self.number[i, j]:
            return
        # As five blocks, of which three are empty.
        self.cuts[i, j] = (at_x, i, j, j) if upright[at_x] >= level[at_y] else (0, i, at_y, at_y)
        self.number[i, j] = max(upright[at_x], level[at_y])

    def _five_blocks(
        self, i: int, j: int, at_x: np.ndarray, at_y: np.ndarray, enough: int
    ) -> tuple[int, tuple[int, int, int, int] | None]:
        """Most boxes of a rectangle that is cut at some sums, and the cuts.

        There are no cuts where all boxes lie alike.
        """
        number = self.number
        left_x = self.left_x[i, at_x]
        left_y = self.left_y[j, at_y]
        columns = number[at_x]
        rest = number[left_x]
        first = columns[:, at_y]  # (x1, y2)
        second = rest[:, at_y]  # (x1, y1)
        fourth = columns[:, left_y]  # (x2, y2)
        fifth = rest[:, left_y]  # (x2, y1)
        middle_x = self.left_x[at_x][:, at_x]  # (x2, x1)
        middle_y = self.left_y[at_y][:, at_y]  # (y2, y1)
        is_crossed = ~np.tri(len(at_y), dtype=bool)
        best = int(number[i, j])
        cuts = None
        # One x1 at a time where all would take too much memory.
        for x1 in range(len(at_x)):
            third = number[middle_x[x1:, x1]][:, middle_y]  # (x2, y2, y1)
            total = third + first[x1][None, :, None] + second[x1][None, None, :]
            total += fourth[x1:, :, None]
            total += fifth[x1:, None, :]
            # A middle block between cuts in the wrong order would overlap.
            total[:, is_crossed] = 0
            most = int(total.max())
            if most > best:
                best = most
                x2, y2, y1 = np.unravel_index(int(total.argmax()), total.shape)
                cuts = int(at_x[x1]), int(at_x[x1 + x2]), int(at_y[y1]), int(at_y[y2])
            if best >= enough:
                break
        return best, cuts

    def _cuts(self, i: int, j: int) -> tuple[int, int, int, int] | None:
        """Cuts of a rectangle, or None where all its boxes lie alike.

        Of cuts that are as good at all sums, not at raster points alone, they are the first ones.
        """
        most = int(self.number[i, j])
        if (i, j) not in self.cuts and most > self.alike[i, j]:
            # The rectangle is no block of itself.
            self.number[i, j] = self.alike[i, j]
            _, cuts = self._five_blocks(i, j, np.arange(i + 1), np.arange(j + 1), most)
            self.number[i, j] = most
            assert cuts is not None
            self.cuts[i, j] = cuts
        return self.cuts.get((i, j))

    def l_shaped_boxes(self) -> list[_Box] | None:
        """Boxes of the whole rectangle by L-shaped pieces.

        It is None where these hold no more than five blocks.
        """
        if self.is_huge or self.number.size > _MOST_L_RECTANGLES:
            return None
        if self.bound[-1, -1] < _FEWEST_IN_L or self.number[-1, -1] == self.bound[-1, -1]:
            return None
        bound = self._most_of_all()
        if self.number[-1, -1] >= bound:
            return None
        search = LShapeSearch(
            self.sums_x // self.unit,
            self.sums_y // self.unit,
            self.left_x,
            self.left_y,
            self.number,
            self.along // self.unit,
            self.across // self.unit,
        )
        blocks = search.find(bound)
        if blocks is None:
            return None
        found: list[_Box] = []
        for x, y, i, j in blocks:
            found += self._boxes(x * self.unit, y * self.unit, i, j)
        return found

    def other_boxes(self, most: int) -> list[list[_Box]]:
        """Boxes of the whole rectangle by each cut into two that leaves the most of them.

        They are at most `_MOST_OTHERS`.
        """
        last_x = len(self.sums_x) - 1
        last_y = len(self.sums_y) - 1
        upright = self.number[:, last_y] + self.number[self.left_x[last_x], last_y]
        level = self.number[last_x] + self.number[last_x, self.left_y[last_y]]
        found = []
        for cut in np.flatnonzero(upright == most).tolist():
            if 0 < cut < last_x:
                right = self._boxes(int(self.sums_x[cut]), 0, int(self.left_x[last_x, cut]), last_y)
                found.append(self._boxes(0, 0, cut, last_y) + right)
        for cut in np.flatnonzero(level == most).tolist():
            if 0 < cut < last_y:
                upper = self._boxes(0, int(self.sums_y[cut]), last_x, int(self.left_y[last_y, cut]))
                found.append(self._boxes(0, 0, last_x, cut) + upper)
        return found[:_MOST_OTHERS]

    def boxes(self) -> list[_Box]:
        """Boxes of the whole rectangle."""
        return self._boxes(0, 0, len(self.sums_x) - 1, len(self.sums_y) - 1)

    def _boxes(self, x: int, y: int, i: int, j: int) -> list[_Box]:
        cuts = self._cuts(i, j)
        if cuts is None:
            size = int(self.sums_x[i]), int(self.sums_y[j])
            return _rows(x, y, *size, self.along, self.across, turned=bool(self.is_turned[i, j]))
        x1, x2, y1, y2 = cuts
        at_x1 = x + int(self.sums_x[x1])
        at_x2 = x + int(self.sums_x[x2])
        at_y1 = y + int(self.sums_y[y1])
        at_y2 = y + int(self.sums_y[y2])
        found = self._boxes(x, y, x1, y2)
        found += self._boxes(at_x1, y, int(self.left_x[i, x1]), y1)
        found += self._boxes(at_x1, at_y1, int(self.left_x[x2, x1]), int(self.left_y[y2, y1]))
        found += self._boxes(x, at_y2, x2, int(self.left_y[j, y2]))
        found += self._boxes(at_x2, at_y1, int(self.left_x[i, x2]), int(self.left_y[j, y1]))
        return found
