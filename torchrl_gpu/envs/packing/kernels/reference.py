"""The definition of the packing kernels: NumPy, one window of the heightmap at a time. Slow, and read in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.packing.geometry import grid_positions
from torchrl_gpu.envs.packing.kernels import transition
from torchrl_gpu.envs.packing.kernels.transition import any_legal, restart
from torchrl_gpu.envs.packing.types import Bin, Catalogue, PackingState

if TYPE_CHECKING:
    from torchrl_gpu.envs.packing.kernels import Kept, Moved, Placement


__all__ = ["advance", "any_legal", "drop_map", "pile_growth", "place", "problem", "restart"]


def problem(device: torch.device) -> str:
    """It runs everywhere."""
    return ""


def drop_map(
    heightmap: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin, kept: Kept | None = None
) -> tuple[Tensor, Tensor]:
    """Where every item rests on every placement, and whether it may stay there.

    Args:
        heightmap: (N, X, Y) float32, metres.
        item_id: (N, K) int64, −1 for an empty slot.
        catalogue: The items.
        bin_: The bin; its stability rule decides what stands.
        kept: Not needed here.

    Returns:
        z_map (N, K, O, Gx, Gy) float32, metres, the bin's height where the footprint does not fit; legal_mask, bool,
        same shape. Huang et al. 2023, eq. 1.
    """
    shape = (*item_id.shape, catalogue.num_orientations, *bin_.grid)
    z_map = np.full(shape, bin_.size[2], dtype=np.float32)
    legal = np.zeros(shape, dtype=bool)
    heights = heightmap.cpu().numpy()
    for n, k, o in np.ndindex(shape[:3]):
        item = int(item_id[n, k])
        if item >= 0:
            drop_item(heights[n], *item_maps(catalogue, item, o), bin_, z_map[n, k, o], legal[n, k, o])
    return torch.from_numpy(z_map).to(heightmap.device), torch.from_numpy(legal).to(heightmap.device)


def drop_item(
    heights: np.ndarray, top: np.ndarray, bottom: np.ndarray, bin_: Bin, z_map: np.ndarray, legal: np.ndarray
) -> None:
    """Fills `z_map` and `legal` (Gx, Gy) for one item, given its own P×Q maps, on one bin (X, Y)."""
    p, q = top.shape
    material = np.isfinite(bottom)
    for (gx, x), (gy, y) in _product(placements(p, bin_.cells[0], bin_), placements(q, bin_.cells[1], bin_)):
        window = heights[x : x + p, y : y + q]
        z = (window - bottom)[material].max(initial=0.0)
        z_map[gx, gy] = z
        tall = z + top.max() > np.float32(bin_.size[2]) + np.float32(bin_.tolerance)
        contact = window - bottom >= z - np.float32(bin_.tolerance)
        legal[gx, gy] = not tall and stands(contact, material, z <= bin_.tolerance, bin_.stability)


def stands(contact: np.ndarray, material: np.ndarray, on_floor: bool, rule: str) -> bool:
    """Whether an item stands on its contact cells.

    Args:
        contact: (P, Q) bool, cells where the item touches the pile.
        material: (P, Q) bool, cells of the item.
        on_floor: Whether its base is on the floor of the bin.
        rule: "none", "corners" (Zhao et al., AAAI 2021, as released) or "support" (GOPT, RA-L 2024, as released).
    """
    if rule == "none" or on_floor:
        return True
    share = contact.sum() / max(material.sum(), 1)
    if rule == "corners":
        p, q = contact.shape
        corners = sum(int(contact[i, j]) for i in (0, p - 1) for j in (0, q - 1))
        return bool(share > 0.95 or (corners == 3 and share > 0.85) or (corners == 4 and share > 0.50))
    return bool(share > 0.50 or (contact.sum() >= 2 and _centre_in_hull(contact)))


def _centre_in_hull(contact: np.ndarray) -> bool:
    """Whether the centre of the grid lies in the convex hull of the true cells: no open half plane holds them all."""
    cells = np.argwhere(contact) - (np.array(contact.shape) - 1) / 2  # (C, 2), from the centre
    if (cells == 0).all(1).any():
        return True
    for normal in np.concatenate([cells @ [[0, 1], [-1, 0]], cells @ [[0, -1], [1, 0]]]):
        side = cells @ normal
        along = cells[np.abs(side) < 1e-9] @ np.array([normal[1], -normal[0]])
        if (side > -1e-9).all() and ((along > 0).all() or (along < 0).all()):
            return False
    return True


def place(heightmap: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """The heightmap after one placement per environment; (N, X, Y) float32, metres."""
    heights = heightmap.cpu().numpy().copy()
    for n in range(len(heights)):
        item, o, x, y = (int(field[n]) for field in placement[:4])
        if item >= 0:
            place_item(heights[n], *item_maps(catalogue, item, o), x, y, np.float32(placement.z[n].item()))
    return torch.from_numpy(heights).to(heightmap.device)


def place_item(heights: np.ndarray, top: np.ndarray, bottom: np.ndarray, x: int, y: int, z: np.float32) -> None:
    """Raises one bin (X, Y), in place, to the top of an item that stands at (x, y, z)."""
    window = heights[x : x + top.shape[0], y : y + top.shape[1]]
    np.maximum(window, z + top, out=window, where=np.isfinite(bottom))


def advance(state: PackingState, action: Tensor, following: Tensor, catalogue: Catalogue, bin_: Bin) -> Moved:
    """As `transition.advance`."""
    return transition.advance(state, action, following, catalogue, bin_, place)


def pile_growth(heightmap: Tensor, item_id: Tensor, z_map: Tensor, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """By how much each placement would raise the sum of the heightmap.

    Args:
        heightmap: (N, X, Y) float32, metres.
        item_id: (N, K) int64.
        z_map: (N, K, O, Gx, Gy) float32, from `drop_map`.
        catalogue: The items.
        bin_: The bin.

    Returns:
        (N, K, O, Gx, Gy) float32, metres summed over cells; 0 where the footprint does not fit.
    """
    growth = np.zeros(tuple(z_map.shape), dtype=np.float32)
    heights = heightmap.cpu().numpy()
    for n, k, o in np.ndindex(growth.shape[:3]):
        item = int(item_id[n, k])
        if item < 0:
            continue
        top, bottom = item_maps(catalogue, item, o)
        grid = _product(*(placements(s, c, bin_) for s, c in zip(top.shape, bin_.cells, strict=True)))
        for (gx, x), (gy, y) in grid:
            after = heights[n].copy()
            place_item(after, top, bottom, x, y, np.float32(z_map[n, k, o, gx, gy].item()))
            growth[n, k, o, gx, gy] = (after.astype(np.float64) - heights[n]).sum()
    return torch.from_numpy(growth).to(heightmap.device)


def item_maps(catalogue: Catalogue, item: int, orientation: int) -> tuple[np.ndarray, np.ndarray]:
    """Top and bottom of one item over its own extent (P, Q), metres."""
    top, bottom = catalogue.maps(torch.tensor(item, device=catalogue.extent.device), torch.tensor(orientation))
    p, q = catalogue.extent[item, orientation].tolist()
    return top[:p, :q].cpu().numpy(), bottom[:p, :q].cpu().numpy()


def placements(extent: int, cells: int, bin_: Bin) -> list[tuple[int, int]]:
    """(grid index, first cell) of every placement of a footprint that fits along one axis."""
    position, fits = grid_positions(torch.tensor(extent), cells, bin_.step)
    return [(g, int(position[g])) for g in range(len(fits)) if fits[g]]


def _product(xs: list[tuple[int, int]], ys: list[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return [(x, y) for x in xs for y in ys]
