"""Pictures of the sink, drawn on the device of the state.

Every shape is a pattern of rows times a pattern of columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

# Sides of the scene, in the units of the numbers below.
_SIDE = 64.0

# Dishes of the clean stack before it is carried away.
_CLEAN_SHOWN = 60

_Color = tuple[int, int, int]

_WALL = (58, 62, 70)
_BELT = (38, 40, 46)
_PLATE = (232, 226, 208)
_DIRTY = (196, 160, 106)
_CLEAN = (240, 244, 248)
_GAP = (44, 46, 52)
_WATER = (64, 120, 170)
_SHARDS = (222, 52, 44)
_ARM = (120, 124, 140)
_SPONGE = (240, 200, 70)
_FOAM = (186, 214, 236)
_CLOCK = (96, 190, 110)
_COLORS = (_WALL, _BELT, _PLATE, _DIRTY, _CLEAN, _GAP, _WATER, _SHARDS, _ARM, _SPONGE, _FOAM, _CLOCK)

VISIBLE = ("stack", "fatigue", "belt", "arm", "shake", "foam", "clean", "broken")
"""Entries of the state that the camera sees, (N,) each."""


class _Region(NamedTuple):
    """Rectangle of the picture.

    Attributes:
        rows: Its rows.
        columns: Its columns.
        y: Scene coordinates of the centres of its rows.
        x: Scene coordinates of the centres of its columns.
    """

    rows: slice
    columns: slice
    y: Tensor
    x: Tensor


class Camera:
    """Renderer of the current state of shifts.

    One picture shows the stack, and how much of the shift is over. The rest is visible in motion alone: the belt
    moves as fast as dishes will come, the arm swings as fast as it works, its tremble is as wide as it is tired, and
    foam drifts over the water the slower the more the sponge is worn. No phase moves by half a turn from one picture to
    the next. Pictures have at least 16 pixels a side. A stack of `stack_limit` dishes fills them.
    """

    def __init__(self, height: int, width: int, stack_limit: float, device: torch.device) -> None:
        self.height = height
        self.width = width
        self.device = device
        self._stack_limit = stack_limit
        # Made once, since a copy from the host would make it wait.
        self._colors: dict[_Color, Tensor] = {}
        for color in _COLORS:
            channels = torch.tensor(color, dtype=torch.uint8, device=device)
            self._colors[color] = channels[:, None, None]

        self._belt = self._region(top=3, bottom=11, left=0, right=64)
        self._dirty = self._region(top=14, bottom=60, left=3, right=17)
        self._clean = self._region(top=14, bottom=60, left=47, right=61)
        self._arm = self._region(top=14, bottom=38, left=19, right=45)
        self._sponge = self._region(top=38, bottom=46, left=19, right=45)
        self._water = self._region(top=46, bottom=60, left=20, right=44)
        self._clock = self._region(top=62, bottom=64, left=0, right=64)
        sink = self._region(top=30, bottom=60, left=20, right=44)

        self._background = self._colors[_WALL].expand(3, height, width).clone()
        self._background[:, self._belt.rows, self._belt.columns] = self._colors[_BELT]
        self._background[:, sink.rows, sink.columns] = self._colors[_WATER]

    def draw(self, state: Mapping[str, Tensor], clock: Tensor) -> Tensor:
        """Draw pictures (N, 3, H, W) uint8, RGB.

        Args:
            state: The tensors `VISIBLE`.
            clock: Share of the shift that is over, (N,).
        """
        seen = {name: state[name].float()[:, None] for name in VISIBLE}
        out = self._background.expand(len(clock), -1, -1, -1).clone()

        turns = self._belt.x / 32 - seen["belt"]
        plates = turns.remainder(1) < 0.6
        self._paint(out, self._belt, (plates[:, None], _PLATE))
        waiting = seen["stack"] / self._stack_limit
        self._paint_stack(out, self._dirty, waiting, _DIRTY)
        clean = (seen["clean"] / _CLEAN_SHOWN).remainder(1)
        self._paint_stack(out, self._clean, clean, _CLEAN)

        swing = 6 * _wave(seen["arm"])
        tremble = 3 * seen["fatigue"] * _wave(seen["shake"])
        middle = 32 + swing + tremble  # (N, 1)
        arm = (self._arm.x - middle).abs() < 2
        self._paint(out, self._arm, (arm[:, None], _ARM))
        sponge = (self._sponge.x - middle).abs() < 7
        self._paint(out, self._sponge, (sponge[:, None], _SPONGE))

        drift = self._water.x / 24 - seen["foam"]
        foam = (drift.remainder(1) < 0.5)[:, None]
        diagonal = self._water.x + self._water.y[:, None]
        stripes = (diagonal / 4).remainder(1) < 0.5
        at_bottom = self._water.y >= 50
        has_broken = seen["broken"] > 0
        heap = stripes & at_bottom[:, None]
        shards = heap & has_broken[:, :, None]
        # Masks of one region must not overlap: shards cover the foam.
        foam = foam & ~shards
        self._paint(out, self._water, (foam, _FOAM), (shards, _SHARDS))

        over = self._clock.x < _SIDE * clock[:, None]
        self._paint(out, self._clock, (over[:, None], _CLOCK))
        return out

    def _paint_stack(self, out: Tensor, region: _Region, full: Tensor, color: _Color) -> None:
        """Paint a stack of dishes that fills a share `full` (N, 1) of its region."""
        stacked = region.y > 60 - 46 * full.clamp_max(1)  # (N, rows)
        is_dish = (region.y / 3).remainder(1) < 0.7
        dishes = (stacked & is_dish)[:, :, None]
        gaps = (stacked & ~is_dish)[:, :, None]
        self._paint(out, region, (dishes, color), (gaps, _GAP))

    def _paint(self, out: Tensor, region: _Region, *layers: tuple[Tensor, _Color]) -> None:
        """Colour a region of the background under masks, which must not overlap.

        Masks are (N, rows or 1, columns or 1). Bit operations select, since a CPU does them for many bytes at once,
        and `torch.where` byte by byte.
        """
        background = self._background[:, region.rows, region.columns]
        part = background
        for mask, color in layers:
            # All bits of a byte are set where the mask is true.
            selected = mask[:, None].to(torch.uint8).mul_(255)
            part = part ^ ((background ^ self._colors[color]) & selected)
        out[:, :, region.rows, region.columns] = part

    def _region(self, *, top: float, bottom: float, left: float, right: float) -> _Region:
        """Return the region between edges in scene coordinates."""
        y = self._centres(self.height)
        x = self._centres(self.width)
        rows = slice(_pixel(top, self.height), _pixel(bottom, self.height))
        columns = slice(_pixel(left, self.width), _pixel(right, self.width))
        return _Region(rows, columns, y[rows], x[columns])

    def _centres(self, pixels: int) -> Tensor:
        """Return the scene coordinates of the centres of rows or columns."""
        number = torch.arange(pixels, device=self.device, dtype=torch.float32)
        return (number + 0.5) * (_SIDE / pixels)


def _pixel(edge: float, pixels: int) -> int:
    """Return the row or column at an edge in scene coordinates."""
    return round(edge * pixels / _SIDE)


def _wave(turns: Tensor) -> Tensor:
    return (2 * math.pi * turns).sin()
