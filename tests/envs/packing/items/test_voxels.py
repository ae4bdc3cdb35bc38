"""From voxels to heightmaps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from trimesh import Trimesh

from torchrl_gpu.envs.packing.items.voxels import boxes_of, heightmaps, solid_of
from torchrl_gpu.envs.packing.rotations import orientation_set, turn
from torchrl_gpu.envs.packing.types import Bin

# Cells of 1/8 m.
BIN = Bin((2.0, 2.0, 2.0), (16, 16))
CELL = 0.125


def random_solid(seed: int, size: tuple[int, int, int] = (4, 3, 5)) -> np.ndarray:
    solid = np.random.default_rng(seed).random(size) < 0.4
    solid[0, 0, 0] = solid[-1, -1, -1] = True
    return solid


def test_heightmaps_by_hand() -> None:
    # An L on its back: 2×1 cells long, 3 high; a foot at x = 1 that hangs at the top.
    solid = np.zeros((2, 1, 3), dtype=bool)
    solid[0], solid[1, 0, 2] = True, True
    catalogue = heightmaps([solid], np.eye(3)[None], BIN)
    assert catalogue.extent.tolist() == [[[2, 1]]]
    assert (catalogue.top[0, 0, :, 0] / CELL).tolist() == [3, 3]
    assert (catalogue.bottom[0, 0, :, 0] / CELL).tolist() == [0, 2]
    assert catalogue.height.item() == 3 * CELL
    assert catalogue.volume.item() == pytest.approx(4 * CELL**3)


def test_cells_without_material_have_no_bottom() -> None:
    ring = np.ones((3, 3, 1), dtype=bool)
    ring[1, 1] = False
    catalogue = heightmaps([ring], np.eye(3)[None], BIN)
    assert catalogue.bottom[0, 0, 1, 1] == torch.inf
    assert catalogue.top[0, 0, 1, 1] == 0


def test_empty_layers_around_a_solid_do_not_count() -> None:
    solid = random_solid(0)
    padded = np.pad(solid, ((1, 2), (0, 3), (2, 1)))
    plain = heightmaps([solid], np.eye(3)[None], BIN)
    loose = heightmaps([padded], np.eye(3)[None], BIN)
    assert torch.equal(plain.top, loose.top)
    assert torch.equal(plain.bottom, loose.bottom)
    assert torch.equal(plain.extent, loose.extent)


def turned_by_points(solid: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    centres = np.argwhere(solid) + 0.5 - np.array(solid.shape) / 2
    carried = centres @ rotation.T
    size = np.abs(rotation @ np.array(solid.shape)).round().astype(int)
    out = np.zeros(size, dtype=bool)
    out[tuple(np.floor(carried + size / 2).astype(int).T)] = True
    return out


@pytest.mark.parametrize("seed", range(3))
def test_quarter_turns_are_exact(seed: int) -> None:
    solid = random_solid(seed)
    rotations = orientation_set("cube", boxes=False)
    catalogue = heightmaps([solid], rotations, BIN)
    for o, rotation in enumerate(rotations):
        expected = heightmaps([turned_by_points(solid, rotation)], np.eye(3)[None], BIN)
        p, q = catalogue.extent[0, o].tolist()
        assert expected.extent[0, 0].tolist() == [p, q]
        assert torch.equal(catalogue.top[0, o, :p, :q], expected.top[0, 0])
        assert torch.equal(catalogue.bottom[0, o, :p, :q], expected.bottom[0, 0])
    assert catalogue.volume.item() == pytest.approx(solid.sum() * CELL**3)


def test_other_turns_hold_every_turned_voxel() -> None:
    # Points throughout the voxels, turned, lie between bottom and top of their cells; heights are no whole voxels.
    solid = random_solid(2)
    rotations = np.stack([turn(0, 0, 0), turn(0, 0, 30), turn(50, 20, 10)])
    catalogue = heightmaps([solid], rotations, BIN)
    assert catalogue.unit is None
    assert catalogue.volume.item() == pytest.approx(solid.sum() * CELL**3)
    offsets = np.stack(np.meshgrid(*[np.linspace(0.01, 0.99, 4)] * 3, indexing="ij"), -1).reshape(-1, 3)
    points = (np.argwhere(solid)[:, None] + offsets).reshape(-1, 3) * CELL
    corners = solid_of("", solid, CELL).vertices
    for o, rotation in enumerate(rotations):
        x, y, z = (points @ rotation.T - (corners @ rotation.T).min(0)).T
        place = o, (x / CELL).astype(int), (y / CELL).astype(int)
        assert (catalogue.bottom[0].numpy()[place] <= z + 1e-6).all()
        assert (catalogue.top[0].numpy()[place] >= z - 1e-6).all()


def test_a_disc_is_about_as_large_after_any_turn() -> None:
    # A cylinder looks the same after any turn about its axis, but for cells at its rim.
    axis = (np.arange(21) + 0.5) / 21 * 2 - 1
    disc = (axis[:, None] ** 2 + axis**2 <= 0.95)[..., None].repeat(4, 2)
    bin_ = Bin((4.0, 4.0, 4.0), (32, 32))
    catalogue = heightmaps([disc], np.stack([turn(0, 0, 0), turn(0, 0, 30)]), bin_)
    counts = catalogue.bottom[0].isfinite().sum((-1, -2)).tolist()
    # Cells that a circle of 21 cells across passes, at most.
    rim = 4 * 21
    assert counts[0] < counts[1] < counts[0] + rim
    assert catalogue.height[0].tolist() == pytest.approx([4 * CELL, 4 * CELL])


def test_quarter_turns_are_the_same_by_either_way() -> None:
    solid = random_solid(3)
    rotations = orientation_set("yaw", boxes=False)
    quarter = heightmaps([solid], rotations, BIN)
    among = heightmaps([solid], np.concatenate([rotations, turn(0, 0, 30)[None]]), BIN)
    for o in range(4):
        p, q = quarter.extent[0, o].tolist()
        assert among.extent[0, o].tolist() == [p, q]
        for one, other in ((quarter.top, among.top), (quarter.bottom, among.bottom)):
            assert torch.allclose(one[0, o, :p, :q], other[0, o, :p, :q], atol=1e-6)
        assert torch.allclose(quarter.centre[0, o], among.centre[0, o], atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_centres_are_those_of_the_solid(seed: int) -> None:
    solid = random_solid(seed)
    made = solid_of("", solid, CELL)
    rotations = orientation_set("cube", boxes=False)
    catalogue = heightmaps([solid], rotations, BIN)
    for o, rotation in enumerate(rotations):
        expected = rotation @ made.centre - (made.vertices @ rotation.T).min(0)
        assert catalogue.centre[0, o].tolist() == pytest.approx(expected[:2].tolist(), abs=1e-6)


# -- boxes and surfaces -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_boxes_fill_the_voxels_without_overlap(seed: int) -> None:
    solid = random_solid(seed, (7, 6, 5))
    covered = np.zeros(solid.shape, dtype=int)
    for low, high in boxes_of(solid):
        covered[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] += 1
    assert np.array_equal(covered, solid.astype(int))


def test_boxes_by_hand() -> None:
    solid = np.ones((3, 4, 5), dtype=bool)
    assert boxes_of(solid).tolist() == [[[0, 0, 0], [3, 4, 5]]]
    # An L.
    solid[1:, :, 2:] = False
    assert boxes_of(solid).tolist() == [[[0, 0, 0], [1, 4, 5]], [[1, 0, 0], [3, 4, 2]]]
    assert boxes_of(np.zeros((2, 2, 2), dtype=bool)).shape == (0, 2, 3)


@pytest.mark.parametrize("seed", range(4))
def test_surfaces_are_closed_and_hold_the_voxels(seed: int) -> None:
    solid = random_solid(seed)
    made = solid_of("name", solid, CELL)
    mesh = Trimesh(made.vertices, made.faces, process=False)
    counts = np.unique(np.sort(mesh.edges, 1), axis=0, return_counts=True)[1]
    assert (counts % 2 == 0).all()
    assert mesh.volume == pytest.approx(made.volume) == pytest.approx(solid.sum() * CELL**3)
    assert mesh.center_mass == pytest.approx(made.centre)
    assert sum(np.ptp(part, 0).prod() for part in made.parts) == pytest.approx(made.volume)
    faces = sum(np.abs(np.diff(np.pad(solid, 1).astype(int), axis=axis)).sum() for axis in range(3))
    assert len(made.faces) == 2 * faces


def test_an_item_as_large_as_the_bin_fits() -> None:
    # 25 · 0.004 is not 0.1 to the last bit.
    bin_ = Bin((0.1, 0.1, 0.1), (25, 25))
    catalogue = heightmaps([np.ones((25, 25, 25), dtype=bool)], np.eye(3)[None], bin_)
    assert catalogue.extent.tolist() == [[[25, 25]]]


def test_an_item_larger_than_the_bin_is_named() -> None:
    small, large = np.ones((2, 2, 2), dtype=bool), np.ones((2, 17, 3), dtype=bool)
    heightmaps([np.ones((2, 3, 17), dtype=bool)], orientation_set("axis", boxes=False), Bin((2.0, 3.0, 2.0), (16, 24)))
    with pytest.raises(ValueError) as error:
        heightmaps([small, large], orientation_set("yaw", boxes=False), BIN)
    assert str(error.value) == (
        "heightmaps: every item must fit the bin of (16, 16) cells × 2.0 m in some orientation;"
        " item 1 has [2, 17] cells × 0.375 m"
    )


def test_an_empty_solid_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^heightmaps: .*empty$"):
        heightmaps([np.zeros((2, 2, 2), dtype=bool)], np.eye(3)[None], BIN)
