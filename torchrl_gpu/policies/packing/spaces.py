"""Placement heuristic that keeps the space accessible from above largest (MACS)."""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.packing.placements import PlacementHeuristic, Placements

_MOST_CELLS = 10  # cells a side that free rectangles are sought on
_CHUNK = 1 << 20  # elements of the largest tensor worked on at once: more leaves a core's cache


class Candidates(NamedTuple):
    """Candidate placements, deepest-bottom-left first, (N, C)."""

    action: Tensor  # int64
    legal: Tensor  # bool
    item: Tensor  # int64, catalogue row
    orientation: Tensor  # int64
    x: Tensor  # int64, cells
    y: Tensor  # int64, cells
    z: Tensor  # float32, metres


@final
class MaximalAccessibleSpace(PlacementHeuristic):
    """Most accessible space left: the sum over height levels of the largest rectangle that is open from above there.

    MACS of Hu et al., "TAP-Net: transport-and-pack using reinforcement learning", ACM TOG 39(6), 2020,
    doi 10.1145/3414685.3417796. Ties go to the deepest-bottom-left placement.

    Departs from the paper: the sum runs over all levels of the bin, where the code released with Zhao et al. (ICLR
    2022) stops at the base of the candidate; candidates are placements on the grid, not corners of empty maximal
    spaces; above 10 cells a side the rectangles are sought on the heightmap's maxima over blocks of cells.

    Args:
        env: As in the base class.
        num_candidates: Most placements that are scored, the deepest-bottom-left ones.
    """

    def __init__(self, env: PackingEnv, num_candidates: int = 256) -> None:
        super().__init__(env)
        if num_candidates < 1:
            raise ValueError(f"MaximalAccessibleSpace: num_candidates must be at least 1; got {num_candidates}")
        self.num_candidates = num_candidates
        self.block = tuple(-(-cells // _MOST_CELLS) for cells in self.bin.cells)

    def choose(self, placements: Placements) -> Tensor:
        candidates = self._candidates(placements)
        coarse = max_pool2d(placements.heightmap[:, None], self.block, ceil_mode=True)[:, 0]  # (N, U, V)
        per_row = coarse[0].numel() + math.prod(self.catalogue.footprint)
        width = max(1, _CHUNK // (len(coarse) * per_row))  # candidates at once
        spaces = [self._space(coarse, part) for part in _split(candidates, width)]
        space = torch.where(candidates.legal, torch.cat(spaces, 1), -1.0)
        return candidates.action.gather(1, space.argmax(1, keepdim=True)).squeeze(1)

    def _candidates(self, p: Placements) -> Candidates:
        """The legal placements by z, then x + y, then action; behind them, by action, those that are not legal."""
        num_orientations, grid_x, grid_y = p.legal.shape[2:]
        num_actions = p.legal[0].numel()
        number = torch.arange(num_actions, device=p.legal.device, dtype=torch.int64)
        rank = (p.z.long() * sum(self.bin.cells) + p.reach).flatten(1) * num_actions + number
        rank = torch.where(p.legal.flatten(1), rank, torch.iinfo(torch.int64).max - num_actions + number)
        action = rank.topk(min(self.num_candidates, num_actions), largest=False, sorted=True).indices
        k = action // (num_orientations * grid_x * grid_y)

        def taken(values: Tensor) -> Tensor:
            return values.expand(p.legal.shape).flatten(1).gather(1, action)

        return Candidates(
            action=action,
            legal=taken(p.legal),
            item=p.item_id.gather(1, k),
            orientation=action // (grid_x * grid_y) % num_orientations,
            x=taken(p.x),
            y=taken(p.y),
            z=taken(p.z_map),
        )

    def _space(self, coarse: Tensor, candidates: Candidates) -> Tensor:
        """Accessible space after each candidate, (N, C) float64; `coarse` is (N, U, V) in metres."""
        after = self.levels(self._placed(coarse, candidates)).float()  # (N, C, U, V), whole numbers
        ceiling = round(self.bin.size[2] / self.bin.tolerance)
        return accessible_space(after.flatten(0, 1), ceiling).view(after.shape[:2])

    def _placed(self, coarse: Tensor, c: Candidates) -> Tensor:
        """Heightmap by blocks after each candidate, (N, C, U, V): maxima of blocks rise as their cells do."""
        shape = (*c.action.shape, *coarse.shape[1:])
        top, bottom = self.catalogue.maps(c.item, c.orientation)  # (N, C, P, Q)
        raised = torch.where(bottom.isfinite(), c.z[..., None, None] + top, 0.0).flatten(2)
        i = torch.arange(top.shape[2], device=top.device, dtype=torch.int64)
        j = torch.arange(top.shape[3], device=top.device, dtype=torch.int64)
        u = ((c.x[..., None] + i) // self.block[0]).clamp_max(shape[2] - 1)  # (N, C, P)
        v = ((c.y[..., None] + j) // self.block[1]).clamp_max(shape[3] - 1)  # (N, C, Q)
        at = (u[..., :, None] * shape[3] + v[..., None, :]).flatten(2)
        before = coarse.flatten(1)[:, None].expand(-1, shape[1], -1)
        return before.scatter_reduce(2, at, raised, "amax", include_self=True).view(shape)


def _split(candidates: Candidates, width: int) -> list[Candidates]:
    return [Candidates(*parts) for parts in zip(*(field.split(width, 1) for field in candidates), strict=True)]


def accessible_space(heights: Tensor, ceiling: float) -> Tensor:
    """Sum over levels of the area of the largest rectangle of cells that is open from above at that level.

    A w×d rectangle is open from the least, over its positions, of the highest cell in it. With the sizes in falling
    order of area a and M the least such level so far, the sum is Σ (ceiling − M)·(a − next a): no loop over levels.
    Heights are (B, U, V) float32, the result is (B,) float64, cells times their unit.
    """
    sizes, opens = [], []
    columns = heights.permute(1, 2, 0).contiguous()  # (U, V, B): windows are slices of leading axes
    slab = columns
    for w in range(1, columns.shape[0] + 1):
        slab = columns if w == 1 else torch.maximum(slab[:-1], columns[w - 1 :])  # (U − w + 1, V, B)
        window = slab
        for d in range(1, columns.shape[1] + 1):
            window = slab if d == 1 else torch.maximum(window[:, :-1], slab[:, d - 1 :])
            sizes.append(w * d)
            opens.append(window.flatten(0, 1).amin(0))
    order = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    space = torch.zeros(heights.shape[0], dtype=torch.float64, device=heights.device)
    lowest = torch.full_like(heights[:, 0, 0], ceiling)
    for index, following in zip(order, [*order[1:], None], strict=True):
        lowest = torch.minimum(lowest, opens[index])
        step = sizes[index] - (0 if following is None else sizes[following])
        if step:
            space += (ceiling - lowest).double() * step
    return space
