"""Parity of every way to make a z-map with the reference.

It comes before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from benchmarks.kernels.workloads import Workload
from benchmarks.packing.drops import unfolded
from benchmarks.packing.numpy_packing import drop_by_windows, shapes_of
from benchmarks.result_types import JsonObject
from torchrl_gpu.envs.packing.kernels import get_kernels, reference

# z_map and legal, (N, K, O, Gx, Gy).
Maps = tuple[Tensor, Tensor]


def checks(workload: Workload, backends: Mapping[str, torch.device]) -> Iterator[JsonObject]:
    """Describe differences from the reference on a workload, or "" for none.

    There is a description for each backend and both peers.

    Args:
        workload: As small as the reference needs it.
        backends: Those that run, and where.
    """
    wanted = reference.drop_map(*workload)
    ways: dict[str, Callable[[], str]] = {
        f"ours {name}": _compare_backend(name, device, workload, wanted) for name, device in backends.items()
    }
    ways["NumPy, windows"] = lambda: _unlike(_by_windows(workload), wanted, workload.bin_.tolerance)
    if not workload.catalogue.flat:
        ways["torch unfold"] = lambda: _unfold_unlike(workload, wanted[0])
    for name, compare in ways.items():
        yield {"row": name, "num_envs": workload.num_envs, "difference": compare()}


def _compare_backend(name: str, device: torch.device, workload: Workload, wanted: Maps) -> Callable[[], str]:
    def compare() -> str:
        z_map, legal = get_kernels(name, device).drop_map(*workload.to(device))
        return _unlike((z_map.cpu(), legal.cpu()), wanted, workload.bin_.tolerance)

    return compare


def _by_windows(workload: Workload) -> Maps:
    heightmap, item_id, catalogue, bin_ = workload
    shape = (*item_id.shape, catalogue.num_orientations, *bin_.grid)
    z_map, legal = np.full(shape, bin_.size[2], np.float32), np.zeros(shape, bool)
    for n, k in np.ndindex(*item_id.shape):
        for o, item in enumerate(shapes_of(catalogue, int(item_id[n, k]))):
            drop_by_windows(heightmap[n].numpy(), item, bin_, z_map[n, k, o], legal[n, k, o])
    return torch.from_numpy(z_map), torch.from_numpy(legal)


def _unlike(got: Maps, wanted: Maps, tolerance: float) -> str:
    """Rest heights are the same height, legality is equal."""
    apart = (got[0] - wanted[0]).abs()
    unlike_heights = ~(apart <= tolerance)
    unlike_legal = got[1] != wanted[1]
    for name, ours, theirs, wrong in (
        ("z_map", got[0], wanted[0], unlike_heights),
        ("legal", got[1], wanted[1], unlike_legal),
    ):
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            share = f"{int(wrong.sum())} of {wrong.numel()} entries"
            return f"{name} differs in {share}, first at {at}: {ours[at].item()}, reference {theirs[at].item()}"
    return ""


def _unfold_unlike(workload: Workload, wanted: Tensor) -> str:
    """The same for `unfold`, which knows the placements on the grid only."""
    heightmap, item_id, catalogue, bin_ = workload
    assert catalogue.bottom is not None
    for n, k, o in np.ndindex(*item_id.shape, catalogue.num_orientations):
        p, q = catalogue.extent[item_id[n, k], o].tolist()
        if p > bin_.cells[0] or q > bin_.cells[1]:
            continue
        got = unfolded(heightmap[n : n + 1], catalogue.bottom[item_id[n, k], o, :p, :q], bin_.step)[0].clamp_min(0)
        apart = got - wanted[n, k, o, : got.shape[0], : got.shape[1]]
        if not bool((apart.abs() <= bin_.tolerance).all()):
            return f"z_map differs in orientation {o} by up to {apart.abs().max().item()} m"
    return ""
