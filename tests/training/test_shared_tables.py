"""Learning that is shared out over processes.

Parts of tables against whole ones, to the last bit, and sums through shared memory.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest
import torch

from torchrl_gpu import native
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.policies import AgentSpace, PatchTables
from torchrl_gpu.policies.packing.ntuple.values import Changes, PatchPlan, shape_values, value_bins
from torchrl_gpu.training.packing import shared_tables
from torchrl_gpu.training.packing.shared_tables import SharedSums, SharedTables, shares_of, sums_over_processes

PATCHES = ("2x2", "1x3", "3x3:1", "2x4:2")


def tables() -> PatchTables:
    env = PackingEnv(2, items=RandomBoxes(1, 3), bin_size=(5.0, 4.0, 6.0), resolution=(5, 4), device="cpu")
    made = PatchTables(AgentSpace.of(env), PATCHES, levels=6)
    # Entries differ, except those of patches that are turned or mirrored.
    with torch.no_grad():
        made.weight.copy_(torch.rand(made.plan.entries, generator=generator())[made.plan.first_images])
    return made


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bins(rows: int, seed: int = 2) -> torch.Tensor:
    return torch.randint(0, 7, (rows, 5, 4), generator=generator(seed)).to(torch.uint8)


def memory_of(room: int, processes: int) -> mmap.mmap:
    return mmap.mmap(-1, SharedSums.size(room, processes))


def as_processes(processes: int, run: Any) -> None:
    problems: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            run(rank)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(processes)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if problems:
        raise problems[0]


class Messages:
    """Stands in for `torch.distributed` between threads."""

    def __init__(self, processes: int) -> None:
        self.processes, self.barrier = processes, threading.Barrier(processes, timeout=60)
        self.given: dict[int, torch.Tensor] = {}
        self.rank = threading.local()

    def all_gather(self, found: list[torch.Tensor], sent: torch.Tensor) -> None:
        self.given[self.rank.value] = sent
        self.barrier.wait()
        for rank, each in enumerate(found):
            each.copy_(self.given[rank])
        self.barrier.wait()


@pytest.mark.parametrize("processes", [1, 2, 3, 6])
def test_every_table_is_learnt_by_one_process(processes: int) -> None:
    plan = PatchPlan(("2x2", "1x4", "2x3", "1x6", "3x3:2", "2x4:2"), 10)
    shares = shares_of(plan, (10, 10), processes)
    assert sorted(chain.from_iterable(shares)) == list(range(6))
    if processes == 2:
        # By hand: 3467 and 3716 cells and patches.
        assert shares == [(0, 1, 5), (2, 3, 4)]


def test_there_may_be_more_processes_than_tables() -> None:
    assert shares_of(PatchPlan(("2x2", "1x3"), 4), (4, 4), 3) == [(1,), (0,), ()]


@pytest.mark.parametrize("by_torch", [False, True], ids=["C++", "torch"])
def test_parts_of_values_add_up_to_them(by_torch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made, levels = tables(), bins(70)
    if by_torch:
        monkeypatch.setattr(native, "runs_on", lambda values: False)
    whole = value_bins(levels, made.weight, made.plan)
    parts = sum(shape_values(levels, made.weight, made.plan, part) for part in ((0, 3), (1,), (2,)))
    summed = torch.zeros(70, dtype=torch.float64)
    for part in parts:  # type: ignore[union-attr]
        summed += part
    torch.testing.assert_close(summed.float(), whole, rtol=1e-6 if by_torch else 0, atol=0)
    alone = shape_values(levels, made.weight, made.plan, (1,))
    kinds = torch.tensor([each.table == 1 for each in made.plan.oriented])
    assert alone[~kinds].abs().sum() == 0 < alone[kinds].abs().sum()


def test_images_are_the_entries_that_are_the_same() -> None:
    plan = tables().plan
    for table, shape in enumerate(plan.tables):
        numbers = torch.tensor([0, 5, 11])
        images = plan.images(table, numbers)
        assert torch.equal(images[0], numbers + shape.offset)
        assert all(len(set(column)) == 1 for column in plan.first_images[images].T.tolist())


def test_a_part_and_its_changes_want_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    made, levels = tables(), bins(3)
    monkeypatch.setattr(native, "runs_on", lambda values: False)
    with pytest.raises(ValueError, match=r"part of .*tables .*cpu"):
        made.learn(levels, torch.ones(3), torch.ones(3, dtype=torch.bool), 0.5, (0,), Changes.of(made.plan))


@pytest.mark.parametrize("processes", [2, 6])
def test_shared_learning_has_the_bits_of_one_process(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, own = tables(), [tables() for _ in range(processes)]
    room = max(40, processes) * len(alone.plan.oriented)
    memory, messages = memory_of(room, processes), Messages(processes)
    monkeypatch.setattr(shared_tables, "dist", messages)
    monkeypatch.setattr(
        shared_tables,
        "sums_over_processes",
        lambda room: SharedSums(memory, room, messages.rank.value, [0] * processes),
    )
    monkeypatch.setattr(shared_tables, "is_alive", lambda pid: True)
    rounds = [(bins(40, seed), torch.randn(40, generator=generator(seed))) for seed in range(3)]
    counts = torch.rand(40, generator=generator(9)) < 0.8
    wanted = []
    for levels, goal in rounds:
        values = alone.values(levels)
        wanted.append(values)
        alone.learn(levels, goal - values, counts, 0.5)

    def learn(rank: int) -> None:
        messages.rank.value = rank
        shared = SharedTables(own[rank], rank, processes, 40)
        for number, (levels, goal) in enumerate(rounds):
            values = shared.values(levels)
            assert torch.equal(values, wanted[number])
            shared.learn(levels, goal - values, counts, 0.5)
            # A sweep may be exchanged later, with the next one.
            if number != 1:
                shared.exchange()
        assert not shared.changes.marked.any()
        # Otherwise it would grow beyond its table.
        assert not shared.changes.num.any()

    as_processes(processes, learn)
    for each in own:
        for name, value in alone.named_buffers():
            assert torch.equal(getattr(each, name), value), name
    assert not torch.equal(alone.weight, tables().weight)


def test_sums_go_in_the_order_of_ranks_again_and_again() -> None:
    memory = memory_of(5, 3)
    given = torch.randn(3, 200, 5, generator=generator(), dtype=torch.float64)

    def run(rank: int) -> None:
        shared = SharedSums(memory, 5, rank, [0] * 3)
        for number in range(200):
            size = 1 + number % 5
            values = given[rank, number, :size].clone()
            shared(values)
            assert torch.equal(values, given[0, number, :size] + given[1, number, :size] + given[2, number, :size])

    as_processes(3, run)


def test_a_process_that_has_died_ends_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_tables, "is_alive", lambda pid: pid != 77)
    shared = SharedSums(memory_of(1, 2), 1, 0, [1, 77])
    with pytest.raises(RuntimeError, match="sum over 2 processes: process 1 has died"):
        shared(torch.ones(1, dtype=torch.float64))


def test_exchange_waits_for_a_missing_process_no_longer_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_tables, "_LOOK_US", 1000)
    monkeypatch.setattr(shared_tables, "is_alive", lambda pid: True)
    shared = SharedSums(memory_of(1, 2), 1, 0, [1, 2], timedelta(milliseconds=5))
    with pytest.raises(RuntimeError, match=r"0:00:00\.005"):
        shared(torch.ones(1, dtype=torch.float64))


def test_where_no_memory_can_be_shared_there_are_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        all_reduce = staticmethod(lambda values: None)
        get_rank, get_world_size = staticmethod(lambda: 0), staticmethod(lambda: 2)
        broadcast_object_list = staticmethod(lambda told: None)

        @staticmethod
        def all_gather_object(found: list[Any], given: Any) -> None:
            found[:] = [given, False if given is True else given]

    monkeypatch.setattr(shared_tables, "dist", Two)
    assert sums_over_processes(4) is Two.all_reduce
    monkeypatch.setattr(shared_tables.tempfile, "mkstemp", lambda **kw: (_ for _ in ()).throw(OSError("full")))
    assert sums_over_processes(4) is Two.all_reduce


def test_the_living_are_told_from_the_dead() -> None:
    assert shared_tables.is_alive(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert not shared_tables.is_alive(child.pid)
