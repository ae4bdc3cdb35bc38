"""Two rates that nothing made of tensor operations exceeds on this machine."""

from __future__ import annotations

import torch

from torchrl_gpu.bench.timing import TimedRow

COPY, ADD_MAX = "ceiling: memory copy", "ceiling: add and max"


def ceilings(device: torch.device) -> list[TimedRow]:
    """Bytes copied, and add-max operations, a second.

    The copy is between tensors too large for any cache; what is read and what is written both count. The add-max stays
    in the caches: a subtraction and a maximum of float32, in two calls, as the eager kernel makes them.
    """
    size = (1 << 28) if device.type == "cuda" else (1 << 25)
    source, target = (
        torch.ones(size, device=device, dtype=torch.float32),
        torch.empty(size, device=device, dtype=torch.float32),
    )
    small = (1 << 20) if device.type == "cuda" else (1 << 16) * torch.get_num_threads()
    best, cells, scratch = (torch.zeros(small, device=device, dtype=torch.float32) for _ in range(3))
    rounds = 1000

    def copy(calls: int) -> None:
        for _ in range(calls):
            target.copy_(source)

    def add_max(calls: int) -> None:
        for _ in range(calls * rounds):
            torch.sub(cells, 0.5, out=scratch)
            torch.maximum(best, scratch, out=best)

    threads = str(torch.get_num_threads())
    return [
        TimedRow(COPY, copy, 8 * size, threads, notes="bytes/s"),
        TimedRow(ADD_MAX, add_max, small * rounds, threads, notes="add-max/s"),
    ]
