"""Small operators over CPU tensors; each has a torch form beside its caller, which defines it."""

from __future__ import annotations

from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from torchrl_gpu.native.build import library, problem


def runs_on(tensor: Tensor) -> bool:
    """Whether the operators here take `tensor`: on a CPU with a compiler, and not while torch.compile traces."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling() and not problem()


def draw_bits(key: Tensor, counter: Tensor) -> Tensor:
    """As `streams.draw_bits`."""
    key, counter = (each.contiguous() for each in torch.broadcast_tensors(key, counter))
    out = torch.empty_like(key)
    library().draw_bits(_at(key), _at(counter), c_int64(key.numel()), _at(out))
    return out


def pick_true(mask: Tensor, draw: Tensor) -> Tensor:
    """The true entry of rank ⌊draw · count⌋ of each row.

    Args:
        mask: (…, A) bool.
        draw: (…,) float64 in [0, 1).

    Returns:
        (…,) int64; 0 where there is none.
    """
    mask, draw = mask.contiguous(), draw.contiguous()
    out = torch.empty_like(draw, dtype=torch.int64)
    sizes = draw.numel(), mask.shape[-1], torch.get_num_threads()
    library().pick_true(_at(mask), _at(draw), *map(c_int64, sizes), _at(out))
    return out


def _at(tensor: Tensor) -> c_void_p:
    return c_void_p(tensor.data_ptr())
