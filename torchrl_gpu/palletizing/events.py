"""Events of a packing session: boxes, measured heights, and pallets.

The state of a pallet follows from its events, so that they are all that the file of a session needs. Each writes itself
as plain data, and `read_event` checks what comes back. Lengths are millimetres, x and y from the corner of the pallet,
z from its top, unless their names say metres.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.palletizing.packer import Choice, Packer
from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.prepared_boxes import Boxes
from torchrl_gpu.system import arguments

# Plain data by name, as in JSON.
Plain = dict[str, object]

WHERE = "session"
MOST_MM = 10_000.0
# By how much a reported box may reach into others, or into the pallet.
SLACK_MM = 10.0
_MOST_KG = 1e5
_LONGEST_ID = 100
# Keys of a box as a client sends it, and of an event as a file holds it.
BOX_KEYS = ("id", "sides", "weight", "fragile", "max_load", "top_only", "bottom_only")
_EVENT_KEYS = ("box", "told", "z", "turn", "x", "y", "line", "place", "center", "degrees", "heights", "event")
# Values of `event` for events without a box.
_SKIPPED = "skip"
_NEXT = "next"


@dataclass(frozen=True)
class Box:
    """A box that a client offers.

    Attributes:
        sides: Length, width and height, millimetres.
        weight: Kilograms, 0 where the client does not know it.
        fragile: Whether nothing may lie on it.
        max_load: Kilograms that may lie on it, or None for any.
        id: That the client knows it by, or None.
        top_only: Whether it belongs on top, so that nothing may lie on it.
        bottom_only: Whether it stands on the pallet itself.
    """

    sides: list[float]
    weight: float
    fragile: bool
    max_load: float | None = None
    id: str | int | None = None
    top_only: bool = False
    bottom_only: bool = False

    @staticmethod
    def read(given: object, name: str) -> Box:
        """Check the box that a client sent as `name`.

        Raises:
            ValueError: It has other keys or values.
        """
        return Box.of(checked_object(name, given, BOX_KEYS), name)

    @staticmethod
    def of(entries: Mapping[str, object], name: str) -> Box:
        """Check the entries of a box, whose keys are checked already."""
        where = f"{WHERE}: {name}"
        # A weight of 0 stands for one that the client does not know.
        sides = read_sides(where, "sides", entries.get("sides"))
        weight = arguments.number(where, "weight", entries.get("weight", 0.0), 0, _MOST_KG)
        fragile = arguments.flag(where, "fragile", entries.get("fragile", False))
        max_load = None
        if "max_load" in entries:
            max_load = arguments.number(where, "max_load", entries["max_load"], 0, _MOST_KG)
        top_only = arguments.flag(where, "top_only", entries.get("top_only", False))
        bottom_only = arguments.flag(where, "bottom_only", entries.get("bottom_only", False))
        # The number is the client's own, and is only given back.
        known = entries.get("id")
        if known is not None and (not isinstance(known, str | int) or len(str(known)) > _LONGEST_ID):
            wanted = f"a text or a whole number of at most {_LONGEST_ID} characters"
            arguments.refuse(where, "id", wanted, known)
        return Box(sides, weight, fragile, max_load, known, top_only=top_only, bottom_only=bottom_only)

    def to_json(self) -> Plain:
        data: Plain = {"sides": self.sides, "weight": self.weight, "fragile": self.fragile}
        if self.max_load is not None:
            data["max_load"] = self.max_load
        if self.id is not None:
            data["id"] = self.id
        # Files of earlier versions have neither of these.
        if self.top_only:
            data["top_only"] = True
        if self.bottom_only:
            data["bottom_only"] = True
        return data

    @property
    def load_limit(self) -> float:
        """Kilograms that may lie on it, inf for any."""
        if self.fragile or self.top_only:
            return 0.0
        return math.inf if self.max_load is None else self.max_load


def boxes_of(boxes: Sequence[Box]) -> Boxes:
    """Convert boxes to metres, for a `Packer`."""
    sizes = [_metres(box.sides) for box in boxes]
    weights = [box.weight for box in boxes]
    limits = [box.load_limit for box in boxes]
    stays_down = [box.bottom_only for box in boxes]
    return Boxes.of(sizes, weights, max_load=limits, bottom_only=stays_down)


@dataclass(frozen=True)
class Offered:
    """A place that was offered for a box.

    It is no event until the box lies there or elsewhere.

    Attributes:
        box: That was chosen among those of the client.
        answer: What the client was told: number of the box, its corner, center, sides and turn.
        z: Base above the pallet, metres.
        turn: Orientation, as the packer counts them.
        x, y: First cell; 0 where the place is a planned one.
        line: Line of the session's order that the box belongs to, None for a box that is not in the order.
        place: Number of its place in the plan of the order, None for a place that was found as the box came.
    """

    box: Box
    answer: Plain
    z: float
    turn: int
    x: int
    y: int
    line: int | None = None
    place: int | None = None

    @staticmethod
    def read(entries: Mapping[str, object], packer: Packer) -> Offered:
        """Check the part of an event that is about a box and its place."""
        where = f"{WHERE}: event"
        cells_x, cells_y = packer.bin.cells
        box = Box.read(entries["box"], "box")
        turn = arguments.whole(where, "turn", entries.get("turn"), 0, len(packer.rotations) - 1)
        x = arguments.whole(where, "x", entries.get("x"), 0, cells_x - 1)
        y = arguments.whole(where, "y", entries.get("y"), 0, cells_y - 1)
        z = arguments.number(where, "z", entries.get("z"), -1, MOST_MM / 1000)
        # What the client was told is given back as it was, by `status` and in the plan.
        answer = entries.get("told")
        if not isinstance(answer, dict):
            arguments.refuse(where, "told", "a place", answer)
        line = _whole_or_none(where, "line", entries.get("line"))
        place = _whole_or_none(where, "place", entries.get("place"))
        return Offered(box, answer, z, turn, x, y, line, place)

    def to_json(self) -> Plain:
        data: Plain = {"box": self.box.to_json(), "told": self.answer}
        data |= {"z": self.z, "turn": self.turn, "x": self.x, "y": self.y}
        # Files of sessions without an order have neither.
        if self.line is not None:
            data["line"] = self.line
        if self.place is not None:
            data["place"] = self.place
        return data

    def choice(self, device: torch.device) -> Choice:
        """Choice of one row that carries the offer out."""
        # The only box of its row, on the only pallet.
        zero = torch.zeros(1, dtype=torch.int64, device=device)
        turn = torch.tensor([self.turn], device=device, dtype=torch.int64)
        x = torch.tensor([self.x], device=device, dtype=torch.int64)
        y = torch.tensor([self.y], device=device, dtype=torch.int64)
        z = torch.tensor([self.z], dtype=torch.float32, device=device)
        return Choice(box=zero, offer=zero, slot=zero, number=zero, fresh=zero > 0, turn=turn, x=x, y=y, z=z)


@dataclass(frozen=True)
class Confirmed:
    """The box lies where it was offered."""

    offered: Offered

    def to_json(self) -> Plain:
        return self.offered.to_json()


@dataclass(frozen=True)
class Reported:
    """The box lies elsewhere than it was offered.

    Attributes:
        offered: The box, and its place by the offer.
        center: Centre of its base: x, y and z.
        degrees: Turn of its listed sides about z.
    """

    offered: Offered
    center: list[float]
    degrees: float

    @staticmethod
    def read(offered: Offered, center: object, degrees: object, pallet: Pallet) -> Reported:
        """Check the place that a client reports.

        Raises:
            ValueError: It is beyond the pallet or not made of numbers.
        """
        # Boxes may stick out over the edges as far as the pallet allows.
        x, y, z = _three(WHERE, "center", "three numbers, x, y and z in millimetres", center)
        over = 1000 * pallet.overhang
        most_x = 1000 * pallet.length + over
        most_y = 1000 * pallet.width + over
        checked_x = arguments.number(WHERE, "center x", x, 0.0 - over, most_x)
        checked_y = arguments.number(WHERE, "center y", y, 0.0 - over, most_y)
        checked_z = arguments.number(WHERE, "center z", z, -SLACK_MM, MOST_MM)
        turn = arguments.number(WHERE, "turn", degrees, -360, 360)
        return Reported(offered, [checked_x, checked_y, checked_z], turn)

    def to_json(self) -> Plain:
        return {**self.offered.to_json(), "center": self.center, "degrees": self.degrees}


@dataclass(frozen=True)
class Measured:
    """The heights of the pallet were measured.

    Attributes:
        placed: The box that was placed since the event before, if any.
        heights: Text of `heights_text`. None if it was removed: then the state after it cannot be computed again.
    """

    placed: Confirmed | Reported | None
    heights: str | None

    def to_json(self) -> Plain:
        placed: Plain = {"box": None} if self.placed is None else self.placed.to_json()
        return {**placed, "heights": self.heights}


@dataclass(frozen=True)
class Skipped:
    """A box of the order does not come: it is lost, broken or refused.

    Attributes:
        line: Of the order.
    """

    line: int

    def to_json(self) -> Plain:
        return {"event": _SKIPPED, "line": self.line}


@dataclass(frozen=True)
class NextPallet:
    """The pallet of an order was taken away, and an empty one stands there."""

    def to_json(self) -> Plain:
        return {"event": _NEXT}


Event = Confirmed | Reported | Measured | Skipped | NextPallet


def placed_in(event: Event) -> Confirmed | Reported | None:
    """The box that an event places, if any."""
    match event:
        case Confirmed() | Reported():
            return event
        case Measured(placed):
            return placed
    return None


def on_pallet(events: Sequence[Event]) -> Sequence[Event]:
    """The events of the pallet that is there now."""
    first = 0
    for i, event in enumerate(events):
        if isinstance(event, NextPallet):
            first = i + 1
    return events[first:]


def read_event(given: object, packer: Packer) -> Event:
    """Check an event of a file.

    Raises:
        ValueError: It has other keys or values, or lies beyond the pallet.
    """
    entries = checked_object("event", given, _EVENT_KEYS)
    word = entries.get("event")
    if word == _SKIPPED:
        return Skipped(arguments.whole(f"{WHERE}: event", "line", entries.get("line"), 0))
    if word == _NEXT:
        return NextPallet()
    if word is not None:
        arguments.refuse(f"{WHERE}: event", "event", f"{_SKIPPED} or {_NEXT}", word)
    heights = entries.get("heights")
    if heights is not None and not isinstance(heights, str):
        arguments.refuse(f"{WHERE}: event", "heights", "a text", heights)
    # The text is unpacked once, so that a file is refused and not a later call.
    if heights is not None:
        read_heights(heights, packer.bin.cells)
    if entries.get("box") is None:
        return Measured(None, heights)
    offered = Offered.read(entries, packer)
    placed: Confirmed | Reported = Confirmed(offered)
    if "center" in entries:
        placed = Reported.read(offered, entries["center"], entries.get("degrees"), packer.pallet)
    return Measured(placed, heights) if "heights" in entries else placed


def _whole_or_none(where: str, name: str, value: object) -> int | None:
    return None if value is None else arguments.whole(where, name, value, 0)


def heights_text(heights: Sequence[float]) -> str:
    """Text of measured heights, row after row, in tenths of a millimetre."""
    # Whole numbers of one unit pack well, and no sensor is better.
    tenths = (10 * np.array(heights, dtype=np.float64)).round().astype("<i4")
    return base64.b64encode(zlib.compress(tenths.tobytes())).decode()


def read_heights(text: str, cells: tuple[int, int]) -> Tensor:
    """Read measured heights out of their text, metres, (X, Y) float32."""
    # What unpacks to more than a map is cut off, and then refused for its size.
    most_bytes = 4 * math.prod(cells) + 1
    raw = zlib.decompressobj().decompress(base64.b64decode(text), most_bytes)
    tenths = np.frombuffer(raw, "<i4").reshape(cells)
    return torch.from_numpy(tenths / 1e4).float()


def checked_object(name: str, given: object, known: Sequence[str]) -> Mapping[str, object]:
    """Return the entries of an object, which must have known keys alone."""
    wanted = f"an object with some of {', '.join(known)}"
    if not isinstance(given, Mapping):
        arguments.refuse(WHERE, name, wanted, given)
    if not set(given) <= set(known):
        arguments.refuse(WHERE, name, wanted, list(given))
    return given


def read_sides(where: str, name: str, given: object) -> list[float]:
    """Check three lengths."""
    sides = _three(where, name, "three lengths, [length, width, height] in millimetres", given)
    return [arguments.number(where, name, side, 1, MOST_MM) for side in sides]


def _three(where: str, name: str, wanted: str, given: object) -> tuple[object, ...]:
    found = arguments.listed(where, name, wanted, given)
    if len(found) != 3:
        arguments.refuse(where, name, wanted, given)
    return found


def _metres(sides: Sequence[float]) -> list[float]:
    return [side / 1000 for side in sides]
