"""Rates that bound a kernel on this machine.

They are bytes copied, and add-max operations that stay in the registers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from torchrl_gpu.cli.packing.bench import TimedRow
from torchrl_gpu.cli.packing.bench import ceilings as machine_ceilings
from torchrl_gpu.envs.packing.kernels import BACKENDS, available_backends

NATIVE_TYPES = ("float32", "uint16", "uint8")
# Name of the ceiling that is made of tensor calls.
_TENSOR_CALLS = "torch"
# Of one self-timed call, seconds.
_PROBE = 0.1
_CPU = torch.device("cpu")


@dataclass
class SelfTimed(TimedRow):
    """A row that reports its own rate, so that starting its threads is not in it."""

    found: list[float] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        """Those of every call but the warm-up's."""
        return self.found[-self.calls * len(self.seconds) :]


def self_timed(name: str, rate: Callable[[], float], threads: str, notes: str) -> SelfTimed:
    """A row that calls `rate`, which gives results per second."""
    row = SelfTimed(name, lambda calls: None, threads=threads, notes=notes)
    row.run = lambda calls: row.found.extend(rate() for _ in range(calls))
    return row


def ceiling_rows(device: torch.device) -> tuple[list[TimedRow], dict[str, str]]:
    """Build ceilings of the CPU, and of `device` where it is another.

    Also returns the reasons, by name, why some cannot be measured.

    The `group` of a row is the type of its device; its unit is in its notes.
    """
    rows = machine_ceilings(_CPU)
    for row in rows:
        row.group = "cpu"
    native, missing = _native()
    rows += native
    if device.type == "cuda":
        rows += _of_cuda(device)
    return rows, missing


def _native() -> tuple[list[TimedRow], dict[str, str]]:
    """Register loops of the compiled backend, on all its threads."""
    names = {dtype: f"ceiling: add and max in registers, {dtype}" for dtype in NATIVE_TYPES}
    if problem := available_backends(_CPU)["compiled"]:
        return [], dict.fromkeys(names.values(), f"backend compiled cannot run: {problem}")
    add_max_rate = getattr(importlib.import_module(BACKENDS["compiled"]), "add_max_rate", None)
    if add_max_rate is None:
        return [], dict.fromkeys(names.values(), "backend compiled has no such loop")
    threads = torch.get_num_threads()
    rows: list[TimedRow] = []
    for dtype, name in names.items():
        row = self_timed(name, _probe(add_max_rate, dtype, threads), str(threads), "add-max/s")
        row.group = "cpu"
        rows.append(row)
    return rows, {}


def _probe(add_max_rate: Callable[[str, int, float], float], dtype: str, threads: int) -> Callable[[], float]:
    return lambda: add_max_rate(dtype, threads, _PROBE)


def _of_cuda(device: torch.device) -> list[TimedRow]:
    from benchmarks.kernels import triton_ceiling

    rows = machine_ceilings(device)
    rows += [
        TimedRow(
            f"ceiling: add and max in registers, {str(dtype).removeprefix('torch.')}",
            *triton_ceiling.register_loop(device, dtype),
            notes="add-max/s",
        )
        for dtype in (torch.float32, torch.int32)
    ]
    for row in rows:
        row.group = "cuda"
        row.threads = str(device)
        row.name = f"{row.name}, CUDA"
    return rows


class Ceilings(NamedTuple):
    """Measured rates of one type of device.

    Attributes:
        copy: Bytes per second, read and written.
        add_max: Operations per second, by what did them.
    """

    copy: float
    add_max: dict[str, float]

    def floor(self, add_max: float | None, num_bytes: float) -> tuple[float | None, str]:
        """Return the least seconds for numbers of operations and bytes.

        Also returns which of the two bounds them.

        Two tensor calls bound nothing: without a loop in registers there is no floor for operations.
        """
        by_bytes = num_bytes / self.copy
        if add_max is None:
            return by_bytes, "bytes"
        if set(self.add_max) <= {_TENSOR_CALLS}:
            return None, ""
        by_operations = add_max / max(self.add_max.values())
        return (by_operations, "operations") if by_operations > by_bytes else (by_bytes, "bytes")


def measured(rows: list[TimedRow]) -> dict[str, Ceilings]:
    """The rates of rows that have been timed, by the type of their device."""
    found = {}
    for group in dict.fromkeys(row.group for row in rows):
        mine = [row for row in rows if row.group == group]
        copy = next(row.rate for row in mine if row.notes == "bytes/s")
        found[group] = Ceilings(copy, {_short(row.name): row.rate for row in mine if row.notes == "add-max/s"})
    return found


def _short(name: str) -> str:
    """ "float32" of a register loop, "torch" of the two tensor calls."""
    words = name.removesuffix(", CUDA").split("registers, ")
    return words[1] if len(words) == 2 else _TENSOR_CALLS
