"""The access checker.

It finds each fault that is planted in a kernel of a few lines, and none in a right kernel.

They run where Triton interprets, in the processes of `make kernels`.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("checks interpreted kernels, in the processes of make kernels", allow_module_level=True)

from tests.envs.packing.kernels.access_checker import DISAGREE, OUTSIDE, OVERWRITTEN, RACE, UNSEEN, AccessChecker


@triton.jit
def shifted_copy(source, out, size, SHIFT: tl.constexpr, T: tl.constexpr):
    at = tl.program_id(0) * T + tl.arange(0, T)
    tl.store(out + at, tl.load(source + at + SHIFT, mask=at < size), mask=at < size)


@triton.jit
def spread(out, STRIDE: tl.constexpr, T: tl.constexpr):
    tl.store(out + tl.program_id(0) * STRIDE + tl.arange(0, T), tl.arange(0, T).to(tl.float32))


@triton.jit
def read_of_the_next(values, FIRST: tl.constexpr, T: tl.constexpr):
    pid, index = tl.program_id(0), tl.arange(0, T)
    if FIRST:
        tl.store(values + pid * T + index, index.to(tl.float32))
    seen = tl.load(values + (pid + 1) % 2 * T + index)
    if not FIRST:
        tl.store(values + pid * T + index, seen)


@triton.jit
def reversal(values, out, BARRIER: tl.constexpr, T: tl.constexpr):
    index = tl.arange(0, T)
    tl.store(values + index, index.to(tl.float32))
    if BARRIER:
        tl.debug_barrier()
    tl.store(out + index, tl.load(values + (T - 1 - index)))


@triton.jit
def rotation(values, BARRIER: tl.constexpr, T: tl.constexpr):
    index = tl.arange(0, T)
    seen = tl.load(values + index)
    if BARRIER:
        tl.debug_barrier()
    tl.store(values + (index + 1) % T, seen)


@triton.jit
def written_twice(values, BARRIER: tl.constexpr, SHIFT: tl.constexpr, T: tl.constexpr):
    index = tl.arange(0, T)
    tl.store(values + index, index.to(tl.float32))
    if BARRIER:
        tl.debug_barrier()
    tl.store(values + (index + SHIFT) % T, index.to(tl.float32))


@triton.jit
def in_one_place(values, SAME: tl.constexpr, T: tl.constexpr):
    tl.store(values + tl.arange(0, T) // 2, (tl.arange(0, T) // (2 if SAME else 1)).to(tl.float32))


@triton.jit
def counting(total, plainly: tl.constexpr):
    tl.atomic_add(total, 1.0)
    if plainly:
        tl.store(total, 0.0)


def found(kernel: Any, *args: object, programs: int = 1, **options: object) -> list[tuple[str, str, str, int]]:
    """Kind, argument, access and count of every fault of one launch."""
    with AccessChecker() as checker:
        kernel[(programs,)](*args, **options)
    assert [launch.kernel for launch in checker.launches] == [kernel.__name__]
    assert all(fault.kernel == kernel.__name__ for fault in checker.faults)
    return sorted((f.kind, f.argument, f.access, count) for f, count in checker.faults.items())


def zeros(size: int = 8) -> Tensor:
    return torch.zeros(size)


def test_a_copy_is_not_at_fault_and_its_traffic_is_counted() -> None:
    source, out = torch.arange(10.0), zeros(10)
    with AccessChecker() as checker:
        shifted_copy[(3,)](source, out, 10, SHIFT=0, T=4)
    assert torch.equal(out, source)
    assert not checker.faults
    (launch,) = checker.launches
    assert (launch.kernel, launch.programs, launch.bytes_moved) == ("shifted_copy", 3, 80)
    traffic = launch.traffic["source"], launch.traffic["out"]
    assert [(t.loads, t.stores, t.loaded, t.stored) for t in traffic] == [(10, 0, 10, 0), (0, 10, 0, 10)]


@pytest.mark.parametrize(("shift", "count"), [(-1, 1), (3, 3), (1000, 8)])
def test_a_load_outside_is_found_though_masked_lanes_are_not(shift: int, count: int) -> None:
    expected = [(OUTSIDE, "source", "load", count)]
    assert found(shifted_copy, zeros(), zeros(), 8, programs=3, SHIFT=shift, T=4) == expected


def test_a_store_outside_is_found_and_not_made() -> None:
    both = torch.full((12,), 7.0)
    assert found(spread, both[:6], programs=2, STRIDE=4, T=4) == [(OUTSIDE, "out", "store", 2)]
    assert both[6:].tolist() == [7.0] * 6


@pytest.mark.parametrize(("stride", "count"), [(4, 0), (3, 1), (0, 4)])
def test_two_programs_that_write_one_address_are_found(stride: int, count: int) -> None:
    expected = [(RACE, "out", "store", count)] if count else []
    assert found(spread, zeros(), programs=2, STRIDE=stride, T=4) == expected


@pytest.mark.parametrize("first", [True, False])
def test_a_read_of_what_another_program_writes_is_found_in_either_order(first: bool) -> None:
    # Programs are interpreted in turn, so one of the two accesses comes second, and is the one that is found.
    faults = found(read_of_the_next, zeros(), programs=2, FIRST=first, T=4)
    assert {fault[0] for fault in faults} == {RACE}
    assert {fault[2] for fault in faults} == {"load", "store"}
    assert found(read_of_the_next, zeros(), programs=1, FIRST=False, T=4) == []


def test_a_missing_barrier_before_a_read_is_found() -> None:
    assert found(reversal, zeros(), zeros(), BARRIER=True, T=8) == []
    assert found(reversal, zeros(), zeros(), BARRIER=False, T=8) == [(UNSEEN, "values", "load", 8)]


def test_a_missing_barrier_before_a_write_is_found() -> None:
    assert found(rotation, zeros(), BARRIER=True, T=8) == []
    assert found(rotation, zeros(), BARRIER=False, T=8) == [(OVERWRITTEN, "values", "store", 8)]
    assert found(written_twice, zeros(), BARRIER=True, SHIFT=1, T=8) == []
    # The same thread may write twice.
    assert found(written_twice, zeros(), BARRIER=False, SHIFT=0, T=8) == []
    assert found(written_twice, zeros(), BARRIER=False, SHIFT=1, T=8) == [(OVERWRITTEN, "values", "store", 8)]


def test_lanes_that_write_different_values_are_found() -> None:
    assert found(in_one_place, zeros(), SAME=True, T=8) == []
    assert found(in_one_place, zeros(), SAME=False, T=8) == [(DISAGREE, "values", "store", 4)]


def test_atomics_race_only_with_what_is_not() -> None:
    total = zeros(1)
    assert found(counting, total, programs=3, plainly=False) == []
    assert total.item() == 3
    assert {f[:2] for f in found(counting, total, programs=2, plainly=True)} == {(RACE, "total")}
    assert found(counting, zeros(0), plainly=False) == [(OUTSIDE, "total", "atomic", 1)]


def test_a_fault_names_its_line() -> None:
    with AccessChecker() as checker:
        spread[(1,)](zeros(2), STRIDE=4, T=4)
    line = spread.fn.__code__.co_firstlineno + 2
    assert checker.describe() == f"test_access_checker.py:{line}: spread stores out: {OUTSIDE}, 2 times"
