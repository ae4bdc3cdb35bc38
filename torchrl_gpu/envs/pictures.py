"""Frames as PNG and GIF files, with captions, and several pictures on one sheet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from torchrl_gpu.system.files import write_whole

BACKGROUND = "#f3f4f6"
TEXT = "#2b333d"
PALETTE_FRAMES = 8  # frames that choose the colours of a GIF


def save_png(frame: Tensor, path: str | os.PathLike[str], caption: str | None = None) -> Path:
    """Writes a frame, uint8 (H, W, 3) on any device, as PNG and returns the path.

    The file appears whole or not at all, parent folders are made; a caption stands in the upper left corner.
    """
    return _write(_image(frame, caption), path, format="PNG", optimize=True)


def save_gif(
    frames: Tensor,
    path: str | os.PathLike[str],
    fps: float = 4.0,
    captions: Sequence[str] | None = None,
    hold_last: float = 2.0,
) -> Path:
    """Writes frames as an endless GIF with one palette made for them, without dithering.

    Args:
        frames: uint8 (T, H, W, 3), T ≥ 1, on any device. Runs of equal frames are stored as one that stays longer.
        path: Where to write; the file appears whole or not at all, parent folders are made.
        fps: Frames per second.
        captions: One text per frame.
        hold_last: Seconds that the last frame stays longer.

    Returns:
        The path written.
    """
    if frames.ndim != 4 or not len(frames):
        raise ValueError(f"save_gif: frames must have shape (T, H, W, 3) with T ≥ 1; got {tuple(frames.shape)}")
    if fps <= 0:
        raise ValueError(f"save_gif: fps must be positive; got {fps}")
    if captions is not None and len(captions) != len(frames):
        raise ValueError(f"save_gif: captions must be one per frame, {len(frames)}; got {len(captions)}")
    images = [_image(frame, captions[i] if captions else None) for i, frame in enumerate(frames)]
    palette = _palette(images)
    images = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    durations = [round(1000.0 / fps)] * len(images)
    durations[-1] += round(1000.0 * hold_last)
    return _write(
        images[0], path, format="GIF", save_all=True, append_images=images[1:], duration=durations, loop=0, disposal=1
    )


def contact_sheet(pictures: Tensor, columns: int, gap: int = 8) -> Tensor:
    """Pictures, uint8 (B, H, W, 3), B ≥ 1, in rows, `gap` pixels apart, on the viewer's background."""
    if columns < 1 or not len(pictures):
        raise ValueError(f"contact_sheet: needs at least one picture and one column; got {len(pictures)} and {columns}")
    count, height, width, _ = pictures.shape
    columns = min(columns, count)
    rows = -(-count // columns)
    sheet = pictures.new_empty(rows * (height + gap) - gap, columns * (width + gap) - gap, 3)
    for channel in range(3):
        sheet[..., channel] = int(BACKGROUND[1 + 2 * channel : 3 + 2 * channel], 16)
    for i, picture in enumerate(pictures):
        row, column = (i // columns) * (height + gap), (i % columns) * (width + gap)
        sheet[row : row + height, column : column + width] = picture
    return sheet


def _image(frame: Tensor, caption: str | None) -> Image.Image:
    if frame.dtype != torch.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise ValueError(f"a frame must be uint8 of shape (H, W, 3); got {frame.dtype} of shape {tuple(frame.shape)}")
    image = Image.fromarray(frame.cpu().contiguous().numpy())
    if caption:
        size = max(10, round(image.height / 24))
        place = (round(0.7 * size), round(0.5 * size))
        ImageDraw.Draw(image).multiline_text(place, caption, fill=TEXT, font=ImageFont.load_default(size), spacing=4)
    return image


def _palette(images: list[Image.Image]) -> Image.Image:
    """256 colours for all frames, chosen on some of them that are spread evenly and end with the last."""
    count = min(PALETTE_FRAMES, len(images))
    chosen = [images[len(images) - 1 - i * len(images) // count] for i in range(count)]
    width, height = chosen[0].size
    strip = Image.new("RGB", (width, height * count), BACKGROUND)
    for i, image in enumerate(chosen):
        strip.paste(image, (0, i * height))
    # By coverage: a small item has a colour of its own, which the median cut would give to a larger one.
    return strip.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def _write(image: Image.Image, path: str | os.PathLike[str], **options: Any) -> Path:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, lambda file: image.save(file, **options))
    return target
