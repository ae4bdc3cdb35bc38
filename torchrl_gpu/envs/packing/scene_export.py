"""Export of a packed bin: the plan as JSON, the scene as GLB."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchrl_gpu.envs.packing.plan import PackingPlan
from torchrl_gpu.envs.packing.render.palette import decode_srgb, item_colors
from torchrl_gpu.system.extras import how_to_install

WALL_COLOR = (0.45, 0.5, 0.55, 0.18)  # linear light and opacity
WALL_SHARE = 0.01  # thickness, of the bin's shortest side
# In glTF y points up, in a bin z.
Y_UP = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 1]])


def plan_table(plan: PackingPlan) -> dict[str, Any]:
    """Plan as plain numbers, in the form that `save_plan` writes.

    Keys are `bin_size` (metres) and `items`, in the order of packing, each with `name` (of the object, or its file),
    `item` (catalogue row), `position` (metres from the bin's lower corner) and `quaternion` (w, x, y, z) of the
    object's own frame, and `scale` where it is not 1: a point p of the object goes to rotation · scale · p + position.
    """
    items = []
    for solid, pose in zip(plan.solids, plan.poses, strict=True):
        row: dict[str, Any] = {"name": solid.name, "item": pose.item}
        row |= {"position": pose.position.tolist(), "quaternion": pose.quaternion.tolist()}
        items.append(row | ({"scale": solid.scale} if solid.scale != 1 else {}))
    return {"bin_size": list(plan.bin_size), "items": items}


def save_plan(plan: PackingPlan, path: str | os.PathLike[str]) -> Path:
    """Writes `plan_table` as JSON and returns the path.

    Parent folders are made.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(plan_table(plan), indent=2) + "\n", encoding="utf-8")
    return target


def save_glb(plan: PackingPlan, path: str | os.PathLike[str]) -> Path:
    """Writes the packed bin as a glTF scene and returns the path: items in the viewer's colours, transparent walls.

    Item i is the node `item-i`, a child of the node `bin`, which turns z up into glTF's y up: poses in `bin` are those
    of the plan. Parent folders are made. ModuleNotFoundError where trimesh is not installed.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(scene_of(plan).export(file_type="glb"))
    return target


def scene_of(plan: PackingPlan) -> Any:
    """The `trimesh.Scene` that `save_glb` writes."""
    try:
        import trimesh
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "save_glb: want trimesh, which an extra brings; got an install without it;"
            f" to bring it: {how_to_install('meshes')}",
            name=error.name,
        ) from error
    scene = trimesh.Scene(base_frame="world")
    scene.graph.update("bin", "world", matrix=Y_UP)
    colors = decode_srgb(item_colors(torch.arange(len(plan.poses), dtype=torch.int64, device="cpu"))).tolist()
    for i, (solid, pose, color) in enumerate(zip(plan.solids, plan.poses, colors, strict=True)):
        surface = trimesh.Trimesh(solid.vertices, solid.faces, process=False)
        surface.visual = _paint(trimesh, (*color, 1.0))
        matrix = np.eye(4)
        matrix[:3, :3], matrix[:3, 3] = pose.rotation, pose.position
        scene.add_geometry(surface, f"item-{i}", f"item-{i}", parent_node_name="bin", transform=matrix)
    for i, (low, high) in enumerate(_walls(plan.bin_size)):
        wall = trimesh.creation.box(bounds=[low, high])
        wall.visual = _paint(trimesh, WALL_COLOR)
        scene.add_geometry(wall, f"wall-{i}", f"wall-{i}", parent_node_name="bin")
    return scene


def _paint(trimesh: Any, color: tuple[float, ...]) -> Any:
    """Rough, non-metallic material of an RGBA colour.

    Blended where alpha is below 1.
    """
    material = trimesh.visual.material.PBRMaterial(
        baseColorFactor=np.round(255 * np.array(color)).astype(np.uint8),
        metallicFactor=0.0,
        roughnessFactor=0.8,
        alphaMode="OPAQUE" if color[3] == 1 else "BLEND",
    )
    return trimesh.visual.TextureVisuals(material=material)


def _walls(size: tuple[float, float, float]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Floor and walls as boxes outside of the bin: lower and upper corners (3,)."""
    thick = WALL_SHARE * min(size)
    outer = np.array([[-thick, -thick, 0], [size[0] + thick, size[1] + thick, size[2]]])
    walls = [(np.array([-thick, -thick, -thick]), np.array([size[0] + thick, size[1] + thick, 0.0]))]
    for axis in (0, 1):
        for inner, side in ((0.0, 0), (size[axis], 1)):
            low, high = outer.copy()
            (high if side == 0 else low)[axis] = inner
            walls.append((low, high))
    return walls
