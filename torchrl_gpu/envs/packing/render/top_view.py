"""Overlays of a bin seen from above: legal placements, the next placement, the Q value of each.

x runs to the right and y upwards. A place on the placement grid is shown where the item's corner of least x and y lies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from torchrl_gpu.envs.packing.render.camera import WIRE
from torchrl_gpu.envs.packing.render.legend import FAINT, Legend, heat, rectangle, shares_of
from torchrl_gpu.envs.pictures import BACKGROUND

LOW, HIGH = np.array([236.0, 240.0, 245.0]), np.array([74.0, 90.0, 112.0])  # sRGB of the floor and of a full bin
FEW, MANY = np.array([178.0, 226.0, 168.0]), np.array([16.0, 122.0, 62.0])  # of one way to place an item, and of most
ITEM, ITEM_EDGE = "#f08a24", "#7a3c00"
CONTOURED_CELLS = 64  # along a side, up to which steps between cells are drawn as lines
NO_PLACE = "nothing fits"


@dataclass(frozen=True)
class Placing:
    """The placement of an item."""

    item: int | None  # its number in the catalogue; None where it is not known
    orientation: int  # number of its orientation
    corner: tuple[int, int]  # its first cell along x and y
    extent: tuple[int, int]  # cells along x and y
    z: float  # of its base above the floor, metres
    height: float  # metres


@dataclass(frozen=True)
class Pile:
    """State of a bin for the overlays."""

    heightmap: np.ndarray  # (X, Y), metres
    bin_size: tuple[float, float, float]  # metres
    step: int  # cells between neighbours on the placement grid
    utilization: float | None = None  # share of the volume that is packed; None where it is not known
    unit: str = "m"  # of lengths in the legend
    per_unit: tuple[float, float, float] = (1.0, 1.0, 1.0)  # metres in one of it, along x, y and z

    @property
    def cells(self) -> np.ndarray:
        """Colours of the cells by height, (X, Y, 3) float."""
        share = np.clip(self.heightmap / self.bin_size[2], 0, 1)[..., None]
        return LOW + (HIGH - LOW) * share

    def spread(self, grid: np.ndarray) -> np.ndarray:
        """A map of the placement grid (Gx, Gy, …) over the cells, (X, Y, …)."""
        x, y = self.heightmap.shape
        return grid.repeat(self.step, 0).repeat(self.step, 1)[:x, :y]


def draw_mask(pile: Pile, ways: np.ndarray, most: int, width: int, height: int) -> np.ndarray:
    """Picture uint8 (H, W, 3) of the legal placements of the visible items.

    `ways` (Gx, Gy) counts those that begin at each place, over all items and orientations, `most` is how many could.
    """
    spread = pile.spread(ways)[..., None]
    greens = FEW + (MANY - FEW) * ((spread - 1) / (most - 1) if most > 1 else spread).clip(0, 1)
    seen_through = 0.8 * greens + 0.2 * pile.cells  # the pile can be made out below
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
        sheet.legend.bar(FEW + (MANY - FEW) * np.linspace(0, 1, 32)[:, None], "1", f"{most}")
    return sheet.finish()


def draw_action(
    pile: Pile, placing: Placing | None, width: int, height: int, title: str = "next placement"
) -> np.ndarray:
    """Picture uint8 (H, W, 3) of the next placement.

    None where nothing fits.
    """
    sheet = _Sheet(pile, pile.cells, width, height, title)
    if placing is None:
        sheet.legend.text(NO_PLACE)
    else:
        sheet.outline(placing, filled=True)
        sheet.tell(placing, filled=True)
    return sheet.finish()


def draw_values(pile: Pile, values: np.ndarray, placing: Placing | None, width: int, height: int) -> np.ndarray:
    """Picture uint8 (H, W, 3) of the values (Gx, Gy) of placements, −inf or NaN for none, and of the chosen one."""
    shares, low, high = shares_of(values)
    known = pile.spread(np.isfinite(values))[..., None]
    sheet = _Sheet(pile, np.where(known, pile.spread(heat(shares)), pile.cells), width, height, "Q of each placement")
    if placing is None:
        sheet.legend.text(NO_PLACE)
        return sheet.finish()
    sheet.outline(placing, filled=False)
    sheet.legend.text("Q of the item with its lower", scale=0.9)
    sheet.legend.text("left corner here", scale=0.9)
    sheet.legend.bar(heat(np.linspace(0, 1, 64)), f"{low:.3g}", f"{high:.3g}")
    sheet.tell(placing, filled=False)
    return sheet.finish()


class _Sheet:
    """A picture with the bin, of colours (X, Y, 3), on the left and a legend with a title on the right."""

    def __init__(self, pile: Pile, cells: np.ndarray, width: int, height: int, title: str) -> None:
        self.pile, self.image = pile, Image.new("RGB", (width, height), BACKGROUND)
        margin = max(2, round(0.04 * height))
        room = max(8, min(round(0.66 * width) - 2 * margin, width)), max(8, height - 2 * margin)
        x, y = pile.heightmap.shape
        length, depth = pile.bin_size[:2]
        self.scale = min(room[0] / length, room[1] / depth)  # pixels per metre
        self.size = max(2, round(length * self.scale)), max(2, round(depth * self.scale))
        self.left, self.top = margin, (height - self.size[1]) // 2
        self.cell = self.size[0] / x, self.size[1] / y
        upright = np.ascontiguousarray(cells.round().astype(np.uint8).transpose(1, 0, 2)[::-1])
        floor = Image.fromarray(upright).resize(self.size, Image.Resampling.NEAREST)
        self.image.paste(floor, (self.left, self.top))
        self.pen = ImageDraw.Draw(self.image)
        if max(x, y) <= CONTOURED_CELLS:
            self._contours()
        box = (self.left, self.top, self.left + self.size[0], self.top + self.size[1])
        rectangle(self.pen, box, outline=WIRE, width=max(1, height // 240))
        text = max(7, round(min(height / 26, width / 36)))
        self.legend = Legend(self.image, box[2] + margin, margin, width - margin // 2, text)
        self.legend.text(title, scale=1.25)
        self.legend.gap(0.3)

    def pixel(self, x: float, y: float) -> tuple[float, float]:
        """Pixel of a place in cells."""
        return self.left + x * self.cell[0], self.top + self.size[1] - y * self.cell[1]

    def outline(self, placing: Placing, filled: bool) -> None:
        """Draws the footprint's bounding box, its corner marked."""
        (x, y), (p, q) = placing.corner, placing.extent
        (left, bottom), (right, top) = self.pixel(x, y), self.pixel(x + p, y + q)
        box = round(left), round(top), round(right), round(bottom)
        width = max(2, self.image.height // 120)
        if filled:
            part = self.image.crop(box)
            self.image.paste(Image.blend(part, Image.new("RGB", part.size, ITEM), 0.75), box[:2])
            rectangle(self.pen, box, outline=ITEM_EDGE, width=width)
        else:
            rectangle(self.pen, box, outline="#000000", width=width + 2)
            rectangle(self.pen, (box[0] + 1, box[1] + 1, box[2] - 1, box[3] - 1), outline="#ffffff", width=width)
        dot = 1.5 * width
        middle = self.pixel(x + 0.5, y + 0.5) if min(self.cell) > 3 * width else (left, bottom)
        box_of_dot = (middle[0] - dot, middle[1] - dot, middle[0] + dot, middle[1] + dot)
        self.pen.ellipse(box_of_dot, fill="#ffffff", outline="#000000")

    def tell(self, placing: Placing, filled: bool) -> None:
        """Writes the item and its place into the legend, behind a swatch like `outline`."""
        legend, (x, y) = self.legend, placing.corner
        fill, edge = (ITEM, ITEM_EDGE) if filled else ("#ffffff", "#000000")
        legend.swatch(fill, "the item" if placing.item is None else f"item {placing.item}", edge)
        sides = zip(placing.extent, self.pile.bin_size[:2], self.pile.heightmap.shape, strict=True)
        size = *(cells * side / of for cells, side, of in sides), placing.height
        shown = (f"{s / per:.4g}" for s, per in zip(size, self.pile.per_unit, strict=True))
        legend.text(f"{' x '.join(shown)} {self.pile.unit}", fill=FAINT)
        legend.text(f"turn {placing.orientation}, cell ({x}, {y})", fill=FAINT)
        legend.text(f"rests at {placing.z / self.pile.per_unit[2]:.4g} {self.pile.unit}", fill=FAINT)

    def finish(self) -> np.ndarray:
        """Adds the scale of heights to the legend and returns the picture, uint8 (H, W, 3)."""
        legend = self.legend
        legend.gap()
        legend.text(f"height of the pile, {self.pile.unit}", scale=0.9)
        highest = f"{self.pile.bin_size[2] / self.pile.per_unit[2]:.4g}"
        legend.bar(LOW + (HIGH - LOW) * np.linspace(0, 1, 32)[:, None], "0", highest)
        if self.pile.utilization is not None:
            legend.text(f"{self.pile.utilization:.1%} packed")
        return np.asarray(self.image)

    def _contours(self) -> None:
        """Draws a line wherever the height changes, so that boxes can be distinguished."""
        heights, tolerance = self.pile.heightmap, 1e-4 * self.pile.bin_size[2]
        for x, y in np.argwhere(np.abs(np.diff(heights, axis=0)) > tolerance).tolist():
            self.pen.line([self.pixel(x + 1, y), self.pixel(x + 1, y + 1)], fill=WIRE)
        for x, y in np.argwhere(np.abs(np.diff(heights, axis=1)) > tolerance).tolist():
            self.pen.line([self.pixel(x, y + 1), self.pixel(x + 1, y + 1)], fill=WIRE)
