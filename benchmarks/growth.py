"""Cost of a whole step of `PackingEnv` as its work grows.

It grows by environments, visible items, resolution and processes.

`python benchmarks/growth.py` writes `results/growth.json` and draws `docs/images/growth.png`. Along each axis the other
settings stay. Points of all axes are measured in turn, and in turn again; the fastest of the turns counts. Bytes are
those of the state and of an observation, of one environment.
"""

from __future__ import annotations

import argparse
import sys
import time
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.result_types import JsonObject
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.envs.packing.protocols import make_protocol
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.system import machine

RESULT = Path(__file__).parent / "results" / "growth.json"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "growth.png"
AXES = {
    "environments": [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536],
    "visible items": [1, 2, 4, 8, 16, 32],
    "cells along a side": [10, 20, 40, 80, 160],
    "processes": [1, 2],
}


def environment(axis: str, value: int) -> PackingEnv:
    """Build discrete125 with other numbers of environments, items or cells.

    Boxes keep their shares of the bin.
    """
    if axis == "cells along a side":
        items = RandomBoxes(value // 10, value // 2, value // 10)
        sides = (float(value),) * 3
        return PackingEnv(64, bin_size=sides, resolution=value, items=items, orientations="yaw", device="cpu", seed=0)
    changes = {"num_envs": value} if axis == "environments" else {"num_envs": 64}
    return make_protocol(
        "discrete125", visible_items=value if axis == "visible items" else 1, device="cpu", seed=0, **changes
    )


def measure(axis: str, value: int, seconds: float) -> dict[str, float]:
    """Measure environment steps a second in all, and bytes of an environment.

    Placements are random legal ones.
    """
    if axis != "processes":
        return _measure(axis, value, seconds, None)
    context = get_context("spawn")
    together = context.Barrier(value)
    with context.Pool(value, _begin, (together,)) as pool:
        found = pool.starmap(_in_turn, [(axis, value, seconds)] * value, chunksize=1)
    return found[0] | {"steps_per_s": sum(each["steps_per_s"] for each in found)}


_together: Barrier | None = None


def _begin(together: Barrier) -> None:
    global _together
    _together = together
    torch.set_num_threads(1)


def _in_turn(axis: str, value: int, seconds: float) -> dict[str, float]:
    return _measure(axis, value, seconds, _together)


@torch.no_grad()
def _measure(axis: str, value: int, seconds: float, together: Barrier | None) -> dict[str, float]:
    env = environment(axis, value)
    shown = env.reset()
    # After so many steps bins are of all ages.
    for _ in range(40):
        shown = env.step_and_maybe_reset(env.rand_action(shown))[1]
    if together is not None:
        together.wait(300)
    steps, began = 0, time.perf_counter()
    while steps < 3 or time.perf_counter() - began < seconds:
        shown = env.step_and_maybe_reset(env.rand_action(shown))[1]
        steps += 1
    took = time.perf_counter() - began
    held = sum(each.numel() * each.element_size() for each in (*env.state_dict().values(), *shown.values(True, True)))
    return {"steps_per_s": env.num_envs * steps / took, "bytes": held / env.num_envs}


def main() -> None:
    """Measures, writes and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each point in each turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    args = parser.parse_args()
    best: dict[str, dict[int, dict[str, float]]] = {axis: {} for axis in AXES}
    for _ in range(args.turns):
        for axis, values in AXES.items():
            for value in values:
                found = measure(axis, value, args.seconds)
                before = best[axis].get(value, found)
                best[axis][value] = max(found, before, key=lambda each: each["steps_per_s"])
    points: list[JsonObject] = []
    for axis, rows in best.items():
        points += [{"axis": axis, "value": value} | row for value, row in rows.items()]
    for row in points:
        print(f"{row['axis']:<20}{row['value']:>7}{row['steps_per_s']:>14,.0f} steps/s{row['bytes']:>14,.0f} bytes")
    arguments = {"seconds": args.seconds, "turns": args.turns}
    about = {"benchmark": "growth", "machine": machine.describe(torch.device("cpu")), "arguments": arguments}
    write_json(args.output, about | {"rows": points})
    draw(points, args.picture)


def draw(points: list[JsonObject], path: Path) -> None:
    """Steps a second and bytes along each axis, all logarithmic."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, places = pyplot.subplots(1, len(AXES), figsize=(13, 3.2), layout="constrained")
    for place, axis in zip(places, AXES, strict=True):
        rows = [row for row in points if row["axis"] == axis]
        values = [row["value"] for row in rows]
        place.plot(values, [row["steps_per_s"] for row in rows], "o-", label="environment steps/s")
        place.plot(values, [row["bytes"] for row in rows], "s--", color="tab:gray", label="bytes an environment")
        place.set(xlabel=axis, xscale="log", yscale="log", xticks=values, xticklabels=values)
        place.minorticks_off()
        place.tick_params("x", rotation=60)
        place.grid(alpha=0.3)
    places[0].legend(fontsize="small")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
