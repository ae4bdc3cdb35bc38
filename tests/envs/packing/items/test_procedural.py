"""Solids made on the spot."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.envs.packing.items.procedural import SHAPES, bowl, hull, mug, u_shape
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.envs.packing.types import Bin

SIZE = np.array([40, 40, 40])
BIN = Bin((0.4, 0.4, 0.3), (50, 50), step=4)


def made(shape: object, seed: int = 0) -> np.ndarray:
    return shape(SIZE, np.random.default_rng(seed))  # type: ignore[operator]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_material_at_every_size(shape: Callable[..., np.ndarray]) -> None:
    for seed, size in itertools.product(range(5), [(3, 3, 3), (3, 4, 3), (5, 9, 4), (30, 12, 20)]):
        solid = shape(np.array(size), np.random.default_rng(seed))
        assert solid.shape == size
        assert solid.dtype == bool
        assert solid.any()


@pytest.mark.parametrize("shape", [bowl, mug, u_shape])
def test_containers_are_open_at_the_top_and_closed_at_the_bottom(shape: object) -> None:
    column = made(shape)[15 if shape is mug else 20, 20]
    assert column.any()
    assert not column[-1]
    # The floor is in the lower half.
    assert column.argmax() < 20


def test_hulls_are_convex_along_every_axis() -> None:
    solid = made(hull)
    for axis in range(3):
        changes = np.abs(np.diff(solid.astype(int), axis=axis, prepend=0, append=0)).sum(axis)
        assert (changes <= 2).all()


def test_shapes_take_turns_and_sizes_stay_in_range() -> None:
    source = ProceduralSolids(num_objects=18, min_size=0.1, max_size=0.2, scale=(0.5, 2.0))
    solids = source.solids(0.01)
    assert len(solids) == 18
    sides = np.array([solid.shape for solid in solids])
    # 0.1 m · 0.5.
    assert sides.min() >= 5
    # 0.2 m · 2.0.
    assert sides.max() <= 40
    assert sides.max() > 2 * sides.min()


def test_the_seed_decides_the_objects() -> None:
    first = ProceduralSolids(6, seed=0).solids(0.01)
    again = ProceduralSolids(6, seed=0).solids(0.01)
    other = ProceduralSolids(6, seed=1).solids(0.01)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_some_shapes_alone() -> None:
    source = ProceduralSolids(4, shapes=["mug", "hull"]).reseeded(5)
    assert [source.solid(i, BIN).name for i in range(4)] == ["mug-0", "hull-1", "mug-2", "hull-3"]
    assert source.reseeded(6).shapes == ["mug", "hull"]
    every = ProceduralSolids(6, shapes=[shape.__name__ for shape in SHAPES]).solids(0.01)
    assert all(np.array_equal(a, b) for a, b in zip(every, ProceduralSolids(6).solids(0.01), strict=True))


def test_the_catalogue_has_every_object_in_every_orientation() -> None:
    source = ProceduralSolids(num_objects=7)
    catalogue, stream = source.build(BIN, "axis", 12, 3)
    assert (catalogue.num_items, catalogue.num_orientations, stream.length) == (7, 6, 12)
    assert not catalogue.flat
    expected = [solid.sum() * 0.008**3 for solid in source.solids(0.008)]
    assert catalogue.volume.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("orientations", ["axis", 45.0])
def test_solids_are_what_the_catalogue_was_made_of(orientations: str | float) -> None:
    source = ProceduralSolids(num_objects=6, max_size=0.08)
    catalogue, _ = source.build(BIN, orientations, 1, 1)
    for m in range(6):
        solid = source.solid(m, BIN)
        assert solid is source.solid(m, BIN)
        assert solid.name == f"{SHAPES[m].__name__}-{m}"
        assert catalogue.volume[m].item() == pytest.approx(solid.volume, rel=1e-5)
        for o, rotation in enumerate(orientation_set(orientations, boxes=False)[:30]):
            size = np.ptp(solid.vertices @ rotation.T, 0)
            p, q = catalogue.extent[m, o].tolist()
            assert (p, q) == tuple(np.ceil(size[:2] / BIN.cell[0] - 1e-3))
            assert catalogue.height[m, o].item() == pytest.approx(size[2], abs=1e-5)


def test_cells_must_be_square() -> None:
    with pytest.raises(ValueError, match=r"^ProceduralSolids: cells .*square.*\(0.1, 0.2\) m$"):
        ProceduralSolids().build(Bin((1.0, 1.0, 1.0), (10, 5)), "fixed", 1, 1)


def test_solids_too_large_for_the_bin_are_named() -> None:
    with pytest.raises(ValueError, match=r"^heightmaps: .*item .*fit .*bin"):
        ProceduralSolids(2, min_size=0.5, max_size=0.6).build(BIN, "yaw", 1, 1)
