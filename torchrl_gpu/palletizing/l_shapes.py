"""Layers of equal boxes by L-shaped pieces.

Five blocks miss the best number of some layers by a box, the smallest one known with 53 boxes. L-shaped pieces, each
cut into two of its kind, find it (Lins, Lins and Morabito 2003; Birgin, Lobato and Morabito 2010).

A piece has four numbers: its length X and width Y, the width x of its upright leg and the height y of its foot. All are
numbers of sums of a box's sides. A rectangle has x = X and y = Y.

    ┌─────┐ Y
    │     │
    │     └──────┐ y
    │            │
    └────────────┘
          x      X

A cut leaves two pieces of this kind, mirrored at will. It runs by its kind, with (x, y) as the inner corner:

    0  from the edge down to (p, q) and right to the edge
    1  from the edge down to (p, q) and left
    2  from the edge left to (p, q) and down
    3  from the inner corner left, at p down and at q left
    4  from the inner corner left, at p up and at q left
    5  from the inner corner down, at q left and at p down
    6  from the inner corner down, at q right and at p down
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchrl_gpu.palletizing.layer_bounds import bar_bound_of_l

# Cuts that are looked at in one layer, some 5 s of them, after which its search is given up.
_MOST_CUTS = 12_000_000
# Pieces within pieces, which Python would not bear without end.
_DEEPEST = 150

# X, Y, x and y of a piece, and those of many.
_Numbers = tuple[int, int, int, int]
_Many = np.ndarray | int
# Lower corner of a rectangle, and the numbers of its sides.
Block = tuple[int, int, int, int]


@dataclass(frozen=True)
class _Place:
    """Corner of a piece, and whether it extends rightwards and upwards: 1 or −1."""

    x: int
    y: int
    right: int
    up: int

    def within(self, outer: _Place) -> _Place:
        """Return this place as seen from outside a piece that is placed itself."""
        x = outer.x + outer.right * self.x
        y = outer.y + outer.up * self.y
        return _Place(x, y, outer.right * self.right, outer.up * self.up)


class _OutOfCutsError(Exception):
    """The search has looked at as many cuts as it may."""


class LShapeSearch:
    """A search for more boxes on a rectangle than five blocks hold.

    Each piece is asked for a number of boxes. It is cut in two, and those pieces are asked for what the other one
    cannot hold. What a piece holds and what it cannot is kept.

    Args:
        sums_x, sums_y: Sums of the box's sides that fit the rectangle, (I,) and (J,) int64.
        left_x, left_y: Number of the largest sum that fits from a cut to an end, at [end, cut].
        number: Boxes that each rectangle holds by five blocks, (I, J).
        along, across: Sides of the box.
    """

    def __init__(
        self,
        sums_x: np.ndarray,
        sums_y: np.ndarray,
        left_x: np.ndarray,
        left_y: np.ndarray,
        number: np.ndarray,
        along: int,
        across: int,
    ) -> None:
        self.sums_x = sums_x
        self.sums_y = sums_y
        self.left_x = left_x
        self.left_y = left_y
        self.number = number.astype(np.int16)
        self.along = along
        self.across = across
        self.raster_x = raster_points(left_x)
        self.raster_y = raster_points(left_y)
        self.cuts_left = _MOST_CUTS
        # By the key of a piece. Pages of zeros that nobody writes take no memory.
        pieces = number.size**2
        self.is_known = np.zeros(pieces, bool)
        self.most = np.zeros(pieces, np.int16)
        self.least = np.zeros(pieces, np.int16)
        self.cuts: dict[int, tuple[int, int, int, int, int]] = {}

    def find(self, bound: int) -> list[Block] | None:
        """Return rectangles that hold more boxes together than the whole one.

        Each of them holds its boxes by five blocks.

        Args:
            bound: Boxes that no layout exceeds.

        Returns:
            Lower corners and the numbers of the sides of rectangles, or None where no better layout was found.
        """
        last_x = len(self.sums_x) - 1
        last_y = len(self.sums_y) - 1
        whole = np.array([[last_x], [last_y], [last_x], [last_y]])
        keys = self._keys(whole)
        key = int(keys[0])
        self._bound(keys)
        before = int(self.least[key])
        try:
            while self.least[key] < bound and self._holds(key, int(self.least[key]) + 1, 0):
                pass
        except _OutOfCutsError:
            pass
        if self.least[key] == before:
            return None
        return self._blocks(key, _Place(0, 0, 1, 1))

    def _holds(self, key: int, wanted: int, depth: int) -> bool:
        """Whether a piece is found to hold a number of boxes."""
        if self.least[key] >= wanted:
            return True
        if self.most[key] < wanted:
            return False
        if self.cuts_left <= 0:
            raise _OutOfCutsError
        if depth < _DEEPEST:
            for first, second, cut in self._promising_cuts(key, wanted):
                if self._hold_together(first, second, wanted, depth + 1):
                    self.least[key] = self.least[first] + self.least[second]
                    self.cuts[key] = first, second, cut[0], cut[1], cut[2]
                    return True
        self.most[key] = wanted - 1
        return False

    def _hold_together(self, first: int, second: int, wanted: int, depth: int) -> bool:
        """Whether two pieces are found to hold a number of boxes together."""
        while self.most[first] + self.most[second] >= wanted:
            if self.least[first] + self.least[second] >= wanted:
                return True
            needed_first = wanted - int(self.most[second])
            needed_second = wanted - int(self.most[first])
            if self.least[first] < needed_first:
                self._holds(first, needed_first, depth)
            elif self.least[second] < needed_second:
                self._holds(second, needed_second, depth)
            elif self.least[first] < self.most[first]:
                self._holds(first, int(self.least[first]) + 1, depth)
            else:
                self._holds(second, int(self.least[second]) + 1, depth)
        return False

    def _promising_cuts(self, key: int, wanted: int) -> list[tuple[int, int, list[int]]]:
        """Cuts whose pieces may hold a number of boxes together.

        Those with many boxes already come first, and then those with a small piece, which is soon known for certain.

        Returns:
            Keys of both pieces, and kind, p and q of the cut.
        """
        cuts = self._all_cuts(*self._numbers(key))
        self.cuts_left -= cuts.shape[1]
        box = self.along * self.across
        cuts = cuts[:, self._area(cuts[3:7]) // box + self._area(cuts[7:]) // box >= wanted]
        first = self._keys(cuts[3:7])
        second = self._keys(cuts[7:])
        self._bound(np.concatenate([first, second]))
        # A cut along the edge leaves the piece as it was.
        may_hold = (first != key) & (second != key) & (self.most[first] + self.most[second] >= wanted)
        first = first[may_hold]
        second = second[may_hold]
        held = self.least[first] + self.least[second]
        smaller = np.minimum(self.most[first], self.most[second])
        order = np.lexsort((smaller, -held))
        ways = cuts[:3, may_hold][:, order].T.tolist()
        return list(zip(first[order].tolist(), second[order].tolist(), ways, strict=True))

    def _all_cuts(self, X: int, Y: int, x: int, y: int) -> np.ndarray:
        """Cuts of a piece: kind, p, q, and the numbers of both pieces, (11, C)."""
        left_x = self.left_x
        left_y = self.left_y
        points_x = np.flatnonzero(self.raster_x[X] | self.raster_x[x])
        points_y = np.flatnonzero(self.raster_y[Y] | self.raster_y[y])
        low_x = points_x[points_x <= x]
        low_y = points_y[points_y <= y]
        p, q = _pairs(low_x, low_y)
        outer: tuple[_Many, _Many, _Many, _Many] = (X, Y, p, q)
        cuts = [_table(0, p, q, outer, (left_x[X, p], left_y[Y, q], left_x[x, p], left_y[y, q]))]
        if x == X:
            return np.concatenate([*cuts, *self._steps_across(X, Y, points_x, points_y)], 1)
        lower_right = (X, y, left_x[X, p], q)
        cuts.append(_table(3, p, q, lower_right, (x, left_y[Y, q], p, left_y[Y, y])))
        lower_right = (left_x[X, p], y, left_x[X, x], q)
        cuts.append(_table(5, p, q, lower_right, (x, Y, p, left_y[Y, q])))
        p, q = _pairs(points_x[points_x >= x], low_y)
        cuts.append(_table(1, p, q, (p, left_y[Y, q], x, left_y[y, q]), (X, y, left_x[X, p], q)))
        cuts.append(_table(6, p, q, (p, Y, x, q), (left_x[X, x], y, left_x[X, p], left_y[y, q])))
        p, q = _pairs(low_x, points_y[points_y >= y])
        cuts.append(_table(2, p, q, (left_x[X, p], q, left_x[x, p], y), (x, Y, p, left_y[Y, q])))
        cuts.append(_table(4, p, q, (X, q, p, y), (x, left_y[Y, y], left_x[x, p], left_y[Y, q])))
        return np.concatenate(cuts, 1)

    def _steps_across(self, X: int, Y: int, points_x: np.ndarray, points_y: np.ndarray) -> list[np.ndarray]:
        """Cuts 6 and 4 of a rectangle, whose inner corner may be anywhere on its edge."""
        left_x = self.left_x
        left_y = self.left_y
        lower, upper = _rising_pairs(points_x)
        p, q = _pairs(upper, points_y)
        x = np.repeat(lower, len(points_y))
        upright = _table(6, p, q, (p, Y, x, q), (left_x[X, x], Y, left_x[X, p], left_y[Y, q]))
        lower, upper = _rising_pairs(points_y)
        p, q = _pairs(points_x, upper)
        y = np.tile(lower, len(points_x))
        level = _table(4, p, q, (X, q, p, y), (X, left_y[Y, y], left_x[X, p], left_y[Y, q]))
        return [upright, level]

    def _places(self, key: int, kind: int, p: int, q: int) -> tuple[_Place, _Place]:
        """Places of the two pieces of a cut within the piece."""
        numbers = self._numbers(key)
        length, leg = self.sums_x[[numbers[0], numbers[2]]].tolist()
        width, foot = self.sums_y[[numbers[1], numbers[3]]].tolist()
        at_x = int(self.sums_x[p])
        at_y = int(self.sums_y[q])
        corner = _Place(0, 0, 1, 1)
        lower_right = _Place(length, 0, -1, 1)
        upper_left = _Place(0, width, 1, -1)
        right_of_p = _Place(at_x, 0, 1, 1)
        above_q = _Place(0, at_y, 1, 1)
        first = [corner, above_q, right_of_p, lower_right, corner, lower_right, corner]
        above_leg = _Place(leg, width, -1, -1)
        beside_foot = _Place(length, foot, -1, -1)
        second = [_Place(at_x, at_y, 1, 1), lower_right, upper_left, upper_left, above_leg, upper_left, beside_foot]
        return first[kind], second[kind]

    def _area(self, pieces: np.ndarray) -> np.ndarray:
        """Areas of pieces (4, P)."""
        length, width, leg, foot = self._lengths(pieces)
        return length * foot + leg * (width - foot)

    def _lengths(self, pieces: np.ndarray) -> np.ndarray:
        """Lengths by the numbers of pieces, (4, P)."""
        length, width, leg, foot = pieces
        return np.stack([self.sums_x[length], self.sums_y[width], self.sums_x[leg], self.sums_y[foot]])

    def _keys(self, pieces: np.ndarray) -> np.ndarray:
        """Keys of pieces (4, P), one for each shape."""
        length, width, leg, foot = pieces
        # A piece without a leg is its foot, and the other way round.
        length = np.where(foot == 0, leg, length)
        width = np.where(leg == 0, foot, width)
        is_rectangle = (leg >= length) | (foot >= width)
        leg = np.where(is_rectangle, length, leg)
        foot = np.where(is_rectangle, width, foot)
        return np.ravel_multi_index((length, width, leg, foot), self._shape)

    def _numbers(self, key: int) -> _Numbers:
        length, width, leg, foot = np.unravel_index(key, self._shape)
        return int(length), int(width), int(leg), int(foot)

    @property
    def _shape(self) -> _Numbers:
        return len(self.sums_x), len(self.sums_y), len(self.sums_x), len(self.sums_y)

    def _bound(self, keys: np.ndarray) -> None:
        """Note what new pieces hold as two rectangles, and what they cannot hold."""
        keys = np.unique(keys[~self.is_known[keys]])
        pieces = np.stack(np.unravel_index(keys, self._shape))
        length, width, leg, foot = pieces
        upright = self.number[leg, width] + self.number[self.left_x[length, leg], foot]
        level = self.number[length, foot] + self.number[leg, self.left_y[width, foot]]
        self.least[keys] = np.maximum(upright, level)
        self.most[keys] = bar_bound_of_l(self._lengths(pieces), self.along, self.across)
        self.is_known[keys] = True

    def _blocks(self, key: int, place: _Place) -> list[Block]:
        """Rectangles of a piece that is placed."""
        if key in self.cuts:
            first, second, kind, p, q = self.cuts[key]
            of_first, of_second = self._places(key, kind, p, q)
            return self._blocks(first, of_first.within(place)) + self._blocks(second, of_second.within(place))
        length, width, leg, foot = self._numbers(key)
        over = int(self.left_y[width, foot])
        beside = int(self.left_x[length, leg])
        upright = self.number[leg, width] + self.number[beside, foot]
        if upright == self.least[key]:
            right = _Place(int(self.sums_x[leg]), 0, 1, 1).within(place)
            return [self._block(leg, width, place), self._block(beside, foot, right)]
        above = _Place(0, int(self.sums_y[foot]), 1, 1).within(place)
        return [self._block(length, foot, place), self._block(leg, over, above)]

    def _block(self, i: int, j: int, place: _Place) -> Block:
        x = place.x if place.right > 0 else place.x - int(self.sums_x[i])
        y = place.y if place.up > 0 else place.y - int(self.sums_y[j])
        return x, y, i, j


def raster_points(left: np.ndarray) -> np.ndarray:
    """Return a mask of the sums at which it is worth to cut a length.

    Behind any other one as much is left as behind a raster point further on (Scheithauer and Terno 1996).

    Args:
        left: Number of the largest sum that fits from a cut to an end, at [end, cut].

    Returns:
        At [end, cut].
    """
    sums = np.arange(len(left))
    again = np.take_along_axis(left, left, 1)
    return (again == sums) & (sums <= sums[:, None])


def _table(
    kind: int,
    p: np.ndarray,
    q: np.ndarray,
    first: tuple[_Many, _Many, _Many, _Many],
    second: tuple[_Many, _Many, _Many, _Many],
) -> np.ndarray:
    """Cuts of one kind as rows of a table, (11, C)."""
    table = np.empty((11, len(p)), np.int64)
    for row, values in enumerate((kind, p, q, *first, *second)):
        table[row] = values
    return table


def _pairs(p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of two arrays."""
    return np.repeat(p, len(q)), np.tile(q, len(p))


def _rising_pairs(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of rising points, the lower one first."""
    lower, upper = np.triu_indices(len(points), 1)
    return points[lower], points[upper]
