"""Random odd settings of every kernel.

Each launches all kernels that it concerns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from tests.envs.packing.kernels.access_checker import AccessChecker
from tests.envs.packing.kernels.hostile import (
    hostile_actions,
    hostile_items,
    hostile_placement,
    hostile_state,
    hostile_stored,
    wild,
)
from tests.envs.packing.kernels.test_triton_parity import turned_solids
from tests.envs.packing.scenes import CELL, RULES, Scene, bin_of, pile, scene_in
from torchrl_gpu.envs.packing.kernels.triton import kernels as triton_kernels
from torchrl_gpu.envs.packing.kernels.triton import solids as triton_solids
from torchrl_gpu.envs.packing.types import StoredMaps

KINDS = ("boxes", "solids", "turned", "boxes as solids")
BATCHES = (1, 1, 3)
# Cells along x from which on boxes have a kernel of their own.
WIDE = 17


class OddScene(NamedTuple):
    """A scene, and the numbers out of range that its kernels are called with.

    Attributes:
        scene: Its items are no row of the catalogue or empty slots in part.
        rng: Decides the rest.
        pairs: Whether heights are counted in pairs where the catalogue has a unit; else not at all, as on devices
            where it would not pay.
    """

    scene: Scene
    rng: np.random.Generator
    pairs: bool


def odd_scene(seed: int) -> OddScene:
    """Build a scene from a seed.

    Kinds, rules and batches take turns, and the rest is drawn.
    """
    rng = np.random.default_rng(seed)
    kind, rule = KINDS[seed % len(KINDS)], RULES[seed // len(KINDS) % len(RULES)]
    num_envs = BATCHES[seed % len(BATCHES)]
    wide = kind == "boxes" and rng.random() < 0.5
    cells = (int(rng.integers(WIDE, 21)) if wide else int(rng.integers(1, 8)), int(rng.integers(1, 5 if wide else 8)))
    step = int(rng.integers(1, min(*cells, 5) + 1))
    bin_ = bin_of(cells, step=step, stability=rule, levels=int(rng.integers(3, 9)))
    # Four orientations, whose extents are shared by twos.
    if kind == "turned":
        sides = int(rng.integers(1, min(cells) + 1)), int(rng.integers(1, min(cells) + 1))
        catalogue = turned_solids(rng, sides, None)
        item_id = torch.from_numpy(rng.integers(-1, 3, (num_envs, int(rng.integers(1, 3)))))
        s = Scene(pile(rng, num_envs, bin_), item_id, catalogue, bin_)
    else:
        s = scene_in(bin_, rng, kind, num_envs=num_envs, most_orientations=2, most_visible=2)
    if kind != "boxes" and rng.random() < 0.6:
        s = s.counted(CELL)
    # One bin cannot be counted.
    if rng.random() < 0.5:
        s.heightmap[0, 0, 0] += CELL / 96
    if rng.random() < 0.6:
        s = hostile_items(s, rng)
    return OddScene(s, rng, bool(rng.random() < 0.8))


def launch_all(odd: OddScene) -> None:
    """Run every kernel on the scene.

    They make maps anew and from stored ones, growth, a placement, an action and a restart.
    """
    s, rng, _pairs = odd
    maps = triton_kernels.drop_map(*s)
    if s.catalogue.flat:
        bears = torch.from_numpy(rng.random(tuple(s.heightmap.shape)) < 0.7)
        bearing = replace(s.bin_, stability="load_bearing")
        triton_kernels.upheld(s.heightmap, bears, *maps, s.item_id, s.catalogue, bearing)
    # Of boxes nothing is kept.
    if not s.catalogue.flat:
        triton_kernels.drop_map(*s, hostile_stored(s, maps, rng))
        slot = torch.from_numpy(rng.integers(-1, s.item_id.shape[1], tuple(s.item_id.shape)))
        corner = torch.tensor([[0, 0, 1, 1]]).repeat(len(s.heightmap), 1)
        triton_kernels.drop_map(*s, StoredMaps(*maps, slot, corner))
    triton_kernels.pile_growth(s.heightmap, s.item_id, maps[0], s.catalogue, s.bin_)
    triton_kernels.place(s.heightmap, hostile_placement(s, rng, 0.1), s.catalogue, s.bin_)
    state = hostile_state(s, rng)
    following = wild(rng, (len(s.heightmap),), 0, s.catalogue.num_items)
    triton_kernels.advance(state, hostile_actions(state, rng), following, s.catalogue, s.bin_)
    mask = torch.from_numpy(rng.random(len(s.heightmap)) < 0.5)
    triton_kernels.restart(state, mask, state.key, hostile_items(s, rng).item_id, s.catalogue, s.bin_)


def check(seeds: range, replace_attribute: Callable[[object, str, object], None]) -> AccessChecker:
    """Run the kernels on the scenes of some seeds, with every access checked.

    `replace_attribute` is that of `monkeypatch`.
    """
    checker = AccessChecker()
    for seed in seeds:
        odd = odd_scene(seed)
        packed = False if odd.pairs else None
        replace_attribute(triton_solids, "_packed", lambda device, packed=packed: packed)
        with checker:
            launch_all(odd)
    return checker
