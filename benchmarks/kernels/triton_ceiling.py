"""Add-max operations of a GPU that never leave its registers, as a Triton kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_WARPS = 4
_BLOCKS_PER_PROCESSOR = 16
# Of the loop, and of its body. Each does two operations for each element.
_ROUNDS = 4096
_UNROLLED = 8


@triton.jit
def add_max_loop(out, rounds, BLOCK: tl.constexpr, UNROLLED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add and compare in two accumulators that take turns, and write their sum.

    So no round can be left out.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(out + at)
    second = first + 1
    for _ in range(rounds):
        for step in tl.static_range(UNROLLED):
            first = tl.maximum(first, second - (step + 1))
            second = tl.maximum(second, first - (step + 2))
    tl.store(out + at, first + second)


def register_loop(device: torch.device, dtype: torch.dtype) -> tuple[Callable[[int], None], int]:
    """Work of one call on every processor of a GPU, and the add-max operations in it."""
    blocks = torch.cuda.get_device_properties(device).multi_processor_count * _BLOCKS_PER_PROCESSOR
    out = torch.zeros(blocks * _BLOCK, dtype=dtype, device=device)

    def run(calls: int) -> None:
        for _ in range(calls):
            launch(out, _ROUNDS)

    return run, out.numel() * operations(_ROUNDS)


def launch(out: Tensor, rounds: int) -> None:
    """Run the loop on `out`, (B·1024,) float32 or int32, in place."""
    add_max_loop[(out.numel() // _BLOCK,)](out, rounds, BLOCK=_BLOCK, UNROLLED=_UNROLLED, num_warps=_WARPS)


def operations(rounds: int) -> int:
    """Add-max operations for each element."""
    return 2 * _UNROLLED * rounds
