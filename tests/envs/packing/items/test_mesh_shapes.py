"""Meshes as solids: which are taken, and what they hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.spatial import ConvexHull
from trimesh import Trimesh, creation

from tests.envs.packing.items.mesh_writing import arrays, box, exploded
from torchrl_gpu.envs.packing.items.mesh_shapes import MeshShape
from torchrl_gpu.envs.packing.items.rasterise import Mesh, joined


def shape_of(*groups: Mesh) -> MeshShape:
    return MeshShape.of("thing.obj", groups)


def flipped(mesh: Mesh) -> Mesh:
    return mesh[0], mesh[1][:, ::-1]


BALL = creation.icosphere(subdivisions=2)
RING = creation.torus(1.0, 0.3)


@pytest.mark.parametrize("made", [BALL, RING, box((1, 2, 3), (4, 5, 6))])
@pytest.mark.parametrize("split", [False, True])
def test_one_watertight_solid(made: Trimesh, split: bool) -> None:
    shape = shape_of(exploded(made) if split else arrays(made))
    assert len(shape.parts) == 1
    assert len(shape.mesh[0]) == len(made.vertices)
    assert shape.volume == pytest.approx(made.volume, rel=1e-9)
    assert shape.centre == pytest.approx(made.center_mass, abs=1e-9)


def test_a_surface_inside_out_is_turned() -> None:
    shape = shape_of(flipped(arrays(BALL)))
    assert shape.volume == pytest.approx(BALL.volume)
    assert Trimesh(*shape.mesh, process=False).volume == pytest.approx(BALL.volume)


@pytest.mark.parametrize("seed", range(3))
def test_faces_that_disagree_are_turned(seed: int) -> None:
    vertices, faces = exploded(RING)
    wrong = np.random.default_rng(seed).random(len(faces)) < 0.4
    faces[wrong] = faces[wrong, ::-1]
    shape = shape_of((vertices, faces))
    assert shape.volume == pytest.approx(RING.volume)
    assert Trimesh(*shape.mesh, process=False).is_winding_consistent


def test_a_union_of_overlapping_parts() -> None:
    # A cross of two beams 3×1×1 through each other: 5, once as two groups, once as one.
    beams = [arrays(box((3, 1, 1))), arrays(box((1, 3, 1), (1, -1, 0)))]
    one = np.concatenate([beams[0][0], beams[1][0]]), np.concatenate([beams[0][1], beams[1][1] + 8])
    for shape in (shape_of(*beams), shape_of(one)):
        assert len(shape.parts) == 2
        assert shape.volume == pytest.approx(5, rel=1e-3)
        assert shape.centre == pytest.approx([1.5, 0.5, 0.5], abs=0.01)
        assert sorted(np.ptp(piece, 0).tolist() for piece in shape.pieces) == [[1, 3, 1], [3, 1, 1]]


def test_groups_that_are_open_alone_are_one_surface() -> None:
    # Each face of the box a group of its own, as some programs write materials.
    vertices, faces = exploded(box((1, 2, 3)))
    shape = shape_of(*((vertices, faces[k : k + 2]) for k in range(0, 12, 2)))
    assert len(shape.parts) == 1
    assert shape.volume == pytest.approx(6)


def test_a_hollow_is_left_out() -> None:
    shape = shape_of(arrays(box((3, 3, 3))), flipped(arrays(box((1, 1, 1), (1, 1, 1)))))
    assert shape.volume == pytest.approx(26, rel=1e-3)
    assert sum(ConvexHull(piece).volume for piece in shape.pieces) == pytest.approx(26, rel=0.05)


def test_a_part_inside_out_beside_others_is_no_hollow() -> None:
    shape = shape_of(arrays(box((3, 3, 3))), flipped(arrays(box((1, 1, 1), (5, 0, 0)))))
    assert shape.volume == pytest.approx(28, rel=1e-3)


# -- parts that touch -------------------------------------------------------------------------------------------------


def together(*meshes: Trimesh | Mesh) -> Mesh:
    """As an STL has them: one group, each face with three vertices of its own."""
    return joined([exploded(mesh) if isinstance(mesh, Trimesh) else mesh for mesh in meshes])


def mirrored(made: Trimesh) -> Mesh:
    vertices, faces = exploded(made)
    vertices = vertices * [-1, 1, 1] + [vertices[:, 0].min() + vertices[:, 0].max(), 0, 0]
    return vertices, faces[:, ::-1]


def cubes(*places: tuple[int, int, int]) -> list[Trimesh]:
    return [box((1, 1, 1), place) for place in places]


def raised(made: Trimesh, by: float) -> Trimesh:
    return made.copy().apply_translation([0, 0, by])


CAN = creation.cylinder(1, 1, sections=32)
EVERY_OTHER = [place for place in itertools.product(range(3), repeat=3) if sum(place) % 2 == 0]
TOUCHING: dict[str, tuple[Mesh, int, float]] = {}
TOUCHING["faces across x"] = (together(*cubes((0, 0, 0), (1, 0, 0))), 2, 2)
TOUCHING["faces across y"] = (together(*cubes((0, 0, 0), (0, 1, 0))), 2, 2)
TOUCHING["faces across z"] = (together(*cubes((0, 0, 0), (0, 0, 1))), 2, 2)
TOUCHING["faces of other diagonals"] = (together(box((1, 1, 1)), mirrored(box((1, 1, 1), (0, 0, 1)))), 2, 2)
TOUCHING["faces of other boxes"] = (
    together(box((1, 1, 1)), box((1, 1, 2), (0, 0, 1)), box((1, 1, 3), (0, 0, 3))),
    3,
    6,
)
TOUCHING["an edge"] = (together(*cubes((0, 0, 0), (1, 1, 0))), 2, 2)
TOUCHING["a vertex"] = (together(*cubes((0, 0, 0), (1, 1, 1))), 2, 2)
TOUCHING["cans"] = (together(CAN, raised(CAN, 1)), 2, 2 * CAN.volume)
TOUCHING["a column"] = (together(*cubes(*((0, 0, z) for z in range(40)))), 40, 40)
TOUCHING["a block"] = (together(*cubes(*itertools.product(range(3), repeat=3))), 27, 27)
TOUCHING["every other cube of a block"] = (together(*cubes(*EVERY_OTHER)), 14, 14)
TOUCHING["a part within a part"] = (together(box((3, 3, 3)), box((1, 1, 1), (1, 1, 1))), 2, 27)
TOUCHING["a hollow that is filled"] = (
    together(box((3, 3, 3)), flipped(exploded(box((1, 1, 1), (1, 1, 1)))), box((1, 1, 1), (1, 1, 1))),
    3,
    27,
)
TOUCHING["a part in a hollow"] = (
    together(box((5, 5, 5)), flipped(exploded(box((3, 3, 3), (1, 1, 1)))), box((1, 1, 1), (2, 2, 2))),
    3,
    99,
)
TOUCHING["parts through each other with an edge in common"] = (together(box((2, 2, 1)), box((1, 1, 1))), 2, 4)
TOUCHING["one part twice"] = (together(*cubes((0, 0, 0), (0, 0, 0))), 2, 1)
TOUCHING["both sides of every face"] = (together(box((1, 1, 1)), flipped(exploded(box((1, 1, 1))))), 2, 1)
TOUCHING["one of them inside out, with vertices of its own"] = (
    together(arrays(box((1, 1, 1))), flipped(arrays(box((1, 1, 1), (0, 0, 1))))),
    2,
    2,
)


@pytest.mark.parametrize("kind", TOUCHING)
def test_closed_parts_may_touch(kind: str) -> None:
    mesh, number, volume = TOUCHING[kind]
    shape = shape_of(mesh)
    assert len(shape.parts) == number
    assert shape.volume == pytest.approx(volume, rel=1e-5)
    assert all(Trimesh(*part, process=False).is_watertight for part in shape.parts)


def test_parts_that_lie_apart_are_summed_exactly() -> None:
    shape = shape_of(together(*cubes(*((2 * k, 0, 0) for k in range(500)))))
    assert shape.volume == pytest.approx(500, rel=1e-12)
    assert shape.centre == pytest.approx([499.5, 0.5, 0.5])


def test_an_open_part_that_touches_a_closed_one_is_open() -> None:
    vertices, faces = exploded(box((1, 1, 1), (0, 0, 1)))
    with pytest.raises(ValueError, match="3 open edges"):
        shape_of(together(box((1, 1, 1)), (vertices, faces[:-1])))


# -- pieces -----------------------------------------------------------------------------------------------------------


def test_a_convex_solid_is_its_own_piece() -> None:
    (piece,) = shape_of(arrays(BALL)).pieces
    assert ConvexHull(piece).volume == pytest.approx(BALL.volume)


def test_another_solid_is_cut_into_boxes_that_fill_it() -> None:
    pieces = shape_of(arrays(RING)).pieces
    assert len(pieces) > 10
    assert all(piece.shape == (8, 3) for piece in pieces)
    assert sum(ConvexHull(piece).volume for piece in pieces) == pytest.approx(RING.volume, rel=0.05)
    middles = np.array([piece.mean(0) for piece in pieces])
    # Nothing is in the hole.
    assert (np.abs(np.hypot(middles[:, 0], middles[:, 1]) - 1) < 0.35).all()
    beside = shape_of(arrays(RING), arrays(box((1, 1, 1), (0, 0, 2)))).pieces
    # A convex part is not cut.
    assert sum(np.allclose(np.ptp(piece, 0), 1) for piece in beside) == 1


def test_thin_walls_have_no_holes() -> None:
    # A tube of 1 across with walls of 0.025, thinner than 1/32: boxes stand all around.
    pieces = shape_of(arrays(creation.annulus(0.475, 0.5, 1.0, sections=48))).pieces
    angles = np.linspace(0, 2 * np.pi, 720, endpoint=False)
    wall = 0.4875 * np.stack([np.cos(angles), np.sin(angles)], 1)
    low = np.array([piece.min(0) for piece in pieces])[:, :2]
    high = np.array([piece.max(0) for piece in pieces])[:, :2]
    # To the nearest box.
    gap = np.maximum(np.maximum(low - wall[:, None], wall[:, None] - high), 0).max(2).min(1)
    # The coarsest voxels would leave gaps of 5e-3.
    assert gap.max() < 1e-3


def test_a_solid_at_a_scale() -> None:
    shape = shape_of(arrays(box((1, 2, 3), (1, 1, 1))))
    solid = shape.solid(0.5)
    assert solid.name == "thing.obj"
    assert solid.volume == pytest.approx(6 / 8)
    assert solid.centre == pytest.approx([0.75, 1, 1.25])
    assert solid.vertices.min(0) == pytest.approx([0.5] * 3)
    assert solid.parts[0].max(0) == pytest.approx([1, 1.5, 2])


# -- refused ----------------------------------------------------------------------------------------------------------


VERTICES, FACES = arrays(box((1, 1, 1)))


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([], "no triangles"),
        ([(VERTICES, FACES[:0])], "no triangles"),
        ([(VERTICES * 0, FACES)], "no triangle has an area"),
        ([(VERTICES, FACES[:-1])], "3 open edges"),
        ([(VERTICES, FACES), (VERTICES + 5, FACES[:-1])], "3 open edges"),
        ([(np.where(VERTICES == 1, np.nan, VERTICES), FACES)], "coordinates must be finite, not [["),
        ([(VERTICES + np.inf, FACES)], "coordinates must be finite, not [["),
        ([(VERTICES[:5], FACES)], "vertex 7, of 5 vertices"),
        ([(VERTICES * [1, 1, 0], FACES)], "0 m³ within 1 × 1 × 0 m"),
    ],
)
def test_what_is_no_solid_says_why(groups: list[Mesh], reason: str) -> None:
    with pytest.raises(ValueError) as error:
        shape_of(*groups)
    assert reason in str(error.value)
