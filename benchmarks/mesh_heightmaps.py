"""Heightmaps of many meshes: how fast they are made, and whether rays agree with them.

python benchmarks/mesh_heightmaps.py FOLDER --objects 1000 --output benchmarks/results/mesh_heightmaps.json

Objects are scaled copies of the meshes in FOLDER, or of a generated set without one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from trimesh import creation

from torchrl_gpu.device import get_device
from torchrl_gpu.envs.packing.items.columns import crossings
from torchrl_gpu.envs.packing.items.mesh_shapes import MeshShape
from torchrl_gpu.envs.packing.items.meshes import MeshItems
from torchrl_gpu.envs.packing.items.rasterise import Heightmaps, rasterise
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.machine import describe

RAYS = 3  # along each side of a cell
TOLERANCE = 1e-6  # metres


def main() -> None:
    """Makes the heightmaps, checks some against rays, prints and writes what came of it."""
    args = _arguments()
    device = get_device(args.device)
    shapes, scales = objects(args.folder, args.objects, args.size, args.unit, args.seed)
    meshes = [(shape.mesh[0] * scale, shape.mesh[1]) for shape, scale in zip(shapes, scales, strict=True)]
    word = args.orientations
    rotations = orientation_set(float(word) if word.replace(".", "").isdigit() else word, boxes=False)
    cell = (args.cell, args.cell)
    rasterise(meshes[:1], rotations, cell, device)  # whatever a first call loads
    start, busy = time.perf_counter(), time.process_time()
    maps = rasterise(meshes, rotations, cell, device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    picked = np.random.default_rng(args.seed).permutation(len(meshes))[: args.checked]
    checks = [check(meshes[m], maps[m], rotations, args.cell) for m in track(picked, "rays")]
    volumes = [shape.volume * scale**3 for shape, scale in zip(shapes, scales, strict=True)]
    result = {
        "benchmark": "mesh_heightmaps",
        "machine": describe(device),
        "objects": len(meshes),
        "orientations": len(rotations),
        "cell_m": args.cell,
        "faces": _spread([len(faces) for _, faces in meshes]),
        "longest_side_m": _spread([float(np.ptp(vertices, 0).max()) for vertices, _ in meshes]),
        "seconds": seconds,
        "processor_seconds": busy,
        "objects_per_second": len(meshes) / seconds,
        "checked_objects": len(checks),
        "rays": {key: sum(each[key] for each in checks) for key in checks[0]} if checks else {},
        "share_of_columns": _spread([v / _columns(m, args.cell) for v, m in zip(volumes, maps, strict=True)]),
    }
    print(json.dumps({k: v for k, v in result.items() if k != "machine"}, indent=2))
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(result, indent=1) + "\n")


def objects(
    folder: Path | None, count: int, size: tuple[float, float], unit: str, seed: int
) -> tuple[list[MeshShape], list[float]]:
    """Shapes, taking turns, and scales that draw the longest side of each object from `size` metres."""
    with tempfile.TemporaryDirectory() as made:
        source = MeshItems(folder or _generated(Path(made)), unit=unit, scale=(1.0, 1.0), skip_invalid=True)
    for path, reason in source.skipped:
        print(f"skipped {path}: {reason}")
    turns = itertools.islice(itertools.cycle(item.shape for item in source.items), count)
    rng = np.random.default_rng(seed)
    shapes = list(turns)
    return shapes, [float(rng.uniform(*size) / np.ptp(shape.mesh[0], 0).max()) for shape in shapes]


def check(mesh: tuple[np.ndarray, np.ndarray], maps: Heightmaps, rotations: np.ndarray, cell: float) -> dict[str, int]:
    """Cells in which rays, nine to a cell, contradict the heightmaps of an object.

    A hole: rays meet the object, the cell has no material. Low: the top is under what rays meet. High: the bottom is
    above it. Beyond: top or bottom further outside of what rays meet in the cell and its eight neighbours than half a
    cell, which allows for corners between rays.
    """
    found = {"cells": 0, "holes": 0, "low": 0, "high": 0, "beyond": 0}
    for o, rotation in enumerate(rotations):
        points = mesh[0] @ rotation.T
        p, q = maps.extent[o].tolist()
        top, bottom = (t[o, :p, :q].double().cpu().numpy() for t in maps[:2])
        high, low = ray_extremes((points - points.min(0))[mesh[1]], (p, q), cell)
        material, met = np.isfinite(bottom), np.isfinite(low)
        found["cells"] += int(material.sum())
        found["holes"] += int((met & ~material).sum())
        found["low"] += int((met & (top < high - TOLERANCE)).sum())
        found["high"] += int((met & (bottom > low + TOLERANCE)).sum())
        beyond = (top > grown(high) + cell / 2) | (bottom < -grown(-low) - cell / 2)
        found["beyond"] += int((material & beyond).sum())
    return found


def ray_extremes(
    triangles: np.ndarray, cells: tuple[int, int], cell: float, rays: int = RAYS
) -> tuple[np.ndarray, np.ndarray]:
    """Highest and lowest point (P, Q) of triangles (F, 3, 3), in the first octant, that rays in each cell meet."""
    across = np.array([cell / rays, cell / rays, 1.0])
    hits = crossings(triangles / across, rays * cells[0], rays * cells[1])
    high, low = np.full(cells, -np.inf), np.full(cells, np.inf)
    np.maximum.at(high, (hits.x // rays, hits.y // rays), hits.z)
    np.minimum.at(low, (hits.x // rays, hits.y // rays), hits.z)
    return high, low


def grown(high: np.ndarray) -> np.ndarray:
    """The highest of each cell and its neighbours."""
    wide = np.pad(high, 1, constant_values=-np.inf)
    shifts = itertools.product(range(3), repeat=2)
    return np.max([wide[i : i + high.shape[0], j : j + high.shape[1]] for i, j in shifts], axis=0)


def _columns(maps: Heightmaps, cell: float) -> float:
    """Volume between bottom and top, the least over the orientations."""
    thick = torch.where(maps.bottom.isfinite(), maps.top - maps.bottom, 0.0)
    return float(thick.sum((1, 2), dtype=torch.float64).min()) * cell**2


def _generated(folder: Path) -> Path:
    """Meshes of 500 to 2,000 triangles."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        ball = creation.icosphere(subdivisions=3)
        ball.vertices *= rng.uniform(0.4, 1.0, 3) * (1 + 0.15 * np.sin(ball.vertices @ rng.normal(0, 3, (3, 1))))
        ball.export(folder / f"ball{seed}.obj")
    creation.torus(1.0, 0.4, major_sections=32, minor_sections=24).export(folder / "ring.obj")
    creation.annulus(0.8, 1.0, 1.5, sections=64).export(folder / "tube.obj")
    creation.capsule(1.0, 0.4, count=(24, 24)).export(folder / "capsule.obj")
    creation.cylinder(0.5, 1.6, sections=160).export(folder / "can.obj")
    return folder


def _spread(values: list[Any]) -> dict[str, float]:
    return {"least": float(min(values)), "mean": math.fsum(values) / len(values), "most": float(max(values))}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--size", type=float, nargs=2, default=(0.05, 0.14), help="longest side, metres")
    parser.add_argument("--unit", default="m")
    parser.add_argument("--cell", type=float, default=0.002, help="metres")
    parser.add_argument("--orientations", default="cube")
    parser.add_argument("--checked", type=int, default=20, help="objects to compare with rays")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
