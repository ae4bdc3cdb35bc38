"""The stability rule `support`, GOPT (Xiong et al., RA-L 2024)."""

from __future__ import annotations

from typing import final

import numpy as np
from torch import Tensor

from torchrl_gpu.envs.packing.stability.contacts import Contacts
from torchrl_gpu.envs.packing.stability.footprints import Footprint, hull_holds, outline
from torchrl_gpu.envs.packing.stability.hulls import Hull
from torchrl_gpu.envs.packing.stability.rule import StabilityRule


@final
class Support(StabilityRule):
    """The rule "support": half the area touches, or contacts surround the middle.

    An item is stable on the floor, or if more than half of its area touches, or if the middle of its footprint lies in
    the convex hull of the centres of two or more contact cells. The code released with the paper differs on edges of
    the hull, see `docs/environments/packing-reference.md`.
    """

    name = "support"
    holds_floor = True

    def judge(self, footprint: Footprint) -> bool:
        if footprint.on_floor:
            return True
        contact = footprint.contact
        share = contact.sum() / max(footprint.material.sum(), 1)
        if share > 0.50:
            return True
        # In half cells, from the centre of cell (0, 0), the middle is whole.
        middle = np.array(contact.shape) - 1
        return bool(contact.sum() >= 2 and hull_holds(2 * outline(contact), middle))

    def judge_all(self, contacts: Contacts) -> Tensor:
        rows, columns = contacts.windows.footprint
        count = contacts.zeros(rows * columns)
        # In half cells, from the corner of cell (0, 0), the middle is as far as the item has cells.
        hull = Hull(contacts, contacts.extent, 2)
        for i, j in contacts.windows.offsets():
            contact = contacts.at(i, j)
            count += contact
            hull.add(i, j, contact)
        stable = (count.float() / contacts.area > 0.50) | ((count >= 2) & hull.holds())
        return stable | contacts.on_floor()
