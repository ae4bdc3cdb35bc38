"""Learning by number of environments.

`python benchmarks/num_envs.py` writes `results/num_envs.json`.

`packing.yaml` with 64 to 16,384 bins, trained until as many steps were played, with the utilization of its validation
beside steps and seconds: what is gained in throughput may be lost in samples, as fewer updates are made of as many.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.result_types import JsonObject
from torchrl_gpu import configs
from torchrl_gpu.cli.lightning_cli import build
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.system import machine

RESULT = Path(__file__).parent / "results" / "num_envs.json"
CONFIG = "packing.yaml"
NUMBERS = (64, 256, 1024, 4096, 16384)
# Of each run.
FRAMES = 1 << 22
# Validations of a run, evenly spread.
LOOKS = 8
# Steps of an update, as in the config.
ROLLOUT = 32


class Curve(Callback):
    """Utilization at each validation, with frames and seconds of training."""

    def __init__(self) -> None:
        self.points: list[dict[str, float]] = []
        self._spent, self._begun = 0.0, time.perf_counter()

    def on_train_start(self, *given: object) -> None:
        """Training begins."""
        self._begun = time.perf_counter()

    def on_validation_start(self, *given: object) -> None:
        """What validation takes does not count."""
        self._spent += time.perf_counter() - self._begun

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Another point."""
        value = float(trainer.callback_metrics["val/utilization"])
        self.points.append({"frames": module.frames, "seconds": self._spent, "utilization": value})
        self._begun = time.perf_counter()


def train(num_envs: int, accelerator: str) -> list[dict[str, float]]:
    """The curve of a run with so many environments."""
    updates = FRAMES // (num_envs * ROLLOUT)
    with tempfile.TemporaryDirectory() as folder:
        words = ["--config", configs.find(CONFIG), f"--trainer.accelerator={accelerator}"]
        words += [f"--model.env.num_envs={num_envs}", f"--model.rollout_steps={ROLLOUT}"]
        words += ["--trainer.logger=false", "--trainer.callbacks=[]", "--trainer.enable_checkpointing=false"]
        words += ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
        words += [f"--trainer.default_root_dir={folder}", f"--trainer.max_steps={updates}"]
        words += [f"--data.steps_per_epoch={max(1, updates // LOOKS)}"]
        cli = build("fit", words)
        curve = Curve()
        cli.trainer.callbacks.append(curve)
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    return curve.points


def row_of(num_envs: int, points: list[dict[str, float]]) -> JsonObject:
    """A row of the table: after a quarter of the frames, and after all."""
    quarter = next(point for point in points if point["frames"] >= FRAMES // 4)
    last = points[-1]
    row = {"num_envs": num_envs, "updates": FRAMES // (num_envs * ROLLOUT)}
    row["steps_per_s"] = last["frames"] / last["seconds"]
    row |= {"quarter": f"{quarter['utilization']:.1%}", "quarter_s": quarter["seconds"]}
    row |= {"all": f"{last['utilization']:.1%}", "all_s": last["seconds"]}
    row["curve"] = points
    return row


def main() -> None:
    """Trains, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numbers", nargs="+", type=int, default=NUMBERS, help="of environments")
    parser.add_argument("--accelerator", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--output", type=Path, default=RESULT)
    given = parser.parse_args()
    rows = []
    for number in given.numbers:
        rows.append(row_of(number, train(number, given.accelerator)))
        print({name: value for name, value in rows[-1].items() if name != "curve"}, flush=True)
    columns = {
        "num_envs": "environments",
        "updates": "updates",
        "steps_per_s": "steps/s",
        "quarter": f"utilization after {FRAMES // 4:,} steps",
        "quarter_s": "s",
        "all": f"after {FRAMES:,}",
        "all_s": "s ",
    }
    section = {"title": "learning by number of environments", "columns": columns, "rows": rows}
    device = torch.device("cuda" if given.accelerator == "gpu" else "cpu")
    write_json(given.output, {"benchmark": "num_envs", "machine": machine.describe(device), "sections": [section]})


if __name__ == "__main__":
    main()
