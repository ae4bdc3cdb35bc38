"""Exported scenes can be read back, and hold the plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.envs.packing.physics.stacks import BIN, plan_of_boxes, prism, turned
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.plan import PackingPlan
from torchrl_gpu.envs.packing.scene_export import plan_table, save_glb, save_plan


def mixed() -> PackingPlan:
    can, box = prism(24, 0.04, 0.1, "can.obj"), Solid.of_box("box", np.array([0.1, 0.08, 0.06]))
    grown = Solid("can.obj", *(getattr(can, k) for k in ("parts", "vertices", "faces", "centre", "volume")), scale=1.25)
    return PackingPlan(
        (grown, box), (turned(can, 90, 0, 30, (0.1, 0.05, 0)), turned(box, 0, 90, 0, (0.25, 0.2, 0.1))), BIN
    )


def rotation_of(quaternion: list[float]) -> np.ndarray:
    w, x, y, z = quaternion
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + 2 * w * cross + 2 * cross @ cross


def test_the_plan_by_hand() -> None:
    assert plan_table(plan_of_boxes(((0.1, 0.2, 0.0), (0.1, 0.1, 0.1)), bin_size=(0.4, 0.4, 0.3))) == {
        "bin_size": [0.4, 0.4, 0.3],
        "items": [{"name": "box-0", "item": 0, "position": [0.1, 0.2, 0.0], "quaternion": [1.0, 0.0, 0.0, 0.0]}],
    }


def test_the_plan_is_read_back(tmp_path: Path) -> None:
    plan = mixed()
    written = json.loads(save_plan(plan, tmp_path / "new" / "plan.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in written["items"]] == ["can.obj", "box"]
    assert [row.get("scale") for row in written["items"]] == [1.25, None]
    for row, pose in zip(written["items"], plan.poses, strict=True):
        assert rotation_of(row["quaternion"]) == pytest.approx(pose.rotation, abs=1e-12)
        assert row["position"] == pose.position.tolist()


def test_the_scene_holds_every_item_where_it_is_planned(tmp_path: Path) -> None:
    trimesh = pytest.importorskip("trimesh")
    plan = mixed()
    scene = trimesh.load_scene(save_glb(plan, tmp_path / "new" / "packing.glb"))
    for i, (solid, pose) in enumerate(zip(plan.solids, plan.poses, strict=True)):
        in_bin, _ = scene.graph.get(f"item-{i}", "bin")
        assert in_bin[:3, :3] == pytest.approx(pose.rotation, abs=1e-6)
        assert in_bin[:3, 3] == pytest.approx(pose.position, abs=1e-6)
        matrix, geometry = scene.graph.get(f"item-{i}")
        points = trimesh.transform_points(scene.geometry[geometry].vertices, matrix)
        planned = solid.vertices @ pose.rotation.T + pose.position
        # In the file y is up.
        upright = planned[:, [0, 2, 1]] * [1, 1, -1]
        assert points.min(0) == pytest.approx(upright.min(0), abs=1e-6)
        assert points.max(0) == pytest.approx(upright.max(0), abs=1e-6)


def test_items_are_opaque_and_walls_are_not(tmp_path: Path) -> None:
    trimesh = pytest.importorskip("trimesh")
    scene = trimesh.load_scene(save_glb(mixed(), tmp_path / "packing.glb"))
    opacity = {name: mesh.visual.material.baseColorFactor[3] for name, mesh in scene.geometry.items()}
    assert {name for name, alpha in opacity.items() if alpha == 255} == {"item-0", "item-1"}
    assert {name for name, alpha in opacity.items() if alpha < 100} == {f"wall-{i}" for i in range(5)}
    colors = [tuple(scene.geometry[f"item-{i}"].visual.material.baseColorFactor) for i in (0, 1)]
    assert colors[0] != colors[1]


def test_walls_leave_the_bin_free(tmp_path: Path) -> None:
    trimesh = pytest.importorskip("trimesh")
    scene = trimesh.load_scene(save_glb(PackingPlan((), (), BIN), tmp_path / "empty.glb"))
    # Of the bin, with y up.
    inner = np.array([[0, 0, -BIN[1]], [BIN[0], BIN[2], 0]])
    for mesh in scene.to_geometry().split():
        overlap = np.minimum(mesh.bounds[1], inner[1]) - np.maximum(mesh.bounds[0], inner[0])
        assert overlap.min() <= 1e-6
    assert scene.bounds[:, 1] == pytest.approx([-0.003, BIN[2]], abs=1e-6)


def test_without_trimesh_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "trimesh", None)
    with pytest.raises(ModuleNotFoundError, match=r"\[meshes\]"):
        save_glb(mixed(), tmp_path / "packing.glb")
