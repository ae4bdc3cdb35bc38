"""Training of rsl_rl's own PPO runner on shifts at the sink, without Lightning.

It needs `pip install -e '.[rsl-rl]'`:

python examples/train_rsl_rl.py --iterations 100 --log_dir runs/rsl_rl
python examples/train_rsl_rl.py --iterations 100 --checkpoint runs/rsl_rl/model_99.pt
"""

from __future__ import annotations

import argparse

from rsl_rl.runners import OnPolicyRunner

from torchrl_gpu import get_device
from torchrl_gpu.envs import DishwashingEnv, RslRlVecEnv


def main() -> None:
    """Trains, and goes on from a checkpoint where one is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--num_envs", type=int, default=256, help="environments side by side (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=100, help="rollouts and updates (default: %(default)s)")
    parser.add_argument("--log_dir", help="folder of curves and checkpoints; without one nothing is written")
    parser.add_argument(
        "--checkpoint", help="a file of the runner's own; only from those whom you trust: it may hold code"
    )
    args = parser.parse_args()
    device = get_device(args.device)
    print(f"Device: {device}")
    env = RslRlVecEnv(DishwashingEnv(args.num_envs, observe_as="state", device=device, seed=0), ["observation"])
    net = {"class_name": "MLPModel", "hidden_dims": [64, 64], "activation": "elu"}
    config = {
        "num_steps_per_env": 24,
        "save_interval": 50,
        # The check would read the device at every step.
        "check_for_nan": False,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "algorithm": {"class_name": "PPO"},
        "actor": net | {"distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}},
        "critic": net,
    }
    runner = OnPolicyRunner(env, config, args.log_dir, str(device))
    if args.checkpoint:
        runner.load(args.checkpoint, map_location=str(device))
    runner.learn(args.iterations, init_at_random_ep_len=True)


if __name__ == "__main__":
    main()
