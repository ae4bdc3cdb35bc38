"""The z-maps and the legality of one irregular object in all orientations: NumPy, `unfold`, and ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.packing.numpy_packing import Drop, Shape, drop_by_loop, drop_by_windows, shapes_of
from benchmarks.packing.settings import make
from torchrl_gpu.cli.packing.bench import TimedRow, random_steps
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.types import Bin, Catalogue

_UNFOLD_ENVS = 8  # the windows of one orientation in 64 environments would take a gigabyte


def drop_rows(changes: dict[str, Any], num_envs: Sequence[int], device: str) -> list[TimedRow]:
    """Rows whose unit is one object in all its orientations on one bin.

    The object is the one of middling footprint in the catalogue; the bins are those after a few random placements. A
    further row of ours gives every environment an object of its own: the kernel then works as for the largest of them.
    """
    env = make(changes, max(num_envs), device)
    random_steps(env)(6)
    heights, item = env.state.heightmap, _middling(env.catalogue)
    shapes = shapes_of(env.catalogue.to(torch.device("cpu")), item)
    work = sum(s.top.size * _num_placements(s, env) for s in shapes)
    rows = [
        TimedRow("NumPy, loop", by_numpy(drop_by_loop, heights, [shapes], env.bin)),
        TimedRow("NumPy, windows", by_numpy(drop_by_windows, heights, [shapes], env.bin)),
        TimedRow(
            f"torch unfold, {min(_UNFOLD_ENVS, len(heights))}",
            by_unfold(heights[:_UNFOLD_ENVS], [torch.from_numpy(s.bottom) for s in shapes], env.bin.step),
            min(_UNFOLD_ENVS, len(heights)),
            str(torch.get_num_threads()),
            notes="z-maps only, no flush placements",
        ),
    ]
    alone = _only(env.catalogue, item)
    same = torch.zeros(len(heights), 1, dtype=torch.int64)
    rows += [_ours(f"ours, {n}", heights[:n], same[:n], alone, env) for n in num_envs]
    mixed = env.state.item_id[:, :1].cpu()
    rows.append(_ours(f"ours, {len(mixed)}, objects mixed", heights, mixed, env.catalogue, env))
    for row in rows:
        row.extra["add_max_per_object"] = work
    return rows


def _middling(catalogue: Catalogue) -> int:
    area = catalogue.extent.prod(-1).sum(-1)
    return int(area.argsort()[len(area) // 2])


def _num_placements(shape: Shape, env: PackingEnv) -> int:
    counts = [-(-(c - s) // env.bin.step) + 1 for c, s in zip(env.bin.cells, shape.top.shape, strict=True)]
    return max(0, counts[0]) * max(0, counts[1])


def _only(catalogue: Catalogue, item: int) -> Catalogue:
    """A catalogue of one object."""
    assert catalogue.top is not None
    assert catalogue.bottom is not None
    row = slice(item, item + 1)
    p, q = catalogue.extent[item].amax(0).tolist()
    top, bottom = (maps[row, :, :p, :q].contiguous() for maps in (catalogue.top, catalogue.bottom))
    return Catalogue.of_maps(top, bottom, catalogue.extent[row], catalogue.volume[row], catalogue.unit)


def _ours(name: str, heights: Tensor, item_id: Tensor, catalogue: Catalogue, env: PackingEnv) -> TimedRow:
    item_id = item_id.to(heights.device)

    @torch.no_grad()
    def run(calls: int) -> None:
        for _ in range(calls):
            env.kernels.drop_map(heights, item_id, catalogue, env.bin)

    threads = str(torch.get_num_threads()) if heights.device.type == "cpu" else str(heights.device)
    return TimedRow(name, run, len(heights), threads, notes=f"kernels {env.kernels.backend}")


def by_numpy(drop: Drop, heights: Tensor, shapes: Sequence[list[Shape]], bin_: Bin) -> Callable[[int], None]:
    """Work of one call: the z-maps and the legality of several shapes on one bin.

    Args:
        drop: How placements are looked at.
        heights: (N, X, Y), bins that take turns, metres.
        shapes: What is dropped on each bin; where there are fewer than bins, they take turns too.
        bin_: Size and grid of every bin.
    """
    bins, turn = heights.cpu().numpy(), [0]

    def run(calls: int) -> None:
        for _ in range(calls):
            turn[0] += 1
            z_map, legal = np.empty(bin_.grid, np.float32), np.zeros(bin_.grid, bool)
            for shape in shapes[turn[0] % len(shapes)]:
                drop(bins[turn[0] % len(bins)], shape, bin_, z_map, legal)

    return run


def by_unfold(heights: Tensor, bottoms: Sequence[Tensor], step: int) -> Callable[[int], None]:
    """Work of one call, the obvious way in torch: every window of the heightmap less the bottom, and its maximum.

    Args:
        heights: (N, X, Y), metres.
        bottoms: One for each z-map of an environment, (P, Q), or (N, 1, 1, P, Q) where environments differ.
        step: Cells between placements.
    """
    bottoms = [bottom.to(heights.device) for bottom in bottoms]

    @torch.no_grad()
    def run(calls: int) -> None:
        for _ in range(calls):
            for bottom in bottoms:
                unfolded(heights, bottom, step)

    return run


def unfolded(heights: Tensor, bottom: Tensor, step: int) -> Tensor:
    """Highest `h − b` of every placement on the grid, (N, A, B), without those flush with the far walls."""
    p, q = bottom.shape[-2:]
    return (heights.unfold(1, p, step).unfold(2, q, step) - bottom).amax((-1, -2))
