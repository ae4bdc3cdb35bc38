"""The stability rule `corners`, Zhao et al., AAAI 2021."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.stability.contacts import Contacts
from torchrl_gpu.envs.packing.stability.footprints import Footprint
from torchrl_gpu.envs.packing.stability.rule import StabilityRule


@final
class Corners(StabilityRule):
    """The rule "corners": the more corners touch, the less area must.

    An item is stable on the floor, or if more than 95% of its area touches, or more than 85% and three corners, or more
    than 50% and all four. The code released with the paper first demands three corners, which differs from 21 cells on;
    see `docs/environments/packing-reference.md`.
    """

    name = "corners"
    holds_floor = True

    def judge(self, footprint: Footprint) -> bool:
        if footprint.on_floor:
            return True
        contact = footprint.contact
        share = contact.sum() / max(footprint.material.sum(), 1)
        last_row = contact.shape[0] - 1
        last_column = contact.shape[1] - 1
        # A corner of an item of one row or column counts twice.
        corners = 0
        for i in (0, last_row):
            for j in (0, last_column):
                corners += int(contact[i, j])
        on_three = corners == 3 and share > 0.85
        on_four = corners == 4 and share > 0.50
        return bool(share > 0.95 or on_three or on_four)

    def judge_all(self, contacts: Contacts) -> Tensor:
        rows, columns = contacts.windows.footprint
        last_row, last_column = (contacts.extent - 1).unbind(-1)
        count = contacts.zeros(rows * columns)
        corners = contacts.zeros(4)
        for i, j in contacts.windows.offsets():
            contact = contacts.at(i, j)
            count += contact
            # As in `judge`, a corner of a thin item counts twice.
            in_end_row = int(i == 0) + (last_row == i).to(torch.int8)
            in_end_column = int(j == 0) + (last_column == j).to(torch.int8)
            corners += contact * (in_end_row * in_end_column)[..., None, None]
        share = count.float() / contacts.area
        on_three = (corners == 3) & (share > 0.85)
        on_four = (corners == 4) & (share > 0.50)
        stable = (share > 0.95) | on_three | on_four
        return stable | contacts.on_floor()
