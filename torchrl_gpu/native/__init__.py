"""C++ kernels, compiled on this machine at first use: no binary to install, and the widest vectors that it has."""

from torchrl_gpu.native.build import CompilerError, compiler, library, problem
from torchrl_gpu.native.operators import any_true, cut_boxes, cut_items, draw_bits, output, pick_true, runs_on

__all__ = [
    "CompilerError",
    "any_true",
    "compiler",
    "cut_boxes",
    "cut_items",
    "draw_bits",
    "library",
    "output",
    "pick_true",
    "problem",
    "runs_on",
]
