"""Boxes as they are listed, and prepared for a `Packer`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.packing.geometry import grid_positions
from torchrl_gpu.envs.packing.types import Bin, Catalogue

# A side that is a whole number of cells but for rounding errors takes no further cell.
ROUNDING = 1e-6

# A value for all boxes, or one for each. Rows are three sides of each box.
Numbers = float | Sequence[float] | np.ndarray | Tensor
Flags = bool | Sequence[bool] | np.ndarray | Tensor
Rows = Sequence[Sequence[float]] | np.ndarray | Tensor


class Boxes(NamedTuple):
    """B boxes.

    Attributes:
        sizes: Length, width and height as they are listed, metres, (B, 3) float64.
        weights: Kilograms, 0 where the weight is not known, (B,) float64.
        up: Mask of the sides that may be vertical, (B, 3) bool.
        max_load: Kilograms that may be put on top, (B,) float64. At 0 nothing at all may lie there, at inf anything.
        bottom_only: Mask of the boxes that stand on the pallet itself, (B,) bool.
    """

    sizes: Tensor
    weights: Tensor
    up: Tensor
    max_load: Tensor
    bottom_only: Tensor

    @staticmethod
    def of(
        sizes: Rows,
        weights: Numbers = 0.0,
        upright: Flags = True,
        max_load: Numbers = math.inf,
        *,
        bottom_only: Flags = False,
    ) -> Boxes:
        """Build boxes from numbers or arrays.

        A scalar applies to all boxes. The third side of `upright` boxes stays vertical.
        """
        size = torch.as_tensor(sizes, dtype=torch.float64, device="cpu").reshape(-1, 3)
        weight = torch.as_tensor(weights, dtype=torch.float64, device="cpu").expand(len(size))
        stays = torch.as_tensor(upright, dtype=torch.bool, device="cpu").expand(len(size))
        load = torch.as_tensor(max_load, dtype=torch.float64, device="cpu").expand(len(size))
        up = torch.stack([~stays, ~stays, stays | True], 1)
        bottom = torch.as_tensor(bottom_only, dtype=torch.bool, device="cpu").expand(len(size))
        return Boxes(size, weight, up, load, bottom)


@dataclass(frozen=True)
class Soles:
    """Cells that lie wholly under a box, and so may touch others.

    A box lies in the middle of the cells that are kept for it. Those hold its share of the gap as well, and what
    rounding up to cells adds. In that room there is nothing: no box rests on it, and it rests on none.

    Attributes:
        catalogue: Boxes of the touched cells alone.
        rim: Cells along x and y before the first touched one, and as many behind the last, (M, O, 2) int64.
        is_small: Whether a box fills no cell, (M, O) bool. Such boxes stand on the floor alone, and carry nothing.
        is_whole: Whether all boxes fill all of their cells.
        first_x: First touched cell along x of every placement, (M, O, Gx) int64.
        first_y: First touched cell along y of every placement, (M, O, Gy) int64.
    """

    catalogue: Catalogue
    rim: Tensor
    is_small: Tensor
    is_whole: bool
    first_x: Tensor
    first_y: Tensor

    @staticmethod
    def of(turned: Tensor, extent: Tensor, volume: Tensor, *, cell: float, bin_: Bin) -> Soles:
        """Find the soles of boxes, on the CPU.

        Args:
            turned: Sides in every orientation, metres, (M, O, 3).
            extent: Cells along x and y that are kept for a box, (M, O, 2).
            volume: Cubic metres, (M,).
            cell: Side of a cell, metres.
            bin_: Bin that the boxes go into.
        """
        # What is left on each side of the box of its own cells.
        room = (extent * cell - turned[..., :2]) / 2
        rim = (room / cell - ROUNDING).ceil().clamp_min(0)
        touched = extent - 2 * rim
        is_small = (touched < 1).any(-1)
        # A small box keeps some cell, as a box without cells can be no row of a catalogue.
        rim = torch.where(touched < 1, ((extent - 1) / 2).floor(), rim)
        # Heightmaps are float32, and the height is rounded as they will hold it.
        height = turned[..., 2:].float().double()
        sizes = torch.cat([extent - 2 * rim, height], -1)
        is_whole = not bool((rim > 0).any()) and not bool(is_small.any())
        rim = rim.long()
        return Soles(
            Catalogue.of_boxes(sizes, volume),
            rim,
            is_small,
            is_whole,
            first_x=_first_touched(extent, rim, 0, bin_),
            first_y=_first_touched(extent, rim, 1, bin_),
        )

    def to(self, device: torch.device) -> Soles:
        """Copy to a device."""
        return Soles(
            self.catalogue.to(device),
            self.rim.to(device),
            self.is_small.to(device),
            self.is_whole,
            first_x=self.first_x.to(device),
            first_y=self.first_y.to(device),
        )


def _first_touched(extent: Tensor, rim: Tensor, axis: int, bin_: Bin) -> Tensor:
    """First touched cell along one axis of every placement, (M, O, G) int64."""
    cells = bin_.cells[axis]
    first, _ = grid_positions(extent[..., axis].long(), cells, bin_.step)
    return (first + rim[..., axis, None]).clamp_max(cells - 1)


@dataclass(frozen=True)
class PreparedBoxes:
    """B boxes as a `Packer` needs them.

    Equal boxes share one of the M rows of the catalogue.

    Attributes:
        boxes: As they are listed, on the CPU.
        catalogue: Their cells and heights in every orientation.
        soles: What they touch of these cells.
        row: Row of each box in the catalogue, (B,) int64.
        turns: Orientations that each row may have, (M, O) bool.
        first: Action of each row on an empty pallet, −1 where there is none, (M,) int64. Where that was not tested they
            are other numbers from 0 up, one for each box: then every box counts as one that fits an empty pallet.
        weight: Kilograms, (B,) float32.
        max_load: Kilograms that may be put on top, (B,) float32.
        bottom_only: Mask of the rows that stand on the pallet itself, (M,) bool; None where there are none.
        reasons: Why each box cannot be placed on an empty pallet, "" where it can. Empty where that was not tested.
    """

    boxes: Boxes
    catalogue: Catalogue
    soles: Soles
    row: Tensor
    turns: Tensor
    first: Tensor
    weight: Tensor
    max_load: Tensor
    bottom_only: Tensor | None
    reasons: list[str]
