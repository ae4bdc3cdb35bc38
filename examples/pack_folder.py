"""Packing of all meshes of a folder into one bin.

The result is plan.json, packing.gif and packing.glb:

python examples/pack_folder.py meshes/ --output packed --bin_size 0.4 0.4 0.3 --unit mm
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing import viewer
from torchrl_gpu.envs.packing.items import MeshItems
from torchrl_gpu.envs.packing.items.source import PooledSequences
from torchrl_gpu.envs.packing.overlap import overlaps
from torchrl_gpu.envs.packing.plan import PackingPlan, plan_of
from torchrl_gpu.envs.packing.scene_export import save_glb, save_plan
from torchrl_gpu.envs.packing.types import Bin, Catalogue
from torchrl_gpu.policies.packing import baselines


class EachOnce(MeshItems):
    """Every object of a folder, once and as large as it is."""

    def build(
        self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int
    ) -> tuple[Catalogue, PooledSequences]:
        """The objects as one sequence."""
        catalogue, _ = super().build(bin_, orientations, num_items, num_envs)
        return catalogue, PooledSequences(torch.arange(catalogue.num_items)[None, :num_items], in_order=True)


def main() -> None:
    """Pack greedily, the largest objects first.

    Of the K largest objects that are left, the largest that fits goes to its best placement.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, default=Path("packed"))
    parser.add_argument("--bin_size", type=float, nargs=3, default=(0.4, 0.4, 0.3), metavar="METRES")
    parser.add_argument("--unit", default="m", help="of the meshes: m, cm or mm")
    parser.add_argument("--resolution", type=int, default=200, help="cells along each side of the bin")
    parser.add_argument("--visible_items", type=int, default=20, help="K")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    items = EachOnce(args.folder, unit=args.unit, scale=(1.0, 1.0), skip_invalid=True, device=args.device)
    num_items = len(items.items)
    visible_items = min(args.visible_items, num_items)
    grid_step = max(1, args.resolution // 50)
    env = PackingEnv(
        1,
        bin_size=tuple(args.bin_size),
        resolution=args.resolution,
        grid_step=grid_step,
        items=items,
        num_items=num_items,
        visible_items=visible_items,
        orientations="cube",
        order="volume",
        include=("z_map",),
        device=args.device,
        seed=0,
    )
    env.rollout(env.num_items, baselines(env)["heightmap minimisation"], return_contiguous=False)
    plan = plan_of(env, 0)
    save_plan(plan, args.output / "plan.json")
    viewer.save_gif(viewer.frames(env, 0), args.output / "packing.gif")
    save_glb(plan, args.output / "packing.glb")
    report(env, plan)


def report(env: PackingEnv, plan: PackingPlan) -> None:
    """Print where each object went."""
    table = Table("object", "position (m)", "quaternion (w, x, y, z)", title=f"{len(plan.poses)} of {env.num_items}")
    for solid, pose in zip(plan.solids, plan.poses, strict=True):
        position = " ".join(f"{value:.3f}" for value in pose.position)
        quaternion = " ".join(f"{value:.3f}" for value in pose.quaternion)
        table.add_row(Path(solid.name).name, position, quaternion)
    Console().print(table)
    share = sum(solid.volume for solid in plan.solids) / env.bin.volume
    print(
        f"{100 * share:.1f} % of the bin filled; deepest overlap {1000 * overlaps(plan, min(env.cell)).deepest:.1f} mm"
    )


if __name__ == "__main__":
    main()
