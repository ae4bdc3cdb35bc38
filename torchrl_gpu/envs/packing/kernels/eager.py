"""The packing kernels in plain torch.

They run on every device, without a compiler and without a host read.

On a CPU `torch.where` over a mask that changes from element to element takes ten times as long as arithmetic or
more, and a comparison into booleans four times: hence infinities that a maximum absorbs, rather than masks, in the
large maps.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchrl_gpu.envs.packing.geometry import catalogue_rows, cells_under, grid_positions, inside, walls
from torchrl_gpu.envs.packing.kernels import transition
from torchrl_gpu.envs.packing.kernels.transition import any_legal, restart
from torchrl_gpu.envs.packing.stability.contacts import Contacts
from torchrl_gpu.envs.packing.stability.load_bearing import bearing_heights
from torchrl_gpu.envs.packing.stability.rule import Pile, rule_of
from torchrl_gpu.envs.packing.stability.windows import GridWindows
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Moved, PackingState, Placement, StoredMaps

__all__ = ["advance", "any_legal", "bear", "drop_map", "pile_growth", "place", "restart", "upheld"]

# Elements of one accumulator: it stays in a core's second-level cache.
_CHUNK = 1 << 17


class Variants(NamedTuple):
    """Every visible item in every orientation, J = K·O, and its placements.

    Attributes:
        item: Rows of the catalogue, (N, J) int64, 0 where the slot is empty.
        orientation: (N, J) int64.
        extent: Cells along x and y, (N, J, 2) int64.
        x, y: First cells of the placements, (N, J, Gx) and (N, J, Gy) int64.
    """

    item: Tensor
    orientation: Tensor
    extent: Tensor
    x: Tensor
    y: Tensor


def variants(item_id: Tensor, catalogue: Catalogue, bin_: Bin) -> Variants:
    """Return the variants of visible items (N, K) with their placements."""
    n, k = item_id.shape
    o = catalogue.num_orientations
    row = catalogue_rows(item_id, catalogue)[..., None]
    item = row.expand(n, k, o).reshape(n, k * o)
    turn = torch.arange(o, device=item_id.device, dtype=torch.int64)
    orientation = turn.expand(n, k, o).reshape(n, k * o)
    extent = catalogue.extent[item, orientation]
    x, _ = grid_positions(extent[..., 0], bin_.cells[0], bin_.step)
    y, _ = grid_positions(extent[..., 1], bin_.cells[1], bin_.step)
    return Variants(item, orientation, extent, x, y)


def drop_map(
    heightmap: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin, stored: StoredMaps | None = None
) -> tuple[Tensor, Tensor]:
    v = variants(item_id, catalogue, bin_)
    rest = _rest_boxes if catalogue.flat else _rest_solids
    wall = walls(item_id, catalogue, bin_).flatten(1, 2)
    # (N, J, Gx, Gy)
    z = torch.maximum(rest(heightmap, v, catalogue, bin_), wall)
    height = catalogue.height[v.item, v.orientation][..., None, None]
    legal = z + height <= bin_.size[2] + bin_.tolerance
    if bin_.stability != "none":
        legal = legal & _judge(heightmap, z, v, catalogue, bin_)
    z_map = z.nan_to_num(posinf=bin_.size[2])
    shape = (*item_id.shape, catalogue.num_orientations, *bin_.grid)
    return z_map.view(shape), legal.view(shape)


def upheld(
    heightmap: Tensor, bears: Tensor, z_map: Tensor, legal: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin
) -> Tensor:
    v = variants(item_id, catalogue, bin_)
    stable = _judge(bearing_heights(heightmap, bears), z_map.flatten(1, 2), v, catalogue, bin_)
    return legal & stable.view(legal.shape)


def bear(heightmap: Tensor, bears: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    return rule_of(bin_).bears_after(Pile(heightmap, bears), placement, catalogue, bin_)


def _judge(heights: Tensor, z: Tensor, v: Variants, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Return which placements at rest are stable by the bin's rule.

    Shape (N, J, Gx, Gy) bool.
    """
    windows = GridWindows(heights, v.x, v.y, bin_.step, catalogue.footprint)
    return rule_of(bin_).judge_all(Contacts(windows, z, v.item, v.orientation, catalogue, bin_))


def judge_dropped(
    heightmap: Tensor, z_map: Tensor, legal: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin
) -> Tensor:
    """Return the legal mask of the rule "none" without what the bin's rule refuses.

    Other backends call it for rules that they have no fast form of.
    """
    # Where nothing fits the height is the bin's, at which nothing is legal whatever the rule says.
    v = variants(item_id, catalogue, bin_)
    return legal & _judge(heightmap, z_map.flatten(1, 2), v, catalogue, bin_).view(legal.shape)


def _rest_boxes(heightmap: Tensor, v: Variants, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Return the highest cell under each box, (N, J, Gx, Gy).

    It is a maximum over the box's length, then over its width. Cells are numbered through all bins, so that a shift is
    a step in memory. A window that leaves its row or its bin reads cells of the next one; no box fits there.
    """
    num_envs, num_variants = v.item.shape
    cells_x, cells_y = bin_.cells
    # A box that is larger than the bin fits nowhere, whatever is found under a part of it.
    p = v.extent[..., 0].clamp_max(cells_x).flatten()
    q = v.extent[..., 1].clamp_max(cells_y).flatten()
    largest_p = min(catalogue.footprint[0], cells_x)
    largest_q = min(catalogue.footprint[1], cells_y)
    bin_of = torch.arange(num_envs, device=heightmap.device, dtype=torch.int64).repeat_interleave(num_variants)
    along_x = _window_max(heightmap.flatten(1), bin_of, p, cells_y, largest_p)  # (N·J, X·Y)
    if bin_.step > 1:
        first = torch.arange(len(along_x), device=p.device, dtype=torch.int64)[:, None] * cells_x
        rows = (first + v.x.flatten(0, 1)).flatten()
        # (N·J, Gx·Y)
        along_x = along_x.view(-1, cells_y).index_select(0, rows).view(len(along_x), -1)
    itself = torch.arange(len(along_x), device=p.device, dtype=torch.int64)
    highest = _window_max(along_x, itself, q, 1, largest_q).view(num_envs, num_variants, -1, cells_y)
    if bin_.step > 1:
        columns = v.y[:, :, None].expand(-1, -1, v.x.shape[-1], -1)
        highest = highest.gather(-1, columns)
    return highest


def _window_max(values: Tensor, row: Tensor, extent: Tensor, stride: int, largest: int) -> Tensor:
    """Return the sliding maximum from each cell of chosen rows on, (B, C).

    A table holds the maximum over 1, 2, 4, … cells from each cell on. Two overlapping windows of a power of two cover
    any extent, so that the work does not grow with the extent: a loop over its cells would take up to ten times as
        long.

    Args:
        values: (R, C).
        row: Of `values`, (B,) int64.
        extent: Cells of each window, (B,) int64.
        stride: Steps in memory between neighbouring cells of a window.
        largest: The largest extent.
    """
    width = values.shape[1]
    size = values.numel()
    level, power = _power_of_two(extent, largest)
    num_levels = largest.bit_length()
    # Room for the shifts below, and for the second window.
    length = size + 2 * ((1 << num_levels - 1) - 1) * stride
    tables = values.new_empty(num_levels, length)
    tables[0, :size] = values.flatten()
    tables[0, size:] = 0.0
    end = length
    for k in range(1, num_levels):
        shift = stride << (k - 1)
        end -= shift
        below = tables[k - 1]
        torch.maximum(below[:end], below[shift : shift + end], out=tables[k, :end])
    # A view of every run of C cells.
    windows = tables.flatten().unfold(0, width, 1)
    near = level * length + row * width
    far = near + (extent - power) * stride
    return torch.maximum(windows.index_select(0, near), windows.index_select(0, far))


def _power_of_two(extent: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Return exponent and value of the largest power of two that is at most `extent`."""
    level = torch.zeros_like(extent)
    for k in range(1, largest.bit_length()):
        level = level + (extent >= 1 << k)
    return level, torch.ones_like(extent) << level


def _rest_solids(heightmap: Tensor, v: Variants, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Return the highest `h − b` under each irregular item, (N, J, Gx, Gy)."""
    step = bin_.step
    grid_x, grid_y = bin_.grid
    z = _first_contact(heightmap, v, catalogue, step, (grid_x, grid_y))
    if step == 1:
        return z
    # A placement flush with the far wall is the first one for bin and item seen from that wall.
    z_x = _first_contact(heightmap, v, catalogue, step, (1, grid_y), turned=(True, False))
    z_y = _first_contact(heightmap, v, catalogue, step, (grid_x, 1), turned=(False, True))
    z_xy = _first_contact(heightmap, v, catalogue, step, (1, 1), turned=(True, True))
    on_x = _is_on_grid(v.x, step)[..., :, None]
    on_y = _is_on_grid(v.y, step)[..., None, :]
    return torch.where(on_x, torch.where(on_y, z, z_y), torch.where(on_y, z_x, z_xy))


def _is_on_grid(first: Tensor, step: int) -> Tensor:
    """Return which placements begin at a multiple of `step`, not flush with a wall."""
    return torch.arange(first.shape[-1], device=first.device, dtype=torch.int64) * step == first


def _first_contact(
    heightmap: Tensor,
    v: Variants,
    catalogue: Catalogue,
    step: int,
    grid: tuple[int, int],
    turned: tuple[bool, bool] = (False, False),
) -> Tensor:
    """Return the highest `h − b` of items at multiples of `step` cells, (N, J, *grid).

    It is 0 where none fits. Along axes that are `turned` the bin and the items are mirrored, so that cells count from
    the far wall. Environments and variants are worked on in parts whose accumulator stays in the cache.
    """
    heightmap = heightmap.flip([axis for axis in (1, 2) if turned[axis - 1]])
    num_envs, num_variants = v.item.shape
    z = heightmap.new_zeros(num_envs, num_variants, *grid)
    # Orientations worked on at once, when the batch is small.
    group = max(1, _CHUNK // (num_envs * grid[0] * grid[1]))
    for first in range(0, num_variants, group):
        end = min(num_variants, first + group)
        orientations = {j % catalogue.num_orientations for j in range(first, end)}
        largest = _largest(catalogue, orientations)
        least_p = min(catalogue.least[o][0] for o in orientations)
        least_q = min(catalogue.least[o][1] for o in orientations)
        fitting_x = _fitting(heightmap.shape[1], least_p, step, grid[0])
        fitting_y = _fitting(heightmap.shape[2], least_q, step, grid[1])
        # Parts of the environments, when the batch is large.
        parts = -(-num_envs * fitting_x * fitting_y // _CHUNK)
        rows = -(-num_envs // parts)
        for env in range(0, num_envs, rows):
            part = slice(env, env + rows), slice(first, end)
            bottom = _bottom_from(v, part, largest, catalogue, turned)
            lowest = _max_plus(heightmap[env : env + rows], bottom, step, (fitting_x, fitting_y))
            z[*part, :fitting_x, :fitting_y] = lowest
    return z


def _largest(catalogue: Catalogue, orientations: Collection[int]) -> tuple[int, int]:
    """Return the largest extent along x and along y of any item in some orientations."""
    largest_p = max(catalogue.bounds[o][0] for o in orientations)
    largest_q = max(catalogue.bounds[o][1] for o in orientations)
    return largest_p, largest_q


def _fitting(cells: int, extent: int, step: int, grid: int) -> int:
    """Return how many of `grid` placements along an axis an item fits, at least 1."""
    return min(grid, max(1, (cells - extent) // step + 1))


def _bottom_from(
    v: Variants, part: tuple[slice, slice], footprint: Sequence[int], catalogue: Catalogue, turned: tuple[bool, bool]
) -> Tensor:
    """Return bottoms of some variants of some environments, (n, j, P, Q).

    They are mirrored within each item's own extent along axes that are `turned`.
    """
    assert catalogue.bottom is not None
    rows, columns = footprint
    bottom = catalogue.bottom[v.item[part], v.orientation[part]][..., :rows, :columns]
    for axis in (0, 1):
        if turned[axis]:
            cell = torch.arange(footprint[axis], device=bottom.device, dtype=torch.int64)
            mirrored = v.extent[part][..., axis, None] - 1 - cell
            # Behind the extent there is no material, so that any cell there will do. (n, j, P)
            cell = torch.where(mirrored >= 0, mirrored, cell)
            index = cell[..., :, None] if axis == 0 else cell[..., None, :]
            bottom = bottom.gather(2 + axis, index.expand_as(bottom))
    return bottom


def _max_plus(heightmap: Tensor, bottom: Tensor, step: int, grid: Sequence[int]) -> Tensor:
    """Return the highest `h − b` at least 0 of bottoms on heightmaps, (n, j, *grid).

    The heightmap is split into step × step phases, so that neighbouring placements are neighbours in memory, and one
    phase is done with before the next is read: it stays in the cache. To gather the cells under each placement instead
    would copy each height P·Q times.

    Args:
        heightmap: Metres, (n, X, Y).
        bottom: Metres, (n, j, P, Q).
        step: Cells between placements.
        grid: Placements along x and y.
    """
    num_envs, num_variants, rows, columns = bottom.shape
    missing_x = (grid[0] - 1) * step + rows - heightmap.shape[1]
    missing_y = (grid[1] - 1) * step + columns - heightmap.shape[2]
    heightmap = pad(heightmap, (0, max(0, missing_y), 0, max(0, missing_x)))
    z = heightmap.new_zeros(num_envs, num_variants, *grid)
    scratch = torch.empty_like(z)
    for a, b in itertools.product(range(min(step, rows)), range(min(step, columns))):
        under = bottom[:, :, a::step, b::step].permute(2, 3, 0, 1).contiguous()[..., None, None]
        phase = heightmap[:, a::step, b::step].contiguous()
        windows = phase.unfold(1, grid[0], 1).unfold(2, grid[1], 1)
        windows = windows.permute(1, 2, 0, 3, 4)[:, :, :, None]
        for windows_row, under_row in zip(windows.unbind(), under.unbind(), strict=False):
            for window, lowest in zip(windows_row.unbind(), under_row.unbind(), strict=False):
                # (n, 1, *grid) less (n, j, 1, 1)
                torch.sub(window, lowest, out=scratch)
                torch.maximum(z, scratch, out=z)
    return z


def place(heightmap: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    placement, present = inside(placement, catalogue, bin_)
    if catalogue.flat:
        return _place_boxes(heightmap, placement, present, catalogue)
    top, bottom = catalogue.maps(placement.item_id, placement.orientation)  # (N, P, Q)
    cell = cells_under(heightmap, placement.x, placement.y, top.shape[1:])
    material = bottom.isfinite() & present[:, None, None]
    raised = torch.where(material, placement.z[:, None, None] + top, -torch.inf).flatten(1)
    return heightmap.flatten(1).scatter_reduce(1, cell, raised, "amax", include_self=True).view(heightmap.shape)


def _place_boxes(heightmap: Tensor, placement: Placement, present: Tensor, catalogue: Catalogue) -> Tensor:
    row = placement.item_id, placement.orientation
    extent = catalogue.extent[row]  # (N, 2)
    raised = placement.z + catalogue.height[row]
    corners = (placement.x, placement.y)
    sides = []
    for axis in (0, 1):
        cells = heightmap.shape[1 + axis]
        offset = torch.arange(cells, device=heightmap.device, dtype=torch.int64) - corners[axis][:, None]
        covered = (offset >= 0) & (offset < extent[:, axis, None]) & present[:, None]
        sides.append(torch.where(covered, raised[:, None], -torch.inf))
    top = torch.minimum(sides[0][:, :, None], sides[1][:, None, :])  # (N, X, Y)
    return torch.maximum(heightmap, top)


def advance(state: PackingState, action: Tensor, following: Tensor, catalogue: Catalogue, bin_: Bin) -> Moved:
    return transition.advance(state, action, following, catalogue, bin_, place)


def pile_growth(heightmap: Tensor, item_id: Tensor, z_map: Tensor, catalogue: Catalogue, bin_: Bin) -> Tensor:
    v = variants(item_id, catalogue, bin_)
    # (N, J, Gx, Gy)
    z = z_map.flatten(1, 2)
    grow = _growth_boxes if catalogue.flat else _growth_solids
    growth = grow(heightmap, z, v, catalogue, bin_).view(z_map.shape)
    return torch.where(walls(item_id, catalogue, bin_) == 0, growth, 0.0)


def _growth_boxes(heightmap: Tensor, z: Tensor, v: Variants, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Return the `pile_growth` of boxes.

    It is the cells under a box times its top, less the sum of their heights. The sum of heights under any box is a
    difference of four sums from the bin's corner on. They are in float64: in float32 the difference of large sums would
    lose the last digits.
    """
    cells_x, cells_y = bin_.cells
    p, q = v.extent.unbind(-1)
    # (N, (X+1)·(Y+1))
    sums = pad(heightmap.double().cumsum(1).cumsum(2), (1, 0, 1, 0)).flatten(1)
    # First and last cell, (2, N, J, Gx) and (2, N, J, Gy).
    end_x = (v.x + p[..., None]).clamp_max(cells_x)
    end_y = (v.y + q[..., None]).clamp_max(cells_y)
    x = torch.stack([v.x, end_x]) * (cells_y + 1)
    y = torch.stack([v.y, end_y])
    # Numbers of the four corners of every box, (2, 2, N, J·Gx·Gy).
    corner = (x[:, None, ..., :, None] + y[None, ..., None, :]).flatten(3)

    def sums_at(a: int, b: int) -> Tensor:
        return sums.gather(1, corner[a, b].flatten(1)).view(z.shape)

    first = sums_at(0, 0)
    along_y = sums_at(0, 1)
    along_x = sums_at(1, 0)
    under = sums_at(1, 1) - along_x - along_y + first
    top = z + catalogue.height[v.item, v.orientation][..., None, None]
    return (top * (p * q)[..., None, None] - under).float()


def _growth_solids(heightmap: Tensor, z: Tensor, v: Variants, catalogue: Catalogue, bin_: Bin) -> Tensor:
    windows = GridWindows(heightmap, v.x, v.y, bin_.step, catalogue.footprint)
    top, bottom = catalogue.maps(v.item, v.orientation)  # (N, J, P, Q)
    top = torch.where(bottom.isfinite(), top, -torch.inf)
    growth = torch.zeros_like(z)
    for i in range(catalogue.footprint[0]):
        # Summed by rows, so that the rounding stays small.
        of_row = torch.zeros_like(z)
        for j in range(catalogue.footprint[1]):
            raised = z + top[..., i, j, None, None]
            of_row += (raised - windows.cells(i, j)).clamp_min(0)
        growth += of_row
    return growth
