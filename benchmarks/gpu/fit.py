"""`python -m benchmarks.gpu.fit CONFIG`: rate of training of a shipped run.

It trains for twenty seconds.

It takes twenty seconds.

Rates are those of the second half, behind compilation and warm-up. What the package warned of, such as a graph that
could not be made, is kept.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.result_types import JsonObject
from tests.golden_runs import RUNS
from torchrl_gpu import configs
from torchrl_gpu.cli.lightning_cli import build
from torchrl_gpu.device import get_device, now

_SECONDS = 20.0
_QUICK_STEPS = 4


class Clock(Callback):
    """Ends training after some seconds or steps, and remembers how far it was when."""

    def __init__(self, seconds: float, steps: int | None) -> None:
        self.seconds, self.steps = seconds, steps
        # Time, frames, updates.
        self.readings: list[tuple[float, float, int]] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        """Read every tenth training step, or all where only few are made."""
        self._count = getattr(self, "_count", 0) + 1
        if self.steps is None and self._count % 10:
            return
        module: Any = pl_module
        self.readings.append((now(pl_module.device), float(module.frames), trainer.global_step))
        over = self.readings[-1][0] - self.readings[0][0] > self.seconds
        trainer.should_stop = over or (self.steps is not None and self._count >= self.steps)

    def rates(self) -> dict[str, float]:
        """Frames and updates per second, of the second half."""
        if len(self.readings) < 2:
            return {}
        first, last = self.readings[(len(self.readings) - 1) // 2], self.readings[-1]
        seconds = max(last[0] - first[0], 1e-9)
        return {"frames_per_s": (last[1] - first[1]) / seconds, "updates_per_s": (last[2] - first[2]) / seconds}


class Warned(logging.Handler):
    """Keeps what was warned of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


def main(argv: list[str]) -> int:
    """Train and write the rates.

    Returns 1 where the loss is no number.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.fit", description=__doc__)
    parser.add_argument("config", help="a shipped one")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--plain", action="store_true", help="operators one by one, without CUDA graphs")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="of training")
    parser.add_argument("--quick", action="store_true", help="a few steps, in small")
    parser.add_argument("--output", type=Path, required=True, help="JSON")
    args = parser.parse_args(argv)
    output, warned = args.output.absolute(), Warned()
    logging.getLogger("torchrl_gpu").addHandler(warned)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        made = _trained(args)
        os.chdir(output.parent)
    output.write_text(json.dumps(made | {"warnings": warned.lines}, indent=1), encoding="utf-8")
    print(", ".join(f"{name} {value}" for name, value in made.items()))
    return int(not math.isfinite(made["loss"]))


def _trained(args: argparse.Namespace) -> JsonObject:
    device = get_device(args.device)
    options = [f"trainer.accelerator={'gpu' if device.type == 'cuda' else 'cpu'}", "trainer.limit_val_batches=0"]
    options.append(f"trainer.devices={f'[{device.index}]' if device.type == 'cuda' else 1}")
    options.append("trainer.enable_progress_bar=false")
    if args.plain:
        options += ["model.cuda_graphs=false", "model.graph_updates=false"]
    if args.quick:
        small = next(run.options for run in RUNS.values() if run.config == args.config)
        options += [f"{name}={value}" for name, value in small.items()]
    built = build("fit", ["--config", configs.find(args.config), *(f"--{each}" for each in options)])
    clock = Clock(args.seconds, _QUICK_STEPS if args.quick else None)
    trainer: Any = built.trainer
    trainer.callbacks.insert(0, clock)
    begun = time.perf_counter()
    trainer.fit(built.model, built.datamodule)
    metrics = trainer.callback_metrics
    loss = float(metrics.get("train/loss", metrics.get("train/worker_loss", torch.nan)))
    told = {"config": args.config, "graphs": not args.plain, "num_envs": built.model.env.num_envs, "loss": loss}
    return told | {"updates": trainer.global_step, "seconds": time.perf_counter() - begun} | clock.rates()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
