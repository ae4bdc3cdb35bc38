"""The packing kernels in Triton, for CUDA devices.

One launch computes the z-map and the legal mask, stability included, of every placement; for large bins and irregular
items a small launch prepares its input. The rest of a step is one launch for the action and one for the environments
that are reset. Nothing is read back and the launch grid follows from shapes alone, so that calls can be captured in a
CUDA graph. With `TRITON_INTERPRET=1` the same kernels run on a CPU, slowly, for tests.
"""

from __future__ import annotations

import contextlib

import torch
import triton
from torch import Tensor

from torchrl_gpu.envs.packing.kernels import eager
from torchrl_gpu.envs.packing.kernels.eager import bear
from torchrl_gpu.envs.packing.kernels.transition import any_legal
from torchrl_gpu.envs.packing.kernels.triton import bearing as triton_bearing
from torchrl_gpu.envs.packing.kernels.triton import piles as triton_piles
from torchrl_gpu.envs.packing.kernels.triton import transition as triton_transition
from torchrl_gpu.envs.packing.kernels.triton.boxes import MOST_CELLS_X, drop_boxes
from torchrl_gpu.envs.packing.kernels.triton.solids import drop_solids
from torchrl_gpu.envs.packing.kernels.triton.stability import DROP_RULES
from torchrl_gpu.envs.packing.kernels.triton.wide_boxes import drop_wide_boxes
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Moved, PackingState, Placement, StoredMaps

__all__ = ["advance", "any_legal", "bear", "drop_map", "pile_growth", "place", "problem", "restart", "upheld"]

DEVICES = ("cuda", "cpu")


def problem(device: torch.device) -> str:
    """The reason why this backend cannot run on `device`.

    "" on CUDA, and on a CPU with Triton's interpreter.
    """
    if device.type == "cuda" or (device.type == "cpu" and triton.knobs.runtime.interpret):
        return ""
    return f"runs on CUDA devices, or on a CPU with TRITON_INTERPRET=1; got {device}"


def drop_map(
    heightmap: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin, stored: StoredMaps | None = None
) -> tuple[Tensor, Tensor]:
    """As `reference.drop_map`.

    For irregular items only placements that `stored` lacks are computed.
    """
    if bin_.stability not in DROP_RULES:
        z_map, legal = drop_map(heightmap, item_id, catalogue, bin_.without_rule)
        return z_map, eager.judge_dropped(heightmap, z_map, legal, item_id, catalogue, bin_)
    heightmap = heightmap.contiguous()
    item_id = item_id.contiguous()
    with _on(heightmap.device):
        if not catalogue.flat:
            return drop_solids(heightmap, item_id, catalogue, bin_, stored)
        if bin_.cells[0] <= MOST_CELLS_X:
            return drop_boxes(heightmap, item_id, catalogue, bin_)
        return drop_wide_boxes(heightmap, item_id, catalogue, bin_)


def upheld(
    heightmap: Tensor, bears: Tensor, z_map: Tensor, legal: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin
) -> Tensor:
    if bin_.stability not in triton_bearing.BEARING_RULES:
        return eager.upheld(heightmap, bears, z_map, legal, item_id, catalogue, bin_)
    heightmap = heightmap.contiguous()
    bears = bears.contiguous()
    z_map = z_map.contiguous()
    legal = legal.contiguous()
    item_id = item_id.contiguous()
    with _on(heightmap.device):
        return triton_bearing.upheld(heightmap, bears, z_map, legal, item_id, catalogue, bin_)


def place(heightmap: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    placement = type(placement)(*(field.contiguous() for field in placement))
    with _on(heightmap.device):
        return triton_piles.place(heightmap.contiguous(), placement, catalogue)


def advance(state: PackingState, action: Tensor, following: Tensor, catalogue: Catalogue, bin_: Bin) -> Moved:
    with _on(action.device):
        return triton_transition.advance(state, action, following, catalogue, bin_)


def restart(
    state: PackingState, mask: Tensor, key: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin
) -> PackingState:
    with _on(mask.device):
        return triton_transition.restart(state, mask, key, item_id, catalogue, bin_)


def pile_growth(heightmap: Tensor, item_id: Tensor, z_map: Tensor, catalogue: Catalogue, bin_: Bin) -> Tensor:
    with _on(heightmap.device):
        return triton_piles.growth(heightmap.contiguous(), item_id.contiguous(), z_map.contiguous(), catalogue, bin_)


def _on(device: torch.device) -> contextlib.AbstractContextManager:
    """Context with `device` as the current CUDA device, on which Triton launches."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
