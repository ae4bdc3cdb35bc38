"""How well behaviour cloning does what it was shown: on episodes that neither demonstrations nor training had.

The teacher, deepest-bottom-left, packs bins of another pool than that of the demonstrations, decided by a seed.
Agreement is the share of its states in which the clone's greedy placement is the teacher's; utilization is of the same
bins, packed by each. The real thing, on one core:

torchrl-gpu record --config packing_dqn.yaml --policy deepest-bottom-left --episodes 10000 --output demonstrations
lightning fit --config bc.yaml --trainer.logger lightning.pytorch.loggers.CSVLogger --trainer.logger.save_dir runs/bc
python benchmarks/cloning.py --ckpt_path runs/bc/checkpoints/best.ckpt \\
    --curve runs/bc/tensorboard/version_0/metrics.csv
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchrl_gpu import machine
from torchrl_gpu.demonstrations import Demonstrations
from torchrl_gpu.evaluation.demonstrating import play_rows
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.play.loading import load_run
from torchrl_gpu.training.data import suite_of

TEACHER = "deepest bottom left"
SEED = 77_000_003  # of the unseen episodes: neither that of `record` nor that of `lightning test`


def agreement(module: Any, shown: Demonstrations) -> Tensor:
    """Whether the clone would have done the same, in every state of the teacher's, (L,) float32."""
    parts = []
    with torch.no_grad():
        for index in torch.arange(len(shown)).split(1024):
            batch = module.env.restore(shown.batch(index))
            parts.append(module.learner.scores(batch)["agreement"])
    return torch.cat(parts)


def mean(values: Tensor) -> dict[str, float]:
    """With its standard error."""
    return {"mean": values.mean().item(), "error": (values.std() / math.sqrt(len(values))).item()}


def measure(config: str, checkpoint: str, episodes: int, seed: int) -> dict[str, Any]:
    """Agreement and utilization on unseen episodes."""
    cli, saved = load_run("cloning", ["--config", config, f"--data.seed={seed}"], checkpoint)
    module: Any = cli.model
    suite = suite_of(module, "test", episodes)
    teacher = suite.baselines()[TEACHER]
    same = agreement(module, play_rows(suite, teacher, episodes))
    packed = suite.play_all({"teacher": teacher, "clone": module.policy_for(suite.env)})
    teachers, clones = (packed[name].utilization for name in ("teacher", "clone"))
    return {
        "updates": None if saved is None else saved["global_step"],
        "episodes": episodes,
        "states": len(same),
        "seed": seed,
        "agreement": mean(same),
        "utilization": {"teacher": mean(teachers), "clone": mean(clones), "difference": mean(clones - teachers)},
    }


def curve(path: Path) -> dict[str, list[list[float]]]:
    """Training steps, of `updates_per_step` updates each, and values of all that `fit` logged with a CSV logger."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if name.startswith(("train/", "val/"))]
    return {name: [[int(row["step"]), round(float(row[name]), 5)] for row in rows if row[name]] for name in names}


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="bc.yaml")
    parser.add_argument("--ckpt_path", required=True)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--curve", type=Path, help="metrics.csv of `fit`, to stand beside the result")
    parser.add_argument("--note", default="", help="what else is to be known of the run")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "cloning.json")
    args = parser.parse_args()
    found = measure(args.config, args.ckpt_path, args.episodes, args.seed)
    used = found["utilization"]
    print(f"agreement {found['agreement']['mean']:.2%} of {found['states']:,} states")
    print(f"utilization: teacher {used['teacher']['mean']:.2%}, clone {used['clone']['mean']:.2%}")
    result = {
        "command": " ".join(["python", "benchmarks/cloning.py", *sys.argv[1:]]),
        "note": args.note,
        "machine": machine.describe(torch.device("cpu")),
        **found,
    }
    if args.curve is not None:
        result["curve"] = curve(args.curve)
    write_json(args.output, result)
    print(f"Written: {args.output}")


if __name__ == "__main__":
    main()
