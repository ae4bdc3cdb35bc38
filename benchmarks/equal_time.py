"""What policies are worth after the same time of one core: `python benchmarks/equal_time.py NAME [--config CONFIG]
[--table TITLE] [--minutes 10 30 60] [--episodes 1000] [--folder runs/equal_time] [--output FILE] [-- OPTIONS]`.

Trains a config on one thread; `dishwashing_video.yaml`, where none is named, with NAME as its encoder. Whenever so many
minutes of the processor's time have gone into training (playing, replay, updates, logging and saving; not validation,
nor what is measured here), the greedy policy plays the episodes of `test`, which nobody trains on. The learning rate
stays what it is at the start, as its schedule goes by updates. Called again, a run goes on where it was. Options behind
`--` are those of `lightning fit`, and are written down. Every call replaces the row of that name in the table.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer

sys.path.insert(0, str(Path(__file__).parents[1]))

from torchrl_gpu import configs, machine
from torchrl_gpu.cli import main as fit
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.evaluation.shares import share_error
from torchrl_gpu.training.data import suite_of

ENCODERS = "dishwashing_video.yaml"


class ProcessorClock(Callback):
    """Measures a policy after so many minutes of the processor's time, and ends the run after the last.

    Args:
        minutes: When, rising.
        episodes: That are played each time.
        output: The rows so far, a JSON file.
    """

    def __init__(self, minutes: list[float], episodes: int, output: str) -> None:
        self.minutes, self.episodes, self.output = minutes, episodes, Path(output)
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
        self.rows.append(found | measured(pl_module, self.episodes))
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


def measured(module: Any, episodes: int) -> dict[str, Any]:
    """What the greedy policy of a module comes to in the first episodes of `test`, with its standard error."""
    suite = suite_of(module, "test", episodes)
    results = suite.play(module.policy_for(suite.env))
    value = results.scores()[suite.headline]
    each = getattr(results, "per_episode", dict)().get(suite.headline)
    error = share_error(value, episodes) if each is None else (each.double().std() / len(each) ** 0.5).item()
    return {"what": suite.headline, "value": value, "error": error}


def main() -> None:
    """Trains, measures and writes."""
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    given, options = words[:at], words[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--config", default=ENCODERS)
    parser.add_argument("--table", default="encoders")
    parser.add_argument("--minutes", type=float, nargs="+", default=[10.0, 30.0, 60.0])
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("runs") / "equal_time")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "equal_time.json")
    args = parser.parse_args(given)
    torch.set_num_threads(1)
    folder = args.folder / args.name
    folder.mkdir(parents=True, exist_ok=True)
    rows = folder / "rows.json"
    clock = f"""{{"class_path": "benchmarks.equal_time.ProcessorClock", "init_args": {{"minutes": {args.minutes},
        "episodes": {args.episodes}, "output": "{rows}"}}}}"""
    resumed = ["--ckpt_path=latest"] if list(folder.glob("checkpoints/*.ckpt")) else []
    status = fit(
        [
            "fit",
            f"--config={args.config}",
            *([f"--model.encoder.arch={args.name}"] if args.config == ENCODERS else []),
            *constant_rate(args.config),
            "--trainer.max_steps=-1",
            f"--trainer.default_root_dir={folder}",
            f"--trainer.logger.init_args.save_dir={folder}",
            f"--trainer.callbacks+={clock}",
            *resumed,
            *options,
        ]
    )
    row = table_row(args.name, options, args.episodes, json.loads(rows.read_text(encoding="utf-8")))
    write_json(args.output, with_row(args.output, args.table, row))
    print(f"Written: {args.output}")
    sys.exit(status)


def constant_rate(config: str) -> list[str]:
    """Keeps the learning rate of a config from falling, where that is what it does."""
    settings = yaml.safe_load(Path(configs.find(config)).read_text(encoding="utf-8"))["model"]["init_args"]
    return ["--model.lr_scheduler.init_args.end_factor=1.0"] if "lr_scheduler" in settings else []


def table_row(name: str, options: list[str], episodes: int, after: list[dict[str, Any]]) -> dict[str, Any]:
    """A line of the table: what the policy is worth after so many minutes, and the updates until then."""
    told = {f"after_{each['minutes']:g}": f"{_shown(each)} ({each['updates']:,})" for each in after}
    about = machine.describe(torch.device("cpu"))
    given = {"name": name, "options": " ".join(options) or "–", "episodes": episodes}
    return given | {"commit": about["commit"], "cpu": about["cpu"], "after": after, **told}


def _shown(found: dict[str, Any]) -> str:
    if found["what"] == "profit":
        return f"{found['value']:.1f} ± {found['error']:.1f} EUR"
    return f"{found['value']:.1%} ± {found['error']:.1%}"


def with_row(path: Path, title: str, row: dict[str, Any]) -> dict[str, Any]:
    """The result of a file, with a row in place of the one of the same name in one of its tables."""
    sections = json.loads(path.read_text(encoding="utf-8"))["sections"] if path.is_file() else []
    before = next((each for each in sections if each["title"] == title), {"rows": [], "columns": {}})
    rows = [each for each in before["rows"] if each["name"] != row["name"]] + [row]
    marks = [f"{minutes:g}" for minutes in sorted({found["minutes"] for each in rows for found in each["after"]})]
    columns = {"name": "", "options": "options", "episodes": "episodes"}
    columns |= {f"after_{mark}": f"after {mark} min (updates)" for mark in marks}
    rows = [{f"after_{mark}": "–" for mark in marks} | each for each in rows]
    table = {"title": title, "columns": columns, "rows": rows}
    return {
        "command": "python benchmarks/equal_time.py NAME",
        "learning_rate": "constant, whatever schedule a config has",
        "machine": machine.describe(torch.device("cpu")),
        "sections": [each for each in sections if each["title"] != title] + [table],
    }


if __name__ == "__main__":
    main()
