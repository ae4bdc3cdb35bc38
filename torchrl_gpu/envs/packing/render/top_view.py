"""Overlays of a bin seen from above.

They show legal placements, the next placement, or the Q value of each. x runs to the right and y upwards. A place on
the placement grid is shown where the item's corner of least x and y lies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from torchrl_gpu.envs.packing.render.camera import WIRE
from torchrl_gpu.envs.packing.render.legend import FAINT, Legend, heat, rectangle, shares_of
from torchrl_gpu.envs.pictures import BACKGROUND

# sRGB of the floor, and of a full bin.
LOW = np.array([236.0, 240.0, 245.0])
HIGH = np.array([74.0, 90.0, 112.0])
# sRGB of one way to place an item, and of most.
FEW = np.array([178.0, 226.0, 168.0])
MANY = np.array([16.0, 122.0, 62.0])
ITEM = "#f08a24"
ITEM_EDGE = "#7a3c00"
# Cells along a side up to which steps between cells are drawn as lines.
CONTOURED_CELLS = 64
NO_PLACE = "nothing fits"


@dataclass(frozen=True)
class Placing:
    """The placement of an item.

    Attributes:
        item: Its number in the catalogue; None if it is not known.
        orientation: Number of its orientation.
        corner: Its first cell along x and y.
        extent: Cells along x and y.
        z: Base above the floor, metres.
        height: Metres.
    """

    item: int | None
    orientation: int
    corner: tuple[int, int]
    extent: tuple[int, int]
    z: float
    height: float


@dataclass(frozen=True)
class Pile:
    """State of a bin for the overlays.

    Attributes:
        heightmap: Metres, (X, Y).
        bin_size: Metres.
        step: Cells between neighbours on the placement grid.
        utilization: Share of the volume that is packed; None if it is not known.
        unit: Of lengths in the legend.
        per_unit: Metres in a unit along x, y and z.
    """

    heightmap: np.ndarray
    bin_size: tuple[float, float, float]
    step: int
    utilization: float | None = None
    unit: str = "m"
    per_unit: tuple[float, float, float] = (1.0, 1.0, 1.0)

    @property
    def cells(self) -> np.ndarray:
        """Colours of the cells by height, (X, Y, 3) float."""
        share = np.clip(self.heightmap / self.bin_size[2], 0, 1)[..., None]
        return LOW + (HIGH - LOW) * share

    def spread(self, grid: np.ndarray) -> np.ndarray:
        """Return a map of the placement grid (Gx, Gy, …) by cells, (X, Y, …)."""
        x, y = self.heightmap.shape
        return grid.repeat(self.step, 0).repeat(self.step, 1)[:x, :y]


def draw_mask(pile: Pile, ways: np.ndarray, most: int, width: int, height: int) -> np.ndarray:
    """Return the picture of legal placements of the visible items, uint8 (H, W, 3).

    Args:
        pile: The bin.
        ways: How many begin at each place, over all items and orientations, (Gx, Gy).
        most: How many could.
        width, height: Pixels.
    """
    spread = pile.spread(ways)[..., None]
    share = (spread - 1) / (most - 1) if most > 1 else spread
    greens = FEW + (MANY - FEW) * share.clip(0, 1)
    # The pile can be made out below.
    seen_through = 0.8 * greens + 0.2 * pile.cells
    sheet = _Sheet(pile, np.where(spread > 0, seen_through, pile.cells), width, height, "legal placements")
    places = int((ways > 0).sum())
    sheet.legend.text(f"{places:,} of {ways.size:,} places" if places else NO_PLACE)
    sheet.legend.gap()
    if most == 1:
        sheet.legend.swatch(MANY, "the item fits with its")
        sheet.legend.text("lower left corner here")
    else:
        sheet.legend.text("ways to place an item with its", scale=0.9)
        sheet.legend.text("lower left corner here", scale=0.9)
        sheet.legend.bar(_ramp(FEW, MANY), "1", f"{most}")
    return sheet.finish()


def draw_action(
    pile: Pile, placing: Placing | None, width: int, height: int, title: str = "next placement"
) -> np.ndarray:
    """Return the picture of the next placement, None if nothing fits, uint8 (H, W, 3)."""
    sheet = _Sheet(pile, pile.cells, width, height, title)
    if placing is None:
        sheet.legend.text(NO_PLACE)
    else:
        sheet.outline(placing, filled=True)
        sheet.describe(placing, filled=True)
    return sheet.finish()


def draw_values(pile: Pile, values: np.ndarray, placing: Placing | None, width: int, height: int) -> np.ndarray:
    """Return the picture of values of placements and the chosen one, uint8 (H, W, 3).

    Args:
        pile: The bin.
        values: Of the placements, −inf or NaN for none, (Gx, Gy).
        placing: The chosen one.
        width, height: Pixels.
    """
    shares, low, high = shares_of(values)
    known = pile.spread(np.isfinite(values))[..., None]
    colors = np.where(known, pile.spread(heat(shares)), pile.cells)
    sheet = _Sheet(pile, colors, width, height, "Q of each placement")
    if placing is None:
        sheet.legend.text(NO_PLACE)
        return sheet.finish()
    sheet.outline(placing, filled=False)
    sheet.legend.text("Q of the item with its lower", scale=0.9)
    sheet.legend.text("left corner here", scale=0.9)
    sheet.legend.bar(heat(np.linspace(0, 1, 64)), f"{low:.3g}", f"{high:.3g}")
    sheet.describe(placing, filled=False)
    return sheet.finish()


def _ramp(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return 32 colours from one to another, (32, 3)."""
    return first + (last - first) * np.linspace(0, 1, 32)[:, None]


class _Sheet:
    """A picture with the bin on the left and a legend with a title on the right.

    `cells` are colours of the bin's cells, (X, Y, 3).
    """

    def __init__(self, pile: Pile, cells: np.ndarray, width: int, height: int, title: str) -> None:
        self.pile = pile
        self.image = Image.new("RGB", (width, height), BACKGROUND)
        margin = max(2, round(0.04 * height))
        room_x = max(8, min(round(0.66 * width) - 2 * margin, width))
        room_y = max(8, height - 2 * margin)
        x, y = pile.heightmap.shape
        length, depth = pile.bin_size[:2]
        # Pixels per metre.
        self.scale = min(room_x / length, room_y / depth)
        across = max(2, round(length * self.scale))
        down = max(2, round(depth * self.scale))
        self.size = across, down
        self.left = margin
        self.top = (height - self.size[1]) // 2
        self.cell = self.size[0] / x, self.size[1] / y
        upright = np.ascontiguousarray(cells.round().astype(np.uint8).transpose(1, 0, 2)[::-1])
        floor = Image.fromarray(upright).resize(self.size, Image.Resampling.NEAREST)
        self.image.paste(floor, (self.left, self.top))
        self.pen = ImageDraw.Draw(self.image)
        if max(x, y) <= CONTOURED_CELLS:
            self._contours()
        box = (self.left, self.top, self.left + across, self.top + down)
        rectangle(self.pen, box, outline=WIRE, width=max(1, height // 240))
        text = max(7, round(min(height / 26, width / 36)))
        self.legend = Legend(self.image, box[2] + margin, margin, width - margin // 2, text)
        self.legend.text(title, scale=1.25)
        self.legend.gap(0.3)

    def pixel(self, x: float, y: float) -> tuple[float, float]:
        """Return the pixel of a place in cells."""
        cell_x, cell_y = self.cell
        bottom = self.top + self.size[1]
        return self.left + x * cell_x, bottom - y * cell_y

    def outline(self, placing: Placing, filled: bool) -> None:
        """Draw the footprint's bounding box, its corner marked."""
        x, y = placing.corner
        p, q = placing.extent
        left, bottom = self.pixel(x, y)
        right, top = self.pixel(x + p, y + q)
        box = round(left), round(top), round(right), round(bottom)
        width = max(2, self.image.height // 120)
        if filled:
            part = self.image.crop(box)
            tinted = Image.blend(part, Image.new("RGB", part.size, ITEM), 0.75)
            self.image.paste(tinted, box[:2])
            rectangle(self.pen, box, outline=ITEM_EDGE, width=width)
        else:
            rectangle(self.pen, box, outline="#000000", width=width + 2)
            inner = box[0] + 1, box[1] + 1, box[2] - 1, box[3] - 1
            rectangle(self.pen, inner, outline="#ffffff", width=width)
        dot = 1.5 * width
        dot_x = left
        dot_y = bottom
        if min(self.cell) > 3 * width:
            dot_x, dot_y = self.pixel(x + 0.5, y + 0.5)
        box_of_dot = (dot_x - dot, dot_y - dot, dot_x + dot, dot_y + dot)
        self.pen.ellipse(box_of_dot, fill="#ffffff", outline="#000000")

    def describe(self, placing: Placing, filled: bool) -> None:
        """Write the item and its place into the legend, behind a swatch like `outline`."""
        legend = self.legend
        x, y = placing.corner
        fill, edge = (ITEM, ITEM_EDGE) if filled else ("#ffffff", "#000000")
        legend.swatch(fill, "the item" if placing.item is None else f"item {placing.item}", edge)
        cells_x, cells_y = self.pile.heightmap.shape
        size_x = placing.extent[0] * self.pile.bin_size[0] / cells_x
        size_y = placing.extent[1] * self.pile.bin_size[1] / cells_y
        size = (size_x, size_y, placing.height)
        shown = [f"{side / per:.4g}" for side, per in zip(size, self.pile.per_unit, strict=True)]
        legend.text(f"{' x '.join(shown)} {self.pile.unit}", fill=FAINT)
        legend.text(f"turn {placing.orientation}, cell ({x}, {y})", fill=FAINT)
        rests_at = placing.z / self.pile.per_unit[2]
        legend.text(f"rests at {rests_at:.4g} {self.pile.unit}", fill=FAINT)

    def finish(self) -> np.ndarray:
        """Add the scale of heights to the legend and return the picture, uint8."""
        legend = self.legend
        legend.gap()
        legend.text(f"height of the pile, {self.pile.unit}", scale=0.9)
        highest = f"{self.pile.bin_size[2] / self.pile.per_unit[2]:.4g}"
        legend.bar(_ramp(LOW, HIGH), "0", highest)
        if self.pile.utilization is not None:
            legend.text(f"{self.pile.utilization:.1%} packed")
        return np.asarray(self.image)

    def _contours(self) -> None:
        """Draw a line wherever the height changes, so that boxes can be distinguished."""
        heights = self.pile.heightmap
        tolerance = 1e-4 * self.pile.bin_size[2]
        steps_x = np.abs(np.diff(heights, axis=0)) > tolerance
        steps_y = np.abs(np.diff(heights, axis=1)) > tolerance
        for x, y in np.argwhere(steps_x).tolist():
            ends = [self.pixel(x + 1, y), self.pixel(x + 1, y + 1)]
            self.pen.line(ends, fill=WIRE)
        for x, y in np.argwhere(steps_y).tolist():
            ends = [self.pixel(x, y + 1), self.pixel(x + 1, y + 1)]
            self.pen.line(ends, fill=WIRE)
