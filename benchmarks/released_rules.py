"""DBL, LSAH, BR and online BPH as released, in plain NumPy.

The code is that of PCT (Zhao et al., ICLR 2022). They are the rules of RoboBPP's board (arXiv 2512.04415), whose counts
they reproduce, and the control for our own rules, which consider more placements. Where they differ from ours, their
docstrings say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

# Length and width in cells, height in the unit of a cell.
Box = tuple[int, int, float]
# Corners (x, y, z) of an empty maximal space, and its far corners.
Space = tuple[float, float, float, float, float, float]
# Cells along x and y, and the height of the container.
Size = tuple[int, int, float]

# Weight of a height of one cell, in cells of x + y.
_DEPTH = 100
# What BR adds for a space that all boxes fit into.
_ALL_FIT = 10


class Placed(NamedTuple):
    """Sides of a box as it is turned, and the first cell of its footprint."""

    length: int
    width: int
    x: int
    y: int


class Pile:
    """Heightmap and empty maximal spaces of a container.

    Args:
        size: Of the container.
        boxes: All boxes that will come.

    Attributes:
        heights: Top of the pile, (X, Y) float32.
        spaces: In the order in which they were found.
    """

    def __init__(self, size: Size, boxes: Sequence[Box]) -> None:
        self.size = size
        self.boxes = np.array(boxes, dtype=np.float64)
        # Heights are held in float32 there, so that equal heights may differ by rounding.
        self.heights = np.zeros(size[:2], dtype=np.float32)
        length, width, height = size
        self.spaces: list[Space] = [(0, 0, 0, length, width, height)]
        # Spaces with a side below the least of all boxes' sides are dropped.
        self.least_side = self.boxes.min()

    def base(self, placed: Placed, height: float) -> float | None:
        """Height at which a box comes to rest, or None if it does not fit there."""
        length, width, x, y = placed
        if x + length > self.size[0] or y + width > self.size[1]:
            return None
        base = float(self.heights[x : x + length, y : y + width].max())
        return None if base + height > self.size[2] else base

    def place(self, placed: Placed, height: float) -> None:
        length, width, x, y = placed
        footprint = self.heights[x : x + length, y : y + width]
        base = float(footprint.max())
        top = base + height
        footprint[:] = top
        self._split_spaces((x, y, base, x + length, y + width, top))

    def _split_spaces(self, box: Space) -> None:
        """Cut a box out of all spaces, and drop those that lie in others.

        The box is cut out between its base and its top alone. So spaces remain below it, which no box can reach.
        """
        kept = []
        parts = []
        for space in self.spaces:
            if _overlaps(space, box):
                parts += [part for part in _parts_around(space, box) if self._is_usable(part)]
            else:
                kept.append(space)
        spaces = kept + parts
        corners = np.array(spaces).reshape(-1, 6)
        starts_inside = (corners[:, None, :3] >= corners[None, :, :3]).all(-1)
        ends_inside = (corners[:, None, 3:] <= corners[None, :, 3:]).all(-1)
        is_inside = starts_inside & ends_inside
        np.fill_diagonal(is_inside, False)
        in_another = is_inside.any(1)
        self.spaces = [space for space, drop in zip(spaces, in_another, strict=True) if not drop]

    def _is_usable(self, space: Space) -> bool:
        return min(_sides(space)) >= self.least_side


def _overlaps(space: Space, box: Space) -> bool:
    return all(space[axis] < box[axis + 3] and box[axis] < space[axis + 3] for axis in range(3))


def _parts_around(space: Space, box: Space) -> list[Space]:
    """Parts of a space on four sides of a box, and above it."""
    x1, y1, z1, x2, y2, z2 = space
    left = (x1, y1, z1, max(box[0], x1), y2, z2)
    right = (min(box[3], x2), y1, z1, x2, y2, z2)
    front = (x1, y1, z1, x2, max(box[1], y1), z2)
    back = (x1, min(box[4], y2), z1, x2, y2, z2)
    above = (x1, y1, min(box[5], z2), x2, y2, z2)
    return [left, right, front, back, above]


def _sides(space: Space) -> tuple[float, float, float]:
    return space[3] - space[0], space[4] - space[1], space[5] - space[2]


def _turns(box: Box) -> list[tuple[int, int]]:
    """Length and width as the box comes, then turned about z."""
    length, width, _ = box
    return [(length, width), (width, length)]


def _at_corners(pile: Pile, box: Box) -> Iterator[tuple[Placed, Space, float]]:
    """Placements of a box at the first corners of the spaces that hold it.

    Each comes with its space and with the height of its base.
    """
    height = box[2]
    for space in pile.spaces:
        room = _sides(space)
        for length, width in _turns(box):
            if room[0] < length or room[1] < width or room[2] < height:
                continue
            placed = Placed(length, width, int(space[0]), int(space[1]))
            base = pile.base(placed, height)
            if base is not None:
                yield placed, space, base


def deepest_bottom_left(pile: Pile, box: Box) -> Placed | None:
    """Least x + y + 100·z.

    Ours compares z first. Here 1 cm of depth weighs as much as 100 cells of x + y, and a container of 134 × 125 cells
    has more. Both turns are bounded by the sides of the unturned box, so that a turned one never reaches the far walls,
    or stands out and is refused.
    """
    length, width, height = box
    best: tuple[float, int, int, int] | None = None
    for turn, sides in enumerate(_turns(box)):
        if sides[0] > pile.size[0] or sides[1] > pile.size[1]:
            continue
        along_x = sliding_window_view(pile.heights, sides[0], 0).max(-1)
        base = sliding_window_view(along_x, sides[1], 1).max(-1).astype(np.float64)
        x, y = np.indices(base.shape)
        is_legal = base + height <= pile.size[2]
        is_legal &= (x <= pile.size[0] - length) & (y <= pile.size[1] - width)
        score = np.where(is_legal, x + y + _DEPTH * base, np.inf)
        first = int(score.argmin())
        at_x, at_y = divmod(first, base.shape[1])
        # Of equal scores the first counts: by x, then y, then turn.
        found = (float(score[at_x, at_y]), at_x, at_y, turn)
        if found[0] < np.inf and (best is None or found < best):
            best = found
    if best is None:
        return None
    _, at_x, at_y, turn = best
    length, width = _turns(box)[turn]
    return Placed(length, width, at_x, at_y)


def least_surface_area(pile: Pile, box: Box) -> Placed | None:
    """Least surface of the box around everything.

    Ours considers all placements, this one corners of spaces that hold the box. Here a surface must be below that of
    the whole container. Equal ones go to the space with the least margin, and both margins count with the sides of the
    later candidate.
    """
    length, width, height = pile.size
    least = length * width + width * height + height * length
    best: Placed | None = None
    best_room = (0.0, 0.0, 0.0)
    occupied = np.argwhere(pile.heights > 0)
    for placed, space, base in _at_corners(pile, box):
        first = np.array([placed.x, placed.y])
        last = first + np.array([placed.length, placed.width])
        if len(occupied):
            first = np.minimum(first, occupied.min(0))
            last = np.maximum(last, occupied.max(0) + 1)
        along_x, along_y = (last - first).tolist()
        top = base + box[2]
        area = along_x * along_y + top * along_y + top * along_x
        sides = (placed.length, placed.width, box[2])
        room = _sides(space)
        is_tighter = best is not None and _margin(room, sides) < _margin(best_room, sides)
        if area < least or (area == least and is_tighter):
            least = area
            best = placed
            best_room = room
    return best


def _margin(room: Sequence[float], sides: Sequence[float]) -> float:
    return min(have - need for have, need in zip(room, sides, strict=True))


def boundary_rule(pile: Pile, box: Box) -> Placed | None:
    """Largest space by volume and by the boxes of the episode that fit into it.

    Each box that fits counts as one cell, and 10 more if all fit.
    """
    most = -np.inf
    best: Placed | None = None
    for placed, space, _ in _at_corners(pile, box):
        room = np.array(_sides(space))
        fitting = int((pile.boxes <= room).all(1).sum())
        score = float(room.prod()) + fitting
        if fitting == len(pile.boxes):
            score += _ALL_FIT
        if score > most:
            most = score
            best = placed
    return best


def online_bph(pile: Pile, box: Box) -> Placed | None:
    """First corner of a space, by z, then y, then x, where the box is legal.

    Ours requires that the space holds the box. Here it need not.
    """
    for space in sorted(pile.spaces, key=lambda space: (space[2], space[1], space[0])):
        for length, width in _turns(box):
            placed = Placed(length, width, int(space[0]), int(space[1]))
            if pile.base(placed, box[2]) is not None:
                return placed
    return None


Rule = Callable[[Pile, Box], "Placed | None"]
RULES: dict[str, Rule] = {
    "DBL": deepest_bottom_left,
    "LSAH": least_surface_area,
    "BR": boundary_rule,
    "OnlineBPH": online_bph,
}


def in_cells(sides: np.ndarray) -> list[Box]:
    """Round boxes (R, 3) of true sides as `packsim` does.

    Length and width are rounded up to whole cells, and height to a tenth. Sides are in the unit of a cell. A side that
    is a whole number but for rounding errors stays it.
    """
    cells = np.ceil(sides[:, :2] - 1e-6).astype(int)
    heights = sides[:, 2].round(1)
    return [(length, width, height) for (length, width), height in zip(cells.tolist(), heights.tolist(), strict=True)]


def placements(rule: Rule, boxes: Sequence[Box], size: Size) -> Iterator[tuple[Placed, float, np.ndarray]]:
    """Pack boxes in their order until one has no place.

    Args:
        rule: One of `RULES`.
        boxes: In cells, as they come.
        size: Of the container.

    Yields:
        Where a box goes, the height of its base, and the heightmap with it, (X, Y) float32.
    """
    pile = Pile(size, boxes)
    for box in boxes:
        placed = rule(pile, box)
        if placed is None:
            return
        base = pile.base(placed, box[2])
        assert base is not None
        pile.place(placed, box[2])
        yield placed, base, pile.heights


def pack(rule: Rule, boxes: Sequence[Box], size: Size, volumes: Sequence[float]) -> tuple[int, float]:
    """Count the boxes that a rule packs.

    Args:
        rule, boxes, size: As for `placements`.
        volumes: True volumes of the boxes, in cubes of a cell.

    Returns:
        Number of boxes placed, and occupancy: true volume over the volume under the heightmap, averaged over the
        placements.
    """
    packed = 0.0
    occupancies = []
    # Placements end before the boxes where one has no place.
    for (_, _, heights), volume in zip(placements(rule, boxes, size), volumes, strict=False):
        packed += volume
        occupancies.append(packed / float(heights.astype(np.float64).sum()))
    return len(occupancies), float(np.mean(occupancies)) if occupancies else 0.0
