"""Draws pictures of the documentation: `python docs/images/make.py [--folder FOLDER] [--packer CHECKPOINT]`.

solids.png; with the checkpoint of a run of packing_irregular.yaml packer.png instead. kernels.png is drawn by
`torchrl-gpu bench kernels --plot`, packing.gif by `lightning test --config packing.yaml`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from torchrl_gpu.cli import resolve_configs
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.envs.packing.viewer import contact_sheet, render, save_png
from torchrl_gpu.evaluate.objects import UNSEEN_SEED, easy
from torchrl_gpu.lightning_cli import build
from torchrl_gpu.policies.packing import HeightmapMinimization
from torchrl_gpu.training.checkpoint import read_archive
from torchrl_gpu.training.packings import pack


def solids(folder: Path) -> None:
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


def packer(folder: Path, checkpoint: Path) -> None:
    """The first three evaluation cases: above by box order and heightmap minimisation, below by manager and worker."""
    words = ["--config", "packing_irregular.yaml", f"--ckpt_path={checkpoint}", "--trainer.logger=false"]
    module = build("test", resolve_configs([*words, "--model.env.num_envs=1", "--model.env.device=cpu"])).model
    module.load_state_dict(read_archive(checkpoint, "checkpoint")["state_dict"])
    module.eval()
    env = module.env.like(3, items=easy(module.env.items, UNSEEN_SEED), seed=UNSEEN_SEED, first_env=0)
    learned, rows = module.policy_for(env), []
    for policy in (learned.choosing("box", "growth"), learned):
        packed = pack(env, policy)
        for objects, share in zip(packed.num_packed, packed.pyramidality, strict=True):
            print(f"{objects:.0f} objects, P {share:.2f}")
        rows.append(render(env, range(3), width=400, height=320))
    save_png(contact_sheet(torch.cat(rows), columns=3), folder / "packer.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--packer", type=Path)
    asked = parser.parse_args()
    if asked.packer is None:
        solids(asked.folder)
    else:
        packer(asked.folder, asked.packer)
