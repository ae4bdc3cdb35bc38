"""Frames as PNG and GIF files, with captions, and several pictures on one sheet."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from torchrl_gpu.system.files import write_whole

BACKGROUND = "#f3f4f6"
TEXT = "#2b333d"

# Frames that choose the colours of a GIF.
PALETTE_FRAMES = 8


def save_png(frame: Tensor, path: str | os.PathLike[str], caption: str | None = None) -> Path:
    """Write a frame, uint8 (H, W, 3) on any device, as PNG and return the path.

    The file appears whole or not at all. Parent folders are made. A caption stands in the upper left corner.
    """
    image = _image(frame, caption)
    return _write(path, lambda file: image.save(file, format="PNG", optimize=True))


def save_gif(
    frames: Tensor,
    path: str | os.PathLike[str],
    fps: float = 4.0,
    captions: Sequence[str] | None = None,
    hold_last: float = 2.0,
) -> Path:
    """Write frames as an endless GIF.

    All frames share one palette, which is made for them. There is no dithering.

    Args:
        frames: uint8 (T, H, W, 3), T ≥ 1, on any device. Runs of equal frames are stored as one with a longer duration.
        path: Where to write. The file appears whole or not at all. Parent folders are made.
        fps: Frames per second.
        captions: One text per frame.
        hold_last: Extra duration of the last frame, seconds.

    Returns:
        The path written.
    """
    if frames.ndim != 4 or not len(frames):
        raise ValueError(f"save_gif: frames must have shape (T, H, W, 3) with T ≥ 1, not {tuple(frames.shape)}")
    if fps <= 0:
        raise ValueError(f"save_gif: fps must be positive, not {fps}")
    if captions is not None and len(captions) != len(frames):
        raise ValueError(f"save_gif: captions must be one per frame, {len(frames)}, not {len(captions)}")
    images = [_image(frame, captions[i] if captions else None) for i, frame in enumerate(frames)]
    palette = _palette(images)
    images = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    durations = [round(1000.0 / fps)] * len(images)
    durations[-1] += round(1000.0 * hold_last)

    def save(file: IO[bytes]) -> None:
        images[0].save(
            file, format="GIF", save_all=True, append_images=images[1:], duration=durations, loop=0, disposal=1
        )

    return _write(path, save)


def contact_sheet(pictures: Tensor, columns: int, gap: int = 8) -> Tensor:
    """Arrange pictures, uint8 (B, H, W, 3), B ≥ 1, in rows on one sheet.

    They are `gap` pixels apart, on the viewer's background.
    """
    if not len(pictures):
        raise ValueError("contact_sheet: pictures must be at least one, not 0")
    if columns < 1:
        raise ValueError(f"contact_sheet: columns must be at least 1, not {columns}")
    count, height, width, _ = pictures.shape
    columns = min(columns, count)
    rows = -(-count // columns)
    sheet = pictures.new_empty(rows * (height + gap) - gap, columns * (width + gap) - gap, 3)
    for channel in range(3):
        sheet[..., channel] = int(BACKGROUND[1 + 2 * channel : 3 + 2 * channel], 16)
    for i, picture in enumerate(pictures):
        top = (i // columns) * (height + gap)
        left = (i % columns) * (width + gap)
        sheet[top : top + height, left : left + width] = picture
    return sheet


def _image(frame: Tensor, caption: str | None) -> Image.Image:
    if frame.dtype != torch.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise ValueError(f"a frame must be uint8 of shape (H, W, 3), not {frame.dtype} of shape {tuple(frame.shape)}")
    image = Image.fromarray(frame.cpu().contiguous().numpy())
    if caption:
        size = max(10, round(image.height / 24))
        place = (round(0.7 * size), round(0.5 * size))
        font = ImageFont.load_default(size)
        ImageDraw.Draw(image).multiline_text(place, caption, fill=TEXT, font=font, spacing=4)
    return image


def _palette(images: list[Image.Image]) -> Image.Image:
    """Choose 256 colours for all frames by some of them.

    Those are spread evenly over time, and end with the last. A palette for each frame would make colours flicker, and
    the file larger.
    """
    count = min(PALETTE_FRAMES, len(images))
    chosen = [images[len(images) - 1 - i * len(images) // count] for i in range(count)]
    width, height = chosen[0].size
    strip = Image.new("RGB", (width, height * count), BACKGROUND)
    for i, image in enumerate(chosen):
        strip.paste(image, (0, i * height))
    # The median cut would spend the colours on large surfaces. Coverage leaves a small item a colour of its own.
    return strip.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def _write(path: str | os.PathLike[str], save: Callable[[IO[bytes]], None]) -> Path:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, save)
    return target
