"""Learning of n-tuple tables shared out over the processes of a run, bit-identical to that of one process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from torchrl_gpu.policies.packing.ntuple.tables import PatchTables
from torchrl_gpu.policies.packing.ntuple.values import Changes, PatchPlan, shape_values
from torchrl_gpu.training.shared_sums import sums_over_processes


def shares_of(plan: PatchPlan, cells: Sequence[int], processes: int) -> list[tuple[int, ...]]:
    """The tables of each process, so that all have about the same work; none where there are more than tables.

    Work is counted as patches times their cells and one more, which is what looking up and learning took.
    """
    work = [0] * len(plan.shapes)
    for each in plan.lying:
        rows, columns = plan.sides(each, cells)
        work[each.table] += rows * columns * (len(each.cells) + 1)
    shares: list[list[int]] = [[] for _ in range(processes)]
    for table in sorted(range(len(work)), key=lambda table: -work[table]):
        min(shares, key=lambda share: sum(work[each] for each in share)).append(table)
    return [tuple(sorted(share)) for share in shares]


class SharedTables:
    """Tables of a run of several processes on CPUs, of which each looks up and learns some.

    Each process works out its tables' parts of a value, in float64; a sum with zeros puts them together, and they are
    added up in the order of one process, to the same bits. `exchange` takes over what other processes have learned.
    """

    def __init__(self, tables: PatchTables, rank: int, processes: int, most: int) -> None:
        self.tables, self.rank = tables, rank
        self.shares = shares_of(tables.plan, tables.seen, processes)
        self._sum = sums_over_processes(max(most, processes) * len(tables.plan.lying))
        self._changes = Changes.of(tables.plan)
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
        self.tables.learn(levels, error, counts, rate, self.shares[self.rank], self._changes)

    @torch.no_grad()
    def exchange(self) -> None:
        """Takes over the weights that other processes have learned since the last time."""
        tables, changes, processes = self.tables, self._changes, len(self.shares)
        num = torch.zeros(processes, len(changes.num), dtype=torch.float64, device="cpu")
        num[self.rank] = changes.num
        self._sum(num)
        counts = num.long().tolist()
        most = max(map(sum, counts))
        parts = zip(self._offsets, counts[self.rank], strict=True)
        mine = [changes.first[offset : offset + count] for offset, count in parts]
        at = torch.cat([first + offset for first, offset in zip(mine, self._offsets, strict=True)]).long()
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
        """Takes over the weights (4, M) of another process, so many of each table: numbers, weights, drifts, paths."""
        tables, plan = self.tables, self.tables.plan
        for table, block in enumerate(content[:, : sum(counts)].split(counts, 1)):
            first, (weight, drift, path) = block[0].long(), (row.view(torch.float32) for row in block[1:])
            at = first + self._offsets[table]
            tables.drift[at], tables.path[at] = drift, path
            tables.weight[plan.images(table, first)] = weight
