"""Sweep over seeds and learning rates of a config on a Ray cluster.

It needs the extra `ray`:

python examples/ray_sweep.py --config packing.yaml --option model.rate --values 0.25 0.5 --seeds 0 1 --workers 2
python examples/ray_sweep.py --config packing_dqn.yaml --option model.optimizer.lr --values 1e-3 3e-4 --address auto

A trial is a task of Ray, and a run in a folder of its own. Where its worker dies, by kill −9, out of memory or with its
machine, Ray starts the task again, and it goes on from its newest checkpoint to the same bits: what was done since then
is done again. On a cluster of several machines --folder must be one that all of them see.
"""

from __future__ import annotations

import argparse
import itertools
import os
from pathlib import Path

# Otherwise Ray reports its usage to its makers.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray


def trial(config: str, options: list[str], folder: str) -> dict[str, float]:
    """Train, or resume where a worker was lost.

    Returns:

        Results of the validation of the last policy, by name.
    """
    from torchrl_gpu.cli.lightning_cli import build

    words = ["--config", config, *options, f"--trainer.default_root_dir={folder}", "--trainer.logger=false"]
    if any(Path(folder, "checkpoints").glob("*.ckpt")):
        words += ["--ckpt_path", "last"]
    made = build("fit", words)
    made.trainer.fit(made.model, made.datamodule, ckpt_path=made.checkpoint, weights_only=True)
    (found,) = made.trainer.validate(made.model, made.datamodule, verbose=False)
    return {name: float(value) for name, value in found.items()}


def main() -> None:
    """Run all trials, as many at a time as there are workers, and print results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="packing.yaml", help="a shipped config or a path")
    parser.add_argument("--option", default="model.rate", help="of the config, that is swept")
    parser.add_argument("--values", nargs="+", default=["0.25", "0.5"], help="of that option")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--folder", type=Path, default=Path("runs/sweep"), help="of all trials")
    parser.add_argument("--workers", type=int, default=2, help="trials at a time on this machine")
    parser.add_argument("--gpus", type=float, default=0, help="of each trial; 0.5 lets two share one")
    parser.add_argument("--retries", type=int, default=10, help="times that a trial outlives its worker")
    parser.add_argument(
        "--address", help="of a cluster that is there: auto, or ray://…; None starts one on this machine"
    )
    parser.add_argument("options", nargs="*", help="others, of every trial, behind --")
    args = parser.parse_args()
    from torchrl_gpu import configs

    here = {"num_cpus": args.workers, "include_dashboard": False} if args.address is None else {"address": args.address}
    ray.init(**here)
    remote = ray.remote(num_cpus=1, num_gpus=args.gpus, max_retries=args.retries)(trial)
    begun = {}
    for value, seed in itertools.product(args.values, args.seeds):
        folder = args.folder.absolute() / f"{args.option.rpartition('.')[2]}-{value}-seed-{seed}"
        swept = [f"--{args.option}={value}", f"--seed_everything={seed}", *args.options]
        begun[remote.remote(configs.find(args.config), swept, str(folder))] = f"{args.option} {value}, seed {seed}"
    waiting = list(begun)
    while waiting:
        (ended,), waiting = ray.wait(waiting)
        scores = ray.get(ended)
        print(f"{begun[ended]}: " + ", ".join(f"{name} {value:.4f}" for name, value in scores.items()), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
