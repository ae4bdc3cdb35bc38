"""Which placements stand, in torch: the rules of `reference.stands` over all placements at once."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.kernels.windows import GridWindows
from torchrl_gpu.envs.packing.types import Bin, Catalogue


def stands(
    windows: GridWindows, z: Tensor, item: Tensor, orientation: Tensor, catalogue: Catalogue, bin_: Bin
) -> Tensor:
    """Whether items stand where they come to rest.

    Args:
        windows: The heightmap under the placements.
        z: (N, J, Gx, Gy) float32, metres.
        item: (N, J) int64.
        orientation: (N, J) int64.
        catalogue: The items.
        bin_: The bin; its rule is "corners" or "support".

    Returns:
        (N, J, Gx, Gy) bool.
    """
    contacts = _Contacts(windows, z - bin_.tolerance, item, orientation, catalogue)
    supported = _corners(contacts) if bin_.stability == "corners" else _support(contacts)
    return supported | (z <= bin_.tolerance)


class _Contacts:
    """Where each item touches the pile, one footprint cell at a time."""

    def __init__(
        self, windows: GridWindows, level: Tensor, item: Tensor, orientation: Tensor, catalogue: Catalogue
    ) -> None:
        self.windows, self.level = windows, level
        self.extent = catalogue.extent[item, orientation]  # (N, J, 2)
        self.bottom = None if catalogue.flat else catalogue.maps(item, orientation)[1]  # (N, J, P, Q)
        if self.bottom is None:
            area = self.extent.prod(-1)
        else:
            area = self.bottom.isfinite().sum((-1, -2)).clamp_min(1)
        self.area = area[..., None, None]  # (N, J, 1, 1)

    def at(self, i: int, j: int) -> Tensor:
        """(N, J, Gx, Gy) bool."""
        window = self.windows.cells(i, j)
        if self.bottom is not None:
            return window - self.bottom[..., i, j, None, None] >= self.level
        return (window >= self.level) & self.inside(i, j)

    def inside(self, i: int, j: int) -> Tensor:
        """Whether (i, j) is within the item's own extent, (N, J, 1, 1)."""
        return ((self.extent[..., 0] > i) & (self.extent[..., 1] > j))[..., None, None]


def _corners(contacts: _Contacts) -> Tensor:
    """Zhao et al., AAAI 2021: enough area for the number of corners that are held."""
    last = contacts.extent - 1
    count = torch.zeros_like(contacts.level, dtype=torch.int32)  # contact cells, and corners in the upper half
    for i, j in contacts.windows.offsets():
        on_edge = [int(at == 0) + (last[..., axis] == at).int() for axis, at in enumerate((i, j))]
        weight = (1 + (on_edge[0] * on_edge[1] << 16)).int()[..., None, None]
        count += torch.where(contacts.at(i, j), weight, 0)
    share, corners = (count & 0xFFFF) / contacts.area, count >> 16
    return (share > 0.95) | ((corners == 3) & (share > 0.85)) | ((corners == 4) & (share > 0.50))


def _support(contacts: _Contacts) -> Tensor:
    """GOPT, RA-L 2024: more than half the area, or the centre within the hull of at least two contact cells.

    The hull meets the centre's row in an interval. Its upper end is past the centre exactly if a contact of that row
    is, or if the steepest contacts before and after the row rise to it: the largest slopes on both sides sum to at
        least 0.
    """
    centre = (contacts.extent - 1) / 2  # (N, J, 2)
    count = torch.zeros_like(contacts.level, dtype=torch.int32)
    reach = {key: torch.full_like(contacts.level, -torch.inf) for key in ("before", "after", "on")}
    reach_back = {key: value.clone() for key, value in reach.items()}
    rows, columns = contacts.windows.footprint
    for i in range(rows):
        right = torch.full_like(contacts.level, -torch.inf)  # furthest contact of the row, from the centre
        left = right.clone()
        for j in range(columns):
            contact = contacts.at(i, j)
            count += contact
            offset = (j - centre[..., 1])[..., None, None]
            right = torch.where(contact, offset, right)
            left = torch.where(contact, torch.maximum(left, -offset), left)
        ahead = (i - centre[..., 0])[..., None, None]
        for key, here in (("before", ahead < 0), ("after", ahead > 0), ("on", ahead == 0)):
            scale = torch.where(here & (ahead != 0), ahead.abs(), 1.0)
            reach[key] = torch.where(here, torch.maximum(reach[key], right / scale), reach[key])
            reach_back[key] = torch.where(here, torch.maximum(reach_back[key], left / scale), reach_back[key])
    in_hull = _spans(reach) & _spans(reach_back)
    return (count / contacts.area > 0.50) | ((count >= 2) & in_hull)


def _spans(reach: dict[str, Tensor]) -> Tensor:
    """Whether the hull reaches the centre from one side; slopes are ratios of small integers, 1e-5 apart at least."""
    return (reach["on"] >= 0) | (reach["before"] + reach["after"] >= -1e-5)
