"""Planned places on the cells of a heightmap: the test, and boxes there.

Planned places are exact lengths, and seldom whole cells. The packer's test of fit and stability reads cells, so that a
planned place is tested by those that lie wholly under its box: cells that it shares with a neighbour hold nothing of
either, and need not be free. That a box meets no known one is tested by lengths, see `LyingBox`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.types import Catalogue
from torchrl_gpu.palletizing.events import Box, Event, Offered, Reported, boxes_of, placed_in
from torchrl_gpu.palletizing.measured import ReportedBox
from torchrl_gpu.palletizing.order_plan import PlannedPlace
from torchrl_gpu.palletizing.packer import WEIGHT_ROUNDING, Packer, Pallets
from torchrl_gpu.palletizing.prepared_boxes import PreparedBoxes

# Rectangles that reach into each other by less are apart: lengths are rounded to micrometres.
_TOUCH_MM = 0.5
# A box is over another if its top is higher than the other's base by more than contacts may differ.
_LEVEL_MM = 1.5


@dataclass(frozen=True)
class LyingBox:
    """A box that lies anywhere on a pallet.

    Lengths are millimetres.

    Attributes:
        center: Of its base, x and y.
        sides: Length and width as they are listed.
        degrees: Turn about z.
        top: Height of its top.
    """

    center: tuple[float, float]
    sides: tuple[float, float]
    degrees: float
    top: float

    def is_in_the_way(self, other: LyingBox, base: float) -> bool:
        """Whether another box, lowered to a base height, would meet this one."""
        if self.top <= base + _LEVEL_MM:
            return False
        # Two rectangles are apart where they are along one of their own axes.
        return not any(self._is_apart(other, angle) for angle in (*self._axes(), *other._axes()))

    def _axes(self) -> tuple[float, float]:
        angle = math.radians(self.degrees)
        return angle, angle + math.pi / 2

    def _is_apart(self, other: LyingBox, angle: float) -> bool:
        dx = other.center[0] - self.center[0]
        dy = other.center[1] - self.center[1]
        distance = abs(dx * math.cos(angle) + dy * math.sin(angle))
        return distance > self._reach(angle) + other._reach(angle) - _TOUCH_MM

    def _reach(self, angle: float) -> float:
        """How far the box reaches from its middle in a direction."""
        along = angle - math.radians(self.degrees)
        length, width = self.sides
        return (length * abs(math.cos(along)) + width * abs(math.sin(along))) / 2


def test_planned(
    packer: Packer, state: Pallets, events: Sequence[Event], box: Box, place: PlannedPlace
) -> float | None:
    """Test a planned place, and return the base of a box there.

    It is the packer's own test of fit and stability, and one by lengths of the boxes that lie elsewhere than planned.

    Args:
        packer: Of the pallet.
        state: One row with one pallet.
        events: Of this pallet.
        box: The box, which may be a little smaller than planned.
        place: Where it goes.

    Returns:
        Metres above the pallet. None where the box may not stand there.
    """
    prepared = packer.prepare(boxes_of([box]), test_fit=False)
    touching = _reported(packer, state, box, place, place.corner[2] / 1000).rest().touching
    base = _rest_height(packer, state, prepared, touching, box.sides[2] / 1000)
    if base is None:
        return None
    planned = _lying(box, place.center, 90.0 * place.turn, top=math.inf)
    for event in events:
        known = _known_box(event)
        if known is not None and known.is_in_the_way(planned, 1000 * base):
            return None
    return base


def _known_box(event: Event) -> LyingBox | None:
    """The box that an event placed elsewhere than planned, None for no such box.

    Boxes at planned places meet none at another one.
    """
    placed = placed_in(event)
    if placed is None:
        return None
    offered = placed.offered
    if isinstance(placed, Reported):
        x, y, base = placed.center
        return _lying(offered.box, [x, y], placed.degrees, base + offered.box.sides[2])
    if offered.place is not None:
        return None
    center = offered.answer.get("center")
    # A file may hold another answer, and the cells still tell where the box is.
    if not isinstance(center, list) or not all(isinstance(each, int | float) for each in center) or len(center) != 3:
        return None
    return _lying(offered.box, center[:2], 90.0 * offered.turn, 1000 * offered.z + offered.box.sides[2])


def _lying(box: Box, center: Sequence[float], degrees: float, top: float) -> LyingBox:
    x, y = center
    length, width, _ = box.sides
    return LyingBox((x, y), (length, width), degrees, top)


def lay_planned(
    packer: Packer, state: Pallets, prepared: PreparedBoxes, offered: Offered, place: PlannedPlace
) -> Pallets:
    """Lay a box at its planned place.

    Args:
        packer: Of the pallet.
        state: One row with one pallet.
        prepared: The box, and no other.
        offered: Gives its base.
        place: Where it goes.
    """
    resting = _reported(packer, state, offered.box, place, offered.z).rest()
    top = offered.z + offered.box.sides[2] / 1000
    # A report may be wrong by some millimetres, and so counts as resting on cells that it covers by half. Here such a
    # cell is shared with a neighbour, on whose own box below this one does not rest. The base of a report is rounded.
    resting = replace(resting, region=resting.touching, level=offered.z, top=top)
    return packer.lay(state, prepared, resting)


def reserve(packer: Packer, state: Pallets, places: Sequence[PlannedPlace]) -> Pallets:
    """Fill the room of planned places, so that no other box is offered there."""
    heightmap = state.heightmap.clone()
    for place in places:
        length, width, _ = place.sides
        # As it lies: turned already.
        box = Box([length, width, 1.0], 0.0, fragile=False)
        straight = replace(place, turn=0)
        sides = torch.tensor([length, width], dtype=torch.float64, device="cpu") / 1000 + packer.pallet.gap
        reached = _reported(packer, state, box, straight, 0.0).cells_reached(sides)
        heightmap[0, 0][reached] = packer.bin.size[2]
    return state._replace(heightmap=heightmap)


def _reported(packer: Packer, state: Pallets, box: Box, place: PlannedPlace, base: float) -> ReportedBox:
    """The box as if it was reported at its planned place, base in metres."""
    offered = Offered(box, {}, base, place.turn, x=0, y=0)
    return ReportedBox(packer, state, Reported(offered, [*place.center, 1000 * base], 90.0 * place.turn))


def _rest_height(
    packer: Packer, state: Pallets, prepared: PreparedBoxes, touching: Tensor, height: float
) -> float | None:
    """Return the base of a box on some cells, None where it may not stand there.

    Args:
        packer: Of the pallet.
        state: One row with one pallet.
        prepared: The box, and no other.
        touching: Mask of the cells that lie wholly under the box, (X, Y) bool. They are a rectangle.
        height: Of the box, metres.
    """
    weight = state.weight[0, 0] + prepared.weight[0]
    if float(weight) > packer.pallet.weight * (1 + WEIGHT_ROUNDING):
        return None
    # A box that fills no cell stands on the floor alone, and no plan needs one there.
    if not bool(touching.any()):
        return None
    along_x = touching.any(1).nonzero()[:, 0]
    along_y = touching.any(0).nonzero()[:, 0]
    sides = torch.tensor([[[len(along_x), len(along_y), height]]], dtype=torch.float64, device="cpu")
    volume = prepared.catalogue.volume.cpu()
    catalogue = Catalogue.of_boxes(sides, volume).to(packer.device)
    # These cells are the whole of the box, in its only turn.
    soles = replace(prepared.soles, is_whole=True)
    turns = torch.ones(1, 1, dtype=torch.bool, device=packer.device)
    on_cells = replace(prepared, catalogue=catalogue, soles=soles, turns=turns)
    item = torch.zeros(1, 1, dtype=torch.int64, device=packer.device)
    z_map, legal = packer.maps(state, on_cells, item, prepared.weight[None])
    at = (0, 0, 0, int(along_x[0]), int(along_y[0]))
    if not bool(legal[at]):
        return None
    return float(z_map[at]) - packer.pallet.deck
