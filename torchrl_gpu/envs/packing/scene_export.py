"""Export of a packed bin: the plan as JSON, the scene as GLB."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import numpy as np
import torch

from torchrl_gpu.envs.packing.plan import PackingPlan
from torchrl_gpu.envs.packing.render.palette import decode_srgb, item_colors
from torchrl_gpu.system.extras import how_to_install

if TYPE_CHECKING:
    import trimesh

# Linear light and opacity.
WALL_COLOR = (0.45, 0.5, 0.55, 0.18)
# Thickness of walls, as a share of the bin's shortest side.
WALL_SHARE = 0.01
# In glTF y points up, in a bin z.
Y_UP = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 1]])


class PlanRow(TypedDict):
    """An item of a plan as plain numbers.

    Attributes:
        name: Of the object, or its file.
        item: Row of the catalogue.
        position: Metres from the bin's lower corner.
        quaternion: w, x, y, z of the object's own frame.
        scale: Of the object, where it is not 1.
    """

    name: str
    item: int
    position: list[float]
    quaternion: list[float]
    scale: NotRequired[float]


class PlanTable(TypedDict):
    """A plan as plain numbers: sides in metres, and items in the order of packing."""

    bin_size: list[float]
    items: list[PlanRow]


def plan_table(plan: PackingPlan) -> PlanTable:
    """Return a plan as plain numbers, in the form that `save_plan` writes.

    A point p of an object goes to rotation · scale · p + position.
    """
    items = []
    for solid, pose in zip(plan.solids, plan.poses, strict=True):
        row = PlanRow(
            name=solid.name,
            item=pose.item,
            position=pose.position.tolist(),
            quaternion=pose.quaternion.tolist(),
        )
        if solid.scale != 1:
            row["scale"] = solid.scale
        items.append(row)
    return PlanTable(bin_size=list(plan.bin_size), items=items)


def save_plan(plan: PackingPlan, path: str | os.PathLike[str]) -> Path:
    """Write `plan_table` as JSON and return the path.

    Parent folders are made.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(plan_table(plan), indent=2) + "\n", encoding="utf-8")
    return target


def save_glb(plan: PackingPlan, path: str | os.PathLike[str]) -> Path:
    """Write the packed bin as a glTF scene and return the path.

    Items have the viewer's colours, walls are transparent. Item i is the node `item-i`, a child of the node `bin`,
    which turns z up into glTF's y up: poses in `bin` are those of the plan. Parent folders are made.

    Raises:
        ModuleNotFoundError: trimesh is not installed.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(scene_of(plan).export(file_type="glb"))
    return target


def scene_of(plan: PackingPlan) -> trimesh.Scene:
    """Return the scene that `save_glb` writes."""
    try:
        import trimesh
    except ModuleNotFoundError as error:
        hint = how_to_install("meshes")
        raise ModuleNotFoundError(f"save_glb: trimesh is not installed; {hint}", name=error.name) from error
    scene = trimesh.Scene(base_frame="world")
    scene.graph.update("bin", "world", matrix=Y_UP)
    number = torch.arange(len(plan.poses), dtype=torch.int64, device="cpu")
    colors = decode_srgb(item_colors(number)).tolist()
    for i, (solid, pose, color) in enumerate(zip(plan.solids, plan.poses, colors, strict=True)):
        surface = trimesh.Trimesh(solid.vertices, solid.faces, process=False)
        surface.visual = _paint((*color, 1.0))
        matrix = np.eye(4)
        matrix[:3, :3] = pose.rotation
        matrix[:3, 3] = pose.position
        scene.add_geometry(surface, f"item-{i}", f"item-{i}", parent_node_name="bin", transform=matrix)
    for i, (low, high) in enumerate(_walls(plan.bin_size)):
        wall = trimesh.creation.box(bounds=[low, high])
        wall.visual = _paint(WALL_COLOR)
        scene.add_geometry(wall, f"wall-{i}", f"wall-{i}", parent_node_name="bin")
    return scene


def _paint(color: tuple[float, ...]) -> trimesh.visual.TextureVisuals:
    """Return a rough, non-metallic material of an RGBA colour.

    It is blended where alpha is below 1.
    """
    from trimesh.visual import TextureVisuals
    from trimesh.visual.material import PBRMaterial

    material = PBRMaterial(
        baseColorFactor=np.round(255 * np.array(color)).astype(np.uint8),
        metallicFactor=0.0,
        roughnessFactor=0.8,
        alphaMode="OPAQUE" if color[3] == 1 else "BLEND",
    )
    return TextureVisuals(material=material)


def _walls(size: tuple[float, float, float]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return floor and walls as boxes outside the bin: lower and upper corners."""
    thick = WALL_SHARE * min(size)
    length, width, height = size
    floor_low = np.array([-thick, -thick, -thick])
    floor_high = np.array([length + thick, width + thick, 0.0])
    walls = [(floor_low, floor_high)]
    for axis in (0, 1):
        # The wall before the bin ends where the bin begins, the one behind it begins where the bin ends.
        low = np.array([-thick, -thick, 0])
        high = np.array([length + thick, width + thick, height])
        high[axis] = 0.0
        walls.append((low, high))
        low = np.array([-thick, -thick, 0])
        high = np.array([length + thick, width + thick, height])
        low[axis] = size[axis]
        walls.append((low, high))
    return walls
