"""Mesh files, good and bad."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import trimesh

from tests.envs.packing.items.mesh_writing import arrays, box, exploded, write_obj
from torchrl_gpu.envs.packing.items.mesh_files import find_meshes, read_groups
from torchrl_gpu.envs.packing.items.mesh_shapes import MeshShape

# They overlap in a cube of 0.1.
L_SHAPE = [arrays(box((0.3, 0.1, 0.1))), arrays(box((0.1, 0.1, 0.3)))]
URDF_L = (
    '<robot name="l"><link name="a">'
    '<collision><origin xyz="0.15 0.05 0.05"/><geometry><box size="0.3 0.1 0.1"/></geometry></collision>'
    '<collision><origin xyz="0.05 0.05 0.15"/><geometry><box size="0.1 0.1 0.3"/></geometry></collision>'
    "</link></robot>"
)


def export(suffix: str) -> Callable[[Path], object]:

    def write(path: Path) -> object:
        parts = [trimesh.Trimesh(*part, process=False) for part in L_SHAPE]
        return (trimesh.Scene(parts) if suffix == "glb" else trimesh.util.concatenate(parts)).export(path)

    return write


FORMATS: dict[str, tuple[str, Callable[[Path], object]]] = {}
FORMATS["objects"] = ("l.obj", lambda path: write_obj(path, L_SHAPE))
FORMATS["groups"] = ("l.obj", lambda path: write_obj(path, L_SHAPE, "g"))
FORMATS["vertices split"] = ("l.OBJ", lambda path: write_obj(path, [exploded(trimesh.Trimesh(*p)) for p in L_SHAPE]))
FORMATS["stl"] = ("l.stl", export("stl"))
FORMATS["ply"] = ("l.ply", export("ply"))
FORMATS["glb"] = ("l.glb", export("glb"))
FORMATS["urdf"] = ("l.urdf", lambda path: path.write_text(URDF_L))


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_holds_the_same(name: str, tmp_path: Path) -> None:
    file, write = FORMATS[name]
    write(tmp_path / file)
    shape = MeshShape.of(name, read_groups(tmp_path / file, "m"))
    assert len(shape.parts) == 2
    assert shape.volume == pytest.approx(0.005, rel=0.01)
    assert shape.mesh[0].min(0) == pytest.approx([0, 0, 0], abs=1e-7)
    assert shape.mesh[0].max(0) == pytest.approx([0.3, 0.1, 0.3], abs=1e-7)


@pytest.mark.parametrize("name", ["a.stl", "a.ply", "a.glb", "a.obj"])
def test_boxes_stacked_exactly_hold_their_sum_in_every_format(name: str, tmp_path: Path) -> None:
    stack = trimesh.util.concatenate([box((1, 1, 1)), box((1, 1, 1), (0, 0, 1))])
    # It merges them also where a format would keep the parts apart.
    stack.merge_vertices()
    stack.export(tmp_path / name)
    shape = MeshShape.of(name, read_groups(tmp_path / name, "m"))
    assert (len(shape.parts), shape.volume) == (2, pytest.approx(2))


def test_nodes_of_a_scene_stand_where_it_puts_them(tmp_path: Path) -> None:
    scene = trimesh.Scene()
    for x in (0.0, 5.0):
        scene.add_geometry(box((1, 1, 1)), transform=trimesh.transformations.translation_matrix([x, 0, 0]))
    scene.export(tmp_path / "two.glb")
    lowest = sorted(vertices[:, 0].min() for vertices, _ in read_groups(tmp_path / "two.glb", "m"))
    assert lowest == pytest.approx([0, 5], abs=1e-6)


@pytest.mark.parametrize(("unit", "side"), [("m", 30.0), ("cm", 0.3), ("mm", 0.03)])
def test_units(unit: str, side: float, tmp_path: Path) -> None:
    box((30, 1, 1)).export(tmp_path / "a.stl")
    (tmp_path / "a.urdf").write_text(URDF_L)
    ((vertices, _),) = read_groups(tmp_path / "a.stl", unit)
    assert np.ptp(vertices, 0)[0] == pytest.approx(side)
    # It is always in metres.
    assert np.ptp(read_groups(tmp_path / "a.urdf", unit)[0][0], 0)[0] == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.ply", b"hello"), ("a.glb", b"hello" * 20), ("a.obj", b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 9\n")],
)
def test_what_cannot_be_read_says_so(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=r"^invalid mesh; .*\w+: .+$"):
        read_groups(tmp_path / name, "m")


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match=r".obj, .stl, .ply, .glb or .urdf, not '.txt'$"):
        read_groups(tmp_path / "a.txt", "m")


# -- finding ----------------------------------------------------------------------------------------------------------


def test_folders_are_searched_in_order_and_files_taken_as_they_are(tmp_path: Path) -> None:
    for name in ("b/z.stl", "b/a/y.obj", "a.PLY", "notes.txt", ".hidden/x.obj", "c.mtl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    files = find_meshes([tmp_path])
    assert [str(path.relative_to(tmp_path)) for path in files] == ["a.PLY", "b/a/y.obj", "b/z.stl"]
    assert find_meshes([tmp_path / "b/z.stl", tmp_path / "b"]) == [tmp_path / "b/z.stl", tmp_path / "b/a/y.obj"]


def test_meshes_of_a_urdf_do_not_count_by_themselves(tmp_path: Path) -> None:
    for name in ("meshes/seen.stl", "meshes/hull.obj", "meshes/other.obj"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "thing.urdf").write_text(
        '<robot name="x"><link name="a"><visual><geometry><mesh filename="meshes/seen.stl"/></geometry></visual>'
        '<collision><geometry><mesh filename="meshes/hull.obj"/></geometry></collision></link></robot>'
    )
    assert [path.name for path in find_meshes([tmp_path])] == ["other.obj", "thing.urdf"]
    (tmp_path / "broken.urdf").write_text("<robot")
    assert [path.name for path in find_meshes([tmp_path])] == ["broken.urdf", "other.obj", "thing.urdf"]


def test_what_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        find_meshes([tmp_path / "gone"])
    assert str(error.value).startswith(f"MeshItems: {tmp_path / 'gone'}: ")
    with pytest.raises(ValueError) as empty:
        find_meshes([tmp_path])
    assert str(empty.value).startswith(f"MeshItems: {tmp_path}: ")
    assert ".obj, .stl, .ply, .glb or .urdf files" in str(empty.value)
