"""The stability rule `com`: the centre of mass lies over the contact cells.

Lengths are whole sixteenths of a cell, so that the rule is exact and every backend gives the same answer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.packing.geometry import heights_under, inside
from torchrl_gpu.envs.packing.stability.centres import cells_from, centre_16ths
from torchrl_gpu.envs.packing.stability.contacts import Contacts
from torchrl_gpu.envs.packing.stability.footprints import SIXTEENTHS, Footprint, centres_of, hull_holds, outline
from torchrl_gpu.envs.packing.stability.hulls import Hull, reaches
from torchrl_gpu.envs.packing.stability.rule import StabilityRule
from torchrl_gpu.envs.packing.types import MOST_CELLS_OF_SIXTEENTHS, Bin, Catalogue, Placement


@final
class CentreOfMass(StabilityRule):
    """The rule "com": the centre of mass lies over the contacts.

    It lies in the hull of the contact cells' centres, or within one of the cells. So an item without contact is not
    stable; on one cell it is stable where its centre is within that cell, and on two also where its centre is on the
    line between them. On the floor an item of a narrow foot is not stable either.
    """

    name = "com"
    reads_centre = True
    most_cells = MOST_CELLS_OF_SIXTEENTHS

    def contact_gap(self, bin_: Bin) -> float:
        return bin_.com_tolerance

    def judge(self, footprint: Footprint) -> bool:
        return lies_over(footprint.contact, footprint.centre)

    def judge_all(self, contacts: Contacts) -> Tensor:
        centre = contacts.centre()
        rows, columns = contacts.windows.footprint
        # 1 where the centre is above a row, (N, J, P), and above a column, (N, J, Q).
        half_cell = SIXTEENTHS // 2
        above_row = (cells_from(centre[..., 0], rows).abs() <= half_cell).to(torch.int8)
        above_column = (cells_from(centre[..., 1], columns).abs() <= half_cell).to(torch.int8)
        square = contacts.zeros(4)
        hull = Hull(contacts, centre, SIXTEENTHS)
        for i, j in contacts.windows.offsets():
            contact = contacts.at(i, j)
            above = above_row[:, :, i] * above_column[:, :, j]
            square += contact * above[..., None, None]
            hull.add(i, j, contact)
        return (square > 0) | hull.holds()

    def stable_on_floor(self, catalogue: Catalogue, bin_: Bin) -> Tensor:
        return stable_on_floor(catalogue, bin_)


def lies_over(contact: np.ndarray, centre: np.ndarray) -> bool:
    """Whether a centre of mass lies over contact cells, by the rule `com`.

    Args:
        contact: (P, Q) bool.
        centre: (2,) integers, sixteenths of a cell from the corner of cell (0, 0).
    """
    from_centre = centres_of(np.argwhere(contact)) - centre
    within_a_cell = (np.abs(from_centre) <= SIXTEENTHS // 2).all(axis=1).any()
    return bool(within_a_cell) or hull_holds(centres_of(outline(contact)), centre)


def balanced(catalogue: Catalogue, bin_: Bin) -> Catalogue:
    """Return the catalogue with `centre_16ths` and `stable_on_floor`.

    Kernels would otherwise compute them in each call.
    """
    if catalogue.centre_16ths is not None and catalogue.stable_on_floor is not None:
        return catalogue
    catalogue = replace(catalogue, centre_16ths=centre_16ths(catalogue, bin_))
    return replace(catalogue, stable_on_floor=stable_on_floor(catalogue, bin_))


def stable_on_floor(catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Return which items are stable on the bare floor by the rule `com`, (M, O)."""
    if catalogue.stable_on_floor is not None:
        return catalogue.stable_on_floor
    if catalogue.bottom is None:
        return torch.ones_like(catalogue.height, dtype=torch.bool)
    # One item at a time: there may be many of them, with large maps.
    centres = centre_16ths(catalogue, bin_)
    stable = []
    for bottom, centre in zip(catalogue.bottom, centres, strict=True):
        stable.append(holds(bottom <= bin_.com_tolerance, centre))
    return torch.stack(stable)


def judge_placements(heightmap: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Return which placements at rest are stable by the rule `com`.

    The bin's own rule is not asked.

    Args:
        heightmap: Before the placements, metres, (N, X, Y) float32.
        placement: One of each environment.
        catalogue: The items.
        bin_: The bin.

    Returns:
        (N,) bool; false where nothing is placed, or not inside the bin.
    """
    placement, present = inside(placement, catalogue, bin_)
    row = placement.item_id, placement.orientation
    bottom = catalogue.maps(*row)[1] if catalogue.bottom is None else catalogue.bottom[row]  # (N, P, Q)
    under = heights_under(heightmap, placement.x, placement.y, bottom.shape[1:])
    contact = under - bottom >= (placement.z - bin_.com_tolerance)[:, None, None]
    return holds(contact, centre_16ths(catalogue, bin_)[row]) & present


def holds(contact: Tensor, centre: Tensor) -> Tensor:
    """Return where a point lies over contact cells.

    It lies in the convex hull of the cells' centres, or within one of the cells.

    Args:
        contact: Any number of footprints, (…, P, Q) bool.
        centre: A point of each, sixteenths of a cell from the corner of cell (0, 0), (…, 2).

    Returns:
        (…) bool.
    """
    rows, columns = contact.shape[-2:]
    # Sixteenths from the centre's row, (…, P), and from its column, (…, Q).
    ahead = cells_from(centre[..., 0], rows)
    beside = cells_from(centre[..., 1], columns)
    above_row = ahead.abs() <= SIXTEENTHS // 2
    above_column = beside.abs() <= SIXTEENTHS // 2
    square = above_row[..., :, None] & above_column[..., None, :]
    # The furthest contact of each row to either side of the centre: 1 + its column, counted from the other side.
    column = torch.arange(columns, dtype=torch.int32, device=contact.device)
    last = (contact * (column + 1)).amax(-1)  # (…, P)
    first = (contact * (columns - column)).amax(-1)  # (…, P)
    # How far they lie beyond the centre, seen from either end of the row.
    from_start = SIXTEENTHS * last - centre[..., None, 1]
    from_end = SIXTEENTHS * first - (SIXTEENTHS * columns - centre[..., None, 1])
    reach = torch.stack([from_start, from_end]) - SIXTEENTHS // 2
    in_hull = reaches(reach, last > 0, ahead).all(0)
    return in_hull | (contact & square).any(-1).any(-1)
