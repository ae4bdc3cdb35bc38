"""Centres of mass in sixteenths of a cell.

In whole numbers rules are exact, and every backend gives the same answer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.stability.footprints import SIXTEENTHS
from torchrl_gpu.envs.packing.types import Bin, Catalogue


def centre_16ths(catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Return the centre of mass of each item, clamped to its footprint.

    Returns:
        Along x and y from the footprint's corner, sixteenths of a cell, (M, O, 2) int32.
    """
    if catalogue.centre_16ths is not None:
        return catalogue.centre_16ths
    most = SIXTEENTHS * catalogue.extent
    if catalogue.centre is None:
        return (most // 2).int()
    centre_x, centre_y = catalogue.centre.unbind(-1)
    cell_x, cell_y = bin_.cell
    centre = torch.stack([centre_x * (SIXTEENTHS / cell_x), centre_y * (SIXTEENTHS / cell_y)], -1)
    return torch.minimum((centre + 0.5).floor().clamp_min(0).long(), most).int()


def cells_from(centre: Tensor, cells: int) -> Tensor:
    """Return the offsets of the centres of a line of cells from `centre`.

    Args:
        centre: From the first cell's border, sixteenths of a cell, any shape (…).
        cells: Number of cells of the line.

    Returns:
        Sixteenths of a cell, (…, cells) int64.
    """
    cell = torch.arange(cells, device=centre.device, dtype=torch.int64)
    return SIXTEENTHS * cell + SIXTEENTHS // 2 - centre[..., None]
