"""Least operations and bytes of a z-map.

They are counted from the items that are shown.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.kernels.workloads import Workload
from torchrl_gpu.envs.packing.geometry import grid_positions

# Bytes of a height, of a legality, and of an item id.
_FLOAT = 4
_MASK = 1
_ID = 8


@dataclass(frozen=True)
class Work:
    """Counts of one call of `drop_map` over the whole batch.

    Attributes:
        z_maps: N·K·O.
        placements: Places where a footprint fits, over all z-maps.
        add_max: One subtraction and one maximum for each material cell of an item at each placement that fits; None
            for boxes, which need none for each cell.
        num_bytes: Heightmaps, item ids and the bottoms of the items shown read once, z-maps and masks written once.
    """

    z_maps: int
    placements: int
    add_max: int | None
    num_bytes: int

    def as_data(self) -> dict[str, float | None]:
        """The same for one z-map."""
        return {
            "placements_per_z_map": self.placements / self.z_maps,
            "add_max_per_z_map": None if self.add_max is None else self.add_max / self.z_maps,
            "bytes_per_z_map": self.num_bytes / self.z_maps,
        }


def count(workload: Workload) -> Work:
    """Count a workload.

    Nothing is estimated.
    """
    heightmap, item_id, catalogue, bin_ = workload
    shown = item_id[item_id >= 0]
    fitting = _fitting(catalogue.extent, bin_.cells, bin_.step)  # (M, O)
    placements = fitting[shown].sum()
    add_max = None
    read = 0
    if catalogue.bottom is not None:
        add_max = int((catalogue.bottom.isfinite().sum((-1, -2)) * fitting)[shown].sum())
        read = int(catalogue.extent[shown.unique()].prod(-1).sum()) * _FLOAT
    z_maps = item_id.numel() * catalogue.num_orientations
    written = z_maps * bin_.grid[0] * bin_.grid[1] * (_FLOAT + _MASK)
    read += heightmap.numel() * _FLOAT + item_id.numel() * _ID
    return Work(z_maps, int(placements), add_max, read + written)


def _fitting(extent: Tensor, cells: tuple[int, int], step: int) -> Tensor:
    """Return the placements of footprints of `extent` (…, 2) cells that fit, (…)."""
    along = [grid_positions(extent[..., axis], cells[axis], step)[1].sum(-1) for axis in (0, 1)]
    return torch.mul(*along)
