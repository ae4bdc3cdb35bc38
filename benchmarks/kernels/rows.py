"""Rows of the kernel benchmark: NumPy, `unfold` and our backends.

All get the same workload.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.kernels.counts import count
from benchmarks.kernels.workloads import Workload
from benchmarks.packing.drops import by_numpy, by_unfold
from benchmarks.packing.numpy_packing import drop_by_windows, shapes_of
from benchmarks.packing.settings import make
from benchmarks.result_types import JsonObject
from torchrl_gpu.cli.packing.bench import TimedRow, random_steps
from torchrl_gpu.device import cuda_problem
from torchrl_gpu.envs.packing.kernels import available_backends, get_kernels

NUMPY, UNFOLD = "NumPy, windows", "torch unfold"
# The windows of one orientation in 64 environments would take a gigabyte.
UNFOLD_ENVS = 8
# Environments that take turns in NumPy.
_NUMPY_ENVS = 8
_CPU = torch.device("cpu")


class Backends(NamedTuple):
    """Those asked for.

    Attributes:
        running: Where each of those that run does so.
        missing: Why the others do not.
    """

    running: dict[str, torch.device]
    missing: dict[str, str]


def backends(names: Sequence[str], device: torch.device) -> Backends:
    """Return the device of each backend.

    Compiled and reference run on the CPU, triton on a GPU, and eager on `device`.
    """
    running, missing = {}, {}
    for name in names:
        problem = cuda_problem() if name == "triton" else ""
        where = _CPU if name in ("compiled", "reference") else device
        if problem:
            missing[name] = f"no CUDA device: {problem}"
        elif name == "triton" and device.type != "cuda":
            missing[name] = f"runs on CUDA; this run is on {device}"
        elif problem := available_backends(where)[name]:
            missing[name] = problem
        else:
            running[name] = where
    return Backends(running, missing)


def row_name(kind: str, num_envs: int) -> str:
    """Of one of our backends, or of `unfold`, on a batch."""
    return f"{kind if kind == UNFOLD else f'ours {kind}'}, {num_envs}"


def numpy_row(workload: Workload) -> TimedRow:
    """One environment at a time, those of the workload in turn."""
    few = workload.first(_NUMPY_ENVS)
    items = {int(i): shapes_of(few.catalogue, int(i)) for i in few.item_id.unique()}
    shapes = []
    for row in few.item_id.tolist():
        of_row = []
        for item in row:
            of_row += items[item]
        shapes.append(of_row)
    run = by_numpy(drop_by_windows, few.heightmap, shapes, few.bin_)
    return TimedRow(NUMPY, run, few.maps_per_env, extra=_facts(few, "numpy", _CPU) | {"num_envs": 1})


def unfold_row(workload: Workload, device: torch.device) -> TimedRow:
    """Time z-maps of the whole batch by `unfold`.

    The items of a batch of more than one environment must be equally large.
    """
    bottoms = _bottoms(workload)
    run = by_unfold(workload.heightmap.to(device), bottoms, workload.bin_.step)
    per_call = workload.num_envs * workload.maps_per_env
    notes = "z alone"
    name, threads = row_name(UNFOLD, workload.num_envs), _threads(device)
    return TimedRow(name, run, per_call, threads, notes=notes, extra=_facts(workload, "unfold", device))


def _bottoms(workload: Workload) -> list[Tensor]:
    """Return bottoms (N, 1, 1, P, Q) for each slot and orientation.

    Columns that no item of the slot fills are left out.
    """
    _, item_id, catalogue, _ = workload
    assert catalogue.bottom is not None
    found = []
    for items in item_id.unbind(1):
        for o in range(catalogue.num_orientations):
            p, q = catalogue.extent[items, o].amax(0).tolist()
            found.append(catalogue.bottom[items, o, :p, :q][:, None, None])
    return found


def our_row(name: str, device: torch.device, workload: Workload) -> TimedRow:
    """`drop_map` of one backend."""
    kernels, there = get_kernels(name, device), workload.to(device)

    @torch.no_grad()
    def run(calls: int) -> None:
        for _ in range(calls):
            kernels.drop_map(*there)

    per_call, facts = there.num_envs * there.maps_per_env, _facts(workload, name, device)
    return TimedRow(row_name(name, there.num_envs), run, per_call, _threads(device), extra=facts)


def step_rows(changes: JsonObject, num_envs: Sequence[int], running: dict[str, torch.device]) -> Iterator[TimedRow]:
    """Whole environment steps with random legal actions, resets and all."""
    for n in num_envs:
        for name, device in running.items():
            env = make(changes | {"backend": name}, n, str(device))
            extra: dict[str, object] = {"backend": name, "device": device.type, "num_envs": n}
            yield TimedRow(row_name(name, n), random_steps(env), n, _threads(device), extra=extra)


def _facts(workload: Workload, backend: str, device: torch.device) -> dict[str, object]:
    facts: dict[str, object] = {"backend": backend, "device": device.type, "num_envs": workload.num_envs}
    return facts | count(workload).as_data()


def _threads(device: torch.device) -> str:
    return str(torch.get_num_threads()) if device.type == "cpu" else str(device)
