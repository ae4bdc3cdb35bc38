"""Containers that PackingSolver needs for an order.

Its package `packingsolver3d` comes with the extra `peers`.
"""

from __future__ import annotations

import numpy as np

from torchrl_gpu.lists.box_list import BoxList
from torchrl_gpu.lists.units import LENGTHS
from torchrl_gpu.palletizing.pallet import Pallet

# Letters of a rotation's name: which listed side lies along the container's x, y and z.
_LETTERS = "XYZ"


def solve_order(found: BoxList, order: int, pallet: Pallet, turns: str, seconds: float) -> int:
    """Return how many containers the solver needs for an order within a time limit.

    It knows no rule of stability: boxes may hang in the air.

    Args:
        found: The list.
        order: Number of the order.
        pallet: The container.
        turns: "yaw", about the vertical, or "axis", any side up that the list permits.
        seconds: That it may take.
    """
    from packingsolver3d import BinType, Instance, ItemType, Objective, Rotation, box

    unit_mm = LENGTHS[found.unit]
    sizes = np.round(found.sizes[order] * unit_mm).astype(int)
    up = found.up[order] & ([False, False, True] if turns == "yaw" else True)
    rows = np.concatenate([sizes, up], 1)
    kinds, copies = np.unique(rows, axis=0, return_counts=True)
    items = []
    for kind, number in zip(kinds.tolist(), copies.tolist(), strict=True):
        x, y, z, *may_be_up = kind
        rotations = tuple(each for each in Rotation if may_be_up[_LETTERS.index(each.name[2])])
        items.append(ItemType(x=x, y=y, z=z, copies=number, rotations=rotations))
    length = round(1000 * pallet.length)
    width = round(1000 * pallet.width)
    container = BinType(x=length, y=width, z=round(1000 * pallet.height), copies=len(sizes))
    instance = Instance(bin_types=[container], item_types=items, objective=Objective.BIN_PACKING)
    result = box.solve(instance, time_limit=seconds)
    return int(result.number_of_bins)
