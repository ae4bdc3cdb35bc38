"""Random bins, items and piles for the tests of the kernels.

Lengths are multiples of 1/8 m, so that sums are exact.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from tests.records import with_values
from torchrl_gpu.envs.packing.stability.footprints import Footprint
from torchrl_gpu.envs.packing.types import STABILITY_RULES, Bin, Catalogue, height_rules

RULES = height_rules()
LAW = settings(max_examples=40, deadline=None, derandomize=True, database=None)
CELL = 0.125


def judge(
    contact: np.ndarray,
    rule: str,
    *,
    material: np.ndarray | None = None,
    on_floor: bool = False,
    centre: np.ndarray | None = None,
) -> bool:
    """Judge one item by the definition of a stability rule.

    By default the item fills its footprint.
    """
    middle = 8 * np.array(contact.shape)
    material = np.ones_like(contact) if material is None else material
    centre = middle if centre is None else centre
    footprint = Footprint(contact, material, on_floor, centre, np.zeros(2, dtype=np.int64))
    return STABILITY_RULES[rule].judge(footprint)


class Scene(NamedTuple):
    heightmap: Tensor  # (N, X, Y)
    item_id: Tensor  # (N, K)
    catalogue: Catalogue
    bin_: Bin

    def to(self, device: torch.device | str) -> Scene:
        catalogue = self.catalogue.to(torch.device(device))
        return Scene(self.heightmap.to(device), self.item_id.to(device), catalogue, self.bin_)

    def under(self, **changes: object) -> Scene:
        fields = {name: getattr(self.bin_, name) for name in ("size", "cells", "step", "stability")}
        return with_values(self, bin_=Bin(**fields | changes))

    def counted(self, unit: float | None) -> Scene:
        return with_values(self, catalogue=replace(self.catalogue, unit=unit))


def bin_of(cells: tuple[int, int], *, step: int = 1, stability: str = "none", levels: int = 8) -> Bin:
    return Bin((cells[0] * CELL, cells[1] * CELL, levels * CELL), cells, step, stability)


def boxes(rng: np.random.Generator, bin_: Bin, num_items: int, num_orientations: int) -> Catalogue:
    """Build boxes up to a cell larger than the bin.

    The first is as large as the bin, and the second is a single cell.
    """
    largest = np.array([*bin_.cells, 4])
    sizes = rng.integers(1, largest + 2, (num_items, num_orientations, 3))
    sizes[0] = largest
    if num_items > 1:
        sizes[1] = 1
    metres = torch.from_numpy(sizes * np.array([1, 1, CELL]))
    return Catalogue.of_boxes(metres, torch.from_numpy(sizes.prod(-1).min(1) * CELL**3))


def solids(rng: np.random.Generator, bin_: Bin, num_items: int, num_orientations: int) -> Catalogue:
    """Build random tops, bottoms with holes and centres of mass.

    The first solid is as large as the bin, and one orientation is without material.
    """
    p, q = bin_.cells
    extent = rng.integers(1, np.array([p, q]) + 1, (num_items, num_orientations, 2))
    extent[0] = p, q
    inside = np.arange(p)[:, None] < extent[..., :1, None]
    inside = inside & (np.arange(q) < extent[..., 1:, None])
    material = inside & (rng.random(inside.shape) < 0.75)
    material[..., 0, 0] = True
    material[-1, -1] = False
    low = rng.integers(0, 3, material.shape)
    low -= np.where(material, low, 99).min((-1, -2), keepdims=True).clip(0, 2)
    high = low + rng.integers(1, 4, material.shape)
    top = torch.from_numpy(np.where(material, high, 0) * CELL).float()
    bottom = torch.from_numpy(np.where(material, low * CELL, np.inf)).float()
    volume = torch.from_numpy(np.where(material, high - low, 0).sum((-1, -2)).min(-1) * CELL**3)
    centre = centres(rng.spawn(1)[0], extent)
    return Catalogue.of_maps(top, bottom, torch.from_numpy(extent), volume, centre=centre)


def centres(rng: np.random.Generator, extent: np.ndarray) -> Tensor:
    """Draw centres of mass within footprints (M, O, 2) in cells, metres.

    Half of them are on corners, edges and middles of cells, where it is close whether they are held.
    """
    cells = rng.random(extent.shape) * extent
    cells = np.where(rng.random(extent.shape) < 0.5, (2 * cells).round() / 2, cells)
    return torch.from_numpy(cells * CELL).float()


def as_solids(catalogue: Catalogue, unit: float | None = None) -> Catalogue:
    item, orientation = torch.arange(catalogue.num_items)[:, None], torch.arange(catalogue.num_orientations)
    return Catalogue.of_maps(*catalogue.maps(item, orientation), catalogue.extent, catalogue.volume, unit)


def pile(rng: np.random.Generator, num_envs: int, bin_: Bin, highest: int = 3) -> Tensor:
    """Build heightmaps of blocks a few cells wide.

    So items find corners, edges and overhangs to rest on.
    """
    width = int(rng.integers(1, 4))
    blocks = rng.integers(0, highest + 1, (num_envs, *(-(-c // width) for c in bin_.cells)))
    heights = blocks.repeat(width, 1).repeat(width, 2)[:, : bin_.cells[0], : bin_.cells[1]]
    return torch.from_numpy(heights * CELL).float()


def scene(seed: int, kind: str, *, stability: str = "none", num_envs: int = 2) -> Scene:
    """A random scene of "boxes", "solids", or "boxes as solids"."""
    rng = np.random.default_rng(seed)
    cells = tuple(int(c) for c in rng.integers(1, 10, 2))
    bin_ = bin_of(cells, step=int(rng.integers(1, min(cells) + 1)), stability=stability, levels=int(rng.integers(4, 8)))
    return scene_in(bin_, rng, kind, num_envs=num_envs)


def scene_in(
    bin_: Bin,
    rng: np.random.Generator,
    kind: str,
    *,
    num_envs: int = 2,
    most_items: int = 5,
    most_orientations: int = 3,
    most_visible: int = 3,
) -> Scene:
    num_items, num_orientations = int(rng.integers(1, most_items + 1)), int(rng.integers(1, most_orientations + 1))
    make = solids if kind == "solids" else boxes
    catalogue = make(rng, bin_, num_items, num_orientations)
    if kind == "boxes as solids":
        catalogue = as_solids(catalogue)
    num_visible = int(rng.integers(1, most_visible + 1))
    item_id = torch.from_numpy(rng.integers(-1, num_items, (num_envs, num_visible)))
    return Scene(pile(rng, num_envs, bin_), item_id, catalogue, bin_)


KINDS = ("boxes", "solids")
SCENES = st.builds(scene, st.integers(0, 2**32 - 1), st.sampled_from(KINDS), stability=st.sampled_from(RULES))
