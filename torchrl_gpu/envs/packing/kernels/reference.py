"""The packing kernels in NumPy: the definition of all others, and slow.

One environment, one item and one placement after the other. `geometry` lays the grid of placements, `stability` holds
the rules, and all that is left of a step is in `transition`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.packing.geometry import grid_positions
from torchrl_gpu.envs.packing.kernels import transition
from torchrl_gpu.envs.packing.kernels.transition import any_legal, restart
from torchrl_gpu.envs.packing.stability.centres import centre_16ths
from torchrl_gpu.envs.packing.stability.com import lies_over
from torchrl_gpu.envs.packing.stability.footprints import SIXTEENTHS, Footprint
from torchrl_gpu.envs.packing.stability.load_bearing import bearing_heights
from torchrl_gpu.envs.packing.stability.margins import margins
from torchrl_gpu.envs.packing.stability.rule import rule_of
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Moved, PackingState, Placement, StoredMaps

__all__ = ["advance", "any_legal", "bear", "drop_map", "pile_growth", "place", "restart", "upheld"]


class Item(NamedTuple):
    """One item in one orientation, on the cells of its own footprint.

    Attributes:
        top: Highest material of each column above the item's base, metres, (P, Q) float32; 0 without material.
        bottom: Lowest material of each column, metres, (P, Q) float32; +inf without material.
        centre: Centre of mass, sixteenths of a cell from the corner of cell (0, 0), (2,) integers.
        half_sides: As in `Footprint`.
    """

    top: np.ndarray
    bottom: np.ndarray
    centre: np.ndarray
    half_sides: np.ndarray


class Place(NamedTuple):
    """An item in an orientation, with its base at (x, y) cells and z metres in bin n."""

    n: int
    item: int
    orientation: int
    x: int
    y: int
    z: np.float32


def drop_map(
    heightmap: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin, stored: StoredMaps | None = None
) -> tuple[Tensor, Tensor]:
    """Rest height and legality of every visible item on every placement.

    Args:
        heightmap: Metres, (N, X, Y) float32.
        item_id: (N, K) int64; −1, or any other number that is no row of the catalogue, is an empty slot.
        catalogue: The items.
        bin_: The bin, with a stability rule that reads heights alone.
        stored: Not needed here.

    Returns:
        z_map: Metres, (N, K, O, Gx, Gy) float32; the bin's height where the footprint does not fit.
        legal: (N, K, O, Gx, Gy) bool.
    """
    num_envs, num_slots = item_id.shape
    shape = (num_envs, num_slots, catalogue.num_orientations, *bin_.grid)
    # What is not filled in below does not fit: an empty slot, or a footprint beyond the walls.
    z_map = np.full(shape, bin_.size[2], dtype=np.float32)
    legal = np.zeros(shape, dtype=bool)
    heights = heightmap.cpu().numpy()
    for n in range(num_envs):
        for k in range(num_slots):
            number = int(item_id[n, k])
            if not 0 <= number < catalogue.num_items:
                continue
            for o in range(catalogue.num_orientations):
                item = item_of(catalogue, bin_, number, o)
                drop_item(heights[n], item, bin_, z_map[n, k, o], legal[n, k, o])
    return torch.from_numpy(z_map).to(heightmap.device), torch.from_numpy(legal).to(heightmap.device)


def drop_item(heights: np.ndarray, item: Item, bin_: Bin, z_map: np.ndarray, legal: np.ndarray) -> None:
    """Fill `z_map` and `legal`, (Gx, Gy), for one item on one bin (X, Y)."""
    rows, columns = item.top.shape
    rule = rule_of(bin_)
    # In float32, as heights are: other backends must round alike.
    ceiling = np.float32(bin_.size[2]) + np.float32(bin_.tolerance)
    for gx, x in placements(rows, bin_.cells[0], bin_):
        for gy, y in placements(columns, bin_.cells[1], bin_):
            window = heights[x : x + rows, y : y + columns]
            z = rest_height(window, item.bottom)
            z_map[gx, gy] = z
            footprint = footprint_at(window, item, z, bin_)
            fits_below = z + item.top.max() <= ceiling
            legal[gx, gy] = fits_below and rule.judge(footprint)


def rest_height(window: np.ndarray, bottom: np.ndarray) -> np.float32:
    """Height of an item's base at first contact.

    The base sinks until some material touches: z = max(h − b) over the cells with material, and at least 0, the floor.
    Huang et al., RA-L 2023, eq. 1. An item without material comes to rest on the floor.

    Args:
        window: Heights of the pile under the footprint, metres, (P, Q) float32.
        bottom: Lowest material of the item, metres, (P, Q) float32; +inf without material.
    """
    material = np.isfinite(bottom)
    gaps = window[material] - bottom[material]
    return np.float32(gaps.max(initial=0.0))


def footprint_at(window: np.ndarray, item: Item, z: np.float32, bin_: Bin) -> Footprint:
    """What a stability rule reads of an item at z metres over a window (P, Q)."""
    # A cell touches where the pile is as high as the item's underside there, but for a gap.
    rows, columns = window.shape
    lowest = z - np.float32(bin_.contact_tolerance) - slopes(rows, columns, bin_)
    return _footprint(window, item, z, lowest, bin_)


def bearing_footprint_at(window: np.ndarray, item: Item, z: np.float32, bin_: Bin) -> Footprint:
    """The same, of those contacts alone that the item passes load on to."""
    rows, columns = window.shape
    lowest = z - np.float32(bin_.bearing_tolerance) - bearing_slopes(rows, columns, bin_)
    return _footprint(window, item, z, lowest, bin_)


def _footprint(window: np.ndarray, item: Item, z: np.float32, lowest: np.ndarray, bin_: Bin) -> Footprint:
    contact = window - item.bottom >= lowest
    material = np.isfinite(item.bottom)
    on_floor = bool(z <= bin_.tolerance)
    return Footprint(contact, material, on_floor, item.centre, item.half_sides)


def half_sides(rows: int, columns: int, bin_: Bin) -> np.ndarray:
    """Half the sides of the rectangle that a box's contacts must hold.

    Sixteenths of a cell, (2,). It lies about the box's middle and is the margin, but at most a quarter of the box's
    side. Half a cell less is asked of the centres of contact cells, as the cells themselves reach as far beyond their
    centres.
    """
    margin_x, margin_y = margins(bin_)
    half_x = min(margin_x, rows * SIXTEENTHS // 4) - SIXTEENTHS // 2
    half_y = min(margin_y, columns * SIXTEENTHS // 4) - SIXTEENTHS // 2
    return np.array([max(half_x, 0), max(half_y, 0)])


def slopes(rows: int, columns: int, bin_: Bin) -> np.ndarray:
    """How much lower a contact may lie than the base, metres, (P, Q) float32.

    By the bin's `max_tilt`: the further a cell is from the middle of the box, the lower. Other rules want level ground.
    """
    if "max_tilt" not in bin_.rule.options:
        return np.zeros((rows, columns), dtype=np.float32)
    drop_x, drop_y = bin_.drops
    by_row = _from_middle(rows) * np.float32(drop_x)
    by_column = _from_middle(columns) * np.float32(drop_y)
    return np.maximum(by_row[:, None], by_column[None, :])


def bearing_slopes(rows: int, columns: int, bin_: Bin) -> np.ndarray:
    """How much lower than the base may lie what a box passes load on to.

    Metres, (P, Q) float32. By the bin's `bearing_tilt`, and never where it would not hold the box.
    """
    most = slopes(rows, columns, bin_) + np.float32(bin_.bearing_slack)
    if "bearing_tilt" not in bin_.rule.options:
        return most
    drop_x, drop_y = bin_.bearing_drops
    by_row = _from_middle(rows) * np.float32(drop_x)
    by_column = _from_middle(columns) * np.float32(drop_y)
    return np.minimum(np.maximum(by_row[:, None], by_column[None, :]), most)


def _from_middle(cells: int) -> np.ndarray:
    """Half cells from the middle of a side to its cells' centres, (cells,) float32."""
    return np.abs(2 * np.arange(cells) + 1 - cells).astype(np.float32)


def upheld(
    heightmap: Tensor, bears: Tensor, z_map: Tensor, legal: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin
) -> Tensor:
    """The legal mask of boxes without what is unstable.

    For stability rules that track what bears load.

    Args:
        heightmap: Metres, (N, X, Y) float32.
        bears: Mask of the cells that bear load, (N, X, Y) bool.
        z_map, legal: Of `drop_map` by the rule "none", (N, K, O, Gx, Gy).
        item_id: (N, K) int64.
        catalogue: The boxes.
        bin_: The bin, with the rule.

    Returns:
        (N, K, O, Gx, Gy) bool.
    """
    rule = rule_of(bin_)
    stable = legal.clone()
    # Cells that bear no load are below everything, so that nothing touches them.
    heights = bearing_heights(heightmap, bears).cpu().numpy()
    for n, k, o, gx, gy in legal.nonzero().tolist():
        item = item_of(catalogue, bin_, int(item_id[n, k]), o)
        rows, columns = item.top.shape
        # The last placement on the grid may be moved back, flush with the far wall.
        x = min(gx * bin_.step, bin_.cells[0] - rows)
        y = min(gy * bin_.step, bin_.cells[1] - columns)
        window = heights[n, x : x + rows, y : y + columns]
        z = np.float32(z_map[n, k, o, gx, gy].item())
        stable[n, k, o, gx, gy] = rule.judge(footprint_at(window, item, z, bin_))
    return stable


def bear(heightmap: Tensor, bears: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """The cells that bear load after one placement of a box per environment.

    Args:
        heightmap: Before the placement, metres, (N, X, Y) float32.
        bears: Before the placement, (N, X, Y) bool.
        placement: One of each environment; one that is invalid as in `place` changes nothing.
        catalogue: The boxes.
        bin_: The bin, with a stability rule that tracks what bears load.

    Returns:
        (N, X, Y) bool.
    """
    rule = rule_of(bin_)
    after = bears.cpu().numpy().copy()
    heights = bearing_heights(heightmap, bears).cpu().numpy()
    for at in places_inside(placement, catalogue, bin_):
        item = item_of(catalogue, bin_, at.item, at.orientation)
        rows, columns = item.top.shape
        covered = slice(at.x, at.x + rows), slice(at.y, at.y + columns)
        window = heights[at.n][covered]
        footprint = bearing_footprint_at(window, item, at.z, bin_)
        after[at.n][covered] = rule.judge_top(footprint)
    return torch.from_numpy(after).to(bears.device)


def place(heightmap: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """The heightmap after one placement per environment.

    Args:
        heightmap: Metres, (N, X, Y) float32.
        placement: One of each environment. One of no item or orientation of the catalogue, or with cells outside the
            bin, places nothing.
        catalogue: The items.
        bin_: The bin.

    Returns:
        Metres, (N, X, Y) float32.
    """
    heights = heightmap.cpu().numpy().copy()
    for at in places_inside(placement, catalogue, bin_):
        item = item_of(catalogue, bin_, at.item, at.orientation)
        place_item(heights[at.n], item.top, item.bottom, at.x, at.y, at.z)
    return torch.from_numpy(heights).to(heightmap.device)


def place_item(heights: np.ndarray, top: np.ndarray, bottom: np.ndarray, x: int, y: int, z: np.float32) -> None:
    """Raise the heights (X, Y) of one bin, in place, to an item's top.

    h' = max(h, z + t) over the cells with material.
    """
    rows, columns = top.shape
    window = heights[x : x + rows, y : y + columns]
    np.maximum(window, z + top, out=window, where=np.isfinite(bottom))


def pile_growth(heightmap: Tensor, item_id: Tensor, z_map: Tensor, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """How much each placement would add to the sum of the heightmap.

    Args:
        heightmap: Metres, (N, X, Y) float32.
        item_id: (N, K) int64.
        z_map: Rest heights of `drop_map`, metres, (N, K, O, Gx, Gy) float32.
        catalogue: The items.
        bin_: The bin.

    Returns:
        Metres summed over cells, (N, K, O, Gx, Gy) float32; 0 where the footprint does not fit.
    """
    growth = np.zeros(tuple(z_map.shape), dtype=np.float32)
    heights = heightmap.cpu().numpy()
    for n, k, o in np.ndindex(growth.shape[:3]):
        number = int(item_id[n, k])
        if not 0 <= number < catalogue.num_items:
            continue
        item = item_of(catalogue, bin_, number, o)
        rows, columns = item.top.shape
        for gx, x in placements(rows, bin_.cells[0], bin_):
            for gy, y in placements(columns, bin_.cells[1], bin_):
                after = heights[n].copy()
                z = np.float32(z_map[n, k, o, gx, gy].item())
                place_item(after, item.top, item.bottom, x, y, z)
                # The sum is in float64, so that the definition does not depend on its order.
                rise = after.astype(np.float64) - heights[n]
                growth[n, k, o, gx, gy] = rise.sum()
    return torch.from_numpy(growth).to(heightmap.device)


def advance(state: PackingState, action: Tensor, following: Tensor, catalogue: Catalogue, bin_: Bin) -> Moved:
    return transition.advance(state, action, following, catalogue, bin_, place)


def judge_placements(heightmap: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Which placements are stable by the rule `com`, not by the bin's, (N,) bool."""
    heights = heightmap.cpu().numpy()
    stable = np.zeros(len(heights), dtype=bool)
    for at in places_inside(placement, catalogue, bin_):
        item = item_of(catalogue, bin_, at.item, at.orientation)
        stable[at.n] = judge_item(heights[at.n], item, at.x, at.y, at.z, bin_)
    return torch.from_numpy(stable).to(heightmap.device)


def judge_item(heights: np.ndarray, item: Item, x: int, y: int, z: np.float32, bin_: Bin) -> bool:
    """Whether an item in one bin (X, Y) is stable by the rule `com`."""
    rows, columns = item.top.shape
    window = heights[x : x + rows, y : y + columns]
    contact = window - item.bottom >= z - np.float32(bin_.com_tolerance)
    return lies_over(contact, item.centre)


def item_of(catalogue: Catalogue, bin_: Bin, number: int, orientation: int) -> Item:
    """One item of a catalogue, cut to its own extent."""
    top, bottom = item_maps(catalogue, number, orientation)
    rows, columns = top.shape
    centre = centre_16ths(catalogue, bin_)[number, orientation].cpu().numpy()
    return Item(top, bottom, centre, half_sides(rows, columns, bin_))


def item_maps(catalogue: Catalogue, number: int, orientation: int) -> tuple[np.ndarray, np.ndarray]:
    """Top and bottom of one item, cut to its own extent, metres, (P, Q)."""
    device = catalogue.extent.device
    row = torch.tensor(number, dtype=torch.int64, device=device)
    turned = torch.tensor(orientation, dtype=torch.int64, device=device)
    top, bottom = catalogue.maps(row, turned)
    rows, columns = catalogue.extent[number, orientation].tolist()
    own_top = top[:rows, :columns].cpu().numpy()
    own_bottom = bottom[:rows, :columns].cpu().numpy()
    return own_top, own_bottom


def placements(extent: int, cells: int, bin_: Bin) -> list[tuple[int, int]]:
    """Grid index and first cell of every placement that fits, along one axis."""
    position, fits = grid_positions(torch.tensor(extent, dtype=torch.int64, device="cpu"), cells, bin_.step)
    return [(g, int(position[g])) for g in range(len(fits)) if fits[g]]


def places_inside(placement: Placement, catalogue: Catalogue, bin_: Bin) -> Iterator[Place]:
    """The placements of an item of the catalogue that lie inside the bin."""
    for n in range(len(placement.item_id)):
        item = int(placement.item_id[n])
        orientation = int(placement.orientation[n])
        if not 0 <= item < catalogue.num_items or not 0 <= orientation < catalogue.num_orientations:
            continue
        rows, columns = catalogue.extent[item, orientation].tolist()
        x = int(placement.x[n])
        y = int(placement.y[n])
        inside_x = 0 <= x <= bin_.cells[0] - rows
        inside_y = 0 <= y <= bin_.cells[1] - columns
        if inside_x and inside_y:
            yield Place(n, item, orientation, x, y, np.float32(placement.z[n].item()))
