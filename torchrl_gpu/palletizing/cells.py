"""Side of the cells of a pallet, chosen from the boxes.

Large cells are fast, and rounding up to them costs room.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from torchrl_gpu.lists.units import LENGTHS
from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.prepared_boxes import ROUNDING

# Share of the floor that large cells may cost, compared with the best ones.
MOST_LOSS = 0.02
# Where boxes can fill this share of the floor of a pallet of few cells, more cells are not tried.
ENOUGH = 0.95
_MILLIMETRES = (100, 50, 40, 25, 20, 12.7, 12.5, 10, 8, 6.35, 5, 4, 3, 2.5, 2, 1)
_MOST_CELLS = 2**18
_FEW_CELLS = 2**15


def floor_used(sizes: Tensor, pallet: Pallet) -> float:
    """Return the share of the floor that boxes fill with sides rounded up to cells.

    Boxes are (B, 3), metres.
    """
    bottom = sizes[:, :2] + pallet.gap
    taken = (bottom / pallet.cell - ROUNDING).ceil() * pallet.cell
    length = pallet.length + 2 * pallet.overhang + pallet.gap
    width = pallet.width + 2 * pallet.overhang + pallet.gap
    x, y = pallet.cells
    # What is left of the floor behind the last whole cell is lost as well.
    cells_share = x * y * pallet.cell**2 / (length * width)
    return float(bottom.prod(1).sum() / taken.prod(1).sum()) * min(1.0, cells_share)


def _num_fitting(bases: Tensor, length: float, width: float, *, may_turn: bool) -> int:
    """Number of bases (B, 2) that fit a rectangle."""
    straight = (bases[:, 0] <= length) & (bases[:, 1] <= width)
    if not may_turn:
        return int(straight.sum())
    turned = (bases[:, 1] <= length) & (bases[:, 0] <= width)
    return int((straight | turned).sum())


def boxes_lost(sizes: Tensor, pallet: Pallet, *, may_turn: bool = True) -> int:
    """Number of boxes that fit a pallet and do not fit its cells.

    Args:
        sizes: Of the boxes, metres, (B, 3).
        pallet: With its cells.
        may_turn: Whether boxes may be turned about the vertical.
    """
    bottom = sizes[:, :2] + pallet.gap
    more = 2 * pallet.overhang + pallet.gap + ROUNDING
    fitting = _num_fitting(bottom, pallet.length + more, pallet.width + more, may_turn=may_turn)
    taken = (bottom / pallet.cell - ROUNDING).ceil()
    x, y = pallet.cells
    return fitting - _num_fitting(taken, x, y, may_turn=may_turn)


def choose_cell(sizes: Tensor, pallet: Pallet, unit: str, *, may_turn: bool = True) -> tuple[float, str]:
    """Choose the largest cell that costs little of the floor.

    It costs at most `MOST_LOSS` more than the best. The smallest cell would always be the best, but the time of a step
    grows with the number of cells. So a pallet gets more than a few cells only where few cells leave less than `ENOUGH`
    of the floor.

    Args:
        sizes: Of the boxes, metres, (B, 3).
        pallet: With any cells.
        unit: Of the line, one of `LENGTHS`.
        may_turn: Whether boxes may be turned about the vertical.

    Returns:
        Side of the cell, metres, and a line about what it costs.
    """
    used_by_cell: dict[float, float] = {}
    few: dict[float, float] = {}
    for millimetres in _MILLIMETRES:
        tried = replace(pallet, cell=millimetres / 1000)
        x, y = tried.cells
        if min(x, y) < 1 or tried.cell > pallet.height:
            continue
        # The largest cell counts in any case, so that there is one.
        if x * y > _MOST_CELLS and used_by_cell:
            continue
        # A box that no longer fits is worse than any loss of room.
        used = floor_used(sizes, tried) - boxes_lost(sizes, tried, may_turn=may_turn)
        used_by_cell[tried.cell] = used
        if x * y <= _FEW_CELLS:
            few[tried.cell] = used
    if max(few.values(), default=0.0) >= ENOUGH:
        used_by_cell = few
    best = max(used_by_cell.values())
    cell = max(side for side, used in used_by_cell.items() if used >= best - MOST_LOSS)
    x, y = replace(pallet, cell=cell).cells
    side = f"{1000 * cell / LENGTHS[unit]:g} {unit}"
    loss = 1 - floor_used(sizes, replace(pallet, cell=cell))
    return cell, f"cells of {side}, {x} × {y} a pallet: rounding up takes {loss:.1%} of the floor"
