"""Rest heights and legality of one irregular object in all orientations.

NumPy, `unfold` of torch, and ours are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks.packing.numpy_packing import Drop, Shape, drop_by_loop, drop_by_windows, shapes_of
from benchmarks.packing.settings import Changes, make
from torchrl_gpu.cli.packing.bench import TimedRow, random_steps
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.types import Bin, Catalogue

# The windows of one orientation in 64 environments would take a gigabyte.
_UNFOLD_ENVS = 8


def drop_rows(changes: Changes, num_envs: Sequence[int], device: str) -> list[TimedRow]:
    """Make the rows whose unit is one object in all its orientations on one bin.

    The object is the one of middling footprint in the catalogue; the bins are those after a few random placements. A
    further row of ours gives every environment an object of its own: the kernel then works as for the largest of them.
    """
    env = make(changes, max(num_envs), device)
    random_steps(env)(6)
    heights = env.state.heightmap
    item = _middling(env.catalogue)
    shapes = shapes_of(env.catalogue.to(torch.device("cpu")), item)
    # An add and a maximum for each cell of the object, at each of its placements.
    work = sum(shape.top.size * _num_placements(shape, env) for shape in shapes)
    by_loop = by_numpy(drop_by_loop, heights, [shapes], env.bin)
    by_windows = by_numpy(drop_by_windows, heights, [shapes], env.bin)
    rows = [TimedRow("NumPy, loop", by_loop), TimedRow("NumPy, windows", by_windows)]
    rows.append(_unfold_row(heights[:_UNFOLD_ENVS], shapes, env.bin.step))
    alone = _only(env.catalogue, item)
    same = torch.zeros(len(heights), 1, dtype=torch.int64)
    rows += [_ours(f"ours, {n}", heights[:n], same[:n], alone, env) for n in num_envs]
    mixed = env.state.item_id[:, :1].cpu()
    rows.append(_ours(f"ours, {len(mixed)}, objects mixed", heights, mixed, env.catalogue, env))
    for row in rows:
        row.extra["add_max_per_object"] = work
    return rows


def _unfold_row(heights: Tensor, shapes: Sequence[Shape], step: int) -> TimedRow:
    bottoms = [torch.from_numpy(shape.bottom) for shape in shapes]
    return TimedRow(
        f"torch unfold, {len(heights)}",
        by_unfold(heights, bottoms, step),
        len(heights),
        str(torch.get_num_threads()),
        notes="z-maps only, no flush placements",
    )


def _middling(catalogue: Catalogue) -> int:
    """Return the object of middling footprint over all orientations."""
    area = catalogue.extent.prod(-1).sum(-1)
    return int(area.argsort()[len(area) // 2])


def _num_placements(shape: Shape, env: PackingEnv) -> int:
    cells_x, cells_y = env.bin.cells
    extent_x, extent_y = shape.top.shape
    along_x = _num_along(extent_x, cells_x, env.bin.step)
    along_y = _num_along(extent_y, cells_y, env.bin.step)
    return along_x * along_y


def _num_along(extent: int, cells: int, step: int) -> int:
    """Return the placements along one axis, with the one flush with the far wall."""
    last = cells - extent
    return max(0, -(-last // step) + 1)


def _only(catalogue: Catalogue, item: int) -> Catalogue:
    """Make a catalogue of one object."""
    assert catalogue.top is not None
    assert catalogue.bottom is not None
    row = slice(item, item + 1)
    p, q = catalogue.extent[item].amax(0).tolist()
    top = catalogue.top[row, :, :p, :q].contiguous()
    bottom = catalogue.bottom[row, :, :p, :q].contiguous()
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
    bins = heights.cpu().numpy()
    turn = 0

    def run(calls: int) -> None:
        nonlocal turn
        for _ in range(calls):
            turn += 1
            z_map = np.empty(bin_.grid, np.float32)
            legal = np.zeros(bin_.grid, bool)
            for shape in shapes[turn % len(shapes)]:
                drop(bins[turn % len(bins)], shape, bin_, z_map, legal)

    return run


def by_unfold(heights: Tensor, bottoms: Sequence[Tensor], step: int) -> Callable[[int], None]:
    """Work of one call, the obvious way in torch.

    That is every window of the heightmap less the bottom, and its maximum.

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
    """Highest `h − b` of every placement on the grid, (N, A, B).

    Placements that are flush with the far walls are left out.
    """
    p, q = bottom.shape[-2:]
    windows = heights.unfold(1, p, step).unfold(2, q, step)
    return (windows - bottom).amax((-1, -2))
