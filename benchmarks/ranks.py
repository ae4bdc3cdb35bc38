"""Samples per second of one process against two that train together, each on a core of its own.

A shipped config is trained without evaluation: by one process; by two that know nothing of each other, at the same
time, which is the ceiling, since cores share memory and clock; and by two as ranks (DDP over gloo), which play in twice
the environments. The three take turns; figures are medians of wall time behind a warm-up. Nothing is printed unless the
two ranks end with the same weights.

python benchmarks/ranks.py --output benchmarks/results/ranks.json
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from torchrl_gpu import configs, machine
from torchrl_gpu.cli.lightning_cli import build

CONFIGS = ("packing.yaml", "packing_dqn.yaml", "ppo_packing.yaml")
WANTED = 1.6  # of two ranks, over one


class Timed(Callback):
    """Samples and seconds of so many training steps, behind those that warm up; then it stops the run."""

    def __init__(self, steps: int, warm: int) -> None:
        self.steps, self.warm, self.seen = steps, warm, 0
        self.samples, self.seconds, self.updates = 0, 0.0, 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Starts the clock."""
        if self.seen == self.warm:
            self._begun, self._from = time.perf_counter(), (int(pl_module.frames), trainer.global_step)  # type: ignore[arg-type]

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Stops it."""
        self.seen += 1
        if self.seen == self.warm + self.steps:
            self.seconds = time.perf_counter() - self._begun
            self.samples = int(pl_module.frames) - self._from[0]  # type: ignore[arg-type]
            self.updates = trainer.global_step - self._from[1]
            trainer.should_stop = True


def train(config: str, options: list[str], ranks: int, steps: int, warm: int, output: Path) -> None:
    """Trains as one process, or as one of several ranks, and writes what it took."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        more = ["--trainer.logger=false", "--trainer.callbacks=null", "--trainer.limit_val_batches=0"]
        more += ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
        more += ["--trainer.enable_checkpointing=false", f"--trainer.default_root_dir={folder}"]
        more += ["--trainer.accelerator=cpu", f"--trainer.devices={ranks}", "--trainer.max_steps=1000000000"]
        made = build("fit", ["--config", configs.find(config), *more, *options])
        timed = Timed(steps, warm)
        made.trainer.callbacks.append(timed)  # type: ignore[attr-defined]
        made.trainer.fit(made.model, made.datamodule)
    weights = sum(value.double().abs().sum().item() for value in made.model.state_dict().values())
    found = {"samples": timed.samples, "seconds": timed.seconds, "updates": timed.updates, "weights": weights}
    output.write_text(json.dumps(found), encoding="utf-8")


def run(config: str, args: argparse.Namespace, processes: int, together: bool) -> list[dict[str, Any]]:
    """What each of some processes took, at the same time: as ranks of one run, or alone."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    cores = sorted(os.sched_getaffinity(0))
    begun = []
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / f"{each}.json" for each in range(processes)]
        for rank, output in enumerate(outputs):
            words = ["--train", config, "--ranks", str(processes if together else 1), "--write", str(output)]
            words += ["--steps", str(args.steps), "--warm", str(args.warm), "--core", str(cores[rank % len(cores)])]
            ranked = {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            environment = os.environ | {"OMP_NUM_THREADS": "1"} | (ranked if together else {})
            program = [sys.executable, __file__, *words, "--", *args.options]
            begun.append(subprocess.Popen(program, env=environment, stdout=subprocess.DEVNULL))
        if any([each.wait() for each in begun]):
            raise RuntimeError(f"ranks: want {processes} processes that train {config}; got one that failed")
        return [json.loads(each.read_text(encoding="utf-8")) for each in outputs]


def measure(config: str, args: argparse.Namespace) -> dict[str, Any]:
    """Samples per second of one process, of two alone and of two ranks.

    Raises:
        RuntimeError: The ranks do not end with the same weights.
    """
    rates: dict[str, list[float]] = {"one": [], "ceiling": [], "two": []}
    for _ in range(args.turns):
        (one,) = run(config, args, 1, together=False)
        rates["one"].append(one["samples"] / one["seconds"])
        rates["ceiling"].append(sum(each["samples"] / each["seconds"] for each in run(config, args, 2, together=False)))
        first, second = run(config, args, 2, together=True)
        if first["weights"] != second["weights"]:
            raise RuntimeError(f"ranks: want the same weights on both ranks of {config}; got others")
        rates["two"].append(first["samples"] / max(first["seconds"], second["seconds"]))
    found = {name: statistics.median(each) for name, each in rates.items()}
    ratios = {"ratio": found["two"] / found["one"], "of_ceiling": found["two"] / found["ceiling"]}
    return {"config": config, **found, **ratios, "turns": rates, "updates": one["updates"]}


def table(rows: list[Mapping[str, Any]]) -> str:
    """Markdown."""
    heads = ("config", "1 rank, samples/s", "2 alone (ceiling)", "2 ranks", "over 1 rank", "of the ceiling")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    lines += [
        f"| {r['config']} | {r['one']:,.0f} | {r['ceiling']:,.0f} | {r['two']:,.0f} | {r['ratio']:.2f} |"
        f" {r['of_ceiling']:.0%} |"
        for r in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", default=list(CONFIGS))
    parser.add_argument("--steps", type=int, default=40, help="training steps that are timed")
    parser.add_argument("--warm", type=int, default=5, help="training steps before them")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("options", nargs="*", help="of the config, behind --")
    for name, kind in (("--train", str), ("--write", Path), ("--ranks", int), ("--core", int)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        os.sched_setaffinity(0, {args.core})
        train(args.train, args.options, args.ranks, args.steps, args.warm, args.write)
        return
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("ranks: want two cores, one for each rank; got one")
    result: dict[str, Any] = {"benchmark": "ranks", "machine": machine.describe(torch.device("cpu")), "wanted": WANTED}
    result |= {"settings": {"steps": args.steps, "warm": args.warm, "turns": args.turns, "options": args.options}}
    result["rows"] = [measure(config, args) for config in args.configs]
    at = result["machine"]
    print(table(result["rows"]))
    print(f"Wanted: {WANTED} over 1 rank. {at['device_name']}, load {at['load_average'] or 0:.1f} before.")
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"Written: {args.output}")


if __name__ == "__main__":
    main()
