"""Draws pictures of the documentation: `python docs/images/make.py [--folder FOLDER] [--packer CHECKPOINT]`.

packing.gif, solids.png and marine.gif; with the checkpoint of a run of packing_irregular.yaml packer.png instead.
crossing.gif and shift.gif (its first 72 pictures, made smaller) are drawn by `lightning test` with the checkpoints of
navigation_iqn.yaml and dishwashing_video.yaml.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tensordict import TensorDictBase

from torchrl_gpu.cli.lightning_cli import build
from torchrl_gpu.cli.parser import resolve_configs
from torchrl_gpu.envs import MarineNavEnv, PackingEnv
from torchrl_gpu.envs.marine.viewer import film
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.envs.packing.protocols import make_protocol
from torchrl_gpu.envs.packing.viewer import contact_sheet, frames, render, save_gif, save_png
from torchrl_gpu.evaluation.packing import evaluate
from torchrl_gpu.evaluation.packing.irregular import easy
from torchrl_gpu.evaluation.suite import UNSEEN_SEED
from torchrl_gpu.policies import AgentSpace, PackingPolicy
from torchrl_gpu.policies.packing import HeightmapMinimization
from torchrl_gpu.system.archives import read_archive


def packing(folder: Path) -> None:
    """Of 99 bins by the policy cut2 the one that is filled as far as half of the others."""
    env = make_protocol("cut2", 99, device="cpu", seed=UNSEEN_SEED, include=("z_map",))
    packed = evaluate(env, PackingPolicy.from_pretrained("cut2", "cpu", space=AgentSpace.of(env)))
    median = int(packed.utilization.argsort()[len(packed.utilization) // 2])
    print(f"packing.gif: {packed.utilization[median]:.1%}")
    save_gif(frames(env, median), folder / "packing.gif")


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
    evaluate(env, HeightmapMinimization(env))
    save_png(contact_sheet(render(env, range(4), width=480, height=360), columns=2), folder / "solids.png")


def marine(folder: Path) -> None:
    """Of 64 worlds the one in which most robots arrive with least energy."""

    def worlds() -> MarineNavEnv:
        return MarineNavEnv(64, device="cpu", seed=2, pool=64, in_order=True)

    env = worlds()
    current = env.reset()
    for _ in range(120):
        current = env.step(steered(current))["next"].exclude(("robots", "reward"))
    robots = current["robots"]
    best = (1000 * robots["arrived"] - robots["energy"]).sum(1).flatten().argmax()
    frames = film(worlds(), steered, index=int(best), steps=120, width=420, height=420)
    save_gif(frames[::2], folder / "marine.gif", fps=8)


def steered(shown: TensorDictBase) -> TensorDictBase:
    """Goals attract, what is near repels and turns aside: the action whose turn points along their sum."""
    seen, mask = shown["robots", "observation"], shown["robots", "object_mask"]
    goal = torch.nn.functional.normalize(seen[..., :2], dim=-1)
    still, moving = seen[..., 4:19].unflatten(-1, (5, 3)), seen[..., 19:].unflatten(-1, (5, 4))
    place = torch.cat([still[..., :2], moving[..., :2] + moving[..., 2:]], -2)  # where it is in a second
    radius = torch.cat([still[..., 2], torch.full_like(moving[..., 0], 0.8)], -1)
    distance = place.norm(dim=-1).clamp_min(0.1)
    gap = (distance - radius - 0.8).clamp_min(0.3)
    gain = torch.tensor([1.0] * 5 + [1.5] * 5)
    weight = torch.where(mask & (gap < 6), gain / gap**2, 0.0)[..., None]
    away = -place / distance[..., None]
    aside = torch.stack([-away[..., 1], away[..., 0]], -1)
    pull = goal + (weight * (0.6 * away + 0.8 * aside)).sum(-2) - 0.25 * (seen[..., 2:4] - 1.5 * goal)
    bearing = torch.atan2(pull[..., 1], pull[..., 0])
    turn = 1 + (bearing > 0.1).long() - (bearing < -0.1).long()
    shown["robots", "action"] = 3 * torch.where(bearing.abs() > 1.2, 0, 2) + turn
    return shown


def packer(folder: Path, checkpoint: Path) -> None:
    """The first three evaluation cases: above by box order and heightmap minimisation, below by manager and worker."""
    words = ["--config", "packing_irregular.yaml", f"--ckpt_path={checkpoint}", "--trainer.logger=false"]
    module = build("test", resolve_configs([*words, "--model.env.num_envs=1", "--model.env.device=cpu"])).model
    module.load_state_dict(read_archive(checkpoint, "checkpoint")["state_dict"])
    module.eval()
    env = module.env.like(3, items=easy(module.env.items, UNSEEN_SEED), seed=UNSEEN_SEED, first_env=0)
    learned, rows = module.policy_for(env), []
    for policy in (learned.choosing("box", "growth"), learned):
        packed = evaluate(env, policy)
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
        packing(asked.folder)
        solids(asked.folder)
        marine(asked.folder)
    else:
        packer(asked.folder, asked.packer)
