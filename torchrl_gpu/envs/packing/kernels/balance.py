"""The stability rule `com` in torch: centres of mass and floor stability of a catalogue; stability of given placements.

Lengths are whole sixteenths of a cell, so that the rule is exact and every backend gives the same answer.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.geometry import inside
from torchrl_gpu.envs.packing.types import Bin, Catalogue, Placement
from torchrl_gpu.system import arguments

SIXTEENTHS = 16  # of a cell; a cell's centre is at 8 of them
_HOLDING_FLOOR = ("none", "corners", "support")  # rules by which every item is stable on the floor


def balanced(catalogue: Catalogue, bin_: Bin) -> Catalogue:
    """The catalogue with `centre_16ths` and `stable_on_floor`, which kernels would otherwise compute in each call."""
    if catalogue.centre_16ths is not None and catalogue.stable_on_floor is not None:
        return catalogue
    catalogue = replace(catalogue, centre_16ths=centre_16ths(catalogue, bin_))
    return replace(catalogue, stable_on_floor=stable_on_floor(catalogue, bin_))


def centre_16ths(catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Centre of mass of each item, sixteenths of a cell from its footprint's corner, clamped to it; (M, O, 2) int32."""
    if catalogue.centre_16ths is not None:
        return catalogue.centre_16ths
    most = SIXTEENTHS * catalogue.extent
    if catalogue.centre is None:
        return (most // 2).int()
    along = [c * (SIXTEENTHS / cell) for c, cell in zip(catalogue.centre.unbind(-1), bin_.cell, strict=True)]
    return torch.minimum((torch.stack(along, -1) + 0.5).floor().clamp_min(0).long(), most).int()


def stable_on_floor(catalogue: Catalogue, bin_: Bin) -> Tensor:
    """True where an item is stable on the floor of an empty bin by the rule `com`: (M, O) bool."""
    if catalogue.stable_on_floor is not None:
        return catalogue.stable_on_floor
    if catalogue.bottom is None:
        return torch.ones_like(catalogue.height, dtype=torch.bool)
    # One at a time: they may be many and large.
    items = zip(catalogue.bottom, centre_16ths(catalogue, bin_), strict=True)
    return torch.stack([holds(bottom <= bin_.com_tolerance, centre) for bottom, centre in items])


def standing_height(catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Height of items on the floor of an empty bin: (M, O) float32, metres; +inf where unstable by the bin's rule."""
    if arguments.choice("restart", "stability", bin_.stability, (*_HOLDING_FLOOR, "com")) in _HOLDING_FLOOR:
        return catalogue.height
    return torch.where(stable_on_floor(catalogue, bin_), catalogue.height, torch.inf)


def judge_placements(heightmap: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Stability (N,) bool of given placements at rest by the rule `com`, regardless of the bin's own rule.

    The heightmaps (N, X, Y) are those before the placements; False where nothing is placed, or not inside the bin.
    """
    placement, present = inside(placement, catalogue, bin_)
    row = placement.item_id, placement.orientation
    bottom = catalogue.maps(*row)[1] if catalogue.bottom is None else catalogue.bottom[row]  # (N, P, Q)
    under = windows(heightmap, placement.x, placement.y, bottom.shape[1:])
    contact = under - bottom >= (placement.z - bin_.com_tolerance)[:, None, None]
    return holds(contact, centre_16ths(catalogue, bin_)[row]) & present


def windows(heightmap: Tensor, x: Tensor, y: Tensor, footprint: torch.Size) -> Tensor:
    """Heights (N, P, Q) of the cells from (x, y) on, (N,) int64; cells behind the wall repeat the last."""
    return heightmap.flatten(1).gather(1, cells_under(heightmap, x, y, footprint)).view(len(heightmap), *footprint)


def cells_under(heightmap: Tensor, x: Tensor, y: Tensor, footprint: torch.Size) -> Tensor:
    """Numbers (N, P·Q) of the cells from (x, y) on, (N,) int64 each, in flattened heightmaps; see `windows`."""
    cells_x, cells_y = heightmap.shape[1:]
    rows, columns = (torch.arange(size, device=x.device, dtype=torch.int64) for size in footprint)
    at_x = (x[:, None] + rows).clamp_max(cells_x - 1)
    at_y = (y[:, None] + columns).clamp_max(cells_y - 1)
    return (at_x[:, :, None] * cells_y + at_y[:, None, :]).flatten(1)


def holds(contact: Tensor, centre: Tensor) -> Tensor:
    """True where a point lies in the convex hull of the contact cells' centres, or within one of the cells; (…) bool.

    Contact is (…, P, Q) bool, the point (…, 2) in sixteenths of a cell from the corner of cell (0, 0).
    """
    rows, columns = contact.shape[-2:]
    ahead = cells_from(centre[..., 0], rows)  # (…, P), sixteenths from the centre's row
    beside = cells_from(centre[..., 1], columns)  # (…, Q)
    square = (ahead.abs() <= SIXTEENTHS // 2)[..., :, None] & (beside.abs() <= SIXTEENTHS // 2)[..., None, :]
    # The furthest contact of each row to either side of the centre: 1 + its column, counted from the other side.
    column = torch.arange(columns, dtype=torch.int32, device=contact.device)
    furthest = [(contact * way).amax(-1) for way in (column + 1, columns - column)]  # (…, P)
    reaches = _hull_reaches(furthest[0], ahead, centre[..., 1])
    reaches &= _hull_reaches(furthest[1], ahead, SIXTEENTHS * columns - centre[..., 1])
    return reaches | (contact & square).any(-1).any(-1)


def cells_from(centre: Tensor, cells: int) -> Tensor:
    """Offsets of the centres of a line of cells from `centre` (…), in sixteenths of a cell: (…, cells) int64."""
    return (
        SIXTEENTHS * torch.arange(cells, device=centre.device, dtype=torch.int64) + SIXTEENTHS // 2 - centre[..., None]
    )


def _hull_reaches(furthest: Tensor, ahead: Tensor, centre: Tensor) -> Tensor:
    """True where the hull, on the centre's row, reaches the centre or beyond; (…) bool.

    It does where a contact of that row does, or where a line from a contact before it to one behind it: then the
    largest slopes on both sides sum to at least 0. Slopes are ratios of integers up to 2¹⁵, so in float64 sums that
    are not 0 are far from it, and those that are 0 are computed as 0. `furthest` (…, P) is 1 + the last contact of each
    row, 0 for none; `ahead` (…, P) are sixteenths from the centre's row, `centre` (…) sixteenths along a row.
    """
    reach = SIXTEENTHS * furthest - SIXTEENTHS // 2 - centre[..., None]
    touches = furthest > 0
    slope = reach / ahead.abs().clamp_min(1).double()
    before, after = (torch.where(touches & here, slope, -torch.inf).amax(-1) for here in (ahead < 0, ahead > 0))
    return (before + after >= 0) | (touches & (ahead == 0) & (reach >= 0)).any(-1)
