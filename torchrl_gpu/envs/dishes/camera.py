"""Pictures of the sink, drawn on the state's device: every shape is a pattern of rows times a pattern of columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

_SIDE = 64.0  # of the scene, in units that the numbers below are in
_CLEAN_SHOWN = 60  # dishes of the clean stack before it is carried away

_WALL, _BELT, _PLATE = (58, 62, 70), (38, 40, 46), (232, 226, 208)
_DIRTY, _CLEAN, _GAP = (196, 160, 106), (240, 244, 248), (44, 46, 52)
_WATER, _SHARDS, _ARM = (64, 120, 170), (222, 52, 44), (120, 124, 140)
_SPONGE, _FOAM, _CLOCK = (240, 200, 70), (186, 214, 236), (96, 190, 110)

VISIBLE = ("stack", "fatigue", "belt", "arm", "shake", "foam", "clean", "broken")
"""Entries of the state that the camera sees, (N,) each."""


class _Region(NamedTuple):
    """Rectangle of the picture: its rows and columns, and the scene coordinates of their centres."""

    rows: slice
    columns: slice
    y: Tensor
    x: Tensor


class Camera:
    """Renderer of the current state of shifts.

    One picture shows the stack, and how much of the shift is over. The rest is visible in motion alone: the belt
    moves as fast as dishes will come, the arm swings as fast as it works, its tremble is as wide as it is tired, and
    foam drifts over the water the slower the more the sponge is worn. No phase moves by half a turn from one picture to
    the next. Pictures have at least 16 pixels a side, and are filled by a stack of `stack_limit` dishes.
    """

    def __init__(self, height: int, width: int, stack_limit: float, device: torch.device) -> None:
        self.height, self.width, self.device = height, width, device
        self._stack_limit = stack_limit
        colors = (_WALL, _BELT, _PLATE, _DIRTY, _CLEAN, _GAP, _WATER, _SHARDS, _ARM, _SPONGE, _FOAM, _CLOCK)
        # Made once: a copy from the host would make it wait.
        self._colors = {each: torch.tensor(each, dtype=torch.uint8, device=device)[:, None, None] for each in colors}
        self._belt = self._region(3, 11, 0, 64)
        self._dirty, self._clean = self._region(14, 60, 3, 17), self._region(14, 60, 47, 61)
        self._arm, self._sponge = self._region(14, 38, 19, 45), self._region(38, 46, 19, 45)
        self._water, self._clock = self._region(46, 60, 20, 44), self._region(62, 64, 0, 64)
        self._background = self._colors[_WALL].expand(3, height, width).clone()
        for region, color in ((self._belt, _BELT), (self._region(30, 60, 20, 44), _WATER)):
            self._background[:, region.rows, region.columns] = self._colors[color]

    def draw(self, state: Mapping[str, Tensor], clock: Tensor) -> Tensor:
        """Pictures (N, 3, H, W) uint8, RGB, of the tensors `VISIBLE` and the share of the shift that is over, (N,)."""
        seen = {name: state[name].float()[:, None] for name in VISIBLE}
        out = self._background.expand(len(clock), -1, -1, -1).clone()
        plates = (self._belt.x / 32 - seen["belt"]).remainder(1) < 0.6
        self._paint(out, self._belt, (plates[:, None], _PLATE))
        self._paint_stack(out, self._dirty, seen["stack"] / self._stack_limit, _DIRTY)
        self._paint_stack(out, self._clean, (seen["clean"] / _CLEAN_SHOWN).remainder(1), _CLEAN)
        middle = 32 + 6 * _wave(seen["arm"]) + 3 * seen["fatigue"] * _wave(seen["shake"])  # (N, 1)
        self._paint(out, self._arm, (((self._arm.x - middle).abs() < 2)[:, None], _ARM))
        self._paint(out, self._sponge, (((self._sponge.x - middle).abs() < 7)[:, None], _SPONGE))
        foam = ((self._water.x / 24 - seen["foam"]).remainder(1) < 0.5)[:, None]
        pattern = ((self._water.x + self._water.y[:, None]) / 4).remainder(1) < 0.5
        shards = pattern & (self._water.y >= 50)[:, None] & (seen["broken"] > 0)[:, :, None]
        self._paint(out, self._water, (foam & ~shards, _FOAM), (shards, _SHARDS))
        self._paint(out, self._clock, ((self._clock.x < _SIDE * clock[:, None])[:, None], _CLOCK))
        return out

    def _paint_stack(self, out: Tensor, region: _Region, full: Tensor, color: tuple[int, int, int]) -> None:
        top = region.y > 60 - 46 * full.clamp_max(1)  # (N, rows)
        dish = (region.y / 3).remainder(1) < 0.7
        self._paint(out, region, ((top & dish)[:, :, None], color), ((top & ~dish)[:, :, None], _GAP))

    def _paint(self, out: Tensor, region: _Region, *layers: tuple[Tensor, tuple[int, int, int]]) -> None:
        """Colours a region of the background under masks (N, rows or 1, columns or 1), which must not overlap.

        Selects by bit operations, which a CPU does for many bytes at once.
        """
        background = self._background[:, region.rows, region.columns]
        part = background
        for mask, color in layers:
            part = part ^ ((background ^ self._colors[color]) & mask[:, None].to(torch.uint8).mul_(255))
        out[:, :, region.rows, region.columns] = part

    def _region(self, top: float, bottom: float, left: float, right: float) -> _Region:
        y = (torch.arange(self.height, device=self.device, dtype=torch.float32) + 0.5) * (_SIDE / self.height)
        x = (torch.arange(self.width, device=self.device, dtype=torch.float32) + 0.5) * (_SIDE / self.width)
        rows = slice(*(round(edge * self.height / _SIDE) for edge in (top, bottom)))
        columns = slice(*(round(edge * self.width / _SIDE) for edge in (left, right)))
        return _Region(rows, columns, y[rows], x[columns])


def _wave(turns: Tensor) -> Tensor:
    return (2 * math.pi * turns).sin()
