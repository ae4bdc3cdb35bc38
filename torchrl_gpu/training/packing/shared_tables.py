"""Learning of n-tuple tables, shared out over the processes of a run.

It is bit-identical to that of one process.
"""

from __future__ import annotations

import mmap
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import addressof, c_char, c_int64, c_void_p
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist

from torchrl_gpu import native
from torchrl_gpu.policies.packing.ntuple.tables import PatchTables
from torchrl_gpu.policies.packing.ntuple.values import Changes, PatchPlan, shape_values

# Line of a cache, to which no two processes write.
_LINE = 64  # bytes

# Between two looks at whether the others still live.
_LOOK_US = 200_000

# As that of torch.distributed.
_PATIENCE = timedelta(minutes=30)


class SharedSums:
    """Sums of float64 tensors over the processes of one machine.

    They have the same bits in all of them. A sum takes microseconds, where one by messages wakes two threads of each
    process. Every process must ask for the same sums in the same order.

    Args:
        memory: Shared, zeros, of `size` bytes; see `native/shared_sums.h`.
        room: Values of the largest sum.
        rank: Of this process.
        pids: Of all processes, by rank.
        patience: How long the others are waited for.
    """

    def __init__(
        self, memory: mmap.mmap, room: int, rank: int, pids: list[int], patience: timedelta = _PATIENCE
    ) -> None:
        self.room = room
        self.rank = rank
        self.pids = pids
        self.patience = patience
        self._memory = memory
        self._at = c_void_p(addressof((c_char * len(memory)).from_buffer(memory)))
        self._number = 0

    @staticmethod
    def size(room: int, processes: int) -> int:
        """Bytes of memory for sums of at most `room` values."""
        return _LINE * processes + 2 * processes * room * 8

    def __call__(self, values: Tensor) -> None:
        """Put the sum over all processes in the place of contiguous float64 values.

        It is made in the order of ranks.

        Raises:
            RuntimeError: Another process has died, or does not come.
        """
        assert values.dtype is torch.float64
        assert values.is_contiguous()
        assert values.numel() <= self.room
        self._number += 1
        library = native.library()
        out = c_void_p(values.data_ptr())
        count = c_int64(values.numel())
        sizes = c_int64(len(self.pids)), c_int64(self.room), c_int64(self._number)
        library.offer_sum(self._at, *sizes, c_int64(self.rank), count, out)
        begun = time.monotonic()
        # The library waits a fifth of a second at a time. In between somebody has to look whether those that are waited
        # for still live: shared memory does not tell.
        while not library.take_sum(self._at, *sizes, count, out, c_int64(_LOOK_US)):
            gone = [rank for rank, pid in enumerate(self.pids) if not is_alive(pid)]
            if gone or time.monotonic() - begun > self.patience.total_seconds():
                why = f"process {gone[0]} has died" if gone else f"one did not come for {self.patience}"
                raise RuntimeError(f"sum over {len(self.pids)} processes: {why}")


def sums_over_processes(room: int) -> Callable[[Tensor], object]:
    """A function that sums a contiguous float64 tensor over all processes, in place.

    All processes must call this. Where they share memory, the sum goes through that; else it is a message.
    """
    rank = dist.get_rank()
    processes = dist.get_world_size()
    name = ""
    token = secrets.token_bytes(16)
    size = SharedSums.size(room, processes)
    memory: mmap.mmap | None = None
    if rank == 0:
        memory, name = _made(size, token)
    shared_file = [(name, token)]
    dist.broadcast_object_list(shared_file)
    if rank:
        file_name, its_token = shared_file[0]
        memory = _opened(file_name, size, its_token)
    pids = [0] * processes
    dist.all_gather_object(pids, os.getpid())
    # Containers may share memory and not see each other's processes.
    shared = memory is not None and all(map(is_alive, pids))
    agreed = [False] * processes
    dist.all_gather_object(agreed, shared)
    # Every process that can has opened it.
    if rank == 0 and name:
        Path(name).unlink(missing_ok=True)
    if memory is None or not all(agreed):
        return dist.all_reduce
    memory[: len(token)] = bytes(len(token))
    # No sum may begin before that.
    dist.barrier()
    return SharedSums(memory, room, rank, pids)


def _made(size: int, token: bytes) -> tuple[mmap.mmap | None, str]:
    """Make shared memory with a token at its beginning, and name its file.

    None and "" where there cannot be any.
    """
    # On Windows asking for a process by os.kill would interrupt it.
    if os.name == "nt":
        return None, ""
    folder = Path("/dev/shm")
    try:
        descriptor, name = tempfile.mkstemp(prefix="torchrl_gpu-", dir=folder if folder.is_dir() else None)
        with os.fdopen(descriptor, "r+b") as file:
            file.write(token + bytes(size - len(token)))
            file.flush()
            return mmap.mmap(file.fileno(), size), name
    # The folder may be full or read-only; then there are messages.
    except OSError:
        return None, ""


def _opened(name: str, size: int, token: bytes) -> mmap.mmap | None:
    try:
        with open(name, "r+b") as file:
            memory = mmap.mmap(file.fileno(), size)
    except (OSError, ValueError):
        return None
    return memory if memory[: len(token)] == token else None


def is_alive(pid: int) -> bool:
    """Whether a process runs: it is there, and no zombie."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        # The name of the program, in parentheses, may hold spaces.
        behind_name = status.rsplit(")", 1)[1]
        return behind_name.split()[0] not in "ZX"
    # Where /proc does not say.
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def shares_of(plan: PatchPlan, cells: Sequence[int], processes: int) -> list[tuple[int, ...]]:
    """Tables of each process, so that all have about the same work.

    Processes beyond the number of tables have none. Work is counted as patches times their cells and one more, which is
    what looking up and learning took.
    """
    work = [0] * len(plan.shapes)
    for each in plan.oriented:
        rows, columns = plan.sides(each, cells)
        work[each.table] += rows * columns * (len(each.cells) + 1)
    shares: list[list[int]] = [[] for _ in range(processes)]
    # The largest tables first, each to the process that has the least work so far.
    for table in sorted(range(len(work)), key=lambda table: -work[table]):
        least = min(shares, key=lambda share: sum(work[each] for each in share))
        least.append(table)
    return [tuple(sorted(share)) for share in shares]


class SharedTables:
    """Tables of several processes on CPUs, each of which looks up and learns some.

    Each process works out its tables' parts of a value, in float64; a sum with zeros puts them together, and they are
    added up in the order of one process, to the same bits. `exchange` takes over what other processes have learned.
    """

    def __init__(self, tables: PatchTables, rank: int, processes: int, most: int) -> None:
        self.tables = tables
        self.rank = rank
        self.shares = shares_of(tables.plan, tables.seen, processes)
        self._sum = sums_over_processes(max(most, processes) * len(tables.plan.oriented))
        self.changes = Changes.of(tables.plan)
        self._offsets = [each.offset for each in tables.plan.tables]

    def values(self, levels: Tensor) -> Tensor:
        """As `PatchTables.values`, of the same bins in all processes."""
        parts = shape_values(levels, self.tables.weight, self.tables.plan, self.shares[self.rank])
        self._sum(parts)
        whole = torch.zeros_like(parts[0])
        for part in parts:
            whole += part
        return whole.float()

    def learn(self, levels: Tensor, error: Tensor, counts: Tensor, rate: float) -> None:
        """As `PatchTables.learn`, of the tables of this process."""
        self.tables.learn(levels, error, counts, rate, self.shares[self.rank], self.changes)

    @torch.no_grad()
    def exchange(self) -> None:
        """Take over the weights that other processes have learned since the last time."""
        tables = self.tables
        changes = self.changes
        processes = len(self.shares)
        num = torch.zeros(processes, len(changes.num), dtype=torch.float64, device="cpu")
        num[self.rank] = changes.num
        self._sum(num)
        counts = num.long().tolist()
        most = max(map(sum, counts))
        parts = zip(self._offsets, counts[self.rank], strict=True)
        mine = [changes.first[offset : offset + count] for offset, count in parts]
        entries = [first + offset for first, offset in zip(mine, self._offsets, strict=True)]
        at = torch.cat(entries).long()
        sent = torch.zeros(4, most, dtype=torch.int32, device="cpu")
        sent[0, : len(at)] = torch.cat(mine)
        for row, values in zip(sent[1:], (tables.weight, tables.drift, tables.path), strict=True):
            row[: len(at)] = values[at].view(torch.int32)
        changes.marked[at] = 0
        changes.num.zero_()
        received = [torch.empty_like(sent) for _ in range(processes)]
        dist.all_gather(received, sent)
        for rank, content in enumerate(received):
            if rank != self.rank:
                self._take(content, counts[rank])

    def _take(self, content: Tensor, counts: list[int]) -> None:
        """Take over what another process has learned.

        Args:
            content: Numbers, weights, drifts and paths, (4, M) int32.
            counts: How many entries there are of each table.
        """
        tables = self.tables
        plan = tables.plan
        for table, block in enumerate(content[:, : sum(counts)].split(counts, 1)):
            first = block[0].long()
            at = first + self._offsets[table]
            tables.drift[at] = block[2].view(torch.float32)
            tables.path[at] = block[3].view(torch.float32)
            tables.weight[plan.images(table, first)] = block[1].view(torch.float32)
