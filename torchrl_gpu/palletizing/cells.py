"""Side of the cells of a pallet, chosen from the boxes.

Large cells are fast, and rounding up to them costs room.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from torchrl_gpu.lists.units import LENGTHS
from torchrl_gpu.palletizing.pallet import Pallet

# Share of the floor that large cells may cost, compared with the best ones.
MOST_LOSS = 0.02
_MILLIMETRES = (100, 50, 40, 25, 20, 12.7, 12.5, 10, 8, 6.35, 5, 4, 3, 2.5, 2, 1)
_MOST_CELLS = 2**18
# A pallet of few cells will do where boxes can fill this share of its floor.
_FEW_CELLS = 2**15
ENOUGH = 0.95


def floor_used(sizes: Tensor, pallet: Pallet) -> float:
    """Return the share of the floor that boxes fill with sides rounded up to cells.

    Boxes are (B, 3), metres.
    """
    bottom = sizes[:, :2] + pallet.gap
    taken = (bottom / pallet.cell - 1e-6).ceil() * pallet.cell
    room = (pallet.length + 2 * pallet.overhang + pallet.gap) * (pallet.width + 2 * pallet.overhang + pallet.gap)
    x, y = pallet.cells
    return float(bottom.prod(1).sum() / taken.prod(1).sum()) * min(1.0, x * y * pallet.cell**2 / room)


def choose_cell(sizes: Tensor, pallet: Pallet, unit: str) -> tuple[float, str]:
    """Choose the largest cell, metres, that costs little of the floor.

    It costs at most `MOST_LOSS` more than the best. Of boxes of sizes (B, 3), metres, on a pallet with any cells; the
    line is in a unit of `LENGTHS`. Cells of which a pallet has many count only where no larger ones leave `ENOUGH` of
    the floor.
    """
    known: dict[float, float] = {}
    for millimetres in _MILLIMETRES:
        tried = replace(pallet, cell=millimetres / 1000)
        x, y = tried.cells
        if min(x, y) >= 1 and tried.cell <= pallet.height and (x * y <= _MOST_CELLS or not known):
            known[tried.cell] = floor_used(sizes, tried)
    few = {side: used for side, used in known.items() if math.prod(replace(pallet, cell=side).cells) <= _FEW_CELLS}
    if max(few.values(), default=0.0) >= ENOUGH:
        known = few
    cell = max(side for side, used in known.items() if used >= max(known.values()) - MOST_LOSS)
    x, y = replace(pallet, cell=cell).cells
    side = f"{1000 * cell / LENGTHS[unit]:g} {unit}"
    return cell, f"cells of {side}, {x} × {y} a pallet: rounding up takes {1 - known[cell]:.1%} of the floor"
