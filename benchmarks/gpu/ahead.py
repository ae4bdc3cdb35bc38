"""`python -m benchmarks.gpu.ahead`: compilation for GPUs that are not here.

It compiles what the steps of the shipped configs launch.

Registers, spills, shared memory and occupancy go to `benchmarks/results/kernels_ahead.json`; where a limit is exceeded
the exit status is 1. Nothing is run, and no time of a GPU is in it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import torch
import triton

from benchmarks.gpu import learning, steps
from benchmarks.gpu.chips import CHIPS
from benchmarks.gpu.launches import Compiled, Launch
from benchmarks.gpu.steps import launches
from benchmarks.result_types import JsonObject
from torchrl_gpu.cli.parser import OneLineParser
from torchrl_gpu.system import machine

RESULT = Path(__file__).parents[1] / "results" / "kernels_ahead.json"
CONFIGS = (*steps.CONFIGS, *steps.MARINE_CONFIGS)
# Of any kernel on any chip.
MOST_SPILLS = 0
# Of a thread, by kernel.
MOST_REGISTERS = {
    "add_errors_kernel": 48,
    "advance_kernel": 64,
    "cut_items_kernel": 128,
    "draw_kernel": 64,
    "drop_boxes_kernel": 64,
    # 8 warps on a multiprocessor, as from 169 on.
    "drop_solids_kernel": 255,
    "drop_wide_boxes_kernel": 80,
    "growth_kernel": 48,
    "marine_restart_kernel": 112,
    "marine_step_kernel": 96,
    "move_entries_kernel": 48,
    "place_kernel": 64,
    "restart_kernel": 64,
    # 8 warps on a multiprocessor, as from 129 on.
    "rollout_kernel": 255,
    "split_kernel": 64,
    # The most with which a multiprocessor holds its 16 warps.
    "sweep_kernel": 128,
    "value_bins_kernel": 80,
    "value_placements_kernel": 128,
    "windows_kernel": 32,
}


def form(launch: Launch) -> str:
    """A kernel, and which of its forms a launch takes."""
    words = [launch.name]
    words += ["maps kept"] * bool(launch.options.get("STORED")) + ["in pairs"] * bool(launch.options.get("PAIRS"))
    if kind := launch.options.get("KIND"):
        words.append(f"drawing {kind}")
    return ", ".join(words)


def row(config: str, capability: int, launch: Launch, compiled: Compiled) -> JsonObject:
    """Registers, spills and occupancy of a kernel on a chip."""
    chip = CHIPS[capability]
    share = chip.occupancy(compiled.registers, compiled.shared_bytes, compiled.num_warps)
    kernel = {"config": config, "capability": capability, "kernel": launch.name, "form": form(launch)}
    registers = {"registers": compiled.registers, "spills": compiled.spills, "shared_bytes": compiled.shared_bytes}
    work = {"num_warps": compiled.num_warps, "occupancy": share, "instructions": len(compiled.instructions)}
    return kernel | registers | work | {"compile_s": compiled.seconds}


def all_launches(config: str, capability: int) -> list[Launch]:
    """Launches of a config on a chip: a step, and learning where it learns tables."""
    made = launches(config, capability)
    return made + learning.launches(capability) if config == learning.CONFIG else made


def rows(task: tuple[str, int]) -> list[JsonObject]:
    """Those of one config on one chip, compiled anew."""
    config, capability = task
    with tempfile.TemporaryDirectory() as cache, triton.knobs.cache.scope():
        triton.knobs.cache.dir = cache
        made = all_launches(config, capability)
        return [row(config, capability, each, each.compiled(capability)) for each in made]


def problems(found: list[JsonObject]) -> Iterator[str]:
    """Yield the kernels that exceed a limit, each in one line."""
    for each in found:
        where = f"{each['config']}, sm_{each['capability']}: {each['form']}"
        if each["spills"] > MOST_SPILLS:
            yield f"{where} spills: {each['spills']} accesses of its stack; want {MOST_SPILLS}"
        if each["registers"] > MOST_REGISTERS[each["kernel"]]:
            yield f"{where} takes {each['registers']} registers; want at most {MOST_REGISTERS[each['kernel']]}"


def main(arguments: list[str]) -> int:
    """Exit status: 0 if nothing exceeds a limit."""
    parser = OneLineParser(prog="python -m benchmarks.gpu.ahead", description=__doc__)
    parser.add_argument("--configs", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--capabilities", nargs="+", type=int, choices=list(CHIPS), default=list(CHIPS))
    parser.add_argument("--output", type=Path, help=f"JSON, such as {RESULT.name}; nothing is written without it")
    given: argparse.Namespace = parser.parse_args(arguments)
    # Before the fork, since it is the same for every chip.
    for config in given.configs:
        make = steps.marine_environment if config in steps.MARINE_CONFIGS else steps.environment
        make(config)
    tasks = list(product(given.configs, given.capabilities))
    context = multiprocessing.get_context("fork")
    found: list[JsonObject] = []
    # A copy of this process has none of its threads, for which torch's operators would wait without end.
    one_thread = {"initializer": torch.set_num_threads, "initargs": (1,)}
    with ProcessPoolExecutor(min(len(tasks), os.cpu_count() or 1), context, **one_thread) as pool:
        for (config, capability), of_chip in zip(tasks, pool.map(rows, tasks), strict=True):
            print(f"{config}, sm_{capability}: {len(of_chip)} kernels, {sum(r['compile_s'] for r in of_chip):.0f} s")
            found += of_chip
    if given.output:
        result = {
            "versions": machine.describe(torch.device("cpu"))["versions"] | {"triton": triton.__version__},
            "rows": found,
        }
        given.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"Written: {given.output}")
    exceeded = list(problems(found))
    for line in exceeded:
        print(line, file=sys.stderr)
    print(f"{len(found)} kernels were compiled, {len(exceeded)} exceed a limit")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
