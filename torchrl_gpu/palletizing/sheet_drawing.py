"""Drawings of printed sheets: the cover of a plan, and a layer of a pallet.

What stands on them is in `sheets`. Needs matplotlib.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.transforms import Affine2D

from torchrl_gpu.lists.units import LENGTHS
from torchrl_gpu.palletizing.fonts import FIRST_FAMILY, Fonts
from torchrl_gpu.palletizing.page import Row
from torchrl_gpu.palletizing.sheets import (
    BoxKind,
    LayerView,
    LoadedSheets,
    PlacedBox,
    front_words,
    kinds_of,
    runs,
    short,
)

# A4 across, in millimetres from the lower left corner.
_WIDTH = 297.0
_HEIGHT = 210.0
_LEFT = 12.0
_RIGHT = 285.0
_TITLE_Y = 193.0
_ABOUT_Y = 185.5
_FOOT_Y = 9.0
_INCH = 25.4
_POINT = _INCH / 72

# Room of the picture of a layer, and of the list beside it.
_PICTURE_WIDTH = 184.0
_PICTURE_HEIGHT = 150.0
_PICTURE_TOP = 178.0
_LIST_LEFT = 204.0
_LIST_TOP = 176.0
_LIST_LOW = 16.0
_INDENT = 5.0
# Free lines between the entries of the list.
_BETWEEN = 0.5
# Size from which on numbers and how the boxes lie stand in one line, points.
_ONE_LINE = 7.0
_MOST_WARNINGS = 5
# Sizes of the list, of which the largest is taken that has room for all kinds of boxes.
_LIST_SIZES = (9.0, 8.0, 7.0, 6.0, 5.0)
# Height of a line, as a multiple of the size of its letters.
_LINE = 1.35
# Sizes of the number and of the name in a box, points.
_MOST_NUMBER = 18.0
_MOST_NAME = 9.0
_LEAST_NAME = 4.5

_COVER_TOP = 170.0
_ROW = 6.2
# Rows of a cover below its heading.
COVER_ROWS = 24

_INK = "#1b2129"
_GREY = "#5b6672"
_WARNING = "#a3211f"
_PALE = "#efede9"
_PALE_EDGE = "#c4beb2"
_PALE_INK = "#a39c8f"
_DECK = "#f9f3e8"
_DECK_EDGE = "#8a7350"

Rectangle = tuple[float, float, float, float]
Color = str | tuple[float, float, float]


class Sheet:
    """An empty sheet, in millimetres from its lower left corner."""

    def __init__(self, fonts: Fonts) -> None:
        self.fonts = fonts
        self.figure = Figure(figsize=(_WIDTH / _INCH, _HEIGHT / _INCH))
        FigureCanvasPdf(self.figure)
        self._from_mm = Affine2D().scale(1 / _INCH) + self.figure.dpi_scale_trans

    def write(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        *,
        color: str = _INK,
        align: str = "left",
        bold: bool = False,
        upward: bool = False,
    ) -> None:
        """Write a line, of cleaned text.

        Args:
            x, y: Of the baseline at its left end, its middle or its right end, by `align`.
            text: Of a user only as `Fonts.clean` or `Fonts.shorten` gives it.
            size: Points.
            color, align, bold: As they say.
            upward: Whether it runs from below to above.
        """
        self.figure.text(
            x,
            y,
            text,
            size=size,
            color=color,
            ha=align,
            va="baseline",
            weight="bold" if bold else "normal",
            # Other fonts may have no bold letters, and no user's text is bold.
            family=FIRST_FAMILY if bold else self.fonts.families,
            rotation=90 if upward else 0,
            rotation_mode="anchor",
            transform=self._from_mm,
            # A dollar sign in a name begins no formula.
            parse_math=False,
        )

    def fill(self, rectangles: Sequence[Rectangle], colors: Sequence[Color], edge: str, width: float = 0.7) -> None:
        """Fill rectangles (left, low, right, high), the later ones over the earlier."""
        corners = [[(left, low), (right, low), (right, high), (left, high)] for left, low, right, high in rectangles]
        drawn = PolyCollection(
            corners, facecolors=list(colors), edgecolors=edge, linewidths=width, transform=self._from_mm
        )
        self.figure.add_artist(drawn)

    def foot(self, left: str, number: int, of: int) -> None:
        """Write the last line: a remark, and which sheet it is."""
        self.write(_LEFT, _FOOT_Y, left, 8, color=_GREY)
        self.write(_RIGHT, _FOOT_Y, f"sheet {number} of {of}", 8, color=_GREY, align="right")


def mark_color(number: int) -> Color:
    """Pale colour of the article of a number, unlike those of its neighbours."""
    hue = (number * 137.5 + 25) % 360
    return colorsys.hls_to_rgb(hue / 360, 0.8, 0.5)


# -- cover -------------------------------------------------------------------------------------------------------------


class CoverColumn(NamedTuple):
    """A column of the cover.

    Attributes:
        group: Heading over several columns, "" without one.
        title: Its own heading.
        edge: Its right edge, millimetres.
    """

    group: str
    title: str
    edge: float


_ORDER_WIDTH = 62.0
_COUNTS = (
    CoverColumn("", "pallet", 92.0),
    CoverColumn("", "layers", 108.0),
    CoverColumn("", "boxes", 124.0),
)
_MEASURES = (
    CoverColumn("weight, kg", "load", 147.0),
    CoverColumn("weight, kg", "with pallet", 168.0),
    CoverColumn("height", "load", 187.0),
    CoverColumn("height", "with pallet", 208.0),
    CoverColumn("centre of gravity", "off the middle", 238.0),
    CoverColumn("centre of gravity", "up", 256.0),
)
_COLUMNS = (*_COUNTS, *_MEASURES, CoverColumn("", "simulation", 285.0))


def draw_cover(sheet: Sheet, about: Sequence[str], rows: Sequence[Sequence[str]], left_out: Sequence[str]) -> None:
    """Draw a cover sheet.

    Args:
        sheet: Empty.
        about: Lines below the title.
        rows: Of pallets: the order, then a cell for each column.
        left_out: Lines about boxes that are left out, below the pallets.
    """
    sheet.write(_LEFT, _TITLE_Y, "Pallets", 18, bold=True)
    for i, line in enumerate(about):
        text = sheet.fonts.shorten(line, 9, _RIGHT - _LEFT)
        sheet.write(_LEFT, _ABOUT_Y - 4.5 * i, text, 9, color=_GREY)
    y = _COVER_TOP
    # Without a simulation the last column is not there.
    columns = _COLUMNS[: len(rows[0]) - 1] if rows else ()
    if rows:
        _draw_headings(sheet, columns, y)
    for order, *cells in rows:
        y -= _ROW
        sheet.write(_LEFT, y, sheet.fonts.shorten(order, 10, _ORDER_WIDTH), 10)
        for column, cell in zip(columns, cells, strict=True):
            sheet.write(column.edge, y, cell, 10, align="right")
    for line in left_out:
        y -= _ROW
        sheet.write(_LEFT, y, sheet.fonts.shorten(line, 9, _RIGHT - _LEFT), 9)


def _draw_headings(sheet: Sheet, columns: Sequence[CoverColumn], y: float) -> None:
    sheet.write(_LEFT, y, "order", 8, color=_GREY)
    # The heading of a group ends where its last column does.
    ends = {column.group: column.edge for column in columns}
    for group, edge in ends.items():
        if group:
            sheet.write(edge, y + 4.2, group, 8, color=_GREY, align="right", bold=True)
    for column in columns:
        sheet.write(column.edge, y, column.title, 8, color=_GREY, align="right")
    sheet.fill([(_LEFT, y - 1.8, _RIGHT, y - 1.8)], [_GREY], _GREY, 0.5)


# -- layers ------------------------------------------------------------------------------------------------------------


class LayerStyle(NamedTuple):
    """What the sheets of a plan have in common.

    Attributes:
        size: The pallet, as in `PlanSummary`.
        unit: Of lengths.
        colors: Number of the colour of each article, by name.
    """

    size: Row
    unit: str
    colors: dict[str, int]


class _Floor:
    """From the floor of a pallet to a sheet, where a millimetre is `scale` of them."""

    def __init__(self, boxes: Iterable[PlacedBox], style: LayerStyle) -> None:
        length = float(str(style.size["length"]))
        width = float(str(style.size["width"]))
        # Boxes may stick out.
        low_x = min(0.0, *(box.low[0] for box in boxes))
        low_y = min(0.0, *(box.low[1] for box in boxes))
        high_x = max(length, *(box.high[0] for box in boxes))
        high_y = max(width, *(box.high[1] for box in boxes))
        unit_mm = LENGTHS[style.unit]
        scale_x = (high_x - low_x) * unit_mm / _PICTURE_WIDTH
        scale_y = (high_y - low_y) * unit_mm / _PICTURE_HEIGHT
        self.scale = max(1, math.ceil(max(scale_x, scale_y)))
        self._mm = unit_mm / self.scale
        room_x = _PICTURE_WIDTH - (high_x - low_x) * self._mm
        self._x = _LEFT + room_x / 2 - low_x * self._mm
        self._y = _PICTURE_TOP - high_y * self._mm
        self.low = self._y + low_y * self._mm
        self.deck = self.place((0.0, 0.0, 0.0), (length, width, 0.0))

    def place(self, low: tuple[float, float, float], high: tuple[float, float, float]) -> Rectangle:
        left = self._x + low[0] * self._mm
        right = self._x + high[0] * self._mm
        return left, self._y + low[1] * self._mm, right, self._y + high[1] * self._mm


def draw_layer(sheet: Sheet, pallet: LoadedSheets, view: LayerView, style: LayerStyle) -> str:
    """Draw a layer of a pallet from above.

    Returns:
        The remark for the foot of the sheet: its scale.
    """
    which = f"pallet {pallet.number} of {pallet.of}, layer {view.number} of {pallet.layers}"
    # Bold letters are wider than those that are measured.
    room = _RIGHT - _LEFT - 1.15 * sheet.fonts.width(which, 17) - 8
    sheet.write(_LEFT, _TITLE_Y, sheet.fonts.shorten(f"Order {pallet.order}", 17, room), 17)
    sheet.write(_RIGHT, _TITLE_Y, which, 17, align="right", bold=True)
    count = f"{len(view.boxes)} of {len(pallet.boxes)} boxes"
    about = f"{count}; the numbers are the order of placing; pale: what lies below"
    sheet.write(_LEFT, _ABOUT_Y, about, 9, color=_GREY)
    floor = _Floor(pallet.boxes, style)
    _draw_boxes(sheet, floor, view, style)
    _draw_front(sheet, floor)
    warnings = []
    for first, then in view.earlier:
        warnings.append(f"Before {then.number} place {first.number} of layer {first.layer}, which lies below it.")
    _draw_list(sheet, kinds_of(view.boxes), warnings, style)
    return f"scale 1 : {floor.scale}, seen from above; lengths in {style.unit}"


def _draw_boxes(sheet: Sheet, floor: _Floor, view: LayerView, style: LayerStyle) -> None:
    sheet.fill([floor.deck], [_DECK], _DECK_EDGE, 1.0)
    if view.below:
        places = [floor.place(box.low, box.high) for box in view.below]
        sheet.fill(places, [_PALE] * len(places), _PALE_EDGE, 0.5)
    places = [floor.place(box.low, box.high) for box in view.boxes]
    colors = [mark_color(style.colors[box.name]) for box in view.boxes]
    sheet.fill(places, colors, _INK, 0.9)
    for box, place in zip(view.boxes, places, strict=True):
        _label(sheet, box, place)


def _label(sheet: Sheet, box: PlacedBox, place: Rectangle) -> None:
    """Write number, article and how the box lies into it, as far as there is room."""
    left, low, right, high = place
    across = right - left
    along = high - low
    # In a narrow box the lines run upward.
    upward = along > 1.5 * across
    length, depth = (along, across) if upward else (across, along)
    lines = _label_lines(sheet.fonts, box, length, depth)
    # From the middle of the box to the upper edge of the lines.
    offset = sum(size * _POINT * _LINE for _, size in lines) / 2
    middle_x = (left + right) / 2
    middle_y = (low + high) / 2
    for i, (text, size) in enumerate(lines):
        # Digits and capitals are three quarters of their size high, and so stand in the middle of their line.
        baseline = offset - size * _POINT * (_LINE + 0.73) / 2
        x = middle_x - baseline if upward else middle_x
        y = middle_y if upward else middle_y + baseline
        sheet.write(x, y, text, size, bold=i == 0, align="center", upward=upward)
        offset -= size * _POINT * _LINE


def _label_lines(fonts: Fonts, box: PlacedBox, length: float, depth: float) -> list[tuple[str, float]]:
    """Lines for a box and their sizes in points, the number first.

    Args:
        fonts: In which they are written.
        box: What they are about.
        length, depth: Room along the lines and across them, millimetres.
    """
    number = str(box.number)
    # Bold digits are 0.7 of their size wide.
    number_size = min(_MOST_NUMBER, 0.45 * depth / _POINT, length / (0.8 * len(number)) / _POINT)
    name_size = min(_MOST_NAME, 0.2 * depth / _POINT)
    lies_size = 0.85 * name_size
    lines = [(number, number_size)]
    if name_size < _LEAST_NAME:
        return lines
    lines.append((fonts.shorten(box.name, name_size, length - 2), name_size))
    taken = sum(size for _, size in lines) + lies_size
    if taken * _POINT * _LINE > depth:
        return lines
    for words in (f"{box.up} up, {front_words(box.front)}", f"{box.up} up"):
        if fonts.width(words, lies_size) < length - 2:
            return [*lines, (words, lies_size)]
    return lines


def _draw_front(sheet: Sheet, floor: _Floor) -> None:
    """Mark the edge of the pallet that is its front."""
    left, _, right, _ = floor.deck
    y = floor.low - 2.0
    sheet.fill([(left, y, right, y)], [_INK], _INK, 1.6)
    sheet.write((left + right) / 2, y - 4.5, "front", 10, align="center", bold=True)


def _draw_list(sheet: Sheet, kinds: Sequence[BoxKind], warnings: Sequence[str], style: LayerStyle) -> None:
    """List kinds of boxes beside the picture, warnings first."""
    size = _list_size(sheet.fonts, kinds, warnings)
    step = size * _POINT * _LINE
    y = _LIST_TOP
    for line in _wrap_all(sheet.fonts, warnings, size):
        sheet.write(_LIST_LEFT, y, line, size, color=_WARNING)
        y -= step
    if warnings:
        y -= _BETWEEN * step
    for i, kind in enumerate(kinds):
        entry = _entry(sheet.fonts, kind, size)
        is_last = i + 1 == len(kinds)
        # Room is left for the line that says what is missing.
        if y - step * (len(entry) + (0 if is_last else 1)) < _LIST_LOW:
            more = "1 more kind" if is_last else f"{len(kinds) - i} more kinds"
            sheet.write(_LIST_LEFT, y, f"and {more} of boxes: see plan.csv", size, bold=True)
            return
        mark = (_LIST_LEFT, y - 0.5, _LIST_LEFT + 0.9 * step, y + 0.6 * step)
        sheet.fill([mark], [mark_color(style.colors[kind.name])], _INK, 0.5)
        for j, line in enumerate(entry):
            sheet.write(_LIST_LEFT + _INDENT, y, line, size, color=_GREY if j else _INK)
            y -= step
        y -= _BETWEEN * step


def _list_size(fonts: Fonts, kinds: Sequence[BoxKind], warnings: Sequence[str]) -> float:
    """The largest size in which a list has room, or the smallest of all."""
    for size in _LIST_SIZES:
        lines = len(_wrap_all(fonts, warnings, size)) + _BETWEEN
        for kind in kinds:
            lines += len(_entry(fonts, kind, size)) + _BETWEEN
        if lines * size * _POINT * _LINE <= _LIST_TOP - _LIST_LOW:
            return size
    return _LIST_SIZES[-1]


def _wrap_all(fonts: Fonts, warnings: Sequence[str], size: float) -> list[str]:
    lines = []
    # Warnings of a strange load must not take the room of the list.
    for words in warnings[:_MOST_WARNINGS]:
        lines += _wrap(fonts, words, size, _RIGHT - _LIST_LEFT)
    if len(warnings) > _MOST_WARNINGS:
        lines.append("and more: keep to the numbers, across the sheets.")
    return lines


def _entry(fonts: Fonts, kind: BoxKind, size: float) -> list[str]:
    """Lines about a kind of boxes: article, numbers, sides, and how they lie."""
    room = _RIGHT - _LIST_LEFT - _INDENT
    length, width, height = kind.sides
    count = "box" if len(kind.numbers) == 1 else "boxes"
    numbers = f"{count} {runs(kind.numbers)}"
    sides = f"{short(length)} × {short(width)}, {short(height)} high"
    name = fonts.shorten(kind.name, size, room)
    which = f"{numbers}: {sides}"
    if size > _ONE_LINE:
        return [name, *_wrap(fonts, which, size, room), *_wrap(fonts, kind.words, size, room)]
    return [name, *_wrap(fonts, f"{which}, {kind.words}", size, room)]


def _wrap(fonts: Fonts, text: str, size: float, most: float) -> list[str]:
    """Break a text at its spaces into lines of at most `most` millimetres."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and fonts.width(longer, size) > most:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
