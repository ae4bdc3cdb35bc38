"""`OrderPlan`: the plan of an order that a packing session is opened with.

It is the plan that `pack` makes of the same order. A session hands its places out one by one. Equal boxes are
interchangeable: an arriving box takes the next place of its kind, whichever of them was planned there.

Lengths are millimetres, x and y from the corner of the pallet, z from its top.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from torchrl_gpu.palletizing.cells import choose_cell
from torchrl_gpu.palletizing.centring import centre_loads
from torchrl_gpu.palletizing.events import (
    BOX_KEYS,
    MOST_MM,
    WHERE,
    Box,
    Event,
    NextPallet,
    Plain,
    Skipped,
    boxes_of,
    checked_object,
    placed_in,
)
from torchrl_gpu.palletizing.known_orders import pack_known_orders
from torchrl_gpu.palletizing.packer import Packer
from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.plan import Placements
from torchrl_gpu.system import arguments

# Boxes of an order. A session keeps as many events, and some more.
MOST_ORDERED = 1000
# By which a box may be smaller than planned, along each side, and still take the place of the planned one.
SMALLER_MM = 5.0
# By which it may be larger: noise of measured sides.
LARGER_MM = 0.5
# A box is above another where its base is at most this much below the other's top.
_TOUCH_MM = 2.0
_ROUNDING_M = 1e-9


@dataclass(frozen=True)
class OrderLine:
    """A line of an order: some equal boxes."""

    box: Box
    quantity: int

    @staticmethod
    def read(given: object, name: str) -> OrderLine:
        """Check a line that a client sent as `name`.

        Raises:
            ValueError: It has other keys or values.
        """
        entries = dict(checked_object(name, given, (*BOX_KEYS, "quantity")))
        number = arguments.whole(f"{WHERE}: {name}", "quantity", entries.pop("quantity", 1), 1, MOST_ORDERED)
        return OrderLine(Box.of(entries, name), number)

    @property
    def kind(self) -> tuple[object, ...]:
        """What makes boxes interchangeable: sides, and what may lie above and below."""
        return (*self.box.sides, self.box.load_limit, self.box.bottom_only)

    def accepts(self, box: Box) -> bool:
        """Whether a box has the sides of this line's, and their id or their limits."""
        for ordered, given in zip(self.box.sides, box.sides, strict=True):
            if not ordered - SMALLER_MM <= given <= ordered + LARGER_MM:
                return False
        has_id = box.id is not None and box.id == self.box.id
        same_limits = (box.load_limit, box.bottom_only) == (self.box.load_limit, self.box.bottom_only)
        return has_id or same_limits


@dataclass(frozen=True)
class PlannedPlace:
    """Where a box of an order goes.

    Attributes:
        line: Line of the order.
        pallet: Number of the pallet, from 0.
        turn: Orientation, 0 or 1: by how many right angles the box is turned about z.
        corner: Lower corner.
        sides: Along x, y and z.
    """

    line: int
    pallet: int
    turn: int
    corner: list[float]
    sides: list[float]

    @property
    def center(self) -> list[float]:
        """Centre of the base, x and y."""
        x, y, _ = self.corner
        length, width, _ = self.sides
        return [round(x + length / 2, 3), round(y + width / 2, 3)]


class OrderPlan:
    """Lines of an order, and the places of their boxes, the first to fill first.

    Args:
        lines: Of the order.
        places: Of its boxes.
        reasons: Why the boxes of each line fit no empty pallet, "" where they do.
        note: What a client should know about the plan, "" for nothing.
    """

    def __init__(
        self, lines: Sequence[OrderLine], places: Sequence[PlannedPlace], reasons: Sequence[str], note: str = ""
    ) -> None:
        self.lines = list(lines)
        self.places = list(places)
        self.reasons = list(reasons)
        self.note = note

    @cached_property
    def kinds(self) -> list[int]:
        """Kind of each line, by number."""
        numbers: dict[tuple[object, ...], int] = {}
        return [numbers.setdefault(line.kind, len(numbers)) for line in self.lines]

    @cached_property
    def below(self) -> list[list[int]]:
        """Places that are below each place, all of which must be taken before it."""
        if not self.places:
            return []
        pallet = np.array([place.pallet for place in self.places])
        low = np.array([place.corner for place in self.places])
        high = low + np.array([place.sides for place in self.places])
        # In row i, column j: whether place j is below place i.
        is_below = pallet[:, None] == pallet
        for axis in (0, 1):
            shared_from = np.maximum(low[:, None, axis], low[None, :, axis])
            shared_to = np.minimum(high[:, None, axis], high[None, :, axis])
            is_below &= shared_to - shared_from >= _TOUCH_MM
        is_below &= high[None, :, 2] <= low[:, None, 2] + _TOUCH_MM
        return [np.flatnonzero(row).tolist() for row in is_below]

    @property
    def sequence(self) -> list[int]:
        """Line of each box that fits a pallet, in the order of the lines."""
        numbers = [0 if reason else line.quantity for line, reason in zip(self.lines, self.reasons, strict=True)]
        return np.repeat(np.arange(len(numbers)), numbers).tolist()

    @property
    def pallets(self) -> int | None:
        """Pallets that the plan takes, None where it has no places."""
        return 1 + max(place.pallet for place in self.places) if self.places else None

    def with_note(self, note: str) -> OrderPlan:
        """The same plan with another note."""
        return OrderPlan(self.lines, self.places, self.reasons, note)

    def to_json(self) -> Plain:
        places = [[place.line, place.pallet, place.turn, *place.corner] for place in self.places]
        return {"places": places, "reasons": self.reasons, "note": self.note}


def read_order(given: object) -> list[OrderLine]:
    """Check the lines of an order.

    Raises:
        ValueError: They are not such lines, or have too many boxes.
    """
    rows = arguments.listed(WHERE, "order", "a list of lines, each a box with its quantity", given)
    lines = [OrderLine.read(row, f"order[{i}]") for i, row in enumerate(rows)]
    boxes = sum(line.quantity for line in lines)
    if not 1 <= boxes <= MOST_ORDERED:
        raise ValueError(f"{WHERE}: order must have 1 to {MOST_ORDERED:,} boxes, not {boxes:,}")
    return lines


def make_plan(lines: Sequence[OrderLine], pallet: Pallet, rule: str, device: str | torch.device) -> OrderPlan:
    """Plan an order as `pack` does.

    Args:
        lines: Of the order.
        pallet: In the cells of the session.
        rule: One of `STABILITY_RULES`.
        device: As in `get_device`.
    """
    line_of_box = np.repeat(np.arange(len(lines)), [line.quantity for line in lines])
    boxes = boxes_of([lines[i].box for i in line_of_box.tolist()])
    cell, _ = choose_cell(boxes.sizes, pallet, "mm")
    packer = Packer(replace(pallet, cell=cell), stability=rule, device=device)
    prepared = packer.prepare(boxes)
    fits = np.array([not reason for reason in prepared.reasons])
    placed = pack_known_orders(packer, prepared, [np.flatnonzero(fits)])
    placed = centre_loads(placed, pallet, boxes.weights.numpy())
    places: list[PlannedPlace] = []
    for number, named in enumerate(np.unique(placed.pallet).tolist()):
        load = _on_cells(placed.rows(placed.pallet == named), pallet)
        places += _places_of(load, number, line_of_box)
    first_box = np.cumsum([line.quantity for line in lines]) - [line.quantity for line in lines]
    return OrderPlan(lines, places, [prepared.reasons[i] for i in first_box.tolist()])


def _on_cells(load: Placements, pallet: Pallet) -> Placements:
    """Move a load by less than a cell, so that it begins at a corner of cells.

    Boxes of whole cells then fill them, and what is offered around them loses no room.
    """
    corner = load.corner.copy()
    for axis, first_cell in enumerate(pallet.origin):
        first = float(corner[:, axis].min())
        beyond = (first - first_cell) % pallet.cell
        is_on_cells = beyond > pallet.cell - _ROUNDING_M
        # A load that sticks out, or stands at the edge, moves no further.
        if not is_on_cells and first - beyond >= -_ROUNDING_M:
            corner[:, axis] -= beyond
    return load._replace(corner=corner)


def _places_of(load: Placements, number: int, line_of_box: np.ndarray) -> Iterator[PlannedPlace]:
    """Places of the load of one pallet, whose number is given."""
    for box, along, corner, sides in zip(load.box.tolist(), load.along.tolist(), load.corner, load.sides, strict=True):
        line = int(line_of_box[box])
        yield PlannedPlace(line, number, int(along[0] == 1), _millimetres(corner), _millimetres(sides))


def read_plan(given: object, lines: Sequence[OrderLine]) -> OrderPlan:
    """Check the plan of a file.

    Raises:
        ValueError: It is none of these lines.
    """
    entries = checked_object("plan", given, ("places", "reasons", "note"))
    where = f"{WHERE}: plan"
    wanted = "a list of line, pallet, turn, x, y and z"
    places = []
    for row in arguments.listed(where, "places", "a list of places", entries.get("places")):
        values = arguments.listed(where, "place", wanted, row)
        if len(values) != 6:
            arguments.refuse(where, "place", wanted, row)
        line = arguments.whole(where, "line", values[0], 0, len(lines) - 1)
        pallet = arguments.whole(where, "pallet", values[1], 0, MOST_ORDERED)
        turn = arguments.whole(where, "turn", values[2], 0, 1)
        corner = [arguments.number(where, "corner", value, -MOST_MM, MOST_MM) for value in values[3:]]
        length, width, height = lines[line].box.sides
        sides = [width, length, height] if turn else [length, width, height]
        places.append(PlannedPlace(line, pallet, turn, corner, sides))
    reasons = arguments.listed(where, "reasons", "a text for each line", entries.get("reasons"))
    if len(reasons) != len(lines) or not all(isinstance(reason, str) for reason in reasons):
        arguments.refuse(where, "reasons", "a text for each line", entries.get("reasons"))
    note = entries.get("note")
    if not isinstance(note, str):
        arguments.refuse(where, "note", "a text", note)
    return OrderPlan(lines, places, reasons, note)


@dataclass(frozen=True)
class OrderState:
    """What became of an order so far.

    Attributes:
        plan: Of the order.
        taken: Places that are taken, by number.
        left: Boxes of each line that are still to come, 0 of lines that fit no empty pallet.
        pallet: Number of the pallet that is there, from 0.
    """

    plan: OrderPlan
    taken: frozenset[int]
    left: list[int]
    pallet: int

    @staticmethod
    def after(plan: OrderPlan, events: Sequence[Event]) -> OrderState:
        """Return what follows from the events of a session."""
        left = np.bincount(plan.sequence, minlength=len(plan.lines)).tolist()
        taken = set()
        pallet = 0
        for event in events:
            line: int | None = None
            match event:
                case NextPallet():
                    pallet += 1
                case Skipped(line):
                    pass
                case _:
                    placed = placed_in(event)
                    if placed is not None:
                        line = placed.offered.line
                        if placed.offered.place is not None:
                            taken.add(placed.offered.place)
            if line is not None:
                left[line] -= 1
        return OrderState(plan, frozenset(taken), left, pallet)

    @cached_property
    def left_of_kind(self) -> Mapping[int, int]:
        """Boxes of each kind that are still to come."""
        counts: dict[int, int] = {}
        for kind, number in zip(self.plan.kinds, self.left, strict=True):
            counts[kind] = counts.get(kind, 0) + number
        return counts

    def kind_of_place(self, place: int) -> int:
        return self.plan.kinds[self.plan.places[place].line]

    def is_expected(self, place: int) -> bool:
        """Whether a box for a place may still come."""
        return place not in self.taken and self.left_of_kind[self.kind_of_place(place)] > 0

    def waiting(self) -> list[int]:
        """Places of this pallet that wait for a box, in the order of the plan."""
        places = self.plan.places
        return [i for i, place in enumerate(places) if place.pallet == self.pallet and self.is_expected(i)]

    def available(self) -> list[int]:
        """Those of them below which everything is there that is expected."""
        return [i for i in self.waiting() if not self._waits_below(i)]

    def _waits_below(self, place: int) -> bool:
        """Whether a box may still come that goes below a place."""
        return any(self.is_expected(i) for i in self.plan.below[place])

    def to_come(self) -> list[int]:
        """Places of this pallet and the next ones that wait for a box."""
        places = self.plan.places
        return [i for i, place in enumerate(places) if place.pallet >= self.pallet and self.is_expected(i)]

    def rest(self) -> list[Plain]:
        """Lines of the boxes that are still to come, in the form of an order."""
        lines = zip(self.plan.lines, self.left, strict=True)
        return [line.box.to_json() | {"quantity": number} for line, number in lines if number > 0]

    def line_of(self, box: Box) -> int | None:
        """Line of the order that a box belongs to, None for no line with boxes left."""
        found = [i for i, line in enumerate(self.plan.lines) if self.left[i] > 0 and line.accepts(box)]
        # Of equal boxes the one whose id it has.
        for i in found:
            if box.id is not None and box.id == self.plan.lines[i].box.id:
                return i
        return found[0] if found else None

    def line_by_id(self, box: Box) -> int | None:
        """Line of the order that has the id of a box, whatever its sides are."""
        if box.id is None:
            return None
        for i, line in enumerate(self.plan.lines):
            if self.left[i] > 0 and line.box.id == box.id:
                return i
        return None

    def line_for(self, place: int) -> int:
        """Line whose box is fetched for a place: the planned one, or an equal one."""
        line = self.plan.places[place].line
        if self.left[line] > 0:
            return line
        kind = self.plan.kinds[line]
        return next(i for i, each in enumerate(self.plan.kinds) if each == kind and self.left[i] > 0)

    def without_place(self) -> list[int]:
        """Lines with boxes that this pallet and the next ones have no place for."""
        free: dict[int, int] = {}
        for i, place in enumerate(self.plan.places):
            if place.pallet > self.pallet and i not in self.taken:
                kind = self.kind_of_place(i)
                free[kind] = free.get(kind, 0) + 1
        found = []
        for i, number in enumerate(self.left):
            kind = self.plan.kinds[i]
            if number > 0 and self.left_of_kind[kind] > free.get(kind, 0):
                found.append(i)
        return found


def _millimetres(lengths: np.ndarray) -> list[float]:
    return [round(1000 * length, 3) for length in lengths.tolist()]
