"""The example packs what it is given, and its three files tell the same story."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.examples.running import printed


def write_meshes(folder: Path) -> None:
    """Write four objects and a file that holds no solid.

    They are in millimetres, none of them at the origin.
    """
    trimesh = pytest.importorskip("trimesh")
    made = {
        "block.stl": trimesh.creation.box((90, 60, 40)),
        "can.obj": trimesh.creation.cylinder(radius=30, height=80, sections=24),
        "ball.ply": trimesh.creation.icosphere(subdivisions=2, radius=25),
        "ring.glb": trimesh.creation.annulus(r_min=20, r_max=45, height=20, sections=24),
    }
    for i, (name, mesh) in enumerate(made.items()):
        mesh.apply_translation((10.0 * i, -5.0, 30.0)).export(folder / name)
    trimesh.Trimesh([[0, 0, 0], [1, 0, 0], [0, 1, 0]], [[0, 1, 2]]).export(folder / "leaf.stl")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    pytest.importorskip("scipy")
    folder = tmp_path_factory.mktemp("meshes")
    write_meshes(folder)
    output = folder / "new" / "packed"
    words = ["--unit", "mm", "--bin_size", "0.2", "0.15", "0.15", "--resolution", "40", "--device", "cpu"]
    return output, printed("pack_folder.py", str(folder), "--output", str(output), *words)


def planned(output: Path) -> list[dict[str, Any]]:
    return json.loads((output / "plan.json").read_text(encoding="utf-8"))["items"]


def test_every_object_is_packed_once(packed: tuple[Path, str]) -> None:
    output, said = packed
    names = [Path(row["name"]).name for row in planned(output)]
    assert sorted(names) == ["ball.ply", "block.stl", "can.obj", "ring.glb"]
    for name in names:
        assert name in said
    assert "4 of 4" in said
    assert "deepest overlap 0.0 mm" in said


def test_the_plan_puts_the_files_into_the_bin(packed: tuple[Path, str]) -> None:
    import trimesh

    output, _ = packed
    scene = trimesh.load_scene(output / "packing.glb")
    for i, row in enumerate(planned(output)):
        mesh = trimesh.load_mesh(row["name"]).apply_scale(1e-3)
        matrix = trimesh.transformations.quaternion_matrix(row["quaternion"])
        matrix[:3, 3] = row["position"]
        bounds = mesh.apply_transform(matrix).bounds
        assert bounds[0] == pytest.approx(np.maximum(bounds[0], 0.0), abs=1e-6)
        assert bounds[1] == pytest.approx(np.minimum(bounds[1], [0.2, 0.15, 0.15]), abs=1e-6)
        in_scene, geometry = scene.graph.get(f"item-{i}", "bin")
        points = trimesh.transform_points(scene.geometry[geometry].vertices, in_scene)
        assert points.min(0) == pytest.approx(bounds[0], abs=1e-5)
        assert points.max(0) == pytest.approx(bounds[1], abs=1e-5)


def test_the_picture_has_a_frame_for_each_stage(packed: tuple[Path, str]) -> None:
    output, _ = packed
    with Image.open(output / "packing.gif") as gif:
        assert gif.n_frames == 5
