"""Training of sb3-contrib's MaskablePPO on packing, without Lightning.

It needs `pip install -e '.[gymnasium]'`:

python examples/train_maskable_ppo.py --steps 200000 --output runs/maskable_ppo.zip
"""

from __future__ import annotations

import argparse

from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3.common.vec_env import VecMonitor

from torchrl_gpu import get_device
from torchrl_gpu.envs import GymnasiumVectorEnv, PackingEnv, Sb3VecEnv


def make(num_envs: int, device: str, seed: int) -> VecMonitor:
    """Build environments with bins of 10 × 10 × 10 cells.

    The report of an episode holds the utilization of its bin.
    """
    packing = PackingEnv(num_envs, device=device, seed=seed)
    return VecMonitor(
        Sb3VecEnv(GymnasiumVectorEnv(packing, ["box_heightmap", "item_size"])), info_keywords=("utilization",)
    )


def main() -> None:
    """Trains, and packs with the most likely legal actions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--num_envs", type=int, default=64, help="environments side by side (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200_000, help="actions, over all of them (default: %(default)s)")
    parser.add_argument("--rollout", type=int, default=32, help="steps between updates (default: %(default)s)")
    parser.add_argument("--output", help="file of what was learnt; without one nothing is written")
    args = parser.parse_args()
    device = str(get_device(args.device))
    print(f"Device: {device}")
    env = make(args.num_envs, device, seed=0)
    batch = min(512, args.num_envs * args.rollout)
    model = MaskablePPO(
        "MultiInputPolicy", env, n_steps=args.rollout, batch_size=batch, device=device, seed=0, verbose=1
    )
    model.learn(args.steps)
    if args.output:
        model.save(args.output)
    unseen = make(args.num_envs, device, seed=1)
    seen, packed = unseen.reset(), []
    while len(packed) < args.num_envs:
        action, _ = model.predict(seen, action_masks=get_action_masks(unseen), deterministic=True)
        seen, _, _, infos = unseen.step(action)
        packed += [info["episode"]["utilization"] for info in infos if "episode" in info]
    print(f"{len(packed)} unseen bins: {sum(packed) / len(packed):.1%} full")


if __name__ == "__main__":
    main()
