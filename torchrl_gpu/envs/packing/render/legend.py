"""The legend next to a picture: text, bars of colour, swatches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from torchrl_gpu.envs.pictures import TEXT

FAINT = "#6b7684"
# Dark violet, blue, green, yellow: lightness rises evenly, so that more is lighter for everybody (as in viridis).
_STOPS = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)], np.float64)


def heat(shares: np.ndarray) -> np.ndarray:
    """Return colours (…, 3) uint8 of shares (…) from 0 to 1.

    NaN is drawn as 0.
    """
    place = np.clip(np.nan_to_num(shares, nan=0.0), 0, 1) * (len(_STOPS) - 1)
    channels = [np.interp(place, np.arange(len(_STOPS)), _STOPS[:, i]) for i in range(3)]
    return np.stack(channels, -1).round().astype(np.uint8)


def shares_of(values: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return values scaled from the least finite one, 0, to the greatest, 1.

    Those two are returned as well, and are 0 where none is finite.
    """
    finite = values[np.isfinite(values)]
    low = 0.0
    high = 0.0
    if finite.size:
        low = float(finite.min())
        high = float(finite.max())
    with np.errstate(invalid="ignore"):
        return (values - low) / ((high - low) or 1.0), low, high


def rectangle(
    pen: ImageDraw.ImageDraw,
    box: Sequence[float],
    fill: str | tuple[int, ...] | None = None,
    outline: str | None = None,
    width: int = 1,
) -> None:
    """Draw a rectangle (left, top, right, bottom).

    Nothing is drawn where a small picture leaves no room for it.
    """
    left, top, right, bottom = box
    if left <= right and top <= bottom:
        pen.rectangle((left, top, right, bottom), fill=fill, outline=outline, width=width)


class Legend:
    """Column of text, colour bars and swatches on an image.

    Args:
        image: Drawn on.
        left, right: First and last pixel of the column.
        top: First pixel of what comes next.
        size: Pixels of text.
    """

    def __init__(self, image: Image.Image, left: int, top: int, right: int, size: int) -> None:
        self.image = image
        self.pen = ImageDraw.Draw(image)
        self.left = left
        self.right = right
        self.y = top
        self.size = size

    def text(self, line: str, *, scale: float = 1.0, fill: str = TEXT) -> None:
        """Write a line of text.

        One that is too long is set smaller.
        """
        size = max(6, round(self.size * scale))
        while size > 6 and ImageFont.load_default(size).getlength(line) > self.right - self.left:
            size -= 1
        self.pen.text((self.left, self.y), line, fill=fill, font=ImageFont.load_default(size))
        self.y += round(1.35 * size)

    def gap(self, lines: float = 0.5) -> None:
        """Add vertical space."""
        self.y += round(lines * self.size)

    def bar(self, colors: np.ndarray, low: str, high: str) -> None:
        """Draw a bar of colours (K, 3) from left to right, with labels at its ends."""
        width = max(1, self.right - self.left)
        height = max(4, self.size)
        strip = Image.fromarray(np.ascontiguousarray(colors[None].astype(np.uint8))).resize((width, height))
        self.image.paste(strip, (self.left, self.y))
        self.y += height + 2
        font = ImageFont.load_default(max(6, round(0.85 * self.size)))
        self.pen.text((self.left, self.y), low, fill=FAINT, font=font)
        self.pen.text((self.right - font.getlength(high), self.y), high, fill=FAINT, font=font)
        self.y += round(1.4 * self.size)

    def swatch(self, color: Sequence[float] | np.ndarray | str, line: str, outline: str | None = None) -> None:
        """Draw a square of a colour with its label."""
        fill = color if isinstance(color, str) else tuple(int(each) for each in color)
        box = (self.left, self.y, self.left + self.size, self.y + self.size)
        rectangle(self.pen, box, fill=fill, outline=outline, width=2 if outline else 1)
        left = self.left
        self.left = left + round(1.5 * self.size)
        self.text(line)
        self.left = left
        self.y += 2
