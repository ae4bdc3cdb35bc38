"""Validation of a catalogue, once, when it is made: kernels index its maps by these numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from torchrl_gpu.system.arguments import length, tensor

if TYPE_CHECKING:
    from torchrl_gpu.envs.packing.types import Catalogue

MOST_MAP_CELLS = 32767  # a side of a map: kernels number its cells in 16 bits


def check_catalogue(catalogue: Catalogue) -> None:
    """Validates dtypes, shapes and extents against each other; a ValueError if they do not match, or there is no item.

    The extents themselves are read on a CPU only, where every catalogue is made before it is moved.
    """
    c, where = catalogue, "Catalogue"
    items, orientations = length(c.extent), length(c.extent, 1)
    if min(items, orientations) < 1:
        raise ValueError(f"{where}: want at least one item in one orientation; got {items} in {orientations}")
    each, device = (items, orientations), c.extent.device
    tensor(where, "extent", c.extent, torch.int64, (*each, 2), device)
    tensor(where, "height", c.height, torch.float32, each, device)
    tensor(where, "volume", c.volume, torch.float32, (items,), device)
    if c.plumb is not None:
        tensor(where, "plumb", c.plumb, torch.int32, (*each, 2), device)
    if c.steady is not None:
        tensor(where, "steady", c.steady, torch.bool, each, device)
    if (c.top is None) != (c.bottom is None):
        came = "tops" if c.bottom is None else "bottoms"
        raise ValueError(f"{where}: want tops and bottoms, or neither; got the {came} only")
    if c.unit is not None and not 0 < c.unit < math.inf:
        raise ValueError(f"{where}: want a unit in metres above 0; got {c.unit}")
    if not len(c.bounds) == len(c.least) == orientations:
        raise ValueError(
            f"{where}: want bounds and least extents of {orientations} orientations;"
            f" got {len(c.bounds)}, {len(c.least)}"
        )
    if c.top is not None and c.bottom is not None:
        maps = (*each, length(c.bottom, 2), length(c.bottom, 3))
        tensor(where, "top", c.top, torch.float32, maps, device)
        tensor(where, "bottom", c.bottom, torch.float32, maps, device)
        if any(most > cells for most, cells in zip(c.footprint, maps[2:], strict=True)):
            raise ValueError(f"{where}: want maps that hold footprints of {c.footprint} cells; got {maps[2:]}")
        if max(maps[2:]) > MOST_MAP_CELLS:
            raise ValueError(f"{where}: want maps of at most {MOST_MAP_CELLS} cells a side; got {maps[2:]}")
    if device.type == "cpu":
        _check_extents(c)


def _check_extents(catalogue: Catalogue) -> None:
    smallest, largest = catalogue.extent.amin(0).tolist(), catalogue.extent.amax(0).tolist()
    for found, least, bound in zip(zip(smallest, largest, strict=True), catalogue.least, catalogue.bounds, strict=True):
        for low, high, at_least, at_most in zip(*found, least, bound, strict=True):
            if not 1 <= at_least <= low <= high <= at_most:
                raise ValueError(
                    f"Catalogue: want extents of at least one cell, from {least} to {bound}; got {low} to {high}"
                )
