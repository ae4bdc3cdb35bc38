"""Reference packing kernels in NumPy, which define the others: one window of the heightmap at a time, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.packing.geometry import grid_positions
from torchrl_gpu.envs.packing.kernels import transition
from torchrl_gpu.envs.packing.kernels.balance import centre_16ths
from torchrl_gpu.envs.packing.kernels.bearing import bearing_heights, half_sides
from torchrl_gpu.envs.packing.kernels.transition import any_legal, restart
from torchrl_gpu.envs.packing.types import DROP_RULES, Bin, Catalogue, Moved, PackingState, Placement, StoredMaps
from torchrl_gpu.system import arguments

__all__ = ["advance", "any_legal", "bear", "drop_map", "pile_growth", "place", "restart", "upheld"]


def drop_map(
    heightmap: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin, stored: StoredMaps | None = None
) -> tuple[Tensor, Tensor]:
    """Rest height and legality of every visible item on every placement.

    Args:
        heightmap: (N, X, Y) float32, metres.
        item_id: (N, K) int64; −1, or any other number that is no row of the catalogue, is an empty slot.
        catalogue: The items.
        bin_: The bin, with the stability rule.
        stored: Not needed here.

    Returns:
        z_map (N, K, O, Gx, Gy) float32, metres, the bin's height where the footprint does not fit; legal_mask, bool,
        same shape. Huang et al. 2023, eq. 1.
    """
    shape = (*item_id.shape, catalogue.num_orientations, *bin_.grid)
    z_map = np.full(shape, bin_.size[2], dtype=np.float32)
    legal = np.zeros(shape, dtype=bool)
    heights, centre = heightmap.cpu().numpy(), centre_16ths(catalogue, bin_).cpu().numpy()
    for n, k, o in np.ndindex(shape[:3]):
        item = int(item_id[n, k])
        if 0 <= item < catalogue.num_items:
            maps = item_maps(catalogue, item, o)
            drop_item(heights[n], *maps, bin_, z_map[n, k, o], legal[n, k, o], centre[item, o])
    return torch.from_numpy(z_map).to(heightmap.device), torch.from_numpy(legal).to(heightmap.device)


def drop_item(
    heights: np.ndarray,
    top: np.ndarray,
    bottom: np.ndarray,
    bin_: Bin,
    z_map: np.ndarray,
    legal: np.ndarray,
    centre: np.ndarray | None = None,
) -> None:
    """Fills `z_map` and `legal` (Gx, Gy) for one item, given its own P×Q maps, on one bin (X, Y); as in `stands`."""
    p, q = top.shape
    material = np.isfinite(bottom)
    for (gx, x), (gy, y) in product(placements(p, bin_.cells[0], bin_), placements(q, bin_.cells[1], bin_)):
        window = heights[x : x + p, y : y + q]
        z = (window - bottom)[material].max(initial=0.0)
        z_map[gx, gy] = z
        tall = z + top.max() > np.float32(bin_.size[2]) + np.float32(bin_.tolerance)
        contact = window - bottom >= z - np.float32(bin_.contact_tolerance)
        legal[gx, gy] = not tall and stands(contact, material, z <= bin_.tolerance, bin_.stability, centre)


def stands(
    contact: np.ndarray, material: np.ndarray, on_floor: bool, rule: str, centre: np.ndarray | None = None
) -> bool:
    """True where an item is stable on its contact cells (P, Q), given those with material, by a rule of `DROP_RULES`.

    The rules are "none", "corners" (Zhao et al., AAAI 2021), "support" (GOPT, RA-L 2024) and "com", see `holds`. The
    code released with the two papers differs from 21 cells on and on edges of the hull, see
    `docs/environments/packing-reference.md`. `centre` is as in `holds`, and read by "com" only.

    Raises:
        ValueError: There is no such rule.
    """
    arguments.choice("reference", "stability", rule, DROP_RULES)
    if rule == "com":
        return holds(contact, centre)
    share = contact.sum() / max(material.sum(), 1)
    if rule == "none" or on_floor:
        return True
    if rule == "support":
        middle = (np.array(contact.shape) - 1) / 2
        return bool(share > 0.50 or (contact.sum() >= 2 and _in_hull(np.argwhere(contact) - middle)))
    p, q = contact.shape
    corners = sum(int(contact[i, j]) for i in (0, p - 1) for j in (0, q - 1))
    return bool(share > 0.95 or (corners == 3 and share > 0.85) or (corners == 4 and share > 0.50))


def holds(contact: np.ndarray, centre: np.ndarray | None = None) -> bool:
    """True where the centre of mass lies in the convex hull of the contact cells' centres, or within one of the cells.

    So an item without contact is not stable; on one cell it is stable where its centre is within that cell, and on two
    also where its centre is on the line between them.

    Args:
        contact: (P, Q) bool.
        centre: (2,) integers, sixteenths of a cell from the corner of cell (0, 0); None for the middle.
    """
    p, q = contact.shape
    cells = 16 * np.argwhere(contact) + 8 - (np.array([8 * p, 8 * q]) if centre is None else centre)  # (C, 2)
    if not len(cells) or (np.abs(cells) <= 8).all(1).any():
        return len(cells) > 0
    # The hull is that of the first and the last cell of each row.
    is_first, is_last = (np.diff(cells[:, 0], **end) != 0 for end in ({"prepend": 1 << 20}, {"append": 1 << 20}))
    return _in_hull(cells[is_first | is_last])


def _in_hull(cells: np.ndarray) -> bool:
    """True where the origin lies in the convex hull of points (C, 2): no open half-plane contains them all."""
    if (cells == 0).all(1).any():
        return True
    for normal in np.concatenate([cells @ [[0, 1], [-1, 0]], cells @ [[0, -1], [1, 0]]]):
        side = cells @ normal
        along = cells[np.abs(side) < 1e-9] @ np.array([normal[1], -normal[0]])
        if (side > -1e-9).all() and ((along > 0).all() or (along < 0).all()):
            return False
    return True


def upheld(
    heightmap: Tensor, bears: Tensor, z_map: Tensor, legal: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin
) -> Tensor:
    """The legal mask of boxes without the placements that are unstable by the rule "load_bearing".

    `bears` (N, X, Y) bool is the mask of the cells that bear load; the maps are those of `drop_map`.
    """
    out, heights = legal.clone(), bearing_heights(heightmap, bears).cpu().numpy()
    for n, k, o, gx, gy in legal.nonzero().tolist():
        extent = catalogue.extent[int(item_id[n, k]), o]
        (p, q), half = extent.tolist(), half_sides(extent, bin_).tolist()
        x, y = (min(g * bin_.step, c - s) for g, c, s in zip((gx, gy), bin_.cells, (p, q), strict=True))
        contact = _bearing_contact(heights[n], x, y, p, q, np.float32(z_map[n, k, o, gx, gy].item()), bin_)
        corners = [(8 * p + a * half[0], 8 * q + b * half[1]) for a in (-1, 1) for b in (-1, 1)]
        out[n, k, o, gx, gy] = all(_in_hull_of(contact, corner) for corner in corners)
    return out


def bear(heightmap: Tensor, bears: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """The map (N, X, Y) bool of the cells that bear load after one placement of a box per environment.

    Heightmap and map are those before it; a placement that is invalid as in `place` changes nothing.
    """
    after, heights = bears.clone(), bearing_heights(heightmap, bears).cpu().numpy()
    for n, item, o, x, y, z in _made(placement, catalogue, bin_):
        p, q = catalogue.extent[item, o].tolist()
        contact = _bearing_contact(heights[n], x, y, p, q, z, bin_)
        for i, j in np.ndindex(p, q):
            after[n, x + i, y + j] = _in_hull_of(contact, (16 * i + 8, 16 * j + 8))
    return after


def _bearing_contact(heights: np.ndarray, x: int, y: int, p: int, q: int, z: np.float32, bin_: Bin) -> np.ndarray:
    along_x, along_y = (np.abs(2 * np.arange(side) + 1 - side).astype(np.float32) for side in (p, q))
    drop_x, drop_y = map(np.float32, bin_.drops)
    drop = np.maximum((along_x * drop_x)[:, None], along_y * drop_y)
    contact: np.ndarray = heights[x : x + p, y : y + q] >= z - np.float32(bin_.contact_tolerance) - drop
    return contact


def _in_hull_of(contact: np.ndarray, point: tuple[int, int]) -> bool:
    """True where a point, in sixteenths of a cell, lies in the convex hull of the contact cells' centres."""
    return bool(contact.any()) and _in_hull(16 * np.argwhere(contact) + 8 - np.array(point))


def place(heightmap: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """The heightmap after one placement per environment; (N, X, Y) float32, metres.

    A placement of no item or orientation of the catalogue, or with cells outside the bin, places nothing.
    """
    heights = heightmap.cpu().numpy().copy()
    for n, item, o, x, y, z in _made(placement, catalogue, bin_):
        place_item(heights[n], *item_maps(catalogue, item, o), x, y, z)
    return torch.from_numpy(heights).to(heightmap.device)


def _made(
    placement: Placement, catalogue: Catalogue, bin_: Bin
) -> Iterator[tuple[int, int, int, int, int, np.float32]]:
    """Environment, item, orientation, x, y and z of the placements that are inside the bin."""
    for n, (item, o, x, y) in enumerate(zip(*(field.tolist() for field in placement[:4]), strict=True)):
        if 0 <= item < catalogue.num_items and 0 <= o < catalogue.num_orientations:
            p, q = catalogue.extent[item, o].tolist()
            if 0 <= x <= bin_.cells[0] - p and 0 <= y <= bin_.cells[1] - q:
                yield n, item, o, x, y, np.float32(placement.z[n].item())


def place_item(heights: np.ndarray, top: np.ndarray, bottom: np.ndarray, x: int, y: int, z: np.float32) -> None:
    """Raises the heightmap (X, Y) of one bin, in place, to the top of an item whose base is at (x, y, z)."""
    window = heights[x : x + top.shape[0], y : y + top.shape[1]]
    np.maximum(window, z + top, out=window, where=np.isfinite(bottom))


def advance(state: PackingState, action: Tensor, following: Tensor, catalogue: Catalogue, bin_: Bin) -> Moved:
    return transition.advance(state, action, following, catalogue, bin_, place)


def pile_growth(heightmap: Tensor, item_id: Tensor, z_map: Tensor, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Increase of the sum of the heightmap by each placement at the rest heights of `drop_map`.

    Returns:
        (N, K, O, Gx, Gy) float32, metres summed over cells; 0 where the footprint does not fit.
    """
    growth = np.zeros(tuple(z_map.shape), dtype=np.float32)
    heights = heightmap.cpu().numpy()
    for n, k, o in np.ndindex(growth.shape[:3]):
        item = int(item_id[n, k])
        if not 0 <= item < catalogue.num_items:
            continue
        top, bottom = item_maps(catalogue, item, o)
        grid = product(*(placements(s, c, bin_) for s, c in zip(top.shape, bin_.cells, strict=True)))
        for (gx, x), (gy, y) in grid:
            after = heights[n].copy()
            place_item(after, top, bottom, x, y, np.float32(z_map[n, k, o, gx, gy].item()))
            growth[n, k, o, gx, gy] = (after.astype(np.float64) - heights[n]).sum()
    return torch.from_numpy(growth).to(heightmap.device)


def judge_placements(heightmap: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    heights, centre = heightmap.cpu().numpy(), centre_16ths(catalogue, bin_).cpu().numpy()
    verdict = np.zeros(len(heights), dtype=bool)
    for n, item, o, x, y, z in _made(placement, catalogue, bin_):
        verdict[n] = judge_item(heights[n], item_maps(catalogue, item, o)[1], x, y, z, bin_, centre[item, o])
    return torch.from_numpy(verdict).to(heightmap.device)


def judge_item(
    heights: np.ndarray, bottom: np.ndarray, x: int, y: int, z: np.float32, bin_: Bin, centre: np.ndarray | None = None
) -> bool:
    """True where an item (P, Q) at (x, y, z) in one bin (X, Y) is stable by the rule `com`; centre as in `holds`."""
    window = heights[x : x + bottom.shape[0], y : y + bottom.shape[1]]
    return holds(window - bottom >= z - np.float32(bin_.com_tolerance), centre)


def item_maps(catalogue: Catalogue, item: int, orientation: int) -> tuple[np.ndarray, np.ndarray]:
    """Top and bottom of one item over its own extent (P, Q), metres."""
    top, bottom = catalogue.maps(
        torch.tensor(item, device=catalogue.extent.device, dtype=torch.int64),
        torch.tensor(orientation, dtype=torch.int64, device="cpu"),
    )
    p, q = catalogue.extent[item, orientation].tolist()
    return top[:p, :q].cpu().numpy(), bottom[:p, :q].cpu().numpy()


def placements(extent: int, cells: int, bin_: Bin) -> list[tuple[int, int]]:
    """(grid index, first cell) of every placement of a footprint that fits along one axis."""
    position, fits = grid_positions(torch.tensor(extent, dtype=torch.int64, device="cpu"), cells, bin_.step)
    return [(g, int(position[g])) for g in range(len(fits)) if fits[g]]
