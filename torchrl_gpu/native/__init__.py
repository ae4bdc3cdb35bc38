"""C++ kernels, compiled at first use on this machine: no binary to install, and its widest vector instructions."""

from torchrl_gpu.native.build import CompilerError, compiler, library, problem
from torchrl_gpu.native.operators import (
    any_true,
    cut_boxes,
    cut_items,
    draw_bits,
    first_best,
    output,
    pick_true,
    runs_on,
)

__all__ = [
    "CompilerError",
    "any_true",
    "compiler",
    "cut_boxes",
    "cut_items",
    "draw_bits",
    "first_best",
    "library",
    "output",
    "pick_true",
    "problem",
    "runs_on",
]
