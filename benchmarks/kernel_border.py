"""What checking what enters the kernels costs: `python benchmarks/kernel_border.py BEFORE [--after CHECKOUT]`.

BEFORE is a checkout of the commit to compare with, such as `git worktree add ../before COMMIT` makes. A process of each
runs the same work on the same numbers, warm, and they take turns; then two new processes, since where their tensors
come to lie can double the time of a row for as long as a process lives. What is told is the time of the processor, the
median over all turns, and the median ratio of two turns beside each other, which other load moves least. Some five
minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "kernel_border.json"
TURNS, PAIRS = 6, 5
CALLS = {  # of one turn, about a fifth of a second
    "bpp10, 1,024 environments: step": 30,
    "bpp10, 1 environment: step": 150,
    "bpp10, 1 environment: drop_map": 6000,
    "bpp10, 1 environment: advance": 3000,
    "bpp10, 1,024 environments: drop_map": 150,
    "bpp10, 1,024 environments: advance": 500,
    "bpp10, 1,024 environments: any_legal": 10000,
    "bpp10, 1,024 environments: pick_true": 2000,
    "irregular, 2 bins of 100 × 100 cells, 24 orientations: z-map": 400,
    "irregular, 2 bins of 100 × 100 cells, rule com: z-map": 120,
    "irregular, 2 bins of 100 × 100 cells: pile growth": 250,
}


def main() -> None:
    """Prints the ratios and writes them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path, nargs="?", help="checkout of the commit before")
    parser.add_argument("--after", type=Path, default=ROOT, help="checkout that is compared with it")
    parser.add_argument("--turns", type=int, default=TURNS, help="of each pair of processes")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of processes")
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work()
        return
    if args.before is None:
        parser.error("want a checkout of the commit before; got none")
        from torchrl_gpu.evaluation.reports import write_json
    from torchrl_gpu.evaluation.reports import write_json
    from torchrl_gpu.machine import describe

    checkouts = {"before": args.before, "after": args.after}
    seconds: dict[str, dict[str, list[float]]] = {name: {side: [] for side in checkouts} for name in CALLS}
    for _ in range(args.pairs):
        sides = {side: Worker(checkout) for side, checkout in checkouts.items()}
        for name, turns in seconds.items():
            for turn in range(args.turns + 1):
                for side in sorted(sides, reverse=bool(turn % 2)):
                    took = sides[side].run(name)
                    if turn:  # the first warms caches
                        turns[side].append(took)
        for worker in sides.values():
            worker.close()
    for name, turns in seconds.items():
        print(f"{name}: {_row(turns)}", flush=True)
    import torch

    result = {
        "benchmark": "kernel_border",
        "machine": describe(torch.device("cpu")) | {"shared": os.getloadavg()[0] > 1.5},
        "commits": {side: _commit(checkout) for side, checkout in checkouts.items()},
        "turns": args.turns,
        "pairs_of_processes": args.pairs,
        "time": "of the processor, per call, median over turns; ratio of neighbouring turns, median and quartiles",
        "rows": [{"work": name} | _row(turns) for name, turns in seconds.items()],
    }
    write_json(args.output, result)


def _row(turns: dict[str, list[float]]) -> dict[str, Any]:
    ratios = [after / before for before, after in zip(turns["before"], turns["after"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    micros = {f"{side}_us": round(1e6 * statistics.median(each), 2) for side, each in turns.items()}
    return micros | {"ratio": round(middle, 4), "quartiles": [round(low, 4), round(high, 4)]}


def _commit(checkout: Path) -> str:
    words = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--abbrev=40", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


class Worker:
    """A process that runs the code of one checkout."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
        environment = os.environ | {"PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=checkout, env=environment, **pipes)

    def run(self, name: str) -> float:
        """Seconds per call of a turn."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(name) + "\n")
        self.process.stdin.flush()
        took = self.process.stdout.readline()
        if not took:
            raise RuntimeError(f"the worker of {self.checkout} ended")
        return float(took)

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()


def work() -> None:
    """Reads names and writes seconds per call, until there is nothing more to read."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    made: dict[str, Callable[[int], None]] = {}
    with torch.no_grad():
        for line in sys.stdin:
            name = json.loads(line)
            if name not in made:
                made[name] = _make(name)
            begin = time.process_time()
            made[name](CALLS[name])
            print((time.process_time() - begin) / CALLS[name], flush=True)


def _make(name: str) -> Callable[[int], None]:
    """The work of a row, ready to run so many times."""
    if name.startswith("irregular"):
        return _make_irregular(name)
    import torch

    from torchrl_gpu import native
    from torchrl_gpu.envs import PackingEnv

    env = PackingEnv(1024 if "1,024" in name else 1, device="cpu", seed=0, backend="compiled")
    start = env.reset()
    for _ in range(4):  # some piles
        start = env.step_and_maybe_reset(start.set("action", start["action_mask"].long().argmax(1)))[1]
    state, jobs, job = env.state, env.kernels, name.rsplit(": ")[1]
    following, action = torch.zeros(env.num_envs, dtype=torch.int64), start["action_mask"].long().argmax(1)
    mask, draw = start["action_mask"], torch.rand(env.num_envs, dtype=torch.float64)
    calls: dict[str, Callable[[], object]] = {
        "drop_map": lambda: jobs.drop_map(state.heightmap, state.item_id, env.catalogue, env.bin),
        "advance": lambda: jobs.advance(state, action, following, env.catalogue, env.bin),
        "any_legal": lambda: jobs.any_legal(state.legal),
        "pick_true": lambda: native.pick_true(mask, draw),
    }
    if job != "step":
        return lambda times: [calls[job]() for _ in range(times)] and None
    current = [start]

    def steps(times: int) -> None:
        for _ in range(times):
            td = current[0]
            current[0] = env.step_and_maybe_reset(td.set("action", native.pick_true(td["action_mask"], draw)))[1]

    return steps


def _make_irregular(name: str) -> Callable[[int], None]:
    import torch

    from torchrl_gpu.envs import PackingEnv
    from torchrl_gpu.envs.packing.items import ProceduralSolids

    env = PackingEnv(
        2, bin_size=(0.4, 0.4, 0.3), resolution=100, grid_step=4, items=ProceduralSolids(num_objects=4), num_items=8,
        orientations="cube", stability="com" if "com" in name else "none", include=(), device="cpu", seed=0,
        backend="compiled",
    )  # fmt: skip
    env.reset()
    unit = env.catalogue.unit or 1e-3
    heights = torch.randint(0, 40, (2, 25, 25)).repeat_interleave(4, 1).repeat_interleave(4, 2) * unit
    z_map, _ = env.kernels.drop_map(heights, env.state.item_id, env.catalogue, env.bin)
    if name.endswith("growth"):
        job = lambda: env.kernels.pile_growth(heights, env.state.item_id, z_map, env.catalogue, env.bin)  # noqa: E731
    else:
        job = lambda: env.kernels.drop_map(heights, env.state.item_id, env.catalogue, env.bin)  # noqa: E731
    return lambda times: [job() for _ in range(times)] and None


if __name__ == "__main__":
    main()
