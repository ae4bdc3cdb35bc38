"""The cost of viewers, and the pictures that they get.

`python benchmarks/streaming.py`

Server, viewers and training are processes of their own on this machine, over loopback. Frames are 640×480 at 30 a
second, 50 KB each in JPEG. The last part trains packing_dqn.yaml while a viewer comes and goes: stretches with and
without it take turns, so that whatever else the machine does, it does to both alike. Three to five minutes in all.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HEARTBEAT_S = 5.0
# Of the server: its memory grows until it keeps so many seconds.
REPLAY_S = 10.0
PACKAGES = ("aiohttp", "av", "opencv-python-headless", "lightning")


@dataclass(frozen=True)
class Row:
    """A figure beside what it must reach.

    Attributes:
        what: In words.
        value: Measured.
        unit: Of it.
        target: That it must reach.
        least: Whether the target is a floor; else it is a ceiling.
        notes: What else must be known.
    """

    what: str
    value: float
    unit: str
    target: float
    least: bool = False
    notes: str = ""

    @property
    def met(self) -> bool:
        """True where the target is reached."""
        return self.value >= self.target if self.least else self.value <= self.target

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"met": self.met}


def main(argv: list[str]) -> None:
    """Measures, prints each figure beside its target, and writes all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "streaming.json")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--dead", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each part with viewers")
    parser.add_argument("--pairs", type=int, default=10, help="stretches of training with and without a viewer")
    parser.add_argument("--stretch_s", type=float, default=6.0, help="about how long one takes")
    args = parser.parse_args(argv)
    # torchrl announces every buffer that it allocates.
    os.environ.setdefault("RL_LOGGING_LEVEL", "WARNING")
    started = time.perf_counter()
    result: dict[str, Any] = {"command": "python benchmarks/streaming.py", "machine": describe(), "parts": {}}
    rows: list[Row] = []
    for name in args.parts:
        print(f"{name} …", flush=True)
        found, raw = PARTS[name](args)
        result["parts"][name] = raw
        rows += found
        for row in found:
            print(line(row), flush=True)
    result |= {"rows": [row.data() for row in rows], "elapsed_s": time.perf_counter() - started}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"Written: {args.output}")


def describe() -> dict[str, Any]:
    """The machine and what it runs, in the words of the other benchmarks."""
    import torch

    from torchrl_gpu.system import machine

    made = machine.describe(torch.device("cpu"))
    made["versions"] |= {name: metadata.version(name) for name in PACKAGES}
    return made


def line(row: Row) -> str:
    """A figure for the terminal."""
    bound = f"{'≥' if row.least else '≤'} {row.target:g} {row.unit}"
    notes = f" ({row.notes})" if row.notes else ""
    return f"  {row.what}: {row.value:.4g} {row.unit}, wanted {bound}: {'met' if row.met else 'MISSED'}{notes}"


# -- viewers --------------------------------------------------------------------------------------------------------


def measure_viewers(args: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    """Many that paint at once."""
    with Source(args) as source:
        seen = source.viewers("--live", str(args.viewers), "--seconds", str(args.seconds))
        cpu = source.cpu_share(seen["begin"], seen["end"])
    ages = seen.pop("ages_ms")
    notes = f"age of a picture {quantile(ages, 0.5):.1f} ms median, {quantile(ages, 0.95):.1f} ms p95"
    row = Row(f"slowest of {args.viewers} viewers", min(seen["fps"]), "pictures/s", 29.5, least=True, notes=notes)
    return [row], seen | {"ages_ms": quantiles(ages), "server_cpu_share": cpu, "frame_bytes": source.frame_bytes}


def measure_dead(args: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    """Measure viewers next to some that join and never read.

    When those are gone, as many join again.
    """
    with Source(args) as source:
        words = ["--live", str(args.viewers), "--dead", str(args.dead), "--settle_s", str(REPLAY_S + 3.0)]
        words += ["--wave_s", str(2.2 * HEARTBEAT_S)]
        seen = source.viewers(*words, "--seconds", str(args.seconds))
        before = source.rss_mb(seen["begin"] - 1.5, seen["begin"])
        growth = source.rss_mb(seen["begin"], seen["end"]) - before
        gone = source.seconds_until(args.viewers, seen["joined"][0], seen["end"])
    seen["ages_ms"] = quantiles(seen["ages_ms"])
    slowest = Row(f"slowest of them beside {args.dead} dead", min(seen["fps"]), "pictures/s", 29.5, least=True)
    memory = Row(f"memory of the server in {args.seconds:g} s", growth, "MB", 10.0)
    notes = f"two heartbeats of {HEARTBEAT_S:g} s"
    rows = [slowest, memory, Row("until the dead are gone", gone, "s", 2 * HEARTBEAT_S, notes=notes)]
    return rows, seen | {"rss_before_mb": before, "rss_growth_mb": growth, "said": source.said}


def measure_slow(args: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    """One that takes a fifth of a second for each picture."""
    with Source(args) as source:
        seen = source.viewers("--paint_s", "0.2", "--seconds", str(args.seconds))
    periods = [age / 200 for age in seen.pop("ages_ms")]
    notes = f"median {quantile(periods, 0.5):.2f}, at {seen['fps'][0]:.1f} pictures/s"
    row = Row("age of what a viewer at 5 pictures/s takes, at worst", periods[-1], "periods", 1.3, notes=notes)
    return [row], seen | {"ages_periods": quantiles(periods)}


class Source:
    """A server with its producer, in a process of its own."""

    def __init__(self, args: argparse.Namespace) -> None:
        words = [sys.executable, str(HERE / "stream_source.py"), "--heartbeat", str(HEARTBEAT_S)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", errors="replace"
        )
        first = self._line()
        self.url, self.frame_bytes = first["url"], first["frame_bytes"]
        self.said: list[dict[str, Any]] = []

    def viewers(self, *words: str) -> dict[str, Any]:
        """Return the pictures that viewers in a process of their own see.

        The server's own account follows.
        """
        command = [sys.executable, str(HERE / "stream_viewers.py"), self.url, *words]
        seen: dict[str, Any] = json.loads(
            subprocess.run(
                command, stdout=subprocess.PIPE, check=True, text=True, encoding="utf-8", errors="replace"
            ).stdout
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.said = [json.loads(each) for each in self.process.stdout]
        return seen

    def rss_mb(self, begin: float, end: float) -> float:
        """Most resident memory in a stretch of time."""
        return max(each["rss_mb"] for each in self.said if begin - 1.0 <= each["at"] <= end)

    def cpu_share(self, begin: float, end: float) -> float:
        """Processor time of server and producer in a stretch, of one core."""
        within = [each for each in self.said if begin <= each["at"] <= end]
        return (within[-1]["cpu_s"] - within[0]["cpu_s"]) / (within[-1]["at"] - within[0]["at"])

    def seconds_until(self, watchers: int, begin: float, end: float) -> float:
        """Return the seconds from `begin` until no more than so many watch again.

        It is infinite where that does not happen before `end`.
        """
        later = [each for each in self.said if begin <= each["at"] <= end]
        return next((each["at"] - begin for each in later if each["watchers"] <= watchers), float("inf"))

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        # This closes the pipes of the process and waits.
        with self.process:
            pass


# -- the callback ---------------------------------------------------------------------------------------------------


def measure_hook(args: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    """The hook of a run that nobody watches, its share of the logging in it."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import CSVLogger

    from torchrl_gpu.callbacks import FrameStream
    from torchrl_gpu.cli.lightning_cli import quiet

    quiet()
    stream, costs = FrameStream(port=0), []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(5):
            module = idle_module()
            trainer = Trainer(
                accelerator="cpu",
                max_steps=2000,
                callbacks=[stream],
                logger=CSVLogger(folder),
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(module, range(2000))
            costs.append(stream.cost["hook_us"])
    row = Row("hook that nobody watches", statistics.median(costs), "µs", 5.0, notes="mean of 2,000, median of 5 runs")
    return [row], {"hook_us": costs}


def idle_module() -> Any:
    """Build a module that only holds a small environment of packing_dqn.yaml."""
    import torch
    from lightning.pytorch import LightningModule

    from torchrl_gpu.envs import PackingEnv

    class Idle(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.__dict__["env"] = PackingEnv(8, device="cpu", seed=0)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.optimizers().step()  # type: ignore[union-attr]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    return Idle()


def measure_training(args: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    """Measure training steps a second with a viewer against without.

    Both are measured stretch by stretch in one run.
    """
    from torchrl_gpu.callbacks import FrameStream
    from torchrl_gpu.cli.lightning_cli import build
    from torchrl_gpu.system.allocator import keep_freed_memory

    # `lightning fit` does so, too.
    keep_freed_memory()
    stream = FrameStream(port=0, streams=["env0"])
    with tempfile.TemporaryDirectory() as folder, a_viewer() as viewer:
        words = ["--config", "packing_dqn.yaml", f"--trainer.default_root_dir={folder}", "--trainer.max_steps=1000000"]
        words += ["--trainer.callbacks=[]", "--trainer.limit_val_batches=0"]
        switched_off = ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary")
        words += [f"--trainer.{name}=false" for name in switched_off]
        cli = build("fit", resolved(words))
        turns = Turns(stream, viewer, args.pairs, args.stretch_s)
        cli.trainer.callbacks += [stream, turns.callback()]
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
    ratios = [watched / alone for alone, watched in turns.pairs]
    median = statistics.median(ratios)
    pictures = sum(turns.pictures) / turns.watched_s
    notes = f"{len(ratios)} pairs, {quantile(sorted(ratios), 0.25):.3f} to {quantile(sorted(ratios), 0.75):.3f};"
    notes += f" {pictures:.1f} pictures/s of {turns.steps_per_s:.1f} training steps/s"
    row = Row("training with a viewer against without", median, "×", 0.97, least=True, notes=notes)
    raw = {"ratios": ratios, "pairs": turns.pairs, "pictures": turns.pictures, "cost": stream.cost}
    return [row], raw


class Turns:
    """Has a viewer come and go during a run, and times the stretches.

    Args:
        stream: The callback that is watched.
        viewer: A process of `stream_viewers.py`, not yet started.
        pairs: Stretches with the viewer, each behind one without.
        stretch_s: About how long a stretch takes.
    """

    def __init__(self, stream: Any, viewer: Any, pairs: int, stretch_s: float) -> None:
        self.stream = stream
        self.viewer = viewer
        self.left = 2 * pairs
        self.stretch_s = stretch_s
        self.rates: list[float] = []
        self.pictures: list[int] = []
        self.watched_s = 0.0
        self.steps = 0
        self.length = 0
        self.begun = time.perf_counter()

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Training steps a second without and with, pair by pair."""
        return list(zip(self.rates[::2], self.rates[1::2], strict=True))

    @property
    def steps_per_s(self) -> float:
        """Of all stretches."""
        return statistics.median(self.rates)

    def callback(self) -> Any:
        """That of Lightning."""
        from lightning.pytorch import Callback

        turns = self

        class Stretches(Callback):
            def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
                trainer.should_stop = turns.step()

        return Stretches()

    def step(self) -> bool:
        """Count a training step.

        Returns whether all stretches are over.
        """
        now = time.perf_counter()
        self.steps += 1
        # The first stretch warms up, and says how many steps a stretch has.
        if not self.length:
            if now - self.begun > self.stretch_s:
                self.length, self.viewer.url = self.steps, self.stream.url
                self._begin()
            return False
        if self.steps < self.length:
            return False
        watched = len(self.rates) % 2 == 1
        self.rates.append(self.steps / (now - self.begun))
        if watched:
            self.watched_s += now - self.begun
            self.pictures.append(self.viewer.say("off"))
        elif len(self.rates) < self.left:
            self.viewer.say("on")
        self._begin()
        return len(self.rates) >= self.left

    def _begin(self) -> None:
        self.steps, self.begun = 0, time.perf_counter()


class Viewer:
    """One viewer in a process of its own, which comes and goes."""

    url = ""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def say(self, word: str) -> int:
        """Tell the viewer `on` or `off`.

        Returns the pictures since it came.
        """
        if self.process is None:
            words = [sys.executable, str(HERE / "stream_viewers.py"), self.url, "--stream", "env0"]
            self.process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", errors="replace"
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return int(json.loads(self.process.stdout.readline())[word])


@contextmanager
def a_viewer() -> Iterator[Viewer]:
    """One that is ended in any case."""
    viewer = Viewer()
    try:
        yield viewer
    finally:
        if viewer.process is not None:
            viewer.process.terminate()
            with viewer.process:
                pass


def resolved(words: list[str]) -> list[str]:
    """With the shipped config's own path."""
    from torchrl_gpu.cli.parser import resolve_configs

    return resolve_configs(words)


# -- figures --------------------------------------------------------------------------------------------------------


def quantile(values: list[float], share: float) -> float:
    """Of sorted values, the nearest one."""
    return values[min(len(values) - 1, round(share * (len(values) - 1)))]


def quantiles(values: list[float]) -> dict[str, float]:
    """Of sorted values, by name."""
    return {f"p{100 * share:g}": quantile(values, share) for share in (0.0, 0.5, 0.95, 0.99, 1.0)}


PARTS = {
    "viewers": measure_viewers,
    "dead": measure_dead,
    "slow": measure_slow,
    "hook": measure_hook,
    "training": measure_training,
}

if __name__ == "__main__":
    main(sys.argv[1:])
