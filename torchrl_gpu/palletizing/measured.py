"""What a session is told about the real pallet: where a box lies by its true outline, and what is doubtful about it.

Lengths in events and messages are millimetres, those of tensors metres.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchrl_gpu.palletizing.packer import Packer, Pallets, RestingBox

WHERE = "session"
SLACK_MM = 10.0  # by which a reported box may reach into others
# What is measured is believed up to these differences from what is expected, and beyond them only if it is `sure`.
FAR_MM, FAR_DEGREES = 100.0, 20.0  # of a reported box from its offer
OVER_EDGE_MM = 30.0  # of a reported box over the edge, besides the pallet's `overhang`
IN_AIR_MM = 30.0  # of a reported base above what lies below it
LEVEL_MM = 20.0  # of a measured height, besides the session's `noise`
SHIFT_MM = 30.0  # by which boxes may have moved on a heightmap
SPECKS_MM2 = 2500.0  # area that may differ more: a camera sees specks
VOLUME_SHARE, VOLUME_MM3 = 0.1, 1e5  # of the load's volume, and besides
_TOUCH_M = 0.0005  # by which a box may reach into a cell that it does not take


class ReportedBox:
    """A box at a reported place, beside what lies on its pallet until then.

    Args:
        packer: Of the pallet.
        pallets: State of one row with one pallet, without the box.
        event: A validated event with `box`, `center` and `degrees`.
    """

    def __init__(self, packer: Packer, pallets: Pallets, event: Mapping[str, Any]) -> None:
        self._packer, self._event = packer, event
        self.heights = pallets.heightmap[0, 0] - packer.pallet.deck
        self.center: list[float] = event["center"]
        self.turn = math.radians(event["degrees"])
        self.sides: list[float] = event["box"]["sides"]

    def rest(self) -> RestingBox:
        """Where it lies, by its true outline."""
        sides = torch.tensor(self.sides, dtype=torch.float64, device="cpu") / 1000
        outline = sides[:2] + self._packer.pallet.gap
        reached = self.cells_reached(outline)
        region = self._middles_within(outline)
        region = region if bool(region.any()) else reached  # of a box that is smaller than a cell
        base = self.center[2] / 1000
        # It lies on nothing lower than what is surely below it. Of the other heights that it covers the nearest to the
        # measured base counts: a taller neighbour, whose cells a shifted box reaches into, does not carry it.
        surely = self._highest_below()
        levels = self.heights[region & (self.heights >= surely)]
        level = surely if not levels.numel() else float(levels[(levels - base).abs().argmin()])
        level = level if math.isfinite(level) else base
        return RestingBox(region, self._cells_within(sides[:2]), reached, level, base + float(sides[2]))

    def check_base(self) -> None:
        """Raises ValueError where the box would lie in others, or where nothing could hold it."""
        base, highest = self.center[2], 1000 * self._highest_below()
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

    def doubts(self, offered: Mapping[str, Any]) -> list[str]:
        """Why the place is unlikely, by the `center` and `turn` that were offered, the pallet and what lies on it."""
        return [*self._far_from(offered), *self._over_edges(), *self._in_air()]

    def _far_from(self, offered: Mapping[str, Any]) -> list[str]:
        doubts = []
        center, turn, degrees = offered.get("center"), offered.get("turn"), self._event["degrees"]
        x, y, _ = self.center
        if isinstance(center, list) and len(center) == 3:
            far = math.hypot(x - center[0], y - center[1])
            if far > FAR_MM:
                doubts.append(
                    f"the center was offered at x {center[0]:g}, y {center[1]:g} mm, and reported at x {x:g},"
                    f" y {y:g} mm, {far:.0f} mm away, more than {FAR_MM:g} mm"
                )
        if isinstance(turn, int | float):
            is_square = abs(self.sides[0] - self.sides[1]) <= SLACK_MM
            period = 90 if is_square else 180
            apart = (degrees - turn) % period
            apart = min(apart, period - apart)
            if apart > FAR_DEGREES:
                doubts.append(
                    f"the turn was offered as {turn:g} and reported as {degrees:g} degrees, {apart:.0f} degrees away,"
                    f" more than {FAR_DEGREES:g} degrees"
                )
        return doubts

    def _over_edges(self) -> list[str]:
        pallet, doubts = self._packer.pallet, []
        cos, sin = abs(math.cos(self.turn)), abs(math.sin(self.turn))
        a, b, _ = self.sides
        reach = (a * cos + b * sin) / 2, (a * sin + b * cos) / 2
        over = 1000 * pallet.overhang
        for axis, at, half, side in zip("xy", self.center, reach, (pallet.length, pallet.width), strict=False):
            beyond = max(half - at, at + half - 1000 * side)
            if beyond > over + OVER_EDGE_MM:
                doubts.append(
                    f"the box reaches {beyond:.0f} mm over the edge of the pallet along {axis}, where {over:g} mm are"
                    f" expected, {beyond - over:.0f} mm more, where {OVER_EDGE_MM:g} mm may be"
                )
        return doubts

    def _in_air(self) -> list[str]:
        base, level = self.center[2], 1000 * self.rest().level
        if base - level <= IN_AIR_MM:
            return []
        return [
            f"the base is expected at {level:.0f} mm, on what lies below, and reported at {base:g} mm,"
            f" {base - level:.0f} mm higher, more than {IN_AIR_MM:g} mm"
        ]

    # -- cells ------------------------------------------------------------------------------------------------------

    def _highest_below(self) -> float:
        """Largest height, metres, of the cells that the box covers, whatever its place may be off; −inf for none."""
        sides = torch.tensor(self.sides[:2], dtype=torch.float64, device="cpu") / 1000
        surely = self.cells_reached(sides - 2 * (self._packer.pallet.cell + SLACK_MM / 1000))
        return float(torch.where(surely, self.heights, -math.inf).max())

    def cells_reached(self, sides: Tensor) -> Tensor:
        """Mask (X, Y) of the cells that a rectangle of sides (2,) metres reaches into, at the place of the box."""
        dx, dy = self._offsets()
        half = self._packer.pallet.cell / 2 - _TOUCH_M
        cos, sin, (a, b) = math.cos(self.turn), math.sin(self.turn), (sides.clamp_min(0) / 2).tolist()
        more = half * (abs(cos) + abs(sin))
        # Two rectangles meet where their projections on the axes of both do.
        own = ((dx * cos + dy * sin).abs() < a + more) & ((dy * cos - dx * sin).abs() < b + more)
        along_x, along_y = a * abs(cos) + b * abs(sin) + half, a * abs(sin) + b * abs(cos) + half
        return (own & (dx.abs() < along_x) & (dy.abs() < along_y)).to(self.heights.device)

    def _middles_within(self, sides: Tensor) -> Tensor:
        """Mask (X, Y) of the cells whose middle such a rectangle covers."""
        dx, dy = self._offsets()
        cos, sin = math.cos(self.turn), math.sin(self.turn)
        half_a, half_b = (sides / 2 + 1e-6).tolist()
        within = ((dx * cos + dy * sin).abs() <= half_a) & ((dy * cos - dx * sin).abs() <= half_b)
        return within.to(self.heights.device)

    def _cells_within(self, sides: Tensor) -> Tensor:
        """Mask (X, Y) of the cells that lie wholly within such a rectangle."""
        dx, dy = self._offsets()
        cos, sin = math.cos(self.turn), math.sin(self.turn)
        corner = self._packer.pallet.cell / 2 * (abs(cos) + abs(sin))
        half_a, half_b = (sides / 2 + 1e-6 - corner).tolist()
        within = ((dx * cos + dy * sin).abs() <= half_a) & ((dy * cos - dx * sin).abs() <= half_b)
        return within.to(self.heights.device)

    def _offsets(self) -> tuple[Tensor, Tensor]:
        """Offsets of the cells' middles from the centre: (X, 1) along x and (1, Y) along y, metres."""
        pallet, offsets = self._packer.pallet, []
        for first, cells, at in zip(pallet.origin, pallet.cells, self.center, strict=False):
            number = torch.arange(cells, dtype=torch.float64, device="cpu")
            offsets.append(first + pallet.cell * (number + 0.5) - at / 1000)
        return offsets[0][:, None], offsets[1][None]


def check_map(seen: Tensor, expected: Tensor, packer: Packer, noise: float) -> None:
    """Raises ValueError where a measured map cannot be that of the expected pallet with some boxes moved a little.

    A cell is explained by the expected heights around it. What is not are boxes that are missing or that nobody placed,
    or a camera that sees something else. Heights (X, Y) are metres above the pallet's top, `noise` metres as well.
    """
    deck, cell = 1000 * packer.pallet.deck, 1000 * packer.pallet.cell
    floor = 1000 * packer.floor.cpu() - deck
    seen, expected = torch.maximum(1000 * seen.cpu(), floor), 1000 * expected.cpu()
    near = 1000 * noise + LEVEL_MM
    size = 2 * math.ceil(SHIFT_MM / cell) + 1
    # Beyond the map there is no box: one may have moved away from the edge.
    around = torch.nn.functional.pad(expected, (size // 2,) * 4, value=-deck)
    high, low = _highest(around, size), -_highest(-around, size)
    off = (seen > high + near) | (seen < low - near)
    rise = torch.where((seen - expected).abs() > near, seen - expected, 0.0).double()
    more = float(rise.sum()) * cell**2
    volume = float(expected.clamp_min(0).double().sum()) * cell**2
    if int(off.sum()) * cell**2 <= SPECKS_MM2 and abs(more) <= VOLUME_SHARE * volume + VOLUME_MM3:
        return
    worst = rise.abs()
    if bool(off.any()):
        worst = torch.where(off, worst, -1.0)
    x, y = divmod(int(worst.argmax()), off.shape[1])
    way = "more" if rise[x, y] > 0 else "less"
    number = int((rise != 0).sum())
    raise ValueError(
        f"{WHERE}: heights are doubtful: in {number:,} of {off.numel():,} cells they differ by more than {near:g} mm;"
        f" at [{x}][{y}] {expected[x, y]:.0f} mm were expected and {seen[x, y]:.0f} mm measured,"
        f" {abs(float(rise[x, y])):.0f} mm {way}; in all {volume / 1e6:.1f} litres were expected and"
        f" {(volume + more) / 1e6:.1f} measured. If the pallet is so, send them again with sure: true"
    )


def _highest(heights: Tensor, size: int) -> Tensor:
    """Largest height in each square of so many cells a side, (X − size + 1, Y − size + 1): along x, then along y."""
    along_x = torch.nn.functional.max_pool2d(heights[None], (size, 1), 1)
    return torch.nn.functional.max_pool2d(along_x, (1, size), 1)[0]
