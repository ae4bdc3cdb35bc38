"""Real meshes: heightmaps against rays, then bins packed with the objects, checked for what no packing may do.

python benchmarks/real_meshes.py FOLDER --output benchmarks/results/real_meshes.json

FOLDER holds mesh files, z up. Where an object is longer than `--longest`, its unit is taken for unknown, and it is made
`--size` long. Nothing is written where a check fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mesh_heightmaps import check, grown, ray_extremes
from rich.progress import track
from rich.table import Table
from tensordict import TensorDictBase

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items.meshes import MeshItem, MeshItems
from torchrl_gpu.envs.packing.items.rasterise import Heightmaps, rasterise
from torchrl_gpu.envs.packing.overlap import overlaps
from torchrl_gpu.envs.packing.plan import plan_of
from torchrl_gpu.envs.packing.reward import pyramidality
from torchrl_gpu.envs.packing.rotations import orientation_set
from torchrl_gpu.evaluation.comparison import estimate
from torchrl_gpu.evaluation.packing import evaluate
from torchrl_gpu.evaluation.reports import print_whole, write_json
from torchrl_gpu.machine import describe
from torchrl_gpu.policies.packing import HierarchicalPacker, PackerNetworks

CPU = torch.device("cpu")
WRONG = ("holes", "low", "high", "beyond")
RULES = {"box order + HM": "box", "least waste + HM": "waste"}
HEIGHTMAPS = {
    "file": "file",
    "parts": "parts",
    "triangles": "triangles",
    "longest_side_cm": "longest side, cm",
    "processor_ms": "processor ms",
    "cells": "cells checked",
    "holes": "holes",
    "low": "top too low",
    "high": "bottom too high",
    "past_9": "past 9 rays, cells",
    "past_81": "past 81 rays, cells",
}
PACKING = {
    "rule": "rule",
    "bins": "bins",
    "objects": "objects",
    "compactness": "C",
    "pyramidality": "P, mean",
    "most_pyramidality": "P, most",
    "overlap_cells": "deepest overlap, cells",
    "walls_cells": "past a wall, cells",
}


def main() -> int:
    """Prints both tables and writes them; 1 where a check fails."""
    args = _arguments()
    items = fitted(args.folder, args.unit, args.longest, args.size)
    rows = list(_checked_heightmaps(items, args.cell))
    scaled = _varied(items, args.seed)
    packed = [_packed(rule, word, scaled, args) for rule, word in RULES.items()]
    result = {
        "benchmark": "real_meshes",
        "machine": describe(CPU),
        "cell_m": args.cell,
        "orientations": 24,
        "bin_size_m": list(args.bin_size),
        "catalogue": len(scaled.items),
        "sections": [
            {"title": "heightmaps", "columns": HEIGHTMAPS, "rows": rows},
            {"title": "packing", "columns": PACKING, "rows": packed},
        ],
    }
    for section in result["sections"]:
        print_whole(_shown(section))
    wrong = list(_failures(rows, packed))
    for line in wrong:
        print(f"real_meshes: {line}", file=sys.stderr)
    if args.output and not wrong:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.output, result)
    return 1 if wrong else 0


def fitted(folder: Path, unit: str, longest: float, size: float) -> MeshItems:
    """The objects of a folder as large as they are; those longer than `longest` metres are made `size` long."""
    source = MeshItems(folder, unit=unit, scale=(1.0, 1.0), skip_invalid=True, device=CPU)
    for path, reason in source.skipped:
        print(f"skipped {path.name}: {reason}")
    sides = [float(np.ptp(item.shape.mesh[0], 0).max()) for item in source.items]
    source.items = [
        MeshItem(item.shape, 1.0 if side <= longest else size / side)
        for item, side in zip(source.items, sides, strict=True)
    ]
    return source


def _varied(source: MeshItems, seed: int) -> MeshItems:
    """Five of each object, 0.8 to 1.2 times as large."""
    varied = MeshItems(
        source.path, source.unit, scale=(0.8, 1.2), num_scales=5, skip_invalid=True, device=CPU, seed=seed
    )
    scale = {item.shape.name: item.scale for item in source.items}
    varied.items = [MeshItem(item.shape, item.scale * scale[item.shape.name]) for item in varied.items]
    return varied


# -- heightmaps --------------------------------------------------------------------------------------------------------


def _checked_heightmaps(source: MeshItems, cell: float) -> Iterator[dict[str, Any]]:
    """A row for each object: processor time of its heightmaps in 24 orientations, and what rays say of them."""
    rotations = orientation_set("cube", boxes=False)
    meshes = [(item.shape.mesh[0] * item.scale, item.shape.mesh[1]) for item in source.items]
    rasterise(meshes[:1], rotations, (cell, cell), CPU)  # whatever a first call loads
    for item, mesh in track(list(zip(source.items, meshes, strict=True)), "rays"):
        start = time.process_time()
        (maps,) = rasterise([mesh], rotations, (cell, cell), CPU)
        busy = time.process_time() - start
        yield {
            "file": Path(item.shape.name).name,
            "parts": len(item.shape.parts),
            "triangles": len(mesh[1]),
            "longest_side_cm": 100 * float(np.ptp(mesh[0], 0).max()),
            "scale": item.scale,
            "processor_ms": 1e3 * busy,
            **check(mesh, maps, rotations, cell),
            "past_9": past_rays(mesh, maps, rotations, cell, 3),
            "past_81": past_rays(mesh, maps, rotations, cell, 9),
        }


def past_rays(
    mesh: tuple[np.ndarray, np.ndarray], maps: Heightmaps, rotations: np.ndarray, cell: float, rays: int
) -> float:
    """How far tops and bottoms reach past what rays meet in a cell and its eight neighbours, at most, in cells.

    Corners that lie between rays are past them, the less the closer the rays.

    Args:
        mesh: Vertices (V, 3) and faces (F, 3).
        maps: Of the mesh.
        rotations: (O, 3, 3), what the maps were made for.
        cell: Metres.
        rays: Along each side of a cell.
    """
    most = 0.0
    for o, rotation in enumerate(rotations):
        points = mesh[0] @ rotation.T
        p, q = maps.extent[o].tolist()
        top, bottom = (t[o, :p, :q].double().numpy() for t in maps[:2])
        high, low = ray_extremes((points - points.min(0))[mesh[1]], (p, q), cell, rays)
        material = np.isfinite(bottom)
        above, below = top[material] - grown(high)[material], -grown(-low)[material] - bottom[material]
        most = max(most, float(above.max()), float(below.max()))
    return most / cell


# -- packing -----------------------------------------------------------------------------------------------------------


def _packed(rule: str, word: str, source: MeshItems, args: argparse.Namespace) -> dict[str, Any]:
    """Bins packed by a rule: what the paper's table shows, the largest P after any step, the deepest overlaps."""
    env, pyramidalities = _environment(source, args), []
    policy = HierarchicalPacker(env, PackerNetworks(), word, "growth", item_shortlist=8)

    def watched(state: TensorDictBase) -> TensorDictBase:
        volume = state["utilization"][:, 0] * env.bin.volume
        pyramidalities.append(pyramidality(state["box_heightmap"], volume, env.bin))
        return policy(state)

    results = evaluate(env, watched)
    plans = [plan_of(env, index) for index in range(env.num_envs)]
    found = [overlaps(plan, args.cell / args.voxels) for plan in track(plans, f"overlaps, {rule}")]
    return {
        "rule": rule,
        "bins": env.num_envs,
        **{key: estimate(values).mean for key, values in results.per_episode().items()},
        "objects": estimate(results.num_packed).mean,
        "most_pyramidality": torch.stack([*pyramidalities, results.pyramidality]).max().item(),
        "overlap_cells": max(each.items for each in found) / args.cell,
        "walls_cells": max(each.walls for each in found) / args.cell,
        "seconds": results.seconds,
    }


def _environment(source: MeshItems, args: argparse.Namespace) -> PackingEnv:
    cells = [round(side / args.cell) for side in args.bin_size[:2]]
    return PackingEnv(
        args.bins,
        bin_size=tuple(args.bin_size),
        resolution=(cells[0], cells[1]),
        grid_step=4,
        items=source,
        num_items=50,
        visible_items=20,
        orientations="cube",
        order="box",
        include=["z_map"],
        device=CPU,
        seed=args.seed,
    )


# -- what is shown -----------------------------------------------------------------------------------------------------


def _failures(heightmaps: list[dict[str, Any]], packed: list[dict[str, Any]]) -> Iterator[str]:
    for row in heightmaps:
        for name in WRONG:
            if row[name]:
                yield f"{row['file']}: want no cell that rays contradict; got {row[name]} of {row['cells']}, {name}"
    for row in packed:
        if row["most_pyramidality"] > 1 + 1e-6:
            yield f"{row['rule']}: want P up to 1; got {row['most_pyramidality']}"
        deepest = max(row["overlap_cells"], row["walls_cells"])
        if deepest > 1:
            yield f"{row['rule']}: want overlaps up to a cell; got one of {deepest:.2f}"


def _shown(section: dict[str, Any]) -> Table:
    table = Table(title=section["title"], title_justify="left")
    for title in section["columns"].values():
        table.add_column(title, no_wrap=True)
    for row in section["rows"]:
        values = [row[key] for key in section["columns"]]
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in values))
    return table


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--unit", default="m")
    parser.add_argument("--longest", type=float, default=0.25, help="metres")
    parser.add_argument("--size", type=float, default=0.12, help="metres")
    parser.add_argument("--cell", type=float, default=0.002, help="metres")
    parser.add_argument("--bin_size", type=float, nargs=3, default=(0.4, 0.4, 0.3), help="metres")
    parser.add_argument("--bins", type=int, default=8)
    parser.add_argument("--voxels", type=int, default=2, help="along a cell, in the check of overlaps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
