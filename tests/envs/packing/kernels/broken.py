"""A backend that is `eager` but for a fault.

The environment variable BROKEN says which, for tests of what happens then.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.kernels import eager
from torchrl_gpu.envs.packing.kernels.eager import any_legal, bear, restart, upheld
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Moved

__all__ = ["advance", "any_legal", "bear", "drop_map", "pile_growth", "place", "restart", "upheld"]

# Of the bin in which "fails in one bin" does.
OWN_CELLS = (6, 5)


def _breaks(how: str) -> bool:
    return os.environ.get("BROKEN") == how


def drop_map(heightmap: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin, *stored: object) -> Any:
    """As eager's, or not at all."""
    if _breaks("compilation fails"):
        raise RuntimeError("PTX assembly aborted\nptxas: unknown architecture sm_999")
    if _breaks("crashes"):
        os.kill(os.getpid(), signal.SIGABRT)
    if _breaks("fails in one bin") and bin_.cells == OWN_CELLS:
        raise RuntimeError("out of resource: shared memory")
    if _breaks("fails in the process of the run") and os.environ["RUN"] == str(os.getpid()):
        raise RuntimeError("no space left on device")
    z_map, legal = eager.drop_map(heightmap, item_id, catalogue, bin_, *stored)
    if _breaks("drops solids by com wrong") and not catalogue.flat and bin_.stability == "com":
        z_map = z_map + 0.01
    return z_map, legal


def place(*arguments: object) -> Tensor:
    return arguments[0].clone() if _breaks("places nothing") else eager.place(*arguments)


def pile_growth(*arguments: object) -> Tensor:
    growth = eager.pile_growth(*arguments)
    return growth * torch.nan if _breaks("grows by no number") else growth


def advance(*arguments: object) -> Moved:
    moved = eager.advance(*arguments)
    if _breaks("miscounts"):
        moved.state.num_packed += 1
    return moved
