"""Collision geometry of URDFs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.envs.packing.items.mesh_writing import arrays, box, write_obj
from torchrl_gpu.envs.packing.items import urdf
from torchrl_gpu.envs.packing.items.mesh_files import read_mesh
from torchrl_gpu.envs.packing.items.mesh_shapes import MeshShape
from torchrl_gpu.envs.packing.items.rasterise import Mesh
from torchrl_gpu.envs.packing.items.urdf import referred_meshes, urdf_groups


def groups(folder: Path, inside: str) -> list[Mesh]:
    path = folder / "thing.urdf"
    path.write_text(f'<?xml version="1.0"?>\n<robot name="thing">{inside}</robot>')
    return urdf_groups(path, read_mesh)


def link(name: str, *geometries: str, origin: str = "") -> str:
    collisions = "".join(f"<collision>{origin}<geometry>{g}</geometry></collision>" for g in geometries)
    return f'<link name="{name}">{collisions}</link>'


def bounds(group: Mesh) -> list[list[float]]:
    return [group[0].min(0).round(9).tolist(), group[0].max(0).round(9).tolist()]


def test_an_origin_turns_and_moves(tmp_path: Path) -> None:
    # A quarter turn about z carries a box of 4×2×6 to 2×4×6; then it moves.
    quarter = f'<origin xyz="1 2 3" rpy="0 0 {np.pi / 2}"/>'
    (found,) = groups(tmp_path, link("a", '<box size="4 2 6"/>', origin=quarter))
    assert bounds(found) == [[0, 0, 0], [2, 4, 6]]


def test_roll_comes_before_yaw(tmp_path: Path) -> None:
    # The box lies along z; rolled by −π/2 it lies along y, and yawed along −x.
    turn = f'<origin rpy="{-np.pi / 2} 0 {np.pi / 2}"/>'
    (found,) = groups(tmp_path, link("a", '<box size="2 2 10"/>', origin=turn))
    assert bounds(found) == [[-5, -1, -1], [5, 1, 1]]


def test_links_stand_where_their_joints_put_them(tmp_path: Path) -> None:
    joints = (
        '<joint name="j"><parent link="a"/><child link="b"/><origin xyz="10 0 0"/></joint>'
        f'<joint name="k"><parent link="b"/><child link="c"/><origin xyz="0 5 0" rpy="0 0 {np.pi}"/></joint>'
    )
    links = [link(name, '<box size="2 2 2"/>', origin='<origin xyz="1 0 0"/>') for name in "abc"]
    found = groups(tmp_path, joints + "".join(links))
    assert [bounds(each)[0] for each in found] == [[0, -1, -1], [10, -1, -1], [8, 4, -1]]


def test_meshes_are_scaled_and_mirrored(tmp_path: Path) -> None:
    (tmp_path / "meshes").mkdir()
    write_obj(tmp_path / "meshes" / "a.obj", [arrays(box((1, 1, 1))), arrays(box((1, 1, 1), (2, 0, 0)))])
    found = groups(tmp_path, link("a", '<mesh filename="meshes/a.obj" scale="0.5 -1 2"/>'))
    assert sorted(bounds(each) for each in found) == [[[0, -1, 0], [0.5, 0, 2]], [[1, -1, 0], [1.5, 0, 2]]]
    assert MeshShape.of("", found[:1]).volume == pytest.approx(1.0)
    vertices, faces = found[0]
    # They look outward after mirroring.
    assert np.linalg.det(vertices[faces] - vertices.mean(0)).sum() / 6 == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("geometry", "volume"),
    [
        ('<box size="1 2 3"/>', 6.0),
        ('<cylinder radius="0.5" length="2"/>', np.pi / 2),
        ('<sphere radius="0.5"/>', np.pi / 6),
    ],
)
def test_primitives_hold_all_of_the_shape(geometry: str, volume: float, tmp_path: Path) -> None:
    (group,) = groups(tmp_path, link("a", geometry))
    shape = MeshShape.of("", [group])
    assert volume <= shape.volume * (1 + 1e-9) <= volume * 1.03
    vertices, faces = group
    a, b, c = np.moveaxis(vertices[faces], 1, 0)
    normal = np.cross(b - a, c - a)
    # Of the faces' planes from the middle.
    distance = (normal * a).sum(1) / np.linalg.norm(normal, axis=1)
    if "box" not in geometry:
        assert distance.min() >= 0.5 - 1e-9


@pytest.mark.parametrize(
    "name", ["package://stuff/meshes/a.obj", "model://stuff/meshes/a.obj", "../meshes/a.obj", "file"]
)
def test_names_of_meshes(name: str, tmp_path: Path) -> None:
    for folder in ("stuff/meshes", "stuff/urdf"):
        (tmp_path / folder).mkdir(parents=True)
    mesh = write_obj(tmp_path / "stuff/meshes/a.obj", [arrays(box((1, 1, 1)))])
    name = f"file://{mesh}" if name == "file" else name
    found = groups(tmp_path / "stuff/urdf", link("a", f'<mesh filename="{name}"/>'))
    assert bounds(found[0]) == [[0, 0, 0], [1, 1, 1]]
    assert referred_meshes(tmp_path / "stuff/urdf/thing.urdf") == {mesh.resolve()}


BOMB = (
    '<?xml version="1.0"?><!DOCTYPE robot [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    '<robot name="&b;"></robot>'
)
FETCH = '<?xml version="1.0"?><!DOCTYPE robot SYSTEM "file:///etc/hostname"><robot name="x"></robot>'


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        ("", "collision geometry"),
        (
            '<link name="a"><visual><geometry><box size="1 1 1"/></geometry></visual></link>',
            "collision geometry",
        ),
        (link("a", '<capsule radius="1"/>'), "capsule"),
        (link("a", ""), "collision element has no geometry"),
        (link("a", '<box size="1 1"/>'), "size of box must be 3 numbers, not '1 1'"),
        (link("a", '<box size="1 1 x"/>'), "size of box must be 3 numbers, not '1 1 x'"),
        (link("a", '<box size="1 1 nan"/>'), "size of box must be 3 numbers, not '1 1 nan'"),
        (link("a", '<sphere radius="-1"/>'), "radius of sphere must be positive, not '-1'"),
        (link("a", '<mesh filename="gone.obj"/>'), "mesh 'gone.obj' does not exist at "),
        (link("a", '<mesh filename=""/>'), "mesh '' does not exist at "),
        (link("a", '<mesh filename="http://x/y.obj"/>'), "not 'http://x/y.obj'"),
        (link("a", '<mesh filename="thing.urdf"/>'), "mesh thing.urdf: "),
        (
            link("a", '<box size="1 1 1"/>')
            + '<joint name="j" type="fixed"><parent link="b"/><child link="a"/></joint>'
            + '<joint name="k" type="fixed"><parent link="a"/><child link="b"/></joint>',
            "link a is above itself",
        ),
    ],
)
def test_what_is_wrong_is_said(inside: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:
        groups(tmp_path, inside)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<robot", "invalid URDF; reading it fails with: "),
        ("<sdf/>", "robot, not sdf"),
        (BOMB, "DOCTYPE"),
        (FETCH, "DOCTYPE"),
    ],
)
def test_other_files_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.urdf").write_text(text)
    with pytest.raises(ValueError) as error:
        urdf_groups(tmp_path / "a.urdf", read_mesh)
    assert reason in str(error.value)
    assert referred_meshes(tmp_path / "a.urdf") == set()


def test_a_chain_of_links_is_followed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number, read = 400, []
    box((1, 1, 1)).export(tmp_path / "cube.stl")
    links = "".join(link(f"l{k}", '<mesh filename="cube.stl"/>') for k in range(number))
    joints = "".join(
        f'<joint name="j{k}" type="fixed"><parent link="l{k}"/><child link="l{k + 1}"/><origin xyz="1 0 0"/></joint>'
        for k in range(number - 1)
    )
    (tmp_path / "a.urdf").write_text(f'<robot name="x">{links}{joints}</robot>')
    products: list[int] = []

    class Counted(np.ndarray):
        def __matmul__(self, other: np.ndarray) -> np.ndarray:
            products.append(1)
            return np.asarray(self) @ np.asarray(other)

    origin = urdf.read_origin
    monkeypatch.setattr(urdf, "read_origin", lambda element: origin(element).view(Counted))
    monkeypatch.setattr(np, "eye", lambda n, eye=np.eye: eye(n).view(Counted))
    found = urdf_groups(tmp_path / "a.urdf", lambda path: read.append(path) or read_mesh(path))
    assert [vertices[:, 0].min() for vertices, _ in found] == list(range(number))
    # All links have it, and it is read once.
    assert len(read) == 1
    # There is no walk to the root for each.
    assert len(products) < 4 * number
