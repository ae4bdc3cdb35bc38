"""Inputs of the hierarchical packer's networks: placement planes and item views."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_max_pool2d, max_pool2d, pad

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.envs.packing.types import Catalogue
from torchrl_gpu.policies.indices import indices
from torchrl_gpu.policies.packing.features import PlacementFeatures
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.weights import register_settings


class PlacementPlanes(nn.Module):
    """Input planes of the worker: one item in any orientation, over the grid.

    They are those of `PlacementFeatures`, how much each placement raises the pile, and top and bottom of the item with
    its corner at the origin. Made for the bin, the items and the kernels of one environment; holds no weights.
    """

    num_planes = PlacementFeatures.num_planes + 3

    def __init__(self, env: PackingEnv) -> None:
        super().__init__()
        self.near = PlacementFeatures(AgentSpace.of(env))
        self.bin = env.bin
        self.kernels = env.kernels
        self.catalogue = env.catalogue.separated()
        self.shapes: Tensor
        self.sizes: Tensor
        shapes, self._outside = _shapes(self.catalogue, env)
        register_settings(self, shapes=shapes, sizes=_sizes(self.catalogue, env))

    def growth(self, heightmap: Tensor, variant: Tensor, z_map: Tensor) -> Tensor:
        """Growth of the pile by each placement, (B, J, Gx, Gy) float32, bin volumes.

        Arguments are those of `forward`.
        """
        z_maps = z_map[:, :, None]
        metres = self.kernels.pile_growth(heightmap, variant, z_maps, self.catalogue, self.bin)
        share = self.bin.cell_area / self.bin.volume
        return metres[:, :, 0] * share

    def forward(self, heightmap: Tensor, variant: Tensor, z_map: Tensor, legal: Tensor, growth: Tensor) -> Tensor:
        """Planes of variants.

        Args:
            heightmap: (B, X, Y) float32, metres.
            variant: (B, J) int64, item · O + orientation; below 0 for no item.
            z_map: (B, J, Gx, Gy) float32, metres.
            legal: (B, J, Gx, Gy) bool.
            growth: (B, J, Gx, Gy) float32, of `growth`.

        Returns:
            (B, J, C, Gx, Gy) float32.
        """
        none = len(self.sizes) - 1
        row = known_rows(variant, none)
        size = self.sizes[row]
        planes = self.near(heightmap, size[:, :, None], z_map[:, :, None], legal[:, :, None])
        # Share of the bin that the item itself takes.
        own = size[..., 3] / self.bin.volume
        wasted = growth - own[..., None, None]
        wasted = (wasted * 50).clamp(-1, 4)
        gx, gy = self.bin.grid
        u, v = self.shapes.shape[2:]
        shapes = []
        of_item = self.shapes[row].unbind(2)
        around = (0, gy - v, 0, gx - u)
        for plane, outside in zip(of_item, self._outside, strict=True):
            shapes.append(pad(plane, around, value=outside))
        shape_planes = torch.stack(shapes, 2)
        return torch.cat([planes, wasted[:, :, None], shape_planes], 2)


class ItemViews(nn.Module):
    """Input of the manager: six principal views of each item, and the pile.

    Views have V × V pixels over the bin's floor.
    """

    num_views = 7

    def __init__(self, env: PackingEnv, cells: int = 32) -> None:
        super().__init__()
        self.cells = cells
        self.height = env.bin.size[2]
        self.views: Tensor
        register_settings(self, views=_principal_views(env, cells))

    def forward(self, heightmap: Tensor, item_id: Tensor) -> Tensor:
        """Views (B, K, 7, V, V) float32 of items (B, K) on a pile, in bin heights.

        The pile is (B, X, Y), metres.
        """
        pile = adaptive_max_pool2d(heightmap[:, None] / self.height, self.cells)  # (B, 1, V, V)
        row = known_rows(item_id, len(self.views) - 1)
        visible = item_id.shape[1]
        piles = pile[:, None].expand(-1, visible, -1, -1, -1)
        return torch.cat([self.views[row], piles], 2)


def known_rows(row: Tensor, last: int) -> Tensor:
    """Map out-of-range rows to `last`, the padding row."""
    return torch.where((row >= 0) & (row < last), row, last)


def _shapes(catalogue: Catalogue, env: PackingEnv) -> tuple[Tensor, list[float]]:
    """Maps of items at the resolution of the grid, and their values beyond the items.

    Returns:
        Top, and bottom upside down, as far as items reach, (M + 1, 2, U, V), with a padding row; and what each of the
        two is beyond.
    """
    # The last row is no item, whose maps are empty.
    item = torch.arange(-1, catalogue.num_items, device=env.device, dtype=torch.int64)
    item = item.roll(-1)
    top, bottom = catalogue.maps(item, torch.zeros_like(item))
    # Cells without material have their bottom at infinity, which no network may see.
    bottom = torch.where(bottom.isinf(), env.bin.size[2], bottom)
    height = env.bin.size[2]
    # Upside down, so that the highest cell of a place is where the underside reaches lowest.
    planes = [top / height, -bottom / height]
    outside = [float(plane.min()) if plane.numel() else 0.0 for plane in planes]
    pooled = []
    for plane, beyond in zip(planes, outside, strict=True):
        on_grid = _on_grid(plane, beyond, env)
        pooled.append(on_grid)
    return torch.stack(pooled, 1), outside


def _on_grid(plane: Tensor, outside: float, env: PackingEnv) -> Tensor:
    """Highest cell in each place of the grid, (M, U, V), of maps (M, P, Q).

    The maps are put into the bin's corner.
    """
    gx, gy = env.grid
    step = env.grid_step
    plane = plane[:, : gx * step, : gy * step]
    more_x = -plane.shape[1] % step
    more_y = -plane.shape[2] % step
    whole = pad(plane, (0, more_y, 0, more_x), value=outside)
    return max_pool2d(whole[:, None], step)[:, 0]


def _sizes(catalogue: Catalogue, env: PackingEnv) -> Tensor:
    """Sides and volume, (M + 1, 4) float32, metres, with a padding row of zeros."""
    cell = torch.tensor(env.bin.cell, device=env.device, dtype=torch.float32)
    extent = catalogue.extent[:, 0] * cell
    volume = catalogue.volume[:, None]
    sizes = torch.cat([extent, catalogue.height, volume], 1).float()
    return torch.cat([sizes, torch.zeros_like(sizes[:1])])


def _principal_views(env: PackingEnv, cells: int) -> Tensor:
    """Tops with each face up, (M + 1, 6, V, V) float32, in bin heights.

    The last row is a padding row of zeros.
    """
    catalogue = env.catalogue
    faces = _faces(env)
    # Orientations that do not show six faces: the item is built again with all turns about the axes.
    if len(faces) != 6:
        catalogue, _ = env.items.build(env.bin, "axis", 1, 1)
        catalogue = catalogue.to(env.device)
        faces = [view % catalogue.num_orientations for view in range(6)]
    item = indices(catalogue.num_items, env.device)[:, None]
    faces_up = torch.tensor(faces, device=env.device, dtype=torch.int64)
    top, _ = catalogue.maps(item, faces_up)  # (M, 6, P, Q)
    p = min(top.shape[-2], env.bin.cells[0])
    q = min(top.shape[-1], env.bin.cells[1])
    cells_x, cells_y = env.bin.cells
    whole = pad(top[..., :p, :q], (0, cells_y - q, 0, cells_x - p))
    views = adaptive_max_pool2d(whole / env.bin.size[2], cells)
    return torch.cat([views, torch.zeros_like(views[:1])])


def _faces(env: PackingEnv) -> list[int]:
    """First orientations of an environment that turn another face straight up."""
    turns = orientation_set(env.orientations, boxes=env.catalogue.flat)
    # The third row of a rotation says what points straight up afterwards. Adding 0 makes 0 of −0.
    up = turns[:, 2].round(6) + 0.0
    first: dict[tuple[float, ...], int] = {}
    for orientation, face in enumerate(up.tolist()):
        if max(map(abs, face)) == 1:
            first.setdefault(tuple(face), orientation)
    return list(first.values())
