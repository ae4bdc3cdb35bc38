"""Memory of an evaluation of irregular packing, by episodes and by the size of its batches.

Each row is a process of its own: the environment of packing_irregular.yaml with fewer objects and shorter episodes, the
networks as they are built, two rows of the table. Peaks are of the whole process (`resource.getrusage`), beside what
it held before the first bin was packed.

    python benchmarks/evaluation_memory.py --output benchmarks/results/evaluation_memory.json
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import resource
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from torchrl_gpu import machine
from torchrl_gpu.allocator import keep_freed_memory
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.evaluation.packing import evaluate
from torchrl_gpu.evaluation.packing.suite import PackingSuite
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies.packing import HierarchicalPacker, PackerNetworks
from torchrl_gpu.policies.packing.irregular_baselines import BOTH, RULE, irregular_baselines

ROWS = (
    (6, 6),
    (12, 12),
    (24, 24),
    (24, 6),
    (72, 6),
    (24, None),
)  # episodes, and how many side by side: None, what fits


def measured(episodes: int, batch_size: int | None, objects: int, items: int) -> dict[str, Any]:
    """One evaluation."""
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    env = PackingEnv(
        1,
        bin_size=(0.40, 0.40, 0.30),
        resolution=200,
        grid_step=4,
        items=ProceduralSolids(objects, 0.045, 0.15, seed=1),
        num_items=items,
        visible_items=20,
        orientations="cube",
        order="box",
        reward="objective",
        stability_judge="com",
        include=["z_map"],
        device="cpu",
        seed=1,
    )
    packer = HierarchicalPacker(env, PackerNetworks(), shortlist=12, item_shortlist=8)
    policies = {name: policy for name, policy in irregular_baselines(env, packer).items() if name in (RULE, BOTH)}
    for policy in policies.values():
        evaluate(env, policy)  # what is made once
    gc.collect()
    suite = PackingSuite(env, False, episodes, batch_size)
    before, started = _now(), time.perf_counter()
    means = [results.utilization.mean().item() for results in suite.play_all(policies).values()]
    return {
        "episodes": episodes,
        "asked_for": batch_size,
        "side_by_side": suite.side_by_side,
        "before_gb": before,
        "peak_gb": _peak(),
        "seconds": time.perf_counter() - started,
        "utilization": means,
    }


def _now() -> float:
    """Gigabytes that the process has now."""
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(resident.split()[1]) / 1e6


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _in_a_process(*arguments: Any) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, arguments)


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=24)
    parser.add_argument("--items", type=int, default=3, help="of an episode")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    rows = []
    for episodes, batch_size in ROWS:
        rows.append(_in_a_process(episodes, batch_size, args.objects, args.items))
        print(json.dumps(rows[-1]), flush=True)
    shown = Table("episodes", "side by side", "GB before", "GB at the peak", "s")
    for row in rows:
        size = f"{row['side_by_side']}{'' if row['asked_for'] else ' (what fits)'}"
        shown.add_row(str(row["episodes"]), size, *(f"{row[k]:.2f}" for k in ("before_gb", "peak_gb", "seconds")))
    Console().print(shown)
    same = {tuple(row["utilization"]) for row in rows if row["episodes"] == 24}
    print("24 episodes are packed alike in batches of any size" if len(same) == 1 else "batches of other sizes differ")
    if args.output:
        described = {"machine": machine.describe(torch.device("cpu")), "objects": args.objects, "items": args.items}
        write_json(args.output, described | {"rows": rows})


if __name__ == "__main__":
    main()
