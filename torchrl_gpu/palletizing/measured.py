"""What a session is told about the real pallet, and whether to believe it.

A reported box gets its cells by its true outline. What is unlikely has its doubts named, and what is impossible is
refused. Lengths in events and messages are millimetres, those of tensors metres.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchrl_gpu.palletizing.events import SLACK_MM, WHERE, Reported
from torchrl_gpu.palletizing.packer import Packer, Pallets, RestingBox

# What is measured is believed up to the following differences from what is expected, and beyond them only if the client
# is sure of it. First the distance of a reported box from its offer.
FAR_MM = 100.0
FAR_DEGREES = 20.0
# Of a reported box over the edge, on top of the pallet's `overhang`.
OVER_EDGE_MM = 30.0
# Of a reported base above what lies below it.
IN_AIR_MM = 30.0
# Of a measured height, on top of the session's `noise`.
LEVEL_MM = 20.0
# By which boxes may have moved on a heightmap.
SHIFT_MM = 30.0
# Area that may differ by more, as a camera sees specks.
SPECKS_MM2 = 2500.0
# Volume that may differ: this share of the load's, plus this much.
VOLUME_SHARE = 0.1
VOLUME_MM3 = 1e5
# By which a box may reach into a cell that it does not take.
_TOUCH_M = 0.0005
# Middles and corners of cells this far out of a rectangle count as on its edge.
_ROUNDING_M = 1e-6
_MM3_PER_LITRE = 1e6


class ReportedBox:
    """A box at a reported place, and what lies on its pallet until then.

    Args:
        packer: Of the pallet.
        pallets: State of one row with one pallet, without the box.
        event: The report.
    """

    def __init__(self, packer: Packer, pallets: Pallets, event: Reported) -> None:
        self._packer = packer
        self._event = event
        self._offered = event.offered.answer
        self.heights = pallets.heightmap[0, 0] - packer.pallet.deck
        self.center = event.center
        self.turn = math.radians(event.degrees)
        self.sides = event.offered.box.sides

    def rest(self) -> RestingBox:
        """Find where the box rests, by its true outline.

        It rests on nothing lower than what is surely below it. Of the other heights that it covers the nearest to the
        measured base counts. The highest one would not do: a taller neighbour, whose cells a shifted box reaches into,
        does not carry it.
        """
        sides = torch.tensor(self.sides, dtype=torch.float64, device="cpu") / 1000
        outline = sides[:2] + self._packer.pallet.gap
        reached = self.cells_reached(outline)
        region = self._middles_within(outline)
        if not bool(region.any()):
            # The box is smaller than a cell.
            region = reached
        base = self.center[2] / 1000
        surely = self._highest_below()
        levels = self.heights[region & (self.heights >= surely)]
        level = surely
        if levels.numel():
            nearest = (levels - base).abs().argmin()
            level = float(levels[nearest])
        if not math.isfinite(level):
            level = base
        touching = self._cells_within(sides[:2])
        return RestingBox(region, touching, reached, level, top=base + float(sides[2]))

    def check_base(self) -> None:
        """Check that the box lies in no others, and that something can hold it.

        Raises:
            ValueError: It cannot lie there.
        """
        base = self.center[2]
        highest = 1000 * self._highest_below()
        if highest > base + SLACK_MM:
            raise ValueError(
                f"{WHERE}: center must be a free place; got a base at {base:g} mm, where others reach {highest:.0f}"
            )
        level = 1000 * self.rest().level
        # A box that leans on a neighbour has the middle of its base at most half a side above what is below.
        most = IN_AIR_MM + max(self.sides[:2]) / 2
        if base - level > most:
            raise ValueError(
                f"{WHERE}: center z must be at most {level + most:.0f} mm, as what lies there reaches {level:.0f} mm;"
                f" got {base:g}, {base - level:.0f} mm above it. If something else lies there, measure the pallet"
            )

    def doubts(self) -> list[str]:
        """Why the place is unlikely, by the offer, the pallet and what lies on it."""
        return [*self._far_from_center(), *self._far_from_turn(), *self._over_edges(), *self._in_air()]

    def _far_from_center(self) -> list[str]:
        offered = self._offered.get("center")
        if not isinstance(offered, list) or len(offered) != 3:
            return []
        x, y, _ = self.center
        distance = math.hypot(x - offered[0], y - offered[1])
        if distance <= FAR_MM:
            return []
        return [
            f"the center was offered at x {offered[0]:g}, y {offered[1]:g} mm, and reported at x {x:g},"
            f" y {y:g} mm, {distance:.0f} mm away, more than {FAR_MM:g} mm"
        ]

    def _far_from_turn(self) -> list[str]:
        offered = self._offered.get("turn")
        if not isinstance(offered, int | float):
            return []
        degrees = self._event.degrees
        # After a half turn a box looks the same, and a square one after a quarter.
        is_square = abs(self.sides[0] - self.sides[1]) <= SLACK_MM
        period = 90 if is_square else 180
        apart = (degrees - offered) % period
        apart = min(apart, period - apart)
        if apart <= FAR_DEGREES:
            return []
        return [
            f"the turn was offered as {offered:g} and reported as {degrees:g} degrees, {apart:.0f} degrees away,"
            f" more than {FAR_DEGREES:g} degrees"
        ]

    def _over_edges(self) -> list[str]:
        pallet = self._packer.pallet
        cos = abs(math.cos(self.turn))
        sin = abs(math.sin(self.turn))
        length, width, _ = self.sides
        x, y, _ = self.center
        half_x = (length * cos + width * sin) / 2
        half_y = (length * sin + width * cos) / 2
        over_x = self._over_edge("x", x, half_x, 1000 * pallet.length)
        over_y = self._over_edge("y", y, half_y, 1000 * pallet.width)
        return [*over_x, *over_y]

    def _over_edge(self, axis: str, at: float, half: float, side: float) -> list[str]:
        """Doubt about a box that reaches half a length in both directions along an axis."""
        over = 1000 * self._packer.pallet.overhang
        beyond = max(half - at, at + half - side)
        if beyond <= over + OVER_EDGE_MM:
            return []
        return [
            f"the box reaches {beyond:.0f} mm over the edge of the pallet along {axis}, where {over:g} mm are"
            f" expected, {beyond - over:.0f} mm more, where {OVER_EDGE_MM:g} mm may be"
        ]

    def _in_air(self) -> list[str]:
        base = self.center[2]
        level = 1000 * self.rest().level
        if base - level <= IN_AIR_MM:
            return []
        return [
            f"the base is expected at {level:.0f} mm, on what lies below, and reported at {base:g} mm,"
            f" {base - level:.0f} mm higher, more than {IN_AIR_MM:g} mm"
        ]

    # -- cells ------------------------------------------------------------------------------------------------------

    def _highest_below(self) -> float:
        """Largest height of the cells that the box surely covers, metres, −inf for none.

        They are under the box even if its place is wrong by as much as a place may be.
        """
        sides = torch.tensor(self.sides[:2], dtype=torch.float64, device="cpu") / 1000
        surely = self.cells_reached(sides - 2 * (self._packer.pallet.cell + SLACK_MM / 1000))
        return float(torch.where(surely, self.heights, -math.inf).max())

    def cells_reached(self, sides: Tensor) -> Tensor:
        """Mask (X, Y) of the cells that a rectangle of sides (2,) reaches into.

        It lies at the place of the box. Sides are metres.

        Two rectangles meet where their projections on the axes of both do. The box is tested as if cells were smaller
        by `_TOUCH_M`. To test the corners of cells alone would miss a box that is smaller than a cell, or that pokes
        into it with a corner.
        """
        dx, dy = self._offsets()
        half_cell = self._packer.pallet.cell / 2 - _TOUCH_M
        cos = math.cos(self.turn)
        sin = math.sin(self.turn)
        a, b = (sides.clamp_min(0) / 2).tolist()
        # On the axes of the box a cell reaches this far from its middle.
        more = half_cell * (abs(cos) + abs(sin))
        along_a = (dx * cos + dy * sin).abs()
        along_b = (dy * cos - dx * sin).abs()
        own = (along_a < a + more) & (along_b < b + more)
        # On the axes of the pallet the box reaches this far from its centre, including half a cell.
        along_x = a * abs(cos) + b * abs(sin) + half_cell
        along_y = a * abs(sin) + b * abs(cos) + half_cell
        reached = own & (dx.abs() < along_x) & (dy.abs() < along_y)
        return reached.to(self.heights.device)

    def _middles_within(self, sides: Tensor) -> Tensor:
        """Mask (X, Y) of the cells whose middle such a rectangle covers."""
        return self._within(sides / 2 + _ROUNDING_M)

    def _cells_within(self, sides: Tensor) -> Tensor:
        """Mask (X, Y) of the cells that lie wholly within such a rectangle."""
        cos = math.cos(self.turn)
        sin = math.sin(self.turn)
        # The furthest corner of a cell from its middle, along the axes of the rectangle.
        corner = self._packer.pallet.cell / 2 * (abs(cos) + abs(sin))
        return self._within(sides / 2 + _ROUNDING_M - corner)

    def _within(self, halves: Tensor) -> Tensor:
        """Mask (X, Y) of the cells whose middle a rectangle of half sides (2,) covers."""
        dx, dy = self._offsets()
        cos = math.cos(self.turn)
        sin = math.sin(self.turn)
        half_a, half_b = halves.tolist()
        along_a = (dx * cos + dy * sin).abs()
        along_b = (dy * cos - dx * sin).abs()
        within = (along_a <= half_a) & (along_b <= half_b)
        return within.to(self.heights.device)

    def _offsets(self) -> tuple[Tensor, Tensor]:
        """Offsets of the cells' middles from the centre, metres.

        Returns:
            (X, 1) along x and (1, Y) along y.
        """
        first_x, first_y = self._packer.pallet.origin
        cells_x, cells_y = self._packer.pallet.cells
        x, y, _ = self.center
        dx = self._offsets_along(first_x, cells_x, x)
        dy = self._offsets_along(first_y, cells_y, y)
        return dx[:, None], dy[None]

    def _offsets_along(self, first: float, cells: int, at: float) -> Tensor:
        number = torch.arange(cells, dtype=torch.float64, device="cpu")
        return first + self._packer.pallet.cell * (number + 0.5) - at / 1000


def check_map(seen: Tensor, expected: Tensor, packer: Packer, noise: float) -> None:
    """Check that a measured map can be that of the expected pallet.

    A cell is explained by the expected heights around it, as some boxes may have moved a little. Cells that are not
    explained are boxes that are missing or that nobody placed, or a camera that sees something else. To compare cell
    with cell would refuse every map whose boxes are off by a cell.

    Args:
        seen, expected: Metres above the pallet's top, (X, Y).
        packer: Of the pallet.
        noise: What a measured height may be off, metres.

    Raises:
        ValueError: The map differs by more than the limits at the top of this module.
    """
    deck = 1000 * packer.pallet.deck
    cell = 1000 * packer.pallet.cell
    floor = 1000 * packer.floor.cpu() - deck
    seen = torch.maximum(1000 * seen.cpu(), floor)
    expected = 1000 * expected.cpu()
    near = 1000 * noise + LEVEL_MM
    size = 2 * math.ceil(SHIFT_MM / cell) + 1
    # Beyond the map there is no box: one may have moved away from the edge.
    around = torch.nn.functional.pad(expected, (size // 2,) * 4, value=-deck)
    high = _highest(around, size)
    low = -_highest(-around, size)
    is_off = (seen > high + near) | (seen < low - near)
    rise = seen - expected
    rise = torch.where(rise.abs() > near, rise, 0.0).double()
    more = float(rise.sum()) * cell**2
    volume = float(expected.clamp_min(0).double().sum()) * cell**2
    area = int(is_off.sum()) * cell**2
    if area <= SPECKS_MM2 and abs(more) <= VOLUME_SHARE * volume + VOLUME_MM3:
        return
    worst = rise.abs()
    if bool(is_off.any()):
        worst = torch.where(is_off, worst, -1.0)
    x, y = divmod(int(worst.argmax()), is_off.shape[1])
    way = "more" if rise[x, y] > 0 else "less"
    number = int((rise != 0).sum())
    many = f"in {number:,} of {is_off.numel():,} cells they differ by more than {near:g} mm"
    apart = abs(float(rise[x, y]))
    at_worst = (
        f"at [{x}][{y}] {expected[x, y]:.0f} mm were expected and {seen[x, y]:.0f} mm measured, {apart:.0f} mm {way}"
    )
    litres = volume / _MM3_PER_LITRE
    litres_seen = (volume + more) / _MM3_PER_LITRE
    in_all = f"in all {litres:.1f} litres were expected and {litres_seen:.1f} measured"
    raise ValueError(
        f"{WHERE}: heights are doubtful: {many}; {at_worst}; {in_all}. If the pallet is so, send them again with"
        " sure: true"
    )


def _highest(heights: Tensor, size: int) -> Tensor:
    """Largest height in each square of cells.

    Args:
        heights: (X, Y).
        size: Cells along a side of the square.

    Returns:
        (X − size + 1, Y − size + 1).
    """
    along_x = torch.nn.functional.max_pool2d(heights[None], (size, 1), 1)
    return torch.nn.functional.max_pool2d(along_x, (1, size), 1)[0]
