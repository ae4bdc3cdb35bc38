"""What `copy_observations=True` costs: `python benchmarks/observation_copies.py [--output FILE]`.

The same environments, once with observations that are the state's own tensors and once with copies, take the same
actions in turns, resets included, on one thread; a figure is the processor's time for a step. Before they are timed,
the observations of both are compared. Half a minute.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchrl_gpu import machine
from torchrl_gpu.envs import MarineNavEnv, PackingEnv
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.evaluation.reports import write_json


def irregular(**changes: Any) -> PackingEnv:
    """Four visible solids of 24 orientations."""
    items = ProceduralSolids(num_objects=24)
    size = {"bin_size": (0.4, 0.4, 0.3), "resolution": 50, "grid_step": 2, "visible_items": 4, "num_items": 20}
    return PackingEnv(4, items=items, orientations="cube", include=(), **size, **changes)


SETTINGS: dict[str, Callable[..., BatchedEnv]] = {
    "bpp10, 64 bins": lambda **changes: PackingEnv(64, **changes),
    "bpp10, 1,024 bins": lambda **changes: PackingEnv(1024, **changes),
    "irregular, 4 bins": irregular,
    "marine v2, 64 worlds": lambda **changes: MarineNavEnv(64, **changes),
    "marine v2, 1,024 worlds": lambda **changes: MarineNavEnv(1024, **changes),
}


class Played:
    """An environment that takes the first legal action, step after step."""

    def __init__(self, env: BatchedEnv) -> None:
        self.env, self.current = env, env.reset()

    def step(self) -> Any:
        """One step with resets; what followed the action."""
        group = self.env.action_key[:-1] if isinstance(self.env.action_key, tuple) else ()
        mask = self.current[(*group, "action_mask")]
        self.current[self.env.action_key] = mask.byte().argmax(-1)
        stepped, self.current = self.env.step_and_maybe_reset(self.current)
        return stepped["next"]

    def seconds(self, steps: int) -> float:
        """Of the processor, for a step."""
        begun = time.process_time()
        for _ in range(steps):
            self.step()
        return (time.process_time() - begun) / steps


def measure(make: Callable[..., BatchedEnv], seconds: float, turns: int) -> dict[str, float]:
    """Microseconds of a step with and without copies, and the ratio of neighbouring turns: median and quartiles."""
    ours, copies = (Played(make(device="cpu", seed=0, copy_observations=copy)) for copy in (False, True))
    for _ in range(20):
        first, second = ours.step(), copies.step()
        assert (first == second).all(), "parity fails: no figure"
    steps = max(2, int(seconds / turns / max(ours.seconds(3), 1e-6) / 2))
    times = [(ours.seconds(steps), copies.seconds(steps)) for _ in range(turns)]
    low, middle, high = statistics.quantiles([after / before for before, after in times], n=4)
    own, copied = (statistics.median(column) * 1e6 for column in zip(*times, strict=True))
    return {"own_us": own, "copies_us": copied, "ratio": middle, "ratio_low": low, "ratio_high": high}


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "observation_copies.json")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each setting")
    parser.add_argument("--turns", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for name, make in SETTINGS.items():
        row = rows[name] = measure(make, args.seconds, args.turns)
        print(f"{name}: {row['own_us']:.0f} → {row['copies_us']:.0f} µs a step, × {row['ratio']:.3f}", flush=True)
    result = {"command": "python benchmarks/observation_copies.py", "machine": machine.describe(torch.device("cpu"))}
    write_json(args.output, result | {"rows": rows})
    print(f"Written: {args.output}")


if __name__ == "__main__":
    main()
