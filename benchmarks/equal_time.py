"""What each encoder's policy earns after the same time of one core: `python benchmarks/equal_time.py ARCH [--minutes 10
30 60] [--shifts 1000] [--folder runs/equal_time] [--output FILE] [-- OPTIONS]`.

Trains `dishwashing_video.yaml` with an encoder on one thread. Whenever so many minutes of the processor's time have
gone into training (playing, replay, updates, logging and saving; not validation, nor what is measured here), the greedy
policy works the shifts of `benchmarks/dishwashing.py`, which nobody trains on. The learning rate stays what it is at
the start, as its schedule goes by updates. Called again, a run goes on where it was. Options behind `--` are those of
`lightning fit`, and are written down. Every call replaces the encoder's row in the file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.dishwashing import TEST, earned, row
from torchrl_gpu import machine
from torchrl_gpu.cli import main as fit
from torchrl_gpu.evaluation.reports import write_json

CONFIG = "dishwashing_video.yaml"


class ProcessorClock(Callback):
    """Measures a policy after so many minutes of the processor's time, and ends the run after the last.

    Args:
        minutes: When, rising.
        shifts: That are worked each time.
        output: The rows so far, a JSON file.
    """

    def __init__(self, minutes: list[float], shifts: int, output: str) -> None:
        self.minutes, self.shifts, self.output = minutes, shifts, Path(output)
        self.spent = 0.0
        self.rows: list[dict[str, Any]] = []
        self._since: float | None = None

    def _count(self) -> None:
        now = time.process_time()
        self.spent += now - (now if self._since is None else self._since)
        self._since = now

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock, before the replay is filled."""
        self._since = time.process_time()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stops it."""
        self._count()
        self._since = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts it again."""
        self._since = time.process_time()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        """Measures where it is time."""
        self._count()
        if self.spent < 60 * self.minutes[len(self.rows)]:
            return
        minutes = self.minutes[len(self.rows)]
        found = {"minutes": minutes, "updates": trainer.global_step, "frames": int(pl_module.frames)}
        self.rows.append(
            found | {k: v for k, v in row("", profits_of(pl_module, self.shifts)).items() if k != "policy"}
        )
        self.output.write_text(json.dumps(self.rows), encoding="utf-8")
        print(self.rows[-1], flush=True)
        self._since = time.process_time()
        if len(self.rows) == len(self.minutes):
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """The time, and what was measured."""
        return {"spent": self.spent, "rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there."""
        self.spent, self.rows = state_dict["spent"], list(state_dict["rows"])


@torch.no_grad()
def profits_of(module: Any, shifts: int) -> Tensor:
    """EUR of each shift by the greedy policy of a module, (shifts,)."""
    env = module.env.like(shifts, seed=TEST)
    policy, training = module.policy_for(env), module.training
    module.eval()

    def act(state: TensorDictBase) -> Tensor:
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            return torch.cat([policy(part.copy())["action"] for part in state.split(256)])

    profits = earned(env, act)
    module.train(training)
    return profits


def main() -> None:
    """Trains, measures and writes."""
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    given, options = words[:at], words[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch")
    parser.add_argument("--minutes", type=float, nargs="+", default=[10.0, 30.0, 60.0])
    parser.add_argument("--shifts", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("runs") / "equal_time")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "equal_time.json")
    args = parser.parse_args(given)
    torch.set_num_threads(1)
    folder = args.folder / args.arch
    folder.mkdir(parents=True, exist_ok=True)
    measured = folder / "rows.json"
    clock = f"""{{"class_path": "benchmarks.equal_time.ProcessorClock", "init_args": {{"minutes": {args.minutes},
        "shifts": {args.shifts}, "output": "{measured}"}}}}"""
    resumed = ["--ckpt_path=latest"] if list(folder.glob("checkpoints/*.ckpt")) else []
    status = fit(
        [
            "fit",
            f"--config={CONFIG}",
            f"--model.encoder.arch={args.arch}",
            "--model.lr_scheduler.init_args.end_factor=1.0",
            "--trainer.max_steps=-1",
            f"--trainer.default_root_dir={folder}",
            f"--trainer.logger.init_args.save_dir={folder}",
            f"--trainer.callbacks+={clock}",
            *resumed,
            *options,
        ]
    )
    row = table_row(args.arch, options, args.shifts, json.loads(measured.read_text(encoding="utf-8")))
    write_json(args.output, with_row(args.output, row))
    print(f"Written: {args.output}")
    sys.exit(status)


def table_row(arch: str, options: list[str], shifts: int, after: list[dict[str, Any]]) -> dict[str, Any]:
    """A line of the table: EUR after so many minutes, with its standard error and the updates until then."""
    told = {
        f"after_{each['minutes']:g}": f"{each['profit']:.1f} ± {each['error']:.1f} ({each['updates']:,})"
        for each in after
    }
    return {"encoder": arch, "options": " ".join(options) or "–", "shifts": shifts, "after": after, **told}


def with_row(path: Path, row: dict[str, Any]) -> dict[str, Any]:
    """The result of a file, with a row in place of the one of the same encoder."""
    before = json.loads(path.read_text(encoding="utf-8"))["sections"][0]["rows"] if path.is_file() else []
    rows = [each for each in before if each["encoder"] != row["encoder"]] + [row]
    marks = [f"{each['minutes']:g}" for each in row["after"]]
    columns = {"encoder": "encoder", "options": "options", "shifts": "shifts"}
    columns |= {f"after_{mark}": f"EUR after {mark} min (updates)" for mark in marks}
    return {
        "command": "python benchmarks/equal_time.py ARCH",
        "machine": machine.describe(torch.device("cpu")),
        "sections": [{"title": "equal time", "columns": columns, "rows": rows}],
    }


if __name__ == "__main__":
    main()
