"""Flat tops of a load, and which boxes may stand on them.

Boxes of mixed orders fill a pallet well where they stand on tops of one height: a box then needs no cells, its contacts
are exact, and what is left over is known as rectangles. So a load is kept as the rectangles of each height on which
boxes bear load, and the largest free rectangles among them. A heightmap of cells would round every side, and would have
to be searched for the same rectangles in every step.

Every box stands on tops of one height by most of its base, around its middle. It may bridge a hole, or stick out by a
quarter of its side. Only what lies inside the hull of its contacts bears load in turn, as in the rule `load_bearing`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

# Lower and upper corner along x and y, nanometres: x0, y0, x1, y1.
Rectangle = tuple[int, int, int, int]

# Heights that differ by less count as one, nanometres: thirds of an inch do not add up exactly.
_SAME_HEIGHT = 1_000
# Share of a base that must lie on tops.
_LEAST_AREA = 0.7
# Of each side of a base, the contacts must reach over three quarters: the hull of them then holds the middle by a
# quarter of the side, which is all that the rule `load_bearing` asks of any margin.
_REACHES, _OF = 3, 4
# Top of what nothing may be above.
_NOTHING_ABOVE = 2**62
# Free rectangles of one height. There are a few; a load of many splinters could otherwise take minutes.
_MOST_RECTANGLES = 200


class FlatTops:
    """Tops of a load.

    Args:
        floor: What bears load before the first box.
        room: What boxes may take; more than the floor where they may stick out over the pallet.
        hole: Widest hole between two tops that a free rectangle may have, nanometres.
        needs_support: Whether boxes stand by most of their base; otherwise any contact will do.

    Attributes:
        free: Largest free rectangles by their height, nanometres. They may overlap, and have holes of lower heights.
    """

    def __init__(self, floor: Rectangle, room: Rectangle, hole: int, *, needs_support: bool = True) -> None:
        self.room = room
        self.needs_support = needs_support
        self.hole = hole
        self.free: dict[int, list[Rectangle]] = {0: [room]}
        self._bearing: dict[int, list[Rectangle]] = {0: [floor]}
        # Bases and tops of all that was placed. They are tens: a loop is faster than operations on arrays.
        self._placed: list[tuple[Rectangle, int]] = []
        # Of the load, nanometres.
        self.height = 0

    def copy(self) -> FlatTops:
        """Return the tops of a load that goes on in its own way."""
        other = copy.copy(self)
        other.free = {height: list(rectangles) for height, rectangles in self.free.items()}
        other._bearing = {height: list(parts) for height, parts in self._bearing.items()}
        other._placed = list(self._placed)
        return other

    def is_clear(self, rectangle: Rectangle, height: int) -> bool:
        """Whether nothing above a height is over a rectangle."""
        x0, y0, x1, y1 = rectangle
        for (left, lower, right, upper), top in self._placed:
            if top > height and left < x1 and right > x0 and lower < y1 and upper > y0:
                return False
        return True

    def bearing_part(self, base: Rectangle, height: int) -> Rectangle | None:
        """Return the part of a box's top that would bear load.

        It is the hull of the contacts, which is asked to be a rectangle: contacts must hold its four corners. None
        where the box would not stand.
        """
        contacts = _overlaps(self._bearing.get(height, ()), base)
        if not contacts:
            return None
        area = sum(_area(contact) for contact in contacts)
        if area == _area(base) or not self.needs_support:
            return base
        if area < _LEAST_AREA * _area(base):
            return None
        x0, y0, x1, y1 = zip(*contacts, strict=True)
        hull = (min(x0), min(y0), max(x1), max(y1))
        reaches_x = _OF * (hull[2] - hull[0]) >= _REACHES * (base[2] - base[0])
        reaches_y = _OF * (hull[3] - hull[1]) >= _REACHES * (base[3] - base[1])
        if reaches_x and reaches_y and _hold_corners(contacts, hull):
            return hull
        return None

    def top_of(self, height: int) -> int:
        """Return a height that is known already in place of one that all but equals it."""
        for known in self.free:
            if abs(known - height) < _SAME_HEIGHT:
                return known
        return height

    def place(self, base: Rectangle, top: int, bearing: Sequence[Rectangle]) -> None:
        """Put a block of boxes on a load.

        Args:
            base: Of the block. The caller has seen to it that it is free and stands.
            top: Height of the block's top; `top_of` has seen it.
            bearing: Parts of the top that bear load, none of which overlap. Where there are none nothing may be above
                it, not even a bridge.
        """
        self.height = max(self.height, top)
        if not bearing:
            top = _NOTHING_ABOVE
        # What is below the new top, and under it, is out of reach from above.
        for height in list(self.free):
            if height < top:
                self.free[height] = _without(self.free[height], base)
        self._placed.append((base, top))
        if not bearing:
            return
        self._bearing.setdefault(top, []).extend(bearing)
        self.free[top] = self._joined(self.free.get(top, []), bearing, top)

    def _joined(self, free: Sequence[Rectangle], fresh: Sequence[Rectangle], height: int) -> list[Rectangle]:
        """Largest free rectangles of a height to which some are added.

        Two rectangles side by side are joined over the length that they share, and so are those that come of it, until
        nothing new comes. That finds all largest rectangles of their union.
        """
        found = list(free)
        waiting = list(fresh)
        while waiting and len(found) < _MOST_RECTANGLES:
            rectangle = waiting.pop()
            if any(_contains(other, rectangle) for other in found):
                continue
            if not self.is_clear(rectangle, height):
                continue
            found = [other for other in found if not _contains(rectangle, other)]
            for other in found:
                waiting += _joins(rectangle, other, self.hole)
            found.append(rectangle)
        return found


def _area(rectangle: Rectangle) -> int:
    x0, y0, x1, y1 = rectangle
    return (x1 - x0) * (y1 - y0)


def _contains(outer: Rectangle, inner: Rectangle) -> bool:
    holds_lower = outer[0] <= inner[0] and outer[1] <= inner[1]
    holds_upper = outer[2] >= inner[2] and outer[3] >= inner[3]
    return holds_lower and holds_upper


def _overlaps(rectangles: Sequence[Rectangle], base: Rectangle) -> list[Rectangle]:
    """Parts of rectangles that lie in a base."""
    found = []
    for rectangle in rectangles:
        x0 = max(rectangle[0], base[0])
        y0 = max(rectangle[1], base[1])
        x1 = min(rectangle[2], base[2])
        y1 = min(rectangle[3], base[3])
        if x0 < x1 and y0 < y1:
            found.append((x0, y0, x1, y1))
    return found


def _hold_corners(contacts: Sequence[Rectangle], hull: Rectangle) -> bool:
    """Whether each corner of the hull is a corner of a contact."""
    x0, y0, x1, y1 = hull
    low_low = any(contact[0] == x0 and contact[1] == y0 for contact in contacts)
    high_low = any(contact[2] == x1 and contact[1] == y0 for contact in contacts)
    low_high = any(contact[0] == x0 and contact[3] == y1 for contact in contacts)
    high_high = any(contact[2] == x1 and contact[3] == y1 for contact in contacts)
    return low_low and high_low and low_high and high_high


def _without(rectangles: list[Rectangle], base: Rectangle) -> list[Rectangle]:
    """Largest rectangles of what a base leaves free."""
    x0, y0, x1, y1 = base
    parts: list[Rectangle] = []
    is_same = True
    for rectangle in rectangles:
        left, lower, right, upper = rectangle
        if x0 >= right or x1 <= left or y0 >= upper or y1 <= lower:
            parts.append(rectangle)
            continue
        is_same = False
        if x0 > left:
            parts.append((left, lower, x0, upper))
        if x1 < right:
            parts.append((x1, lower, right, upper))
        if y0 > lower:
            parts.append((left, lower, right, y0))
        if y1 < upper:
            parts.append((left, y1, right, upper))
    return rectangles if is_same else _largest(parts)


def _largest(rectangles: Sequence[Rectangle]) -> list[Rectangle]:
    """Rectangles that lie in no other."""
    # A dict keeps their sequence, and with it the plan.
    each = list(dict.fromkeys(rectangles))
    return [rectangle for rectangle in each if not _lies_in_another(rectangle, each)]


def _lies_in_another(rectangle: Rectangle, others: Sequence[Rectangle]) -> bool:
    return any(other is not rectangle and _contains(other, rectangle) for other in others)


def _joins(one: Rectangle, other: Rectangle, hole: int) -> list[Rectangle]:
    """Rectangles that two make together, along x and along y.

    There may be a hole of some width between them.
    """
    found: list[Rectangle] = []
    low_x = max(one[0], other[0])
    low_y = max(one[1], other[1])
    high_x = min(one[2], other[2])
    high_y = min(one[3], other[3])
    if low_y < high_y and low_x <= high_x + hole:
        found.append((min(one[0], other[0]), low_y, max(one[2], other[2]), high_y))
    if low_x < high_x and low_y <= high_y + hole:
        found.append((low_x, min(one[1], other[1]), high_x, max(one[3], other[3])))
    return [each for each in found if not _contains(one, each) and not _contains(other, each)]
