"""`drop_map` of irregular items in Triton.

One launch computes every placement of every item. A program computes a tile of placements of V orientations that share
an extent, hence also their placements; the loop is in `contact`. The orientations that share an extent are found per
item on the device; that most of them come in groups of V is assumed from the bounds of the catalogue, and only costs
time where it is wrong.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchrl_gpu.envs.packing.kernels.triton.boxes import heights_of
from torchrl_gpu.envs.packing.kernels.triton.contact import (
    MOST_COUNTED,
    counted,
    first_contact,
    first_contact_of_bytes,
    reached,
)
from torchrl_gpu.envs.packing.kernels.triton.placements import num_fitting, present, sharers, touched, variants, work
from torchrl_gpu.envs.packing.kernels.triton.split import sortable, split
from torchrl_gpu.envs.packing.kernels.triton.stability import stands
from torchrl_gpu.envs.packing.kernels.triton.undersides import MOST_UNITS, fit_bytes, undersides
from torchrl_gpu.envs.packing.stability.centres import centre_16ths
from torchrl_gpu.envs.packing.types import Bin, Catalogue, StoredMaps

# Results per thread, by stability rule: the more, the more often each value read is reused, until the registers of the
# rule's own pass no longer fit.
RESULTS_PER_THREAD = {"none": 16, "corners": 16, "support": 8, "com": 8}
MOST_LANES_PER_THREAD = {"none": 8, "corners": 8, "support": 8, "com": 8}
_UNITS = tl.constexpr(MOST_UNITS)
# A pair of zeros, as bytes are counted.
_ALL_UNITS = tl.constexpr(MOST_UNITS * 0x10001)
# Compute capability with instructions that add and maximise pairs of int16.
_PACKED_SINCE = (9, 0)


class Blocks(NamedTuple):
    """Block sizes of the kernel.

    They are a pure function of shapes, so that a call can be captured in a CUDA graph.

    Attributes:
        variants: Orientations of a program, V.
        lanes: Placements, or pairs of them, that a program works on at once, T.
        num_warps: Warps of a program; one wastes least of the last tile.
    """

    variants: int
    lanes: int
    num_warps: int = 1


def blocks(catalogue: Catalogue, bin_: Bin) -> Blocks:
    """Return the block sizes for a catalogue and a bin.

    Orientations share a program where their extents are the same for every item, as those of half turns are.
    """
    alike = Counter(zip(catalogue.bounds, catalogue.least, strict=True)).values()
    variants = 1
    if sortable(catalogue):
        # The largest of 4, 2 and 1 that divides all counts.
        variants = math.gcd(4, *alike)
    rule = bin_.stability
    per_thread = min(MOST_LANES_PER_THREAD[rule], RESULTS_PER_THREAD[rule] // variants)
    wanted = triton.next_power_of_2(bin_.grid[0] * bin_.grid[1])
    return Blocks(variants, max(32, min(32 * per_thread, wanted)))


def drop_solids(
    heightmap: Tensor, item_id: Tensor, catalogue: Catalogue, bin_: Bin, stored: StoredMaps | None
) -> tuple[Tensor, Tensor]:
    """As `reference.drop_map`, for catalogues with maps.

    Arguments contiguous.
    """
    assert catalogue.bottom is not None
    num_envs, num_slots = item_id.shape
    num_orientations = catalogue.num_orientations
    grid_x, grid_y = bin_.grid
    z_map = heightmap.new_empty(num_envs, num_slots, num_orientations, grid_x, grid_y)
    legal = torch.empty_like(z_map, dtype=torch.bool)
    cut = blocks(catalogue, bin_)
    packed = _packed(heightmap.device)
    pairs = catalogue.unit is not None and packed is not None
    in_bytes = pairs and fit_bytes(catalogue, bin_)
    most = MOST_UNITS if in_bytes else MOST_COUNTED.value
    read = split(heightmap, catalogue, bin_, counted=pairs, ordered=cut.variants > 1, most=most, blocks=in_bytes)
    # Where there is nothing to read, kernels are given any tensor.
    unread = read.order
    low = undersides(catalogue, bin_, cut.variants) if in_bytes else (unread,) * 3
    length = triton.cdiv(catalogue.bottom.shape[-2], bin_.step)
    width = triton.cdiv(catalogue.bottom.shape[-1], bin_.step)
    # Rows of the grid go in pairs; a flush placement may need a row of its own.
    rows = grid_x // 2 + 1 if pairs else grid_x
    num_tiles = triton.cdiv(rows * grid_y, cut.lanes)
    centres = centre_16ths(catalogue, bin_).contiguous() if bin_.stability == "com" else unread
    if stored is None:
        earlier = StoredMaps(z_map, legal, item_id, item_id)
    else:
        earlier = StoredMaps(*(each.contiguous() for each in stored))
    unit = catalogue.unit or 1.0
    items = (item_id, catalogue.extent, catalogue.height, catalogue.bottom.contiguous(), centres)
    maps = (z_map, legal.view(torch.uint8))
    kept = (earlier.z_map, earlier.legal.view(torch.uint8), earlier.slot, earlier.changed)
    heights = (catalogue.num_items, *heights_of(bin_), unit, 1.0 / unit)
    counts = (num_envs, num_slots, num_orientations)
    sizes = (*bin_.cells, *catalogue.bottom.shape[-2:], length, width, num_tiles, read.exact.shape[-1])
    constants = {"STEP": bin_.step, "V": cut.variants, "T": cut.lanes, "LENGTH": triton.next_power_of_2(length)}
    constants["EXACT_PADDED"] = triton.next_power_of_2(read.exact.shape[-1])
    flags = {"PAIRS": pairs, "BYTES": in_bytes, "PACKED": bool(packed), "STORED": stored is not None}
    launch = drop_solids_kernel[(num_envs * num_slots * (num_orientations // cut.variants) * num_tiles,)]
    launch(
        *read, *low, *items, *kept, *maps, *heights, *counts, *sizes, **constants, **flags,
        RULE=bin_.stability, enable_fp_fusion=False, num_warps=cut.num_warps,
    )  # fmt: skip
    return z_map, legal


def _packed(device: torch.device) -> bool | None:
    """Return whether the device has instructions for pairs of int16.

    None where counting in pairs would be slower.
    """
    if device.type != "cuda":
        # The interpreter counts for the tests' sake.
        return False
    return pairs_on(*torch.cuda.get_device_capability(device))


def pairs_on(major: int, minor: int) -> bool | None:
    """`_packed` of a CUDA device by its compute capability."""
    return True if (major, minor) >= _PACKED_SINCE else None


@triton.jit
def _cell(at, cells):
    """A cell edge clamped to the bin."""
    return tl.minimum(tl.maximum(at, 0), cells)


@triton.jit(
    do_not_specialize=[
        "num_items", "num_envs", "num_slots", "orientations", "X", "Y", "rows", "columns", "length", "width", "tiles",
        "exact_tiles",
    ]
)  # fmt: skip
def drop_solids_kernel(
    heights, counts, maxima, exact, order, words, spans, blocks, item_id, extent, item_height, bottom, centres,
    kept_z, kept_legal, kept_slot, changed, z_map, legal,
    num_items, ceiling, limit, tolerance, unit, per_unit, num_envs, num_slots, orientations, X, Y,
    rows, columns, length, width, tiles, exact_tiles,
    STEP: tl.constexpr, RULE: tl.constexpr, V: tl.constexpr, T: tl.constexpr, EXACT_PADDED: tl.constexpr,
    PAIRS: tl.constexpr, BYTES: tl.constexpr, PACKED: tl.constexpr, STORED: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    """A tile of placements of V orientations of one visible item per program.

    A program has a share of two lists: of all placements, of which it writes those that need no computation; and of
    those that need it, which form a rectangle of the grid, and which it computes.
    """
    GX = (X + STEP - 1) // STEP
    GY = (Y + STEP - 1) // STEP
    cells = STEP * STEP * GX * GY
    # Tiles of single placements in one of pairs.
    PARTS: tl.constexpr = 2 if PAIRS else 1
    pid = tl.program_id(0)
    tile = pid % tiles
    groups = orientations // V
    group = pid // tiles % groups
    # The last slot of every bin comes first. It shows the new item, whose maps take longest: none is left for the end.
    turn_of = pid // tiles // groups
    env = (turn_of % num_envs).to(tl.int64)
    slot = env * num_slots + (num_slots - 1 - turn_of // num_envs)
    source = (item_id + slot, order, extent, bottom, group, num_items)
    orientation, _variant, p, q = variants(source, orientations, X, V)
    out = (slot * orientations + orientation) * (GX * GY)

    window = (0, X, 0, Y)
    before = out
    held = -1
    if STORED:
        held = present(tl.load(kept_slot + slot), num_slots)
        before = ((env * num_slots + tl.maximum(held, 0)) * orientations + orientation) * (GX * GY)
        x0 = tl.load(changed + env * 4)
        y0 = tl.load(changed + env * 4 + 1)
        x1 = tl.load(changed + env * 4 + 2)
        y1 = tl.load(changed + env * 4 + 3)
        first_x = tl.where(held >= 0, _cell(x0, X), 0).to(tl.int32)
        end_x = tl.where(held >= 0, _cell(x1, X), X).to(tl.int32)
        first_y = tl.where(held >= 0, _cell(y0, Y), 0).to(tl.int32)
        end_y = tl.where(held >= 0, _cell(y1, Y), Y).to(tl.int32)
        window = (first_x, end_x, first_y, end_y)

    # Placements that need no computation: those that do not fit, and stored ones away from the changed cells.
    from_x, to_x = touched(p, window[0], window[1], X, STEP)
    from_y, to_y = touched(q, window[2], window[3], Y, STEP)
    for part in range(PARTS):
        lane = (tile * PARTS + part) * T + tl.arange(0, T)
        gx = (lane // GY)[None, :]
        gy = (lane % GY)[None, :]
        works = (gx >= from_x[:, None]) & (gx < to_x[:, None]) & (gy >= from_y[:, None]) & (gy < to_y[:, None])
        write = (lane < GX * GY)[None, :] & ~works
        z = tl.zeros([V, T], tl.float32) + ceiling
        fine = tl.zeros([V, T], tl.uint8)
        if STORED:
            fits = (gx < num_fitting(p, X, STEP)[:, None]) & (gy < num_fitting(q, Y, STEP)[:, None])
            z = tl.load(kept_z + (before[:, None] + lane[None, :]), mask=write & fits, other=ceiling)
            fine = tl.load(kept_legal + (before[:, None] + lane[None, :]), mask=write & fits, other=0)
        tl.store(z_map + (out[:, None] + lane[None, :]), z, mask=write)
        tl.store(legal + (out[:, None] + lane[None, :]), fine, mask=write)

    is_exact = False
    if PAIRS:
        check = tl.arange(0, EXACT_PADDED)
        is_exact = tl.min(tl.load(exact + env * exact_tiles + check, mask=check < exact_tiles, other=1), 0) > 0

    # Placements that need it: one extent after the other; only one where the sorted orientations come in whole groups.
    here = heights + env * cells
    there = counts + env * cells
    into = (z_map, legal, item_height, centres, slot)
    earlier = (kept_z, before, held)
    row_of_group = tl.maximum(present(tl.load(item_id + slot), num_items), 0) * groups + group
    of_group = row_of_group * (STEP * STEP * length)
    of_block = row_of_group * (length * width)
    for turn in range(V):
        low, mine, leads, p_now, q_now = sharers(source, turn, orientations, X, rows * columns, V)
        if leads:
            if is_exact:
                start = tile * T
                gx, gy, paired, there_is = work(start, p_now, q_now, window, X, Y, True, STEP, T)
                if tl.max(there_is.to(tl.int32), 0) > 0:
                    x = tl.minimum(gx * STEP, X - p_now)
                    y = tl.minimum(gy * STEP, Y - q_now)
                    first, is_known = _known_counts(earlier, gx, gy, mine, there_is, per_unit, GX, GY, STORED, V, T)
                    second, both_known = _known_counts(
                        earlier, gx + 1, gy, mine, paired & there_is, per_unit, GX, GY, STORED, V, T
                    )
                    is_known = is_known & both_known
                    pairs = tl.where(is_known, first | (second << 16), 0)
                    # What is no placement rests so high that no cell can raise it.
                    no_first = ~(mine[:, None] & there_is[None, :])
                    no_second = ~(mine[:, None] & (there_is & paired)[None, :])
                    pairs |= tl.where(no_first, _UNITS, 0) | tl.where(no_second, _UNITS << 16, 0)
                    last_x = tl.where(paired, x + STEP, x)
                    seen = _visited(x, last_x, y, p_now, q_now, there_is, window, is_known)
                    if BYTES:
                        maps = (there, maxima + env * cells)
                        low_bytes = (words + of_group * width, spans + of_group, blocks + of_block)
                        pairs = first_contact_of_bytes(
                            pairs + _ALL_UNITS, maps, low_bytes, x, y, seen, X, Y, length, width,
                            PACKED, STEP, V, LENGTH,
                        ) - _ALL_UNITS  # fmt: skip
                    else:
                        pairs = first_contact(
                            pairs, there, low, x, y, seen, per_unit, X, Y, columns, True, PACKED, STEP
                        )
                    for half in range(2):
                        z = counted(pairs, half) * unit
                        _judge(
                            z, half, start, turn, source, window, here, into, limit, tolerance,
                            orientations, X, Y, rows, columns, True, STEP, RULE, V, T,
                        )  # fmt: skip
            else:
                for part in range(PARTS):
                    start = (tile * PARTS + part) * T
                    gx, gy, _paired, there_is = work(start, p_now, q_now, window, X, Y, False, STEP, T)
                    if tl.max(there_is.to(tl.int32), 0) > 0:
                        x = tl.minimum(gx * STEP, X - p_now)
                        y = tl.minimum(gy * STEP, Y - q_now)
                        z, is_known = tl.zeros([V, T], tl.float32), False
                        # With pairs the earlier heights may have been counted, and rounded otherwise.
                        if not PAIRS:
                            z, is_known = _known_heights(earlier, gx, gy, mine, there_is, GX, GY, STORED, V, T)
                        seen = _visited(x, x, y, p_now, q_now, there_is, window, is_known)
                        z = first_contact(z, here, low, x, y, seen, per_unit, X, Y, columns, False, PACKED, STEP)
                        _judge(
                            z, 0, start, turn, source, window, here, into, limit, tolerance,
                            orientations, X, Y, rows, columns, False, STEP, RULE, V, T,
                        )  # fmt: skip


@triton.jit
def _known_heights(earlier, gx, gy, mine, there, GX, GY, STORED: tl.constexpr, V: tl.constexpr, T: tl.constexpr):
    """Heights of placements before the heightmap changed, and whether they are known.

    Heights are (V, T), 0 for none.
    """
    kept_z, before, held = earlier
    z = tl.zeros([V, T], tl.float32)
    if STORED:
        # Compared as a flag, since the interpreter makes an int64 of it.
        mask = mine[:, None] & (there.to(tl.int32) > 0)[None, :]
        z = tl.load(kept_z + (before[:, None] + (gx * GY + gy)[None, :]), mask=mask, other=0.0)
        z = tl.where(held >= 0, tl.maximum(z, 0.0), 0.0)
    return z, held >= 0


@triton.jit
def _known_counts(
    earlier, gx, gy, mine, there, per_unit, GX, GY, STORED: tl.constexpr, V: tl.constexpr, T: tl.constexpr
):  # fmt: skip
    """As `_known_heights`, in whole units, int32.

    They are not known if one of them is no count of a byte's size.
    """
    z, is_known = _known_heights(earlier, gx, gy, mine, there, GX, GY, STORED, V, T)
    if STORED:
        count = tl.floor(z * per_unit + 0.5)
        whole = (tl.abs(z * per_unit - count) < 1e-3) & (count <= _UNITS)
        is_known = is_known & (tl.min(tl.min(whole.to(tl.int32), 0), 0) > 0)
        return tl.where(whole, count, 0.0).to(tl.int32), is_known
    else:  # noqa: RET505 (a constexpr decides)
        return z.to(tl.int32), is_known


@triton.jit
def _visited(x, last_x, y, p, q, there, window, is_known):
    """Cells of the footprint that a tile visits.

    Where heights are known from before, they are those of the window alone.

    `last_x` is the first cell along x of the last placement of each lane, as `x` is that of the first.
    """
    first_i, end_i, first_j, end_j = reached(x, last_x, y, p, q, there, window)
    return (
        tl.where(is_known, first_i, 0), tl.where(is_known, end_i, p),
        tl.where(is_known, first_j, 0), tl.where(is_known, end_j, q),
    )  # fmt: skip


@triton.jit
def _judge(
    z, half, start, turn, source, window, here, into, limit, tolerance, orientations, X, Y, rows, columns,
    PAIRS: tl.constexpr, STEP: tl.constexpr, RULE: tl.constexpr, V: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Write z (V, T) and legality of a turn's placements.

    Of pairs these are the first (half 0) or the second (half 1).
    """
    GX = (X + STEP - 1) // STEP
    GY = (Y + STEP - 1) // STEP
    z_map, legal, item_height, centres, slot = into
    low, mine, _leads, p, q = sharers(source, turn, orientations, X, rows * columns, V)
    first_gx, gy, paired, there_is = work(start, p, q, window, X, Y, PAIRS, STEP, T)
    there = there_is & ((half == 0) | paired)
    gx = tl.where(there, first_gx + half, first_gx)
    orientation, variant, _p, _q = variants(source, orientations, X, V)
    fine = z + tl.load(item_height + variant)[:, None] <= limit
    if RULE != "none":
        x = tl.minimum(gx * STEP, X - p)
        y = tl.minimum(gy * STEP, Y - q)
        centre = centres + variant[:, None] * 2
        fine = fine & stands(here, low, x, y, p, q, z, centre, tolerance, X, Y, columns, RULE, False, STEP)
    at = ((slot * orientations + orientation) * (GX * GY))[:, None] + (gx * GY + gy)[None, :]
    write = mine[:, None] & there[None, :]
    tl.store(z_map + at, z, mask=write)
    tl.store(legal + at, fine.to(tl.uint8), mask=write)
