"""Processor time of a training step of shipped configs, as it is and with `--model.torch_compile true`.

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
from typing import Any

import torch
from lightning.pytorch import Callback

sys.path.insert(0, str(Path(__file__).parents[1]))

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

WARM, TIMED, FRAMES = 2, 8, 3_000
COLUMNS = {
    "config": "config",
    "plain_ms": "ms a training step",
    "compiled_ms": "compiled",
    "ratio": "× faster",
    "compilation_s": "compilation, s of processor",
}


class Timing(Callback):
    """Writes the processor seconds of every training step into the file that the environment names."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_end(self, *args: Any) -> None:
        """Another training step is over."""
        self.times.append(time.process_time())

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
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


def row_of(config: str, updates: int, folder: Path) -> dict[str, Any]:
    """A line of the table."""
    folders = {compiled: folder / f"{config}-{compiled}" for compiled in (False, True)}
    for run in [begin(config, updates, compiled, each) for compiled, each in folders.items()]:
        run.wait()
    found = {way: json.loads((each / "times.json").read_text(encoding="utf-8")) for way, each in folders.items()}
    if not found[True]["compiled"]:
        raise ValueError(f"compiled_runs: want {config} compiled; got operators: {folders[True] / 'log'}")
    spent = {way: [after - before for before, after in pairwise(each["times"])] for way, each in found.items()}
    plain, compiled = (1e3 * statistics.median(spent[way][WARM:]) for way in (False, True))
    begun = found[True]["times"][WARM] - found[False]["times"][WARM] - 1e-3 * WARM * (compiled - plain)
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
