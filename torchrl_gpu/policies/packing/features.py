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
    """The bin of a packing environment; ValueError where the space is of another."""
    given = space.extras.get("bin")
    names = {each.name: each.default is MISSING for each in fields(Bin)}
    if not isinstance(given, dict) or not {n for n, needed in names.items() if needed} <= set(given) <= set(names):
        raise ValueError(f"AgentSpace: want a packing environment's, with its bin; {space.source} gives {shown(given)}")
    return Bin(**given)


class PlacementFeatures(nn.Module):
    """Planes over the placement grid for each (visible item, orientation).

    Heights are in bin heights. For each placement: whether it is legal, base and top of the item, mean height of the
    pile under its bounding rectangle, and along its four sides how far the pile beside it (the wall counts as full)
    rises above its base. The same for all placements: the item's extents, height and volume. For each place of the
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
        z = z_map.flatten(1, 2) / self.bin.size[2]  # (B, J, Gx, Gy)
        size = item_size.flatten(1, 2)  # (B, J, 4)
        extent = (size[..., :2] / self.cell).round().nan_to_num(0.0)
        extent = extent.clamp(0, max(self.bin.cells) + 1).long()  # (B, J, 2)
        share = size / self.whole
        size = torch.cat([share[..., :3], share[..., 3:] ** (1 / 3)], -1)
        under, sides = self._surroundings(pile, extent)
        planes = [legal.flatten(1, 2).float(), z, z + size[..., 2, None, None], z - under]
        planes += [(side - z).clamp(-1, 1) for side in sides]
        planes += [plane[..., None, None].expand_as(z) for plane in size.unbind(-1)]
        piles = [pile, pile]
        if (step := self.bin.step) > 1:
            piles = [pool(pile[:, None], step, ceil_mode=True)[:, 0] for pool in (avg_pool2d, max_pool2d)]
        planes += [plane[:, None].expand_as(z) for plane in piles]  # mean and highest cell of each place of the grid
        planes.append(torch.ones_like(z))  # lets convolutions see the wall
        return torch.stack(planes, 2)

    def _surroundings(self, pile: Tensor, extent: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Mean pile under each placement and in the strips of cells beside it, each (B, J, Gx, Gy)."""
        cells_x, cells_y = self.bin.cells
        walled = pad(pile, (1, 1, 1, 1), value=1.0)  # the wall, one cell thick
        sums = pad(walled.cumsum(1).cumsum(2), (1, 0, 1, 0)).flatten(1)
        x, _ = grid_positions(extent[..., 0], cells_x, self.bin.step)
        y, _ = grid_positions(extent[..., 1], cells_y, self.bin.step)
        p, q = (extent[..., axis, None] for axis in (0, 1))
        # in walled cells
        x = x + 1
        y = y + 1
        x_end = (x + p).clamp_max(cells_x + 1)
        y_end = (y + q).clamp_max(cells_y + 1)

        def mean(x0: Tensor, x1: Tensor, y0: Tensor, y1: Tensor) -> Tensor:
            total = _corner(sums, x1, y1, cells_y) - _corner(sums, x0, y1, cells_y)
            total = total - _corner(sums, x1, y0, cells_y) + _corner(sums, x0, y0, cells_y)
            return total / ((x1 - x0)[..., :, None] * (y1 - y0)[..., None, :]).clamp_min(1)

        under = mean(x, x_end, y, y_end)
        sides = [
            mean(x - 1, x, y, y_end),
            mean(x_end, x_end + 1, y, y_end),
            mean(x, x_end, y - 1, y),
            mean(x, x_end, y_end, y_end + 1),
        ]
        return under, sides


def _corner(sums: Tensor, x: Tensor, y: Tensor, cells_y: int) -> Tensor:
    """Elements (x, y) of the integral image (B, (X+3)·(Y+3)) for x (B, J, Gx) and y (B, J, Gy)."""
    at = x[..., :, None] * (cells_y + 3) + y[..., None, :]
    return sums.gather(1, at.flatten(1)).view(at.shape)
