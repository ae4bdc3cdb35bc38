"""Input planes of placement networks: local features of every placement."""

from __future__ import annotations

from dataclasses import MISSING, fields

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d, pad

from torchrl_gpu.envs.packing.geometry import grid_positions
from torchrl_gpu.envs.packing.types import Bin
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.weights import register_settings
from torchrl_gpu.system.arguments import shown


def bin_of(space: AgentSpace) -> Bin:
    """Return the bin of a packing environment.

    ValueError if the space is that of another environment.
    """
    given = space.extras.get("bin")
    known = {each.name for each in fields(Bin)}
    needed = {each.name for each in fields(Bin) if each.default is MISSING}
    if not isinstance(given, dict) or not needed <= set(given) <= known:
        raise ValueError(
            f"AgentSpace: {space.source} has the bin {shown(given)}, and not that of a packing environment"
        )
    return Bin(**given)


class PlacementFeatures(nn.Module):
    """Planes over the placement grid for each (visible item, orientation).

    Heights are in bin heights. For each placement: whether it is legal, base and top of the item, mean height of the
    pile under its bounding rectangle, and along its four sides how far the pile next to it rises above its base (the
    wall counts as full). The same for all placements: the item's extents, height and volume. For each place of the
    grid: mean and highest pile.
    """

    num_planes = 15

    def __init__(self, space: AgentSpace) -> None:
        super().__init__()
        self.bin = bin_of(space)
        self.cell: Tensor
        self.whole: Tensor
        register_settings(self, cell=self.bin.cell, whole=[*self.bin.size, self.bin.volume])

    def forward(self, heightmap: Tensor, item_size: Tensor, z_map: Tensor, legal: Tensor) -> Tensor:
        """Planes of every visible item in every orientation.

        Args:
            heightmap: (B, X, Y) float32, metres.
            item_size: (B, K, O, 4) float32: sides of the bounding box and volume, metres; 0 for an empty slot.
            z_map: (B, K, O, Gx, Gy) float32, metres.
            legal: (B, K, O, Gx, Gy) bool.

        Returns:
            (B, K·O, C, Gx, Gy) float32.
        """
        pile = heightmap / self.bin.size[2]
        z = z_map.flatten(1, 2) / self.bin.size[2]
        size = item_size.flatten(1, 2)  # (B, J, 4)
        extent = (size[..., :2] / self.cell).round()
        extent = extent.nan_to_num(0.0)
        # An item that is larger than the bin fits nowhere, however large it is.
        extent = extent.clamp(0, max(self.bin.cells) + 1).long()  # (B, J, 2)
        share = size / self.whole
        # The cube root brings volumes to the scale of lengths.
        side_of_cube = share[..., 3:] ** (1 / 3)
        size = torch.cat([share[..., :3], side_of_cube], -1)
        under, sides = self._surroundings(pile, extent)
        top = z + size[..., 2, None, None]
        is_legal = legal.flatten(1, 2).float()
        planes = [is_legal, z, top, z - under]
        planes += [(side - z).clamp(-1, 1) for side in sides]
        planes += [plane[..., None, None].expand_as(z) for plane in size.unbind(-1)]
        # Mean and highest cell of each place of the grid.
        mean_pile = pile
        highest_pile = pile
        step = self.bin.step
        if step > 1:
            mean_pile = avg_pool2d(pile[:, None], step, ceil_mode=True)[:, 0]
            highest_pile = max_pool2d(pile[:, None], step, ceil_mode=True)[:, 0]
        piles = (mean_pile, highest_pile)
        planes += [plane[:, None].expand_as(z) for plane in piles]
        # A plane of ones, zero beyond the border, lets convolutions see the wall.
        ones = torch.ones_like(z)
        planes.append(ones)
        return torch.stack(planes, 2)

    def _surroundings(self, pile: Tensor, extent: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Mean pile under each placement and in the strips of cells along its sides.

        Each is (B, J, Gx, Gy), from an integral image, so that all placements cost the same. The wall is one cell
        thick.
        """
        cells_x, cells_y = self.bin.cells
        walled = pad(pile, (1, 1, 1, 1), value=1.0)
        sums = walled.cumsum(1).cumsum(2)
        sums = pad(sums, (1, 0, 1, 0)).flatten(1)
        extent_x = extent[..., 0]
        extent_y = extent[..., 1]
        x, _ = grid_positions(extent_x, cells_x, self.bin.step)
        y, _ = grid_positions(extent_y, cells_y, self.bin.step)
        p = extent_x[..., None]
        q = extent_y[..., None]
        # Positions among walled cells.
        x = x + 1
        y = y + 1
        x_end = (x + p).clamp_max(cells_x + 1)
        y_end = (y + q).clamp_max(cells_y + 1)

        def mean(x0: Tensor, x1: Tensor, y0: Tensor, y1: Tensor) -> Tensor:
            # The sum over a rectangle is that of its four corners in the integral image.
            total = _corner(sums, x1, y1, cells_y)
            total = total - _corner(sums, x0, y1, cells_y)
            total = total - _corner(sums, x1, y0, cells_y)
            # What lies before the rectangle along both axes has been subtracted twice.
            total = total + _corner(sums, x0, y0, cells_y)
            size_x = (x1 - x0)[..., :, None]
            size_y = (y1 - y0)[..., None, :]
            return total / (size_x * size_y).clamp_min(1)

        under = mean(x, x_end, y, y_end)
        before_x = mean(x - 1, x, y, y_end)
        behind_x = mean(x_end, x_end + 1, y, y_end)
        before_y = mean(x, x_end, y - 1, y)
        behind_y = mean(x, x_end, y_end, y_end + 1)
        return under, [before_x, behind_x, before_y, behind_y]


def _corner(sums: Tensor, x: Tensor, y: Tensor, cells_y: int) -> Tensor:
    """Elements (x, y) of an integral image (B, (X+3)·(Y+3)).

    x is (B, J, Gx) and y (B, J, Gy).
    """
    row = x[..., :, None] * (cells_y + 3)
    at = row + y[..., None, :]
    return sums.gather(1, at.flatten(1)).view(at.shape)
