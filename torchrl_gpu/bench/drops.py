"""The z-maps and the legality of one irregular object in all orientations: NumPy, `unfold`, and ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.bench.numpy_packing import Drop, Shape, drop_by_loop, drop_by_windows, shapes_of
from torchrl_gpu.bench.settings import Player, make
from torchrl_gpu.bench.timing import Contestant
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.types import Catalogue

_UNFOLD_ENVS = 8  # the windows of one orientation in 64 environments would take a gigabyte


def drop_contestants(changes: dict[str, Any], num_envs: Sequence[int], device: str) -> list[Contestant]:
    """Rows whose unit is one object in all its orientations on one bin.

    The object is the one of middling footprint in the catalogue; the bins are those after a few random placements. A
    further row of ours gives every environment an object of its own: the kernel then works as for the largest of them.
    """
    env = make(changes, max(num_envs), device)
    player = Player(env)
    player.play(6)
    heights, item = env.state.heightmap, _middling(env.catalogue)
    shapes = shapes_of(env.catalogue.to(torch.device("cpu")), item)
    work = sum(s.top.size * _num_placements(s, env) for s in shapes)
    rows = [
        Contestant("NumPy, loop", _numpy(drop_by_loop, heights, shapes, env)),
        Contestant("NumPy, windows", _numpy(drop_by_windows, heights, shapes, env)),
        Contestant(
            f"torch unfold, {min(_UNFOLD_ENVS, len(heights))}",
            _unfold(heights[:_UNFOLD_ENVS], shapes, env),
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
    return Catalogue.of_maps(top, bottom, catalogue.extent[row], catalogue.volume[row])


def _ours(name: str, heights: Tensor, item_id: Tensor, catalogue: Catalogue, env: PackingEnv) -> Contestant:
    item_id = item_id.to(heights.device)

    @torch.no_grad()
    def run(calls: int) -> None:
        for _ in range(calls):
            env.kernels.drop_map(heights, item_id, catalogue, env.bin)

    threads = str(torch.get_num_threads()) if heights.device.type == "cpu" else str(heights.device)
    return Contestant(name, run, len(heights), threads, notes=f"kernels {env.kernels.backend}")


def _numpy(drop: Drop, heights: Tensor, shapes: list[Shape], env: PackingEnv) -> Callable[[int], None]:
    bins, turn = heights.cpu().numpy(), [0]

    def run(calls: int) -> None:
        for _ in range(calls):
            turn[0] = (turn[0] + 1) % len(bins)
            z_map, legal = np.empty(env.bin.grid, np.float32), np.zeros(env.bin.grid, bool)
            for shape in shapes:
                drop(bins[turn[0]], shape, env.bin, z_map, legal)

    return run


def _unfold(heights: Tensor, shapes: list[Shape], env: PackingEnv) -> Callable[[int], None]:
    """The obvious way in torch: every window of the heightmap less the bottom, and its maximum."""
    bottoms = [torch.from_numpy(shape.bottom).to(heights.device) for shape in shapes]
    step = env.bin.step

    @torch.no_grad()
    def run(calls: int) -> None:
        for _ in range(calls):
            for bottom in bottoms:
                p, q = bottom.shape
                (heights.unfold(1, p, step).unfold(2, q, step) - bottom).amax((-1, -2))

    return run
