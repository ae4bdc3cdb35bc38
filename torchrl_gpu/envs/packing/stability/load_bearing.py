"""The stability rule `load_bearing`: contacts count that bear load themselves.

A cell bears load if it is floor, or if it lies on top of a box and inside the convex hull of those contacts of this
box that bear load themselves. A box is stable if that hull holds its middle by a margin. A force down on a bearing cell
then acts inside the support of the box below it, and so on to the floor: where all contacts of a box are of one height,
forces exist that hold every box. After Gao et al., arXiv 2507.09123.

Contacts may differ by a tolerance, and by `max_tilt`: a box that stands on them leans. What leans bears load only over
those of its contacts that it rests on without leaning further than `bearing_tilt`. So a box may lean, and what is put
on it must stand over what is firm below: leaning does not add up from box to box.

Contacts are squares of the grid. That the hull of squares holds a square, or a rectangle, is tested on the centres of
the squares alone: both sides are sums with one square.
"""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.packing.geometry import heights_under, inside
from torchrl_gpu.envs.packing.stability.contacts import Contacts
from torchrl_gpu.envs.packing.stability.footprints import SIXTEENTHS, Footprint, centres_of, hull_holds, outline
from torchrl_gpu.envs.packing.stability.hulls import Hull, furthest_inside
from torchrl_gpu.envs.packing.stability.margins import bearing_drops
from torchrl_gpu.envs.packing.stability.rule import Pile, StabilityRule
from torchrl_gpu.envs.packing.types import MOST_CELLS_OF_SIXTEENTHS, Bin, Catalogue, Placement

# Metres across which a box is held: heights of real boxes differ by as much.
CONTACT_GAP = 0.0015
# Metres across which a level box passes load on: heights that are the same differ by rounding alone.
BEARING_GAP = 0.0001


@final
class LoadBearing(StabilityRule):
    """The rule "load_bearing": contacts that bear load hold the middle by a margin."""

    name = "load_bearing"
    options = ("margin", "max_tilt", "bearing_tilt")
    tracks_bearing = True
    holds_floor = True
    most_cells = MOST_CELLS_OF_SIXTEENTHS

    def contact_gap(self, bin_: Bin) -> float:
        return CONTACT_GAP

    def bearing_gap(self, bin_: Bin) -> float:
        return BEARING_GAP

    def judge(self, footprint: Footprint) -> bool:
        rows, columns = footprint.contact.shape
        middle = np.array([rows, columns]) * SIXTEENTHS // 2
        contacts = centres_of(outline(footprint.contact))
        for side_x in (-1, 1):
            for side_y in (-1, 1):
                corner = middle + np.array([side_x, side_y]) * footprint.half_sides
                if not hull_holds(contacts, corner):
                    return False
        return True

    def judge_all(self, contacts: Contacts) -> Tensor:
        middle = SIXTEENTHS // 2 * contacts.extent
        hull = Hull(contacts, middle, SIXTEENTHS, contacts.half_sides())
        for i, j in contacts.windows.offsets():
            hull.add(i, j, contacts.at(i, j))
        return hull.holds()

    def judge_top(self, footprint: Footprint) -> np.ndarray:
        contacts = centres_of(outline(footprint.contact))
        bears = np.zeros(footprint.contact.shape, dtype=bool)
        for i, j in np.ndindex(bears.shape):
            bears[i, j] = hull_holds(contacts, centres_of(np.array([i, j])))
        return bears

    def bears_after(self, pile: Pile, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
        assert pile.bears is not None
        return bear(pile.heightmap, pile.bears, placement, catalogue, bin_)


def bearing_heights(heightmap: Tensor, bears: Tensor) -> Tensor:
    """Return the heights of the cells that bear load, −inf elsewhere.

    Shape (N, X, Y) float32.
    """
    return torch.where(bears, heightmap, -torch.inf)


def bear(heightmap: Tensor, bears: Tensor, placement: Placement, catalogue: Catalogue, bin_: Bin) -> Tensor:
    """Return which cells bear load after one placement per environment.

    See `reference.bear`.
    """
    placement, present = inside(placement, catalogue, bin_)
    extent = catalogue.extent[placement.item_id, placement.orientation]  # (N, 2)
    num_rows = min(catalogue.footprint[0], bin_.cells[0])
    num_columns = min(catalogue.footprint[1], bin_.cells[1])
    rows = torch.arange(num_rows, device=bears.device, dtype=torch.int64)
    columns = torch.arange(num_columns, device=bears.device, dtype=torch.int64)
    own_rows = (rows < extent[:, :1])[:, :, None]
    own_columns = (columns < extent[:, 1:])[:, None, :]
    own = own_rows & own_columns  # (N, P, Q)

    heights = bearing_heights(heightmap, bears)
    under = heights_under(heights, placement.x, placement.y, (num_rows, num_columns))
    drop_x, drop_y = bearing_drops(extent, (num_rows, num_columns), bin_)
    level = (placement.z - bin_.bearing_tolerance)[:, None, None]
    drop = torch.maximum(drop_x[:, :, None], drop_y[:, None, :])
    contact = own & (under >= level - drop)

    # The last column inside the hull, counted from either end of the row, (N, P); −1 for none.
    last = furthest_inside((contact * (columns + 1)).amax(-1)) - 1
    first = furthest_inside((contact * (num_columns - columns)).amax(-1)) - 1
    before_last = columns <= last[..., None]
    behind_first = num_columns - 1 - columns <= first[..., None]
    held = own & before_last & behind_first
    return _laid(bears, held, placement, extent, present)


def _laid(bears: Tensor, held: Tensor, placement: Placement, extent: Tensor, present: Tensor) -> Tensor:
    """Return `bears` (N, X, Y) with `held` (N, P, Q) over the cells of a box."""
    x, covered_x = _offsets(placement.x, extent[:, 0], bears.shape[1], present)
    y, covered_y = _offsets(placement.y, extent[:, 1], bears.shape[2], present)
    num_rows, num_columns = held.shape[1:]
    row_of = x.clamp(0, num_rows - 1)[:, :, None].expand(-1, -1, num_columns)
    rows = held.gather(1, row_of)  # (N, X, Q)
    column_of = y.clamp(0, num_columns - 1)[:, None, :].expand(-1, rows.shape[1], -1)
    fresh = rows.gather(2, column_of)  # (N, X, Y)
    return torch.where(covered_x[:, :, None] & covered_y[:, None, :], fresh, bears)


def _offsets(first: Tensor, side: Tensor, cells: int, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return the offsets of an axis's cells from a box's first, and which it covers.

    Both are (N, cells).
    """
    offset = torch.arange(cells, device=first.device, dtype=torch.int64) - first[:, None]
    covered = (offset >= 0) & (offset < side[:, None]) & present[:, None]
    return offset, covered
