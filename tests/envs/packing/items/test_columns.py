"""Solids seen along columns."""

from __future__ import annotations

import numpy as np
import pytest
from trimesh import Trimesh, creation

from torchrl_gpu.envs.packing.items import columns
from torchrl_gpu.envs.packing.items.columns import crossings, union, voxelised
from torchrl_gpu.envs.packing.rotations import turn


def moved(made: Trimesh, x: float = 0, y: float = 0, z: float = 0) -> np.ndarray:
    return np.array(made.triangles) + np.array([x, y, z])


CUBE = creation.box((1, 1, 1))
SOLIDS = {
    "box": creation.box((1, 2, 3)),
    "ball": creation.icosphere(subdivisions=3),
    "ring": creation.torus(1.0, 0.3),
    "tube": creation.annulus(0.5, 1.0, 2.0),
}


@pytest.mark.parametrize("name", SOLIDS)
def test_a_single_solid_holds_its_signed_volume(name: str) -> None:
    solid = SOLIDS[name]
    triangles = np.array(solid.triangles) @ turn(70, 40, 5).T
    volume, centre = union(triangles)
    assert volume == pytest.approx(solid.volume, rel=5e-4)
    assert np.abs(centre).max() < 5e-4 * np.ptp(triangles)


def test_columns_follow_the_number_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []
    seen = columns.crossings
    monkeypatch.setattr(columns, "crossings", lambda t, x, y: numbers.append(x) or seen(t, x, y))
    # A long chain of overlapping cubes: 160 columns along it would hardly meet them.
    chain = np.concatenate([moved(CUBE, x=0.9 * k, y=0.01 * k) for k in range(400)])
    assert union(chain, parts=400)[0] == pytest.approx(400 - 399 * 0.1 * 0.99, rel=0.02)
    # Many cubes in one place: each column would pass all of them.
    monkeypatch.setattr(columns, "_MOST_PASSED", 20_000)
    assert union(np.tile(moved(CUBE), (200, 1, 1)), parts=200)[0] == pytest.approx(1, rel=0.05)
    union(moved(CUBE))
    assert numbers[0] > 160 > numbers[1]
    assert numbers[2] <= 160


@pytest.mark.parametrize("seed", range(5))
def test_closed_surfaces_are_left_as_often_as_entered(seed: int) -> None:
    # Vertices on the axes of columns and edges along them are where a test of points in triangles counts twice or not.
    rng = np.random.default_rng(seed)
    ball = creation.icosphere(subdivisions=2)
    triangles = np.round(ball.vertices @ turn(*rng.uniform(0, 90, 3)).T * 4 + 4.5)[ball.faces] + 0.5
    found = crossings(triangles, 12, 12)
    sums = np.zeros((12, 12))
    np.add.at(sums, (found.x, found.y), found.enters)
    assert len(found.x) > 50
    assert (sums == 0).all()


def test_voxels_of_a_box_fill_it() -> None:
    occupied, corner, side = voxelised(moved(creation.box((1, 2, 4)), x=5), longest=16)
    assert occupied.shape == (4, 8, 16)
    assert occupied.all()
    assert corner == pytest.approx([4.5, -1, -2])
    assert side == pytest.approx(0.25)


def test_voxels_are_those_whose_centres_are_inside() -> None:
    occupied, corner, side = voxelised(np.array(SOLIDS["ball"].triangles), longest=21)
    centres = corner + (np.stack(np.indices(occupied.shape), -1) + 0.5) * side
    distance = np.linalg.norm(centres, axis=-1)
    assert occupied[distance < 0.98].all()
    assert not occupied[distance > 1].any()
