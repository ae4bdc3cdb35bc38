"""Draws solids.png, beside this file or in another folder: `python docs/images/make.py [FOLDER]`.

kernels.png is drawn by `torchrl-gpu bench kernels --plot`, packing.gif by `lightning test --config packing.yaml`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.envs.packing.viewer import contact_sheet, render, save_png
from torchrl_gpu.policies.packing import HeightmapMinimization
from torchrl_gpu.training.packings import pack


def main(folder: Path) -> None:
    """Four bins of twelve procedural solids each, by heightmap minimisation."""
    env = PackingEnv(
        num_envs=4,
        bin_size=(0.4, 0.4, 0.3),
        resolution=200,
        grid_step=4,
        items=ProceduralSolids(num_objects=60, min_size=0.06, max_size=0.14, seed=0),
        num_items=12,
        orientations="yaw",
        order="box",
        include=["z_map"],
        device="cpu",
        seed=0,
    )
    pack(env, HeightmapMinimization(env))
    save_png(contact_sheet(render(env, range(4), width=480, height=360), columns=2), folder / "solids.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
