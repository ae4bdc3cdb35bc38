"""Whether the compiled kernels may be used: they compile, load, do not crash, and count right."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from torchrl_gpu import proofs
from torchrl_gpu.native import build


@cache
def problem() -> str:
    """Why there are no compiled kernels here, in one line; "" where there are."""
    return build.problem() or proofs.problem(trial())


def trial() -> proofs.Trial:
    """Of the operators, by a library whose name says which sources, compiler and processor it was made from."""
    library = Path(build.library()._name).name
    return proofs.Trial("the compiled operators", "torchrl_gpu.native.check:problem", (), {"library": library})
