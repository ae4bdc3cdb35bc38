"""The rasteriser against its definition, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trimesh import Trimesh, creation

from tests.envs.packing.items.naive_raster import naive_maps
from torchrl_gpu.envs.packing.items import rasterise as module
from torchrl_gpu.envs.packing.items import segments
from torchrl_gpu.envs.packing.items.rasterise import Heightmaps, Mesh, joined, rasterise, turned_centres
from torchrl_gpu.envs.packing.items.segments import EDGE
from torchrl_gpu.envs.packing.rotations import orientation_set, turn

CELL = (0.002, 0.002)
FIXED = np.eye(3)[None]
CUBE = orientation_set("cube", boxes=False)
SOME = CUBE[[7, 14]]
SLANTED = np.stack([turn(0, 0, 0), turn(30, 0, 45), turn(13, 57, 91)])


def mesh_of(made: Trimesh) -> Mesh:
    return np.array(made.vertices), np.array(made.faces)


def turned(mesh: Mesh, rotation: np.ndarray) -> Mesh:
    return mesh[0] @ rotation.T, mesh[1]


def prism(outline: list[tuple[float, float]], height: float) -> Mesh:
    """Build a solid over a convex outline in cells, metres.

    The outline is counter-clockwise.
    """
    n = len(outline)
    floor = np.array([(x * CELL[0], y * CELL[1], 0.0) for x, y in outline])
    sides = [(k, (k + 1) % n, n + k) for k in range(n)]
    sides += [((k + 1) % n, n + (k + 1) % n, n + k) for k in range(n)]
    ends = [(0, k + 1, k) for k in range(1, n - 1)] + [(n, n + k, n + k + 1) for k in range(1, n - 1)]
    return np.concatenate([floor, floor + np.array([0, 0, height])]), np.array(sides + ends)


def together(*meshes: Mesh) -> Mesh:
    return joined(meshes)


BOARD = mesh_of(creation.box((0.03, 0.01, 0.01)))
MESHES = {"box": mesh_of(creation.box((0.021, 0.03, 0.0113)))}
MESHES["ball"] = mesh_of(creation.icosphere(subdivisions=2, radius=0.0107))
MESHES["cone"] = mesh_of(creation.cone(0.01, 0.02, sections=4))
MESHES["ring"] = mesh_of(creation.torus(0.02, 0.008, major_sections=14, minor_sections=8))
MESHES["tube"] = mesh_of(creation.annulus(0.008, 0.01, 0.03, sections=18))
MESHES["overlapping"] = together(BOARD, turned(BOARD, turn(0, 40, 30)))


def assert_defined(maps: Heightmaps, mesh: Mesh, rotations: np.ndarray, cell: tuple[float, float]) -> None:
    for o, rotation in enumerate(rotations):
        top, bottom = naive_maps(*turned(mesh, rotation), cell)
        p, q = maps.extent[o].tolist()
        assert (p, q) == top.shape
        material = np.isfinite(bottom)
        found = [each[o].cpu().double().numpy() for each in maps[:2]]
        assert np.array_equal(np.isfinite(found[1][:p, :q]), material)
        assert np.abs(found[0][:p, :q] - np.where(material, top, 0.0)).max() < 1e-8
        assert np.abs(found[1][:p, :q][material] - bottom[material]).max(initial=0.0) < 1e-8
        outside = np.ones(found[0].shape, dtype=bool)
        outside[:p, :q] = False
        assert (found[0][outside] == 0).all()
        assert (found[1][outside] == np.inf).all()


@pytest.mark.parametrize("name", MESHES)
def test_parity_with_the_definition(name: str, device: torch.device) -> None:
    (maps,) = rasterise([MESHES[name]], SOME, CELL, device)
    assert maps.top.device.type == device.type
    assert_defined(maps, MESHES[name], SOME, CELL)


@pytest.mark.parametrize("name", ["box", "ring"])
def test_parity_on_oblong_cells_and_slanted(name: str, device: torch.device) -> None:
    cell = (0.002, 0.0033)
    (maps,) = rasterise([MESHES[name]], SLANTED, cell, device)
    assert_defined(maps, MESHES[name], SLANTED, cell)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0005, 0.003, 0.012]), st.booleans())
def test_parity_on_any_triangles(seed: int, size: float, snapped: bool) -> None:
    # Loose triangles, some without area, on the grid or off it: vertical ones, tiny ones, edges along borders.
    rng = np.random.default_rng(seed)
    vertices = rng.normal(size=(rng.integers(3, 20), 3)) * size
    if snapped:
        vertices = np.round(vertices / 0.001) * 0.001
    mesh = vertices, rng.integers(0, len(vertices), (25, 3))
    mesh = mesh[0][np.unique(mesh[1])], np.unique(mesh[1], return_inverse=True)[1].reshape(-1, 3)
    (maps,) = rasterise([mesh], SOME, CELL)
    assert_defined(maps, mesh, SOME, CELL)


@pytest.mark.parametrize("name", MESHES)
def test_no_point_of_the_surface_is_outside_but_in_strips_along_the_borders(name: str) -> None:
    # Points drawn on the triangles: those further than the margin from every border of a cell are between its bottom
    # and its top, to the rounding of heights to float32.
    vertices, faces = mesh = turned(MESHES[name], turn(20, 10, 30))
    (maps,) = rasterise([mesh], FIXED, CELL)
    rng = np.random.default_rng(0)
    # Many are near edges and corners.
    weights = rng.dirichlet((0.5, 0.5, 0.5), 40_000)[:, :, None]
    points = ((vertices - vertices.min(0))[faces[rng.integers(0, len(faces), 40_000)]] * weights).sum(1)
    cells = points[:, :2] / CELL
    inside = (np.abs(cells - np.round(cells)) > EDGE * 1.001).all(1)
    assert 0.99 < inside.mean() < 1
    i, j = cells[inside].astype(int).T
    height = points[inside, 2]
    assert (maps.top[0].double().numpy()[i, j] >= height - 2e-9).all()
    assert (maps.bottom[0].double().numpy()[i, j] <= height + 2e-9).all()


@pytest.mark.parametrize(("out", "seen"), [(0.9, False), (1.1, True)])
def test_what_stands_out_by_less_than_the_margin_is_not_seen(out: float, seen: bool) -> None:
    # On a floor of 1 mm: a wall of 9 mm that ends behind the border between cells 2 and 3, and a fin on that border.
    floor, end = prism([(0, 0), (6, 0), (6, 2), (0, 2)], 0.001), 3 + out * EDGE
    wall = prism([(0, 0), (end, 0), (end, 2), (0, 2)], 0.009)
    (maps,) = rasterise([together(floor, wall)], FIXED, CELL)
    assert maps.top[0, 3].tolist() == pytest.approx([0.009 if seen else 0.001] * 2)
    fin = prism([(3 - out * EDGE, 0), (end, 0), (end, 2), (3 - out * EDGE, 2)], 0.009)
    (maps,) = rasterise([together(floor, fin)], FIXED, CELL)
    assert maps.top[0, :, 0].tolist() == pytest.approx([0.001, 0.001, *([0.009 if seen else 0.001] * 2), 0.001, 0.001])


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_a_ramp_by_hand() -> None:
    # Over four cells along x from 0 to 8 mm: in cell i the top is that of its far border, 2 (i + 1) mm.
    vertices, faces = prism([(0, 0), (4, 0), (4, 2), (0, 2)], 0.008)
    # The two upper corners at x = 0 come down.
    vertices[[4, 7], 2] = 0.0
    (maps,) = rasterise([(vertices, faces)], FIXED, CELL)
    assert maps.extent.tolist() == [[4, 2]]
    assert maps.bottom.eq(0).all()
    expected = torch.tensor([0.002, 0.004, 0.006, 0.008]) - EDGE * 0.002
    assert torch.allclose(maps.top[0], expected[:, None].expand(4, 2), atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cells", [1, 10, 50, 187])
def test_a_box_of_whole_cells_has_no_more(cells: int, dtype: type) -> None:
    box = creation.box((cells * 0.002, 0.002, cells * 0.002))
    mesh = np.array(box.vertices + 0.0123).astype(dtype).astype(np.float64), np.array(box.faces)
    (maps,) = rasterise([mesh], CUBE, CELL)
    sides = {tuple(sorted(extent)) for extent in maps.extent.tolist()}
    assert sides == {(1, cells), (cells, cells)}
    assert maps.bottom.isfinite().sum((1, 2)).tolist() == maps.extent.prod(1).tolist()


def test_what_only_touches_a_border_does_not_spill() -> None:
    # A step on the border between cells 2 and 3, and a post whose slanted side passes through corners of cells only.
    step = together(prism([(0, 0), (6, 0), (6, 2), (0, 2)], 0.001), prism([(0, 0), (3, 0), (3, 2), (0, 2)], 0.009))
    (maps,) = rasterise([step], FIXED, CELL)
    assert maps.top[0, :, 0].tolist() == pytest.approx([0.009] * 3 + [0.001] * 3)
    diamond = prism([(2, 0), (4, 2), (2, 4), (0, 2)], 0.003)
    (maps,) = rasterise([diamond], FIXED, CELL)
    expected = [[0, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0]]
    assert maps.bottom[0].isfinite().int().tolist() == expected


def test_every_cell_that_a_sliver_passes_is_marked() -> None:
    # A needle along the diagonal, a hundredth of a cell wide: all cells on its way, no hole.
    d = 0.01
    needle = prism([(0, 0), (d, 0), (20, 20 - d), (20, 20), (20 - d, 20), (0, d)], 0.001)
    (maps,) = rasterise([needle], FIXED, CELL)
    assert maps.bottom[0].isfinite().diagonal().all()


@pytest.mark.parametrize("axis", [0, 1])
def test_a_flat_mesh_has_no_material_on_edge(axis: int) -> None:
    sheet = np.array([[0.0, 0.0, 0.0], [0.01, 0.0, 0.0], [0.0, 0.0, 0.01], [0.01, 0.0, 0.01]])
    vertices = sheet if axis else sheet[:, [1, 0, 2]]
    (maps,) = rasterise([(vertices, np.array([[0, 1, 2], [1, 3, 2]]))], FIXED, CELL)
    assert maps.extent[0, axis] == 1
    assert not maps.bottom.isfinite().any()


# -- many at once -----------------------------------------------------------------------------------------------------


def test_meshes_do_not_depend_on_those_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    meshes = list(MESHES.values())
    alone = [rasterise([mesh], CUBE, CELL)[0] for mesh in meshes]
    whole = rasterise(meshes, CUBE, CELL)
    monkeypatch.setattr(segments, "_CHUNK", {"cpu": 1000})
    monkeypatch.setattr(module, "_BLOCK", {"cpu": 20_000})
    parts = rasterise(meshes, CUBE, CELL)
    assert len(alone) == len(whole) == len(parts) == len(meshes)
    for each in zip(alone, whole, parts, strict=True):
        for values in zip(*each, strict=True):
            assert all(torch.equal(values[0], value) for value in values[1:])


def test_none_gives_none() -> None:
    assert rasterise([], CUBE, CELL) == []


def test_centres_by_hand() -> None:
    # A box of 2×4×6 cm from (1, 1, 1), a quarter turn about z: its corner is then at x = −5, and (1.5, 2, 1) lies at
    # (−2, 1.5), which is (3, 0.5) from there.
    vertices = creation.box((2, 4, 6)).vertices + np.array([2.0, 3.0, 4.0])
    found = turned_centres([np.array([1.5, 2.0, 1.0])], [np.array(vertices)], np.stack([turn(0, 0, 0), turn(0, 0, 90)]))
    assert found.tolist() == [[[0.5, 1.0], [pytest.approx(3.0), pytest.approx(0.5)]]]
    assert math.isclose(found.double().sum().item(), 5.0)
