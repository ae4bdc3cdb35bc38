"""Processor time of a training step of shipped configs, plain and compiled.

The compiled run has `--model.torch_compile true`.

Both runs of a config go at the same time, each with one thread: `python benchmarks/compiled_runs.py`. Compilation is in
the first training steps, which do not count. Nothing is printed where a self-test has found other numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.result_types import JsonObject
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.system import machine

ROOT = Path(__file__).parents[1]
CONFIGS = {
    "navigation_iqn": 10,
    "navigation_dqn": 10,
    "navigation_ddpg": 10,
    "navigation_sac": 10,
    "dishwashing_feasible": 4,
    "packing_dqn": 8,
}
"""Shipped configs, with the updates of a training step."""

WARM = 2
TIMED = 8
FRAMES = 3_000
COLUMNS = {
    "config": "config",
    "plain_ms": "ms a training step",
    "compiled_ms": "compiled",
    "ratio": "× faster",
    "compilation_s": "compilation, s of processor",
}


class Timing(Callback):
    """Record of the processor seconds of every training step.

    It goes into the file that the environment variable TIMING names.
    """

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_end(self, *args: object) -> None:
        """Another training step is over."""
        self.times.append(time.process_time())

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The steps, and whether what was to be compiled is."""
        steps = getattr(pl_module.rollout, "_compiled", None)
        compiled = getattr(pl_module._losses, "proven", False) and (steps is None or steps.proven)
        Path(os.environ["TIMING"]).write_text(json.dumps({"times": self.times, "compiled": compiled}), encoding="utf-8")


def begin(config: str, updates: int, compiled: bool, folder: Path) -> subprocess.Popen[bytes]:
    """A run of a config, in the background."""
    folder.mkdir()
    words = ["fit", "--config", f"{config}.yaml", "--model.torch_compile", str(compiled).lower()]
    words += ["--trainer.max_steps", str((WARM + TIMED) * updates), "--trainer.accelerator", "cpu"]
    words += ["--trainer.callbacks+=benchmarks.compiled_runs.Timing", "--trainer.limit_val_batches", "0"]
    if not config.startswith("ppo"):
        words += ["--model.warmup_frames", str(FRAMES)]
    env = os.environ | {"TIMING": str(folder / "times.json"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    log = (folder / "log").open("wb")
    return subprocess.Popen(
        [sys.executable, "-m", "torchrl_gpu.cli", *words], cwd=folder, env=env, stdout=log, stderr=log
    )


def median_step(times: list[float]) -> float:
    """Return the median seconds of a step after the first `WARM` ones."""
    spent = [after - before for before, after in pairwise(times)]
    return statistics.median(spent[WARM:])


def row_of(config: str, updates: int, folder: Path) -> JsonObject:
    """A line of the table."""
    folders = {compiled: folder / f"{config}-{compiled}" for compiled in (False, True)}
    for run in [begin(config, updates, compiled, each) for compiled, each in folders.items()]:
        run.wait()
    found = {way: json.loads((each / "times.json").read_text(encoding="utf-8")) for way, each in folders.items()}
    if not found[True]["compiled"]:
        raise ValueError(f"compiled_runs: {config} ran its operators one by one: see {folders[True] / 'log'}")
    plain_times = found[False]["times"]
    compiled_times = found[True]["times"]
    plain = 1e3 * median_step(plain_times)
    compiled = 1e3 * median_step(compiled_times)
    begun = compiled_times[WARM] - plain_times[WARM] - 1e-3 * WARM * (compiled - plain)
    return {
        "config": config,
        "plain_ms": round(plain),
        "compiled_ms": round(compiled),
        "ratio": round(plain / compiled, 2),
        "compilation_s": round(begun),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for config in options.configs:
            rows.append(row_of(config, CONFIGS[config], Path(folder)))
            print(rows[-1], flush=True)
    if options.output is not None:
        sections = [{"title": "training steps", "columns": COLUMNS, "rows": rows}]
        settings = {"warm": WARM, "timed": TIMED, "threads": 1}
        described = {"benchmark": "compiled_runs", "settings": settings}
        described |= {"machine": machine.describe(torch.device("cpu")), "sections": sections}
        write_json(options.output, described)


if __name__ == "__main__":
    main()
