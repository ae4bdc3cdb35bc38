"""Speed next to busy processes: steps from Python, and training of `packing.yaml`.

`python benchmarks/busy.py` writes `results/busy.json` and prints each time as a multiple of the fair share. With C
cores and K busy processes of one thread each, K up to C, the fair share is the time at rest times C / (C − K / 2). All
numbers of busy processes are measured in turn, and in turn again; the median of the turns counts. Parity first: a step
on one thread and on all must give the same bins.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).parents[1]))

# Before torch, whose OpenMP reads at its import how long waiting threads spin.
from benchmarks.result_types import JsonObject

from torchrl_gpu.envs import PackingEnv  # isort: skip
import torch

from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.system import machine
from torchrl_gpu.system.cores import usable_cores

RESULT = Path(__file__).parent / "results" / "busy.json"
BUSY = (0, 1, 2)
NUM_ENVS = 1024
WARM, TIMED = 40, 300


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """So many processes beside this one, each of which computes all the time."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def environment() -> PackingEnv:
    """The bins of bpp10, on the CPU."""
    return PackingEnv(num_envs=NUM_ENVS, device="cpu", seed=0)


@torch.no_grad()
def step_ms() -> float:
    """Mean milliseconds of a step, of random legal placements."""
    env = environment()
    shown = env.reset()
    spent = []
    for step in range(WARM + TIMED):
        chosen = env.rand_action(shown)
        begun = time.perf_counter()
        shown = env.step_and_maybe_reset(chosen)[1]
        if step >= WARM:
            spent.append(time.perf_counter() - begun)
    return 1e3 * mean(spent)


def update_ms() -> float:
    """Return the milliseconds of an update of `packing.yaml`, in a process of its own."""
    words = ["-m", "torchrl_gpu.cli", "cost", "--config", "packing.yaml", "--seconds", "5", "--json"]
    words += ["--trainer.accelerator", "cpu"]
    run = subprocess.run([sys.executable, *words], capture_output=True, text=True, encoding="utf-8", check=True)
    answer = run.stdout[run.stdout.index("{") :]
    return 1e3 / float(json.loads(answer)["updates_per_s"])


def check_parity() -> None:
    """Raise unless one thread and all of them give the same bins."""
    found = []
    for threads in (1, usable_cores()):
        torch.set_num_threads(threads)
        env = environment()
        env.set_seed(0)
        shown = env.reset()
        for _ in range(20):
            shown["action"] = shown["action_mask"].to(torch.uint8).argmax(-1)
            shown = env.step_and_maybe_reset(shown)[1]
        found.append(shown["box_heightmap"])
    if not torch.equal(*found):
        raise ValueError(f"busy: one thread and {usable_cores()} threads give different bins")


def fair_share(at_rest: float, cores: int, busy: int) -> float:
    """Time that a fair share of the cores would take."""
    return at_rest * cores / (cores - busy / 2)


def rows_of(found: dict[str, dict[int, list[float]]], cores: int) -> list[JsonObject]:
    """Return the lines of the table."""
    rows = []
    for what, times in found.items():
        at_rest = median(times[0])
        for busy, turns in times.items():
            taken = median(turns)
            share = fair_share(at_rest, cores, busy)
            rows.append(
                {
                    "what": what,
                    "busy_processes": busy,
                    "ms": round(taken, 3),
                    "turns_ms": [round(turn, 3) for turn in turns],
                    "fair_share_ms": round(share, 3),
                    "times_fair_share": round(taken / share, 2),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    check_parity()
    jobs = {f"a step of {NUM_ENVS} bins, from Python": step_ms, "an update of packing.yaml": update_ms}
    found: dict[str, dict[int, list[float]]] = {}
    for what in jobs:
        found[what] = {busy: [] for busy in BUSY}
    for _ in range(options.turns):
        for busy in BUSY:
            for what, measure in jobs.items():
                with busy_processes(busy):
                    found[what][busy].append(measure())
    rows = rows_of(found, usable_cores())
    for row in rows:
        shares = f"{row['times_fair_share']:.2f} fair shares"
        print(f"{row['what']}, {row['busy_processes']} busy: {row['ms']:.2f} ms, {shares}")
    write_json(options.output, {"machine": machine.describe(torch.device("cpu")), "rows": rows})


if __name__ == "__main__":
    main()
