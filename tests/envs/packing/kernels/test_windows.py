"""Windows read the cells that they name."""

from __future__ import annotations

import pytest
import torch

from torchrl_gpu.envs.packing.geometry import grid_positions
from torchrl_gpu.envs.packing.kernels.windows import GridWindows


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("cells", [(6, 5), (7, 9), (3, 3)])
def test_cells_are_those_of_the_heightmap(cells: tuple[int, int], step: int) -> None:
    heightmap = torch.arange(2 * cells[0] * cells[1]).view(2, *cells).float()
    extent = torch.tensor([[[2, 3], [3, 1]], [[1, 2], [3, 3]]])  # (N, J, 2)
    x, fits_x = grid_positions(extent[..., 0], cells[0], step)
    y, fits_y = grid_positions(extent[..., 1], cells[1], step)
    windows = GridWindows(heightmap, x, y, step, (3, 3))
    compared = 0
    for i, j in windows.offsets():
        read = windows.cells(i, j).expand(2, 2, x.shape[-1], y.shape[-1])
        inside = (fits_x & (extent[..., :1] > i))[..., :, None] & (fits_y & (extent[..., 1:] > j))[..., None, :]
        for n, v, gx, gy in inside.nonzero().tolist():
            assert read[n, v, gx, gy] == heightmap[n, x[n, v, gx] + i, y[n, v, gy] + j]
            compared += 1
    assert compared >= 20


def test_offsets_run_over_the_footprint_row_by_row() -> None:
    axis = torch.zeros(1, 1, 1, dtype=torch.int64)
    assert list(GridWindows(torch.zeros(1, 2, 2), axis, axis, 1, (2, 2)).offsets()) == [(0, 0), (0, 1), (1, 0), (1, 1)]
