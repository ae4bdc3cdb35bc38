"""`python -m benchmarks.gpu.timings`: steps of the shipped runs' environments.

On a GPU it times each kernel, too.

Kernels are timed by torch's profiler while random legal actions are played. Each time stands beside its bound, see
`benchmarks.gpu.expectations`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu import expectations
from benchmarks.gpu.chips import device_named
from benchmarks.gpu.shipped import environment
from benchmarks.result_types import JsonObject
from torchrl_gpu.cli.packing.bench import random_steps
from torchrl_gpu.device import get_device, now
from torchrl_gpu.envs import BatchedEnv, PackingEnv

CONFIGS = ("packing", "packing_irregular", "navigation_iqn", "navigation_ac_iqn")
_QUICK: dict[str, JsonObject] = {
    "packing_irregular": {"resolution": 50, "orientations": "yaw", "num_items": 6, "visible_items": 3}
}
# Steps.
_PROFILED = 20


def main(argv: list[str]) -> int:
    """Write a row for each environment, and one for each kernel."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.timings", description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help="four environments each, in small")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each environment")
    parser.add_argument("--output", type=Path, required=True, help="JSON")
    args = parser.parse_args(argv)
    device = get_device(args.device)
    rows = []
    for config in CONFIGS:
        changes = _QUICK.get(config, {}) | {"num_envs": 4} if args.quick else {}
        env = environment(config, device=device, seed=0, **changes)
        rows.append(timed(config, env, 0.1 if args.quick else args.seconds, bounded=not args.quick))
        print(f"{config}: {rows[-1]['steps_per_s']:,.0f} environment steps/s")
    args.output.write_text(json.dumps({"rows": rows}, indent=1), encoding="utf-8")
    return 0


def timed(config: str, env: BatchedEnv, seconds: float, *, bounded: bool) -> JsonObject:
    """Time an environment's steps, and the kernels that they launch.

    Bounds are those of the config.
    """
    play = random_steps(env) if isinstance(env, PackingEnv) else _random_actions(env)
    play(3)
    begun, steps = now(env.device), 0
    while steps == 0 or time.perf_counter() - begun < seconds:
        play(10)
        steps += 10
    each = (now(env.device) - begun) / steps
    row = {"config": config, "num_envs": env.num_envs, "seconds_per_step": each, "steps_per_s": env.num_envs / each}
    row["backend"] = env.kernels.backend if isinstance(env, PackingEnv) else ""
    row["kernels"] = _kernels(config if bounded else "", env, play) if env.device.type == "cuda" else []
    return row


def _random_actions(env: BatchedEnv) -> Callable[[int], None]:
    current = [env.reset()]

    @torch.no_grad()
    def run(steps: int) -> None:
        for _ in range(steps):
            _, current[0] = env.step_and_maybe_reset(env.rand_action(current[0]))

    return run


def _kernels(config: str, env: BatchedEnv, play: Callable[[int], None]) -> list[JsonObject]:
    """List the kernels on the device, longest first.

    A row holds launches, seconds of one, and the bound where one is known.
    """
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        play(_PROFILED)
        torch.cuda.synchronize(env.device)
    chip = torch.cuda.get_device_name(env.device)
    rows = []
    for event in seen.key_averages():
        if not event.self_device_time_total or not event.count or event.key.startswith(("aten::", "cuda", "Activity")):
            continue
        each = event.self_device_time_total * 1e-6 / event.count
        known = bound(event.key, config, chip)
        row = {"kernel": event.key, "launches_per_step": event.count / _PROFILED, "seconds": each}
        row |= {"bound_s": known[0] if known else None, "limit": known[1] if known else ""}
        rows.append(row | {"measured_over_bound": each / known[0] if known and known[0] else None})
    return sorted(rows, key=lambda row: -row["seconds"] * row["launches_per_step"])[:20]


def bound(kernel: str, config: str, chip: str) -> tuple[float, str] | None:
    """Return the least seconds of a launch and their limit, or None if unknown.

    They come from a chip's published rates. The kernel or the chip may be unknown.
    """
    device = device_named(chip)
    if device is None or config not in expectations.CONFIGS:
        return None
    known = expectations.work(expectations.environment(config))
    return expectations.bound(kernel, config, device)[:2] if kernel in known else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
