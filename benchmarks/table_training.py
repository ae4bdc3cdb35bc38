"""Training of look-up tables.

`python benchmarks/table_training.py` writes `results/table_training.json`.

Environment steps a second in the training of `packing.yaml` (without validation, saving and loggers), by whole rollouts
and sweeps in C++ as they are, and step by step from Python; in turn, and in turn again. Parity first: the tables of
both must be the same to the last bit. Processor time, of all threads, changes less beside other processes. Beside them
the look-ups of weights a second, and random reads of a table of that size by torch, measured in the same run.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.result_types import JsonObject
from torchrl_gpu import configs
from torchrl_gpu.cli.lightning_cli import build
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies import PackingPolicy, PatchTables
from torchrl_gpu.policies.packing.ntuple import sweep
from torchrl_gpu.system import machine
from torchrl_gpu.training import AfterstateLearning

RESULT = Path(__file__).parent / "results" / "table_training.json"
CONFIG = "packing.yaml"
WARM = 5
TIMED = 60
TURNS = 5
READS = 1 << 22
COLUMNS = {
    "row": "row",
    "steps_per_s": "environment steps/s",
    "ratio": "× step by step",
    "processor_us": "processor time of a step, µs",
}
COLUMNS_OF_READS = {"row": "row", "per_s": "per second"}


class Rate(NamedTuple):
    """Environment steps a second of a training, and seconds of processors for a step."""

    steps_per_s: float
    processor_s: float


class Timing(Callback):
    """Seconds of the training steps behind the warm-up, and those of processors."""

    def __init__(self, by_steps: bool) -> None:
        self.by_steps = by_steps
        self.times: list[float] = []
        self.processor: list[float] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take whole rollouts away where they are not wanted."""
        if self.by_steps:
            pl_module.rollout._player = None

    def on_train_batch_end(self, *given: object) -> None:
        """Another training step is over."""
        self.times.append(time.perf_counter())
        self.processor.append(time.process_time())

    def rate(self, steps: int) -> Rate:
        """Rate of so many environment steps in each training step."""
        steps *= len(self.times) - WARM
        seconds = self.times[-1] - self.times[WARM - 1]
        processor = self.processor[-1] - self.processor[WARM - 1]
        return Rate(steps / seconds, processor / steps)


def train(by_steps: bool, updates: int = WARM + TIMED) -> tuple[AfterstateLearning, Rate]:
    """A trained module, and its rate."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--config", configs.find(CONFIG), "--trainer.accelerator=cpu"]
        words += ["--trainer.logger=false", "--trainer.callbacks=[]"]
        words += ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
        words += ["--trainer.limit_val_batches=0", "--trainer.enable_checkpointing=false"]
        words += [f"--trainer.default_root_dir={folder}", f"--trainer.max_steps={updates}"]
        cli = build("fit", words)
        timing = Timing(by_steps)
        cli.trainer.callbacks.append(timing)
        reason = "measured step by step" if by_steps else sweep._cpp_problem()
        with mock.patch.object(sweep, "_cpp_problem", return_value=reason):
            cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    module: AfterstateLearning = cli.model
    return module, timing.rate(module.rollout_steps * module.env.num_envs)


def digest(tables: PatchTables) -> str:
    """Hash of the weights."""
    return hashlib.sha256(tables.weight.numpy().tobytes()).hexdigest()


@torch.no_grad()
def look_ups_per_step(module: AfterstateLearning) -> float:
    """Return the weights that a step of training needs, on average of a rollout.

    Of each legal placement those of the patches that touch the box; of the bin afterwards all, for its value before
    and after what comes later was learned, and to learn it.
    """
    env, tables = module.env, module.tables
    assert isinstance(env, PackingEnv)
    policy, shown = PackingPolicy(module.space, tables), module.rollout.current
    needed = 0
    for _ in range(module.rollout_steps):
        legal = shown["legal_mask"].flatten(1).sum(1)
        sides = env.catalogue.extent[shown["item_id"][:, 0], 0]
        for each in tables.plan.oriented:
            touched = (sides[:, 0] + each.rows - 1) * (sides[:, 1] + each.columns - 1)
            needed += int((legal * touched).sum())
        shown = env.step_and_maybe_reset(policy(shown))[1]
    return needed / (module.rollout_steps * env.num_envs) + 3 * tables.num_patches


def reads_per_s(entries: int) -> float:
    """Random reads a second of a table of so many float32, by torch, on its threads."""
    table = torch.rand(entries, dtype=torch.float32)
    at = torch.randint(entries, (READS,), dtype=torch.int64)
    table.take(at)
    begun = time.perf_counter()
    for _ in range(4):
        table.take(at)
    return 4 * READS / (time.perf_counter() - begun)


def measure(turns: int) -> JsonObject:
    """Measure all rows.

    Raises:

        ValueError: The tables of both ways differ.
    """
    ways: dict[str, Callable[[], tuple[AfterstateLearning, Rate]]] = {
        "whole rollouts and sweeps in C++": lambda: train(by_steps=False),
        "step by step from Python": lambda: train(by_steps=True),
    }
    rates: dict[str, list[Rate]] = {name: [] for name in ways}
    reads: list[float] = []
    trained: dict[str, AfterstateLearning] = {}
    for _ in range(turns):
        for name, way in ways.items():
            trained[name], rate = way()
            rates[name].append(rate)
        reads.append(reads_per_s(trained[name].tables.plan.entries))
        hashes = {digest(module.tables) for module in trained.values()}
        if len(hashes) > 1:
            raise ValueError(f"table_training: {' and '.join(trained)} have made different tables")
    needed = look_ups_per_step(next(iter(trained.values())))
    by_name = {}
    for name, found in rates.items():
        by_name[name] = median(rate.steps_per_s for rate in found)
    rows: list[JsonObject] = []
    for name, rate in by_name.items():
        row: JsonObject = {"row": name, "steps_per_s": round(rate)}
        row["ratio"] = round(rate / by_name["step by step from Python"], 2)
        row["processor_us"] = round(1e6 * median(each.processor_s for each in rates[name]), 1)
        row["turns"] = [round(each.steps_per_s) for each in rates[name]]
        rows.append(row)
    fastest = next(iter(by_name.values()))
    look_ups = [
        {"row": "look-ups of weights in training", "per_s": round(needed * fastest)},
        {"row": "random reads of the table by torch", "per_s": round(median(reads))},
        {"row": "look-ups for each random read", "per_s": round(needed * fastest / median(reads), 2)},
        {"row": "look-ups of a step", "per_s": round(needed)},
    ]
    return {
        "benchmark": "table_training",
        "settings": {"config": CONFIG, "warm": WARM, "timed": TIMED, "turns": turns},
        "machine": machine.describe(torch.device("cpu")),
        "sections": [
            {"title": "training steps", "columns": COLUMNS, "rows": rows},
            {"title": "look-ups", "columns": COLUMNS_OF_READS, "rows": look_ups},
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    result = measure(options.turns)
    for section in result["sections"]:
        for row in section["rows"]:
            print(*(f"{row[name]:,}" if not isinstance(row[name], str) else row[name] for name in section["columns"]))
    write_json(options.output, result)


if __name__ == "__main__":
    main()
