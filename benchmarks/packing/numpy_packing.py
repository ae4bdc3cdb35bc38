"""The NumPy path: one bin, packed one item at a time.

Released heightmap packers work like this.

What ours is compared with: it gives the same heightmaps, masks, rewards and ends of episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from torchrl_gpu.envs.packing.kernels import reference
from torchrl_gpu.envs.packing.stability import rule_of
from torchrl_gpu.envs.packing.stability.footprints import Footprint
from torchrl_gpu.envs.packing.types import Bin, Catalogue


class Shape(NamedTuple):
    """An item in one orientation.

    Attributes:
        top: Highest material, metres, (P, Q) float32.
        bottom: Lowest material, metres, (P, Q) float32, +inf where there is none.
        height: Metres.
        flat: Whether it is a box, whose bottom is 0.
    """

    top: np.ndarray
    bottom: np.ndarray
    height: np.float32
    flat: bool


# Centre and margin of a footprint, which none of the rules here reads.
_UNREAD = np.zeros(2, np.int64)

# Fills z_map and legal (Gx, Gy) for one item, in one orientation, on one bin (X, Y).
Drop = Callable[[np.ndarray, Shape, Bin, np.ndarray, np.ndarray], None]


def drop_by_loop(heights: np.ndarray, shape: Shape, bin_: Bin, z_map: np.ndarray, legal: np.ndarray) -> None:
    """Look at all placements in a Python loop, as released packers do.

    Boxes and irregular items go through the same code.

    The lines are those of `reference.drop_item`, without the tensors that it takes its positions from.
    """
    p, q = shape.top.shape
    material = np.isfinite(shape.bottom)
    tolerance = np.float32(bin_.tolerance)
    columns = _positions(q, bin_.cells[1], bin_.step)
    for gx, x in enumerate(_positions(p, bin_.cells[0], bin_.step)):
        for gy, y in enumerate(columns):
            gap = heights[x : x + p, y : y + q] - shape.bottom
            z = gap[material].max(initial=0.0)
            z_map[gx, gy] = z
            if z + shape.height <= np.float32(bin_.size[2]) + tolerance:
                contact = gap >= z - tolerance
                legal[gx, gy] = _stands(contact, material, z <= bin_.tolerance, bin_)


def drop_by_box_loop(heights: np.ndarray, shape: Shape, bin_: Bin, z_map: np.ndarray, legal: np.ndarray) -> None:
    """Look at all placements of boxes alone in the same loop.

    No bottom is subtracted, and no contact is looked for that no rule asks for.
    """
    p, q = shape.top.shape
    material = np.isfinite(shape.bottom)
    tolerance = np.float32(bin_.tolerance)
    columns = _positions(q, bin_.cells[1], bin_.step)
    for gx, x in enumerate(_positions(p, bin_.cells[0], bin_.step)):
        for gy, y in enumerate(columns):
            window = heights[x : x + p, y : y + q]
            z = window.max()
            z_map[gx, gy] = z
            if z + shape.height <= np.float32(bin_.size[2]) + tolerance:
                if bin_.stability == "none":
                    legal[gx, gy] = True
                else:
                    legal[gx, gy] = _stands(window >= z - tolerance, material, z <= bin_.tolerance, bin_)


def drop_by_windows(heights: np.ndarray, shape: Shape, bin_: Bin, z_map: np.ndarray, legal: np.ndarray) -> None:
    """Look at all placements at once through `sliding_window_view`.

    This is NumPy at its best, still one environment at a time.
    """
    p, q = shape.top.shape
    if p > bin_.cells[0] or q > bin_.cells[1]:
        return
    every = sliding_window_view(heights, (p, q))
    gx = 0
    for rows in _strides(p, bin_.cells[0], bin_.step):
        gy = 0
        for columns in _strides(q, bin_.cells[1], bin_.step):
            windows = every[rows, columns]
            part = slice(gx, gx + windows.shape[0]), slice(gy, gy + windows.shape[1])
            _judge(windows, shape, bin_, z_map[part], legal[part])
            gy += windows.shape[1]
        gx += len(every[rows])


def _judge(windows: np.ndarray, shape: Shape, bin_: Bin, z_map: np.ndarray, legal: np.ndarray) -> None:
    """`drop_by_windows` of placements on a regular grid, windows (A, B, P, Q)."""
    tolerance = np.float32(bin_.tolerance)
    if not shape.flat:
        windows = windows - shape.bottom
    z = windows.max((2, 3), initial=0.0)
    z_map[:] = z
    legal[:] = z + shape.height <= np.float32(bin_.size[2]) + tolerance
    # Most placements are decided by the share of cells in contact, so that the rule judges the others alone.
    if bin_.stability == "none":
        return
    contact = windows >= (z - tolerance)[..., None, None]
    material = np.isfinite(shape.bottom)
    share = contact.sum((2, 3)) / max(material.sum(), 1)
    enough = 0.95 if bin_.stability == "corners" else 0.50
    is_sure = (share > enough) | (z <= bin_.tolerance)
    for x, y in np.argwhere(legal & ~is_sure):
        legal[x, y] = _stands(contact[x, y], material, False, bin_)


def _stands(contact: np.ndarray, material: np.ndarray, on_floor: bool, bin_: Bin) -> bool:
    """Verdict of the bin's rule, which is none that reads centres or margins."""
    footprint = Footprint(contact, material, on_floor, _UNREAD, _UNREAD)
    return rule_of(bin_).judge(footprint)


def _positions(extent: int, cells: int, step: int) -> list[int]:
    """First cells of the placements along one axis.

    The one flush with the far wall comes last where the grid has room.
    """
    on_grid = list(range(0, cells - extent + 1, step))
    return [*on_grid, cells - extent] if _has_flush(extent, cells, step) else on_grid


def _strides(extent: int, cells: int, step: int) -> list[slice]:
    """The same positions as slices of all positions."""
    return [slice(None, None, step), slice(-1, None)][: 1 + _has_flush(extent, cells, step)]


def _has_flush(extent: int, cells: int, step: int) -> bool:
    last = cells - extent
    return last >= 0 and last % step > 0 and last // step + 1 < -(-cells // step)


class NumpyPacking:
    """One bin that restarts when its episode is over, in NumPy.

    Args:
        catalogue: The items; their maps are taken out of the tensors once.
        bin_: The bin.
        episodes: (R, T) catalogue rows, one episode after the other, −1 behind the end of each.
        visible_items: K.
        drop: How placements are looked at.
    """

    def __init__(
        self, catalogue: Catalogue, bin_: Bin, episodes: np.ndarray, visible_items: int, drop: Drop = drop_by_loop
    ) -> None:
        self.bin = bin_
        self.episodes = episodes
        self.drop = drop
        self.visible_items = visible_items
        items = np.unique(episodes)
        self.shapes = {item: shapes_of(catalogue, item) for item in items[items >= 0].tolist()}
        self.volume = catalogue.volume.cpu().numpy()
        self.shape = (visible_items, catalogue.num_orientations, *bin_.grid)
        self.episode = -1
        self.reset()

    def reset(self) -> None:
        """Begin the next episode."""
        self.episode = (self.episode + 1) % len(self.episodes)
        self.waiting = [int(item) for item in self.episodes[self.episode] if item >= 0]
        self.heights = np.zeros(self.bin.cells, np.float32)
        self.packed = np.float32(0.0)
        self._look()

    def _look(self) -> None:
        self.z_map = np.full(self.shape, self.bin.size[2], np.float32)
        self.legal = np.zeros(self.shape, bool)
        for k, item in enumerate(self.waiting[: self.visible_items]):
            for o, shape in enumerate(self.shapes[item]):
                self.drop(self.heights, shape, self.bin, self.z_map[k, o], self.legal[k, o])

    def step(self, action: int) -> tuple[np.float32, bool]:
        """Place an item.

        The episode does not restart when it is over.

        Returns:
            Reward, which is the gain in utilization, and whether the episode is over.
        """
        k, o, gx, gy = np.unravel_index(action, self.shape)
        if not self.legal[k, o, gx, gy]:
            return np.float32(0.0), True
        item = self.waiting.pop(k)
        shape = self.shapes[item][o]
        x = min(int(gx) * self.bin.step, self.bin.cells[0] - shape.top.shape[0])
        y = min(int(gy) * self.bin.step, self.bin.cells[1] - shape.top.shape[1])
        reference.place_item(self.heights, shape.top, shape.bottom, x, y, self.z_map[k, o, gx, gy])
        before = self.packed
        self.packed = before + self.volume[item]
        self._look()
        return (self.packed - before) / np.float32(self.bin.volume), not self.legal.any()

    def play(self, steps: int, rng: np.random.Generator) -> None:
        """Play random legal actions, with a restart at the end of each episode."""
        for _ in range(steps):
            legal = np.flatnonzero(self.legal)
            action = int(legal[rng.integers(len(legal))]) if len(legal) else 0
            _, is_over = self.step(action)
            if is_over:
                self.reset()


def shapes_of(catalogue: Catalogue, item: int) -> list[Shape]:
    """Return the shapes of an item in every orientation."""
    shapes = []
    for o in range(catalogue.num_orientations):
        top, bottom = reference.item_maps(catalogue, item, o)
        height = np.float32(catalogue.height[item, o].item())
        shapes.append(Shape(top, bottom, height, catalogue.flat))
    return shapes
