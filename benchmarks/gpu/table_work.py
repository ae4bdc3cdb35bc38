"""Passes, look-ups and clocks of the kernels that step and that learn tables.

Boxes are played on a CPU by random legal actions; instructions are those of the binary for a chip, as in `solids_work`.
Each is counted once in a step, save those of the longest inner loop, whose passes are counted. What waits for memory,
for another instruction or at a barrier is not in it: a lower bound.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu import learning, shipped, steps
from benchmarks.gpu.chips import Device
from benchmarks.gpu.expectations import bound
from benchmarks.gpu.launches import Compiled, Launch, innermost_loops
from benchmarks.gpu.solids_work import Loop, mnemonic
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies import PatchTables
from torchrl_gpu.policies.packing.ntuple.values import PatchPlan, entries_of, framed
from torchrl_gpu.policies.spaces import AgentSpace

CONFIG = "packing"
# Of a rollout, as shipped.
STEPS = 32
# Bytes that a GPU reads or writes at once, wherever they lie.
SECTOR = 32
# Tensors that a look-up of learning touches at random: weights, sums of errors, their paths, scratch, first images.
_RANDOM_TENSORS = 5
# Names of instructions on older chips or of the same pipe, as `solids_work` knows them.
_SAME = {"IMNMX": "VIMNMX", "LEA": "IADD3", "VIADD": "IADD3"}
# Of a multiprocessor: each issues an instruction a clock.
_QUARTERS = 4


class Played(NamedTuple):
    """Of a rollout of all bins.

    Attributes:
        passes: (N,) of the inner loop over moved patches, of the kernel that plays a bin.
        lookups: Of weights in learning.
        entries: Different ones among them.
    """

    passes: Tensor
    lookups: int
    entries: int

    @property
    def touched_bytes(self) -> int:
        """What learning touches at random, were each entry in a sector of its own."""
        return self.entries * _RANDOM_TENSORS * SECTOR


class Program(NamedTuple):
    """Clocks of one program, on a multiprocessor that it has to itself.

    Attributes:
        once: Of all instructions outside the longest inner loop.
        loop: Of a pass of that loop.
    """

    once: float
    loop: float


def passes(extent: Tensor, legal: Tensor, plan: PatchPlan, lanes: int) -> Tensor:
    """Passes (N,) of the loop over moved patches in a step.

    `lanes` placements go through it together, as often as the largest of their shapes moves; those where none is legal
    do not.

    Args:
        extent: (N, 2) cells of the boxes.
        legal: (N, A) bool.
        plan: Shapes of patches.
        lanes: Placements of a turn.
    """
    moved = torch.zeros_like(extent[:, 0])
    for shape in plan.oriented:
        rows = extent[:, 0] + shape.rows - 1
        columns = extent[:, 1] + shape.columns - 1
        moved = torch.maximum(moved, rows * columns)
    turns = torch.stack([some.any(1) for some in legal.split(lanes, 1)]).sum(0)
    return turns * moved


@cache
def played() -> Played:
    """A rollout of the shipped environment, behind as many steps that are not counted."""
    env = shipped.environment(CONFIG, device="cpu", seed=0)
    assert isinstance(env, PackingEnv)
    tables: PatchTables = shipped.tables(CONFIG, AgentSpace.of(env))
    lanes = _launches(90)["rollout_kernel"].options["T"]
    torch.manual_seed(0)
    current = env.reset()
    total = torch.zeros(env.num_envs, dtype=torch.int64)
    entries: list[Tensor] = []
    for step in range(2 * STEPS):
        current = env.rand_action(current)
        state = env.state
        stepped, current = env.step_and_maybe_reset(current)
        if step < STEPS:
            continue
        extent = env.catalogue.extent[state.item_id[:, 0].clamp_min(0), 0]
        total += passes(extent, state.legal.flatten(1), tables.plan, lanes)
        levels = tables.levels_of(stepped["next", "box_heightmap"])
        entries.append(entries_of(framed(levels, tables.plan), tables.plan))
    found = torch.stack(entries)
    return Played(total, found.numel(), len(found.unique()))


@cache
def _launches(capability: int) -> dict[str, Launch]:
    """Those of steps and of learning, by kernel."""
    made = steps.launches(CONFIG, capability) + learning.launches(capability)
    return {each.name: each for each in made}


@cache
def program(kernel: str, capability: int) -> Program:
    """Return the clocks of a program of a kernel, as compiled for a chip."""
    return clocks(_launches(capability)[kernel].compiled(capability))


def clocks(compiled: Compiled) -> Program:
    """Return the clocks of one program.

    A quarter of a multiprocessor has the same share of its warps, and issues for one of them at a time.
    """
    every = _counted([text for _, text in compiled.instructions])
    loops = innermost_loops(compiled.instructions)
    longest = _counted(max(loops, key=len)) if loops else Counter()
    warps = max(compiled.num_warps / _QUARTERS, 1)
    return Program(Loop(dict(every - longest), 1).clocks * warps, Loop(dict(longest), 1).clocks * warps)


def _counted(lines: list[str]) -> Counter[str]:
    names = (mnemonic(line) for line in lines)
    return Counter(_SAME.get(name, name) for name in names)


def seconds(total: float, longest: float, device: Device) -> float:
    """Time of programs, by even shares of all multiprocessors or of the longest one."""
    return max(total / device.multiprocessors, longest) / device.clock


def rollout_seconds(num_envs: int, device: Device) -> float:
    """Time of a whole rollout, a program a bin."""
    of_program = program("rollout_kernel", device.capability)
    each = STEPS * of_program.once + played().passes.double() * of_program.loop
    return seconds(num_envs * float(each.mean()), float(each.max()), device)


def kernel_seconds(kernel: str, num_envs: int, device: Device, loops: int = 1) -> float:
    """Time of a launch of a kernel, of so many passes of its longest inner loop."""
    of_program = program(kernel, device.capability)
    share = num_envs / steps.environment(CONFIG).num_envs
    programs = share * math.prod(_launches(device.capability)[kernel].grid)
    each = of_program.once + loops * of_program.loop
    return seconds(programs * each, each, device)


def sweep_seconds(num_envs: int, device: Device) -> float:
    """Time of a sweep over a rollout, two kernels a step.

    Where no cache holds what it looks up, it takes at least the time of the sectors.
    """
    of_step = kernel_seconds("sweep_kernel", num_envs, device)
    of_step += kernel_seconds("move_entries_kernel", num_envs, device, loops=8)
    share = num_envs / len(played().passes)
    if played().touched_bytes * share <= device.cache_bytes:
        return STEPS * of_step
    by_bytes = played().lookups * share * _RANDOM_TENSORS * SECTOR / device.bandwidth
    return max(STEPS * of_step, by_bytes)


def step_seconds(num_envs: int, device: Device) -> float:
    """Time of the kernels of a single step: boxes cut, the step, its maps, a restart."""
    found = 2 * kernel_seconds("cut_items_kernel", num_envs, device)
    for kernel in ("advance_kernel", "drop_boxes_kernel", "restart_kernel"):
        by_bytes = bound(kernel, CONFIG, device, num_envs).seconds
        found += max(by_bytes, kernel_seconds(kernel, num_envs, device))
    return found


def marine_seconds(config: str, device: Device) -> float:
    """Time of the two kernels of a step of marine navigation, whose loops count once."""
    found = 0.0
    for launch in steps.marine_launches(config):
        of_program = clocks(launch.compiled(device.capability))
        each = of_program.once + of_program.loop
        found += seconds(math.prod(launch.grid) * each, each, device)
    return found
