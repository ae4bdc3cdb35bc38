"""Whether a stream server in a process of its own pays: `python benchmarks/streaming_isolation.py`.

One fit of packing.yaml with two servers, one in a thread and one in a process. Stretches of training alone, and with 1
and 4 viewers of either server, take turns in a new order each round, so that whatever else the machine does, it does to
all alike. Reported are training steps a second over those of training alone in the same round, and pictures a second of
a viewer: medians and quartiles over rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

HERE = Path(__file__).parent
CONDITIONS = [("alone", 0), ("thread", 1), ("process", 1), ("thread", 4), ("process", 4)]


SMALL = {"env.init_args.num_envs": 8, "agent.init_args.network.init_args.channels": 8, "batch_size": 8}
SMALL |= {"agent.init_args.network.init_args.blocks": 1, "rollout_steps": 1, "updates_per_step": 1}
# Rounds, seconds of a stretch, share of the time that may be drawn, and arguments.
CASES: dict[str, tuple[int, float, float, list[str]]] = {
    "packing.yaml, bound by arithmetic": (10, 6.0, 0.02, []),
    "packing.yaml in small, bound by the interpreter, every picture drawn": (
        14,
        4.0,
        1.0,
        [f"--model.init_args.{name}={value}" for name, value in SMALL.items()],
    ),
}


def main() -> None:
    """Measures, prints and writes all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "streaming_isolation.json")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--stretch_s", type=float)
    parser.add_argument("--view", nargs=1, help="URL: be the viewers")
    args = parser.parse_args()
    if args.view:
        asyncio.run(be_viewers(args.view[0]))
        return
    os.environ.setdefault("RL_LOGGING_LEVEL", "WARNING")
    import torch

    from torchrl_gpu.bench import machine

    result: dict[str, Any] = {
        "command": "python benchmarks/streaming_isolation.py",
        "machine": machine.describe(torch.device("cpu")),
        "notes": "2 cores, one thread for torch, beside other work on the same machine: hence pairs and quartiles",
        "cases": {},
    }
    for name, (rounds, stretch_s, share, words) in CASES.items():
        result["cases"][name] = {"most_share": share, "changes": words}
        result["cases"][name] |= summary(measure(share, args.rounds or rounds, args.stretch_s or stretch_s, words))
        print(name, json.dumps(result["cases"][name], indent=1), flush=True)
    args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measure(share: float, rounds: int, stretch_s: float, changes: list[str]) -> list[dict[str, tuple[float, float]]]:
    """By round and condition: training steps a second, and pictures a second of one viewer."""
    from torchrl_gpu.allocator import keep_freed_memory
    from torchrl_gpu.callbacks import FrameStream
    from torchrl_gpu.cli import resolve_configs
    from torchrl_gpu.lightning_cli import build

    keep_freed_memory()
    streams = {
        kind: FrameStream(port=0, streams=["env0"], isolation=kind, most_share=share) for kind in ("thread", "process")
    }
    with tempfile.TemporaryDirectory() as folder:
        words = ["--config", "packing.yaml", f"--trainer.default_root_dir={folder}", "--trainer.max_steps=1000000"]
        words += ["--trainer.callbacks=[]", "--trainer.limit_val_batches=0"]
        switched_off = ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary")
        words += [f"--trainer.{name}=false" for name in switched_off]
        words += changes
        cli = build("fit", resolve_configs(words))
        turns = Turns(streams, rounds, stretch_s)
        cli.trainer.callbacks += [*streams.values(), turns.callback()]
        try:
            cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        finally:
            turns.close()
    return turns.results


class Turns:
    """Has viewers come and go during a run, and times the stretches."""

    def __init__(self, streams: dict[str, Any], rounds: int, stretch_s: float) -> None:
        self.streams, self.rounds, self.stretch_s = streams, rounds, stretch_s
        self.results: list[dict[str, tuple[float, float]]] = []
        self.viewers: dict[str, subprocess.Popen[str]] = {}
        self.rng = random.Random(0)
        self.order: list[tuple[str, int]] = []
        self.state = "warm"
        self.begun, self.steps = time.perf_counter(), 0

    def callback(self) -> Any:
        from lightning.pytorch import Callback

        turns = self

        class Stretches(Callback):
            def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
                trainer.should_stop = turns.step()

        return Stretches()

    def step(self) -> bool:
        """Counts a training step; whether all stretches are over."""
        now = time.perf_counter()
        self.steps += 1
        if self.state == "warm":  # compiles, and fills the replay
            if now - self.begun < 3 * self.stretch_s:
                return False
            for kind, stream in self.streams.items():
                words = [sys.executable, __file__, "--view", stream.url]
                self.viewers[kind] = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.say("thread", 0), self.say("process", 0)
            return self.begin()
        if self.state == "settle":  # a viewer has just come: what it costs once is not counted
            if now - self.begun >= 0.5:
                kind, number = self.order[0]
                self.before = self.say(kind, number)
                self.state, self.begun, self.steps = "timed", time.perf_counter(), 0
            return False
        if now - self.begun < self.stretch_s:
            return False
        kind, number = self.order.pop(0)
        seconds = now - self.begun
        pictures = self.say(kind, number) - self.before
        self.results[-1][f"{kind} {number}"] = self.steps / seconds, pictures / max(number, 1) / seconds
        self.say(kind, 0)
        return self.begin()

    def begin(self) -> bool:
        if not self.order:
            if len(self.results) == self.rounds:
                return True
            self.results.append({})
            self.order = self.rng.sample(CONDITIONS, len(CONDITIONS))
        self.say(*self.order[0])
        self.state, self.begun, self.steps = "settle", time.perf_counter(), 0
        return False

    def say(self, kind: str, number: int) -> int:
        """Has so many watch a server; pictures that were seen there in all."""
        if kind == "alone":
            return 0
        process = self.viewers[kind]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    def close(self) -> None:
        for process in self.viewers.values():
            process.terminate()
            with process:
                pass


async def be_viewers(url: str) -> None:
    """As many viewers as the last line of the input says; prints how many pictures there were so far."""
    from stream_viewers import watch

    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks: list[asyncio.Task[None]] = []
    seen: list[tuple[float, float]] = []
    async with aiohttp.ClientSession() as session:
        while line := (await reader.readline()).decode().strip():
            print(len(seen), flush=True)
            while len(tasks) < int(line):
                tasks.append(asyncio.create_task(watch(session, url, "env0", 0.0, seen)))
            while len(tasks) > int(line):
                task = tasks.pop()
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


def summary(results: list[dict[str, tuple[float, float]]]) -> dict[str, Any]:
    """Quartiles over rounds."""

    def quartiles(values: list[float]) -> dict[str, float]:
        return {f"p{q}": round(float(np.percentile(values, q)), 4) for q in (25, 50, 75)}

    names = [f"{kind} {number}" for kind, number in CONDITIONS]
    found: dict[str, Any] = {"rounds": len(results), "steps_per_s": {}, "over_alone": {}, "pictures_per_s": {}}
    for name in names:
        found["steps_per_s"][name] = quartiles([each[name][0] for each in results])
        if name != "alone 0":
            found["over_alone"][name] = quartiles([each[name][0] / each["alone 0"][0] for each in results])
            found["pictures_per_s"][name] = quartiles([each[name][1] for each in results])
    found["process_over_thread"] = {
        f"{number} viewers": {
            "steps": quartiles([each[f"process {number}"][0] / each[f"thread {number}"][0] for each in results]),
            "pictures": quartiles(
                [each[f"process {number}"][1] / max(each[f"thread {number}"][1], 1e-9) for each in results]
            ),
        }
        for number in (1, 4)
    }
    return found


if __name__ == "__main__":
    main()
