"""Launches of the host in a training step of the shipped configs.

They are counted on a pretended device.

The device has no Triton: what its kernels do on a GPU are operators of torch here, all in graphs. A step is counted
once graphs are made, in small batches, which launch as often as large ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.result_types import JsonObject
from torchrl_gpu import configs
from torchrl_gpu.cli.lightning_cli import build
from torchrl_gpu.cli.parser import OneLineParser
from torchrl_gpu.system import machine

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "training_launches.json"
# Cloning learns from a file, and clips want a video: neither comes with the package.
CONFIGS = tuple(
    name for name in configs.names() if name not in ("bc.yaml", "packing_bc_to_rl.yaml", "packing_orders.yaml")
)
# The last is counted; by then every graph is made.
_STEPS = 4
_REPLAY = {"model.batch_size": 8, "model.replay.capacity": 2000, "model.warmup_frames": 64}
# By learner.
_SMALL: dict[str, JsonObject] = {
    "AfterstateLearning": {"model.rollout_steps": 2},
    "BehaviourCloning": {},
    "HierarchicalPacking": _REPLAY,
    "OffPolicy": _REPLAY,
    "OnPolicy": {"model.rollout_steps": 8},
    "PlacementEvolution": {"model.members": 4},
}
# An operator takes as long as on a CPU here.
_FEWER: dict[str, JsonObject] = {
    "packing_irregular.yaml": {"model.env.resolution": 10, "model.env.items.num_objects": 4, "model.n_steps": 3},
}
# The device must be there before anything imports torch.
_COUNT_HERE = """
import sys
from pathlib import Path

from tests import pretend_cuda

pretend_cuda.activate()
from benchmarks.gpu.training_launches import count_here

count_here(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
"""
_PLAIN = ("--model.cuda_graphs=false", "--model.graph_updates=false")


def main(arguments: list[str]) -> int:
    """Counts, prints a table, and writes it if asked."""
    parser = OneLineParser(prog="python -m benchmarks.gpu.launches", description=__doc__)
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=CONFIGS)
    parser.add_argument("--output", type=Path, help=f"JSON, such as {RESULT.name}; nothing is written without it")
    given: Any = parser.parse_args(arguments)
    rows: list[JsonObject] = []
    for name in given.configs:
        found = counted(name)
        rows.append({"config": name} | found)
        graphs = f"{found['replays']} of them graphs of {found['nodes']:,} operators"
        print(f"{name}: {found['launches']:,} launches, {graphs}; {found['plain']:,} without graphs", flush=True)
        if given.output:
            _write(rows, given.output)
    return 0


def _write(rows: list[JsonObject], output: Path) -> None:
    """Write the table as far as it goes."""
    columns = {
        "config": "config",
        "rollout_steps": "steps of a rollout, here",
        "plain": "launches without graphs",
        "launches": "launches with graphs, replays included",
        "replays": "replays",
        "nodes": "operators in graphs",
    }
    section = {"title": "launches of a training step", "columns": columns, "rows": rows}
    told = {"benchmark": "gpu.launches", "machine": machine.describe(torch.device("cpu")), "sections": [section]}
    output.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def counted(name: str) -> dict[str, int]:
    """Count launches of a training step with graphs and without.

    Each count has a process of its own.
    """
    graphed, plain = _run(name), _run(name, *_PLAIN)
    graphed.pop("operators")
    return {"plain": plain["launches"], **graphed}


def _run(name: str, *options: str) -> JsonObject:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "counted.json"
        command = [sys.executable, "-c", _COUNT_HERE, name, str(output), *options]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", errors="replace", check=False
        )
        if done.returncode:
            raise RuntimeError(f"{name}: training on a pretended device failed:\n{done.stderr[-3000:]}")
        found: JsonObject = json.loads(output.read_text(encoding="utf-8"))
        return found


def count_here(name: str, output: Path, options: list[str]) -> None:
    """Train a config a few steps in this process, and write the last one's launches.

    The process has a pretended device.
    """
    from tests import pretend_cuda

    class Count(Callback):
        """Counts the launches of each training step, and ends the run behind the last."""

        def on_train_batch_start(self, *args: object) -> None:
            self._open = pretend_cuda.launches()
            self.counted = self._open.__enter__()

        def on_train_batch_end(
            self, trainer: Trainer, module: LightningModule, outputs: object, batch: object, batch_idx: int
        ) -> None:
            self._open.__exit__(None, None, None)
            trainer.should_stop = batch_idx + 1 >= _STEPS

    given = _options(name)
    built = build(
        "fit", ["--config", configs.find(name), *(f"--{key}={value}" for key, value in given.items()), *options]
    )
    trainer: Any = built.trainer
    count = Count()
    trainer.callbacks.append(count)
    trainer.fit(built.model, built.datamodule)
    found = count.counted
    steps = int(getattr(built.model, "rollout_steps", 0))
    told = {"rollout_steps": steps, "launches": found.total, "replays": found.replays, "nodes": found.nodes}
    output.write_text(json.dumps(told | {"operators": dict(found.operators.most_common())}), encoding="utf-8")


def _options(name: str) -> JsonObject:
    """Return the options that make a config small, and its steps those of a long run."""
    told = yaml.safe_load(Path(configs.find(name)).read_text(encoding="utf-8"))
    learner = told["model"]["class_path"].rpartition(".")[2]
    given = {"model.env.num_envs": 4, "trainer.accelerator": "gpu", "trainer.devices": 1}
    given |= {"trainer.limit_val_batches": 0, "trainer.log_every_n_steps": 1000, "trainer.enable_progress_bar": "false"}
    return given | _SMALL[learner] | _FEWER.get(name, {})
