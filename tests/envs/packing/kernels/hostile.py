"""Values that no environment gives: numbers out of every range.

All kernels must survive them, with the same results.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.envs.packing.kernels.parity import assert_placed
from tests.envs.packing.kernels.test_transition import CPU, assert_advance_agrees, assert_restart_agrees, state_of
from tests.envs.packing.scenes import CELL, Scene, scene
from tests.records import with_values
from torchrl_gpu.envs.packing.kernels import reference
from torchrl_gpu.envs.packing.types import PackingState, Placement, StoredMaps

WILD = (-1, -2, -7, -50, -(2**31), -(2**63), 2**31 - 1, 2**31, 2**32, 10**9, 10**12, 2**63 - 1)


def wild(rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int, share: float = 0.5) -> Tensor:
    """Draw integers in [low, high), and replace a share of them by others.

    Those are in no range, or just outside this one.
    """
    odd = np.array([*WILD, low - 1, high, high + 1], dtype=np.int64)
    fine = rng.integers(low, max(high, low + 1), shape)
    return torch.from_numpy(np.where(rng.random(shape) < share, rng.choice(odd, shape), fine))


def hostile_items(s: Scene, rng: np.random.Generator) -> Scene:
    """The scene with items of which about half are no row of its catalogue."""
    return with_values(s, item_id=wild(rng, tuple(s.item_id.shape), 0, s.catalogue.num_items))


def hostile_placement(s: Scene, rng: np.random.Generator, share: float = 0.2) -> Placement:
    """Placements, most of which are not of this catalogue or not inside the bin."""
    n = len(s.heightmap)
    ranges = (s.catalogue.num_items, s.catalogue.num_orientations, *s.bin_.cells)
    item_id = wild(rng, (n,), 0, ranges[0], share)
    orientation = wild(rng, (n,), 0, ranges[1], share)
    x = wild(rng, (n,), 0, ranges[2], share)
    y = wild(rng, (n,), 0, ranges[3], share)
    return Placement(item_id, orientation, x, y, torch.from_numpy(rng.integers(0, 5, n) / 8).float())


def hostile_stored(s: Scene, maps: tuple[Tensor, Tensor], rng: np.random.Generator) -> StoredMaps:
    changed = wild(rng, (len(s.heightmap), 4), 0, max(s.bin_.cells) + 1)
    return StoredMaps(*maps, wild(rng, tuple(s.item_id.shape), 0, s.item_id.shape[1]), changed)


def hostile_state(s: Scene, rng: np.random.Generator) -> PackingState:
    """Build a state of a scene of hostile items.

    Counters have any size, and a mask is true where it should not be.
    """
    state = state_of(s, rng)
    n = len(s.heightmap)
    wrong = torch.from_numpy(rng.random(state.legal.shape) < 0.5)
    counters = {name: wild(rng, (n,), 0, 5) for name in ("position", "key", "episode", "num_packed", "step_count")}
    return replace(state, legal=state.legal | wrong, **counters)


def hostile_actions(state: PackingState, rng: np.random.Generator) -> Tensor:
    return wild(rng, (len(state.heightmap),), 0, state.legal[0].numel(), 0.3)


def assert_steps_agree(kernels: Any, kind: str, seeds: Iterable[int], device: torch.device = CPU) -> None:
    """Actions and restarts of hostile states are those of the torch form."""
    legal = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        s = hostile_items(scene(seed, kind, num_envs=5).counted(CELL), rng)
        state = hostile_state(s, rng)
        action, following = hostile_actions(state, rng), wild(rng, (5,), 0, s.catalogue.num_items)
        legal += int(assert_advance_agrees(kernels, s, state, action, following, device).legal.sum())
        mask = torch.from_numpy(rng.random(5) < 0.5)
        assert_restart_agrees(kernels, s, state, mask, state.key, hostile_items(s, rng).item_id, device)
    assert legal > 3


def assert_nothing_outside_is_placed(kernels: Any, kind: str, seeds: Iterable[int], device: torch.device = CPU) -> None:
    placed = 0
    for seed in seeds:
        s = scene(seed, kind, num_envs=5)
        came = assert_placed(kernels, s, hostile_placement(s, np.random.default_rng(seed), 0.05), device)
        placed += int((came != s.heightmap).any())
    assert placed > 1


def assert_no_slot_is_kept(kernels: Any, s: Scene, rng: np.random.Generator, device: torch.device = CPU) -> None:
    """Check stored maps of hostile slots.

    They crash nothing, and those of slots out of range are not kept.
    """
    maps, there = reference.drop_map(*s), s.to(device)
    z_map, legal = kernels.drop_map(*there, _there(hostile_stored(s, maps, rng), device))
    assert z_map.shape == legal.shape == maps[0].shape
    stored = hostile_stored(s, (torch.full_like(maps[0], 77.0), ~maps[1]), rng)
    nowhere = torch.where(stored.slot < 0, stored.slot, stored.slot.clamp_min(s.item_id.shape[1]))
    came = kernels.drop_map(*there, _there(with_values(stored, slot=nowhere), device))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(came, maps, strict=True))


def _there(stored: StoredMaps, device: torch.device) -> StoredMaps:
    return StoredMaps(*(field.to(device) for field in stored))
