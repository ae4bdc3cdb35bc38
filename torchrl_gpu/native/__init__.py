"""C++ kernels, compiled at first use on this machine, or those of the wheel.

They are compiled for the widest vector instructions of the processor. Not here: the kernels in torch and Triton, which
stand beside their callers. Read `operators` first.
"""

from torchrl_gpu.native.build import CompilerError, compiler, library, problem, tune
from torchrl_gpu.native.operators import (
    Arguments,
    any_true,
    count_at_most,
    cut_boxes,
    cut_items,
    draw_bits,
    first_best,
    of_type,
    output,
    pick_true,
    runs_on,
)

__all__ = [
    "Arguments",
    "CompilerError",
    "any_true",
    "compiler",
    "count_at_most",
    "cut_boxes",
    "cut_items",
    "draw_bits",
    "first_best",
    "library",
    "of_type",
    "output",
    "pick_true",
    "problem",
    "runs_on",
    "tune",
]
