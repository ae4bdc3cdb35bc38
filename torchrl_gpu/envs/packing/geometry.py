"""Where the placement grid puts a footprint."""

import torch
from torch import Tensor


def grid_positions(extent: Tensor, cells: int, step: int) -> tuple[Tensor, Tensor]:
    """Positions of footprints along one axis of the placement grid.

    Placement g puts the footprint's first cell at g·step while it fits; the first g past the last fit stands for the
    placement flush with the far wall where that is not on the grid already; later ones do not fit.

    Args:
        extent: int64 (…), cells of the footprint along this axis.
        cells: Cells of the bin along this axis.
        step: Cells between placements.

    Returns:
        First cell of the footprint, int64 (…, G), clamped into the bin where it does not fit, and whether it fits,
        bool (…, G).
    """
    last = (cells - extent).unsqueeze(-1)  # (…, 1)
    wanted = torch.arange(-(-cells // step), device=extent.device) * step  # (G,)
    fits = (wanted - last < step) & (last >= 0)
    return torch.minimum(wanted, last).clamp_min(0), fits
