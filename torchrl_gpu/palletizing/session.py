"""`PackingSession`: a pallet that is packed one box at a time.

The client tells where each box really lies.

A session is its settings and the list of what happened on its pallet. The state of the pallet follows from these, so
that a session read from a file, or one whose last event is undone, goes on to the same bits. Lengths are millimetres,
x and y from the corner of the pallet, z from its top.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.packing.types import STABILITY_RULES
from torchrl_gpu.palletizing.measured import SLACK_MM, WHERE, ReportedBox, check_map
from torchrl_gpu.palletizing.packer import HEURISTICS, Choice, Packer, Pallets
from torchrl_gpu.palletizing.pallet import PRESETS, Pallet
from torchrl_gpu.palletizing.prepared_boxes import Boxes, PreparedBoxes
from torchrl_gpu.palletizing.snapshot import pallets_of, snapshot_of
from torchrl_gpu.policies.packing.pretrained import PackingPolicy
from torchrl_gpu.system import arguments

MOST_OFFERED = 64
MOST_EVENTS = 1024
MOST_CELLS = 2**17
MOST_MM = 10_000.0
SETTINGS = ("pallet", "height", "weight", "gap", "overhang", "grid", "noise", "rule", "policy")
# Measured heightmaps that are kept for `undo`.
_MOST_MAPS = 8
# A measured height may be this far below the top of the pallet, and above the highest load.
_BELOW_MM = -50.0
_ABOVE_MM = 500.0


class Progress(NamedTuple):
    """Events of a session, as plain data, and the load that follows from them.

    Attributes:
        waits: Event of the box that was offered last, until it is confirmed.
        loaded: One row with one pallet.
        cut: Snapshot of the pallet after the last event whose heightmap was removed. The later events follow from it.
    """

    events: tuple[dict[str, Any], ...]
    waits: dict[str, Any] | None
    loaded: Pallets
    cut: dict[str, Any] | None = None


class PackingSession:
    """Rules of one pallet.

    Every call takes a `Progress` and returns the next one, with an answer of plain data.

    Args:
        opened: `SETTINGS`, all of which may be left out: `pallet` is one of `PRESETS` or its sides [length, width,
            height]; `height` and `weight` (kilograms) are the most of the load; `gap` between boxes and `overhang` over
            each edge; `grid` is the side of a cell; `noise` is what a measured height may be off (5 by default) where
            another is expected, which then stays; `rule` one of `STABILITY_RULES`; `policy` one of `HEURISTICS` or a
            policy that comes with the package.
        device: As in `get_device`.

    Raises:
        ValueError: A setting is something else, or the pallet has too many cells. Calls raise it likewise, for an
            argument that cannot be, and for a call out of turn.
    """

    def __init__(self, opened: Mapping[str, Any], device: str | torch.device = "auto") -> None:
        self.opened = dict(opened)
        _keys("open", opened, SETTINGS)
        pallet = _pallet(opened)
        if math.prod(pallet.cells) > MOST_CELLS:
            came = f"{pallet.cells[0]:,} × {pallet.cells[1]:,}"
            raise ValueError(f"{WHERE}: grid must give a pallet at most {MOST_CELLS:,} cells; got {came}")
        rule = arguments.choice(WHERE, "rule", opened.get("rule", "load_bearing"), STABILITY_RULES)
        policies = (*HEURISTICS, *PackingPolicy.names())
        policy = arguments.choice(WHERE, "policy", opened.get("policy", "orders"), policies)
        self.noise = arguments.number(WHERE, "noise", opened.get("noise", 5.0), 0, 1000) / 1000
        self.packer = _packer(pallet, rule, policy, device)

    def begin(self) -> Progress:
        """Return the progress of an empty pallet."""
        empty = self.packer.empty(1)
        pallets = empty._replace(number=torch.zeros_like(empty.number), opened=torch.ones_like(empty.opened))
        return Progress((), None, pallets)

    def restore(self, events: Sequence[Any], waits: Any, cut: Any = None) -> Progress:
        """Restore the progress of events, which are checked.

        The snapshot `cut` stands for the first of them.
        """
        if len(events) > MOST_EVENTS:
            raise ValueError(f"{WHERE}: {len(events):,} events are more than {MOST_EVENTS:,}")
        progress = self._replay([self._event(event) for event in events], cut)
        if waits is not None:
            waits = self._event(waits)
            if waits["box"] is None:
                arguments.refuse(WHERE, "waits", "the event of a box", waits)
        return progress._replace(waits=waits)

    def _replay(self, events: Sequence[dict[str, Any]], cut: Any) -> Progress:
        """Replay checked events.

        Those up to the last removed heightmap are in the snapshot `cut`.
        """
        removed = [i for i, event in enumerate(events) if "heights" in event and event["heights"] is None]
        progress = self.begin()
        first = 0
        if removed:
            if cut is None:
                raise ValueError(
                    f"{WHERE}: a heightmap that the state follows from was removed by an earlier version of this"
                    " package; move the file away, open the session anew and measure the pallet"
                )
            first = removed[-1] + 1
            loaded = pallets_of(cut, self.packer, progress.loaded, MOST_EVENTS)
            progress = Progress(tuple(events[:first]), None, loaded, cut)
        for event in events[first:]:
            progress = self._apply(progress, event)
        return progress

    def told(self, progress: Progress) -> dict[str, Any]:
        """Return the number of boxes, their weight, and the share of room that is filled."""
        pallets = progress.loaded
        filled = float(pallets.volume[0, 0]) / self.packer.pallet.volume
        packed = sum(event["box"] is not None for event in progress.events)
        return {"packed": packed, "weight": round(float(pallets.weight[0, 0]), 3), "filled": round(filled, 4)}

    def about(self, progress: Progress) -> dict[str, Any]:
        """Return what `told` does, with the cells, the box that waits, and the plan."""
        waits = None if progress.waits is None else progress.waits["told"]
        cells = list(self.packer.bin.cells)
        grid = round(1000 * self.packer.pallet.cell, 6)
        return self.told(progress) | {"cells": cells, "grid": grid, "waits": waits, "plan": self.plan(progress)}

    def offer(self, progress: Progress, boxes: Any) -> tuple[Progress, dict[str, Any]]:
        """Find the place of the best of some boxes.

        The answer has its number among them, its corner, the centre of its base, its sides along x, y and z, and its
        turn about z in degrees. The number is None where none finds room, for `reasons`.
        """
        if progress.waits is not None:
            raise ValueError(f"{WHERE}: a box waits already: confirm, report, measure or undo it before another offer")
        self._check_room(progress)
        given = arguments.listed(WHERE, "boxes", f"a list of 1 to {MOST_OFFERED} boxes", boxes)
        if not 1 <= len(given) <= MOST_OFFERED:
            raise ValueError(f"{WHERE}: boxes must be 1 to {MOST_OFFERED} boxes, not {len(given)}")
        found = [_box(box, f"boxes[{i}]") for i, box in enumerate(given)]
        prepared = self.packer.prepare(_boxes_of(found), test_fit=False)
        offered = torch.arange(len(found), device=self.packer.device, dtype=torch.int64)[None]
        choice = self.packer.choose(progress.loaded, prepared, offered)
        number = int(choice.box)
        if number < 0 or bool(choice.fresh):
            return progress, self.told(progress) | {"box": None, "reasons": self._reasons(found)}
        told: dict[str, object] = {"box": number}
        if "id" in found[number]:
            told["id"] = found[number]["id"]
        told |= self._place(choice, prepared)
        event = {"box": found[number], "told": told, "z": float(choice.z)}
        event |= {name: int(getattr(choice, name)) for name in ("turn", "x", "y")}
        return progress._replace(waits=event), self.told(progress) | told

    def confirm(self, progress: Progress) -> tuple[Progress, dict[str, Any]]:
        """Note that the box that waits lies where it was to."""
        return self._add(progress, self._waiting(progress, "confirm"))

    def report(self, progress: Progress, center: Any, turn: Any, sure: Any = False) -> tuple[Progress, dict[str, Any]]:
        """Note that the box that waits lies elsewhere.

        `center` is that of its base, `turn` the degrees from its listed sides about z. What is unlikely is refused
        unless the client is `sure`, and what cannot be is refused always.
        """
        event = self._waiting(progress, "report")
        sure = arguments.flag(WHERE, "sure", sure)
        event = self._event(event | {"center": center, "degrees": turn})
        reported = ReportedBox(self.packer, progress.loaded, event)
        reported.check_base()
        doubts = reported.doubts(event["told"])
        if doubts and not sure:
            raise ValueError(
                f"{WHERE}: center or turn is doubtful: {'; '.join(doubts)}. If the box lies there, report it again with"
                " sure: true"
            )
        return self._add(progress, event)

    def measure(self, progress: Progress, heights: Any, sure: Any = False) -> tuple[Progress, dict[str, Any]]:
        """Take the measured heights (X, Y) of the pallet, with the box that waits, if any.

        A map that is far from the expected one is refused unless the client is `sure`.
        """
        cells = self.packer.bin.cells
        wanted = f"{cells[0]} lists of {cells[1]} numbers"
        rows = arguments.listed(WHERE, "heights", wanted, heights)
        flat: list[float] = []
        for row in rows:
            if isinstance(row, list):
                flat += row
        if len(rows) != cells[0] or any(not isinstance(row, list) or len(row) != cells[1] for row in rows):
            raise ValueError(f"{WHERE}: heights must be {wanted}; got {len(rows)} lists of {len(flat)} numbers in all")
        if not all(type(value) in (int, float) for value in flat):
            raise ValueError(f"{WHERE}: heights must be {wanted}; got other values")
        low = _BELOW_MM
        high = 1000 * self.packer.pallet.height + _ABOVE_MM
        wrong = [value for value in flat if not low <= value <= high]
        if wrong:
            raise ValueError(f"{WHERE}: heights must be from {low:g} to {high:g} mm; got {arguments.shown(wrong[0])}")
        self._check_room(progress)
        tenths = (10 * np.array(flat, dtype=np.float64)).round().astype("<i4")
        text = base64.b64encode(zlib.compress(tenths.tobytes())).decode()
        event = (progress.waits or {"box": None}) | {"heights": text}
        if not arguments.flag(WHERE, "sure", sure):
            check_map(*self._seen(self._placed(progress.loaded, event), text), self.packer, self.noise)
        return self._add(self._cut(progress), event)

    def _cut(self, progress: Progress) -> Progress:
        """Replace the oldest heightmap by a snapshot where there are too many.

        At most `_MOST_MAPS - 1` stay.

        A file of all of them would be far too large. The pallet as it was after the oldest one follows from nothing
        else: without the snapshot, the events after it would be replayed on another pallet.
        """
        maps = [i for i, event in enumerate(progress.events) if event.get("heights") is not None]
        if len(maps) < _MOST_MAPS:
            return progress
        oldest = maps[-_MOST_MAPS]
        before = self._replay(progress.events[: oldest + 1], progress.cut)
        events = list(progress.events)
        events[oldest] = events[oldest] | {"heights": None}
        return progress._replace(events=tuple(events), cut=snapshot_of(before.loaded))

    def undo(self, progress: Progress) -> tuple[Progress, dict[str, Any]]:
        """Undo the offer of the box that waits, or else the last event."""
        if progress.waits is None:
            if not progress.events:
                raise ValueError(f"{WHERE}: there is nothing to undo: the pallet is empty")
            events = progress.events[:-1]
            measured = [event["heights"] for event in events if "heights" in event]
            if measured and measured[-1] is None:
                raise ValueError(
                    f"{WHERE}: undo reaches back over {_MOST_MAPS - 1} measured heightmaps, and no further"
                )
            progress = self._replay(events, progress.cut)
        progress = progress._replace(waits=None)
        return progress, self.told(progress)

    def plan(self, progress: Progress) -> list[dict[str, Any]]:
        """List the boxes in their sequence: id, and place as far as it is known."""
        found = []
        for event in progress.events:
            if event["box"] is not None:
                box = {name: value for name, value in event["told"].items() if name != "box"}
                if "center" in event:
                    box = {name: box[name] for name in box if name == "id"}
                    box |= {"center": event["center"], "turn": event["degrees"], "sides": event["box"]["sides"]}
                found.append(box)
        return found

    def _check_room(self, progress: Progress) -> None:
        if len(progress.events) >= MOST_EVENTS:
            raise ValueError(
                f"{WHERE}: the session has {MOST_EVENTS:,} boxes and heightmaps, and no more are kept: close it"
            )

    def _waiting(self, progress: Progress, call: str) -> dict[str, Any]:
        if progress.waits is None:
            raise ValueError(f"{WHERE}: {call} needs a box that waits: offer one first")
        return progress.waits

    def _add(self, progress: Progress, event: dict[str, Any]) -> tuple[Progress, dict[str, Any]]:
        self._check_room(progress)
        progress = self._apply(progress, event)
        return progress, self.told(progress)

    def _apply(self, progress: Progress, event: dict[str, Any]) -> Progress:
        """Return the progress after an event.

        This is the only place where a pallet changes.
        """
        pallets = self._placed(progress.loaded, event)
        if event.get("heights") is not None:
            pallets = self.packer.set_heightmap(pallets, 0, 0, self._seen(pallets, event["heights"])[0])
        return Progress((*progress.events, event), None, pallets, progress.cut)

    def _placed(self, pallets: Pallets, event: Mapping[str, Any]) -> Pallets:
        """Return the pallet with the box of an event, if any, in its place."""
        if event["box"] is None:
            return pallets
        prepared = self.packer.prepare(_boxes_of([event["box"]]), test_fit=False)
        if bool(prepared.max_load.isfinite()) and not pallets.top.numel():
            # Boxes that lie there already count as the floor.
            pallets = self.packer.limit_loads(pallets, MOST_EVENTS)
        if "center" in event:
            return self.packer.lay(pallets, prepared, ReportedBox(self.packer, pallets, event).rest())
        return self.packer.place(pallets, prepared, _choice(event, self.packer.device))

    def _seen(self, pallets: Pallets, text: str) -> tuple[Tensor, Tensor]:
        """Return the heights (X, Y) from now on, and those expected, in metres.

        A measured height that is near the expected one counts as noise.
        """
        expected = pallets.heightmap[0, 0] - self.packer.pallet.deck
        seen = self._heights(text).to(self.packer.device)
        return torch.where((seen - expected).abs() <= self.noise + 1e-6, expected, seen), expected

    def _reasons(self, boxes: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return why none of some boxes finds room.

        ValueError where none fits an empty pallet.
        """
        reasons = self.packer.prepare(_boxes_of(boxes)).reasons
        if all(reasons):
            sides = " × ".join(f"{side:g}" for side in boxes[0]["sides"])
            raise ValueError(f"{WHERE}: the box of {sides} mm fits no empty pallet: it is {reasons[0]}")
        return [reason or "no room for it on this pallet" for reason in reasons]

    def _place(self, choice: Choice, prepared: PreparedBoxes) -> dict[str, Any]:
        corner_m, sides_m = self.packer.corner(choice, prepared)
        corner = _millimetres(corner_m[0])
        sides = _millimetres(sides_m[0])
        center = [round(corner[0] + sides[0] / 2, 3), round(corner[1] + sides[1] / 2, 3), corner[2]]
        return {"corner": corner, "center": center, "sides": sides, "turn": 90 * int(choice.turn)}

    def _heights(self, text: str) -> Tensor:
        """Read measured heights (X, Y), metres, out of an event."""
        cells = self.packer.bin.cells
        raw = zlib.decompressobj().decompress(base64.b64decode(text), 4 * math.prod(cells) + 1)
        return torch.from_numpy(np.frombuffer(raw, "<i4").reshape(cells) / 1e4).float()

    def _event(self, given: Any) -> dict[str, Any]:
        """Check an event of a file, or one with a pose that a client sent."""
        where = f"{WHERE}: event"
        cells_x, cells_y = self.packer.bin.cells
        _keys("event", given, ("box", "told", "z", "turn", "x", "y", "center", "degrees", "heights"))
        event = dict(given)
        if event.get("box") is not None:
            event["box"] = _box(event["box"], "box")
            whole = (("turn", len(self.packer.rotations)), ("x", cells_x), ("y", cells_y))
            event |= {name: arguments.whole(where, name, event.get(name), 0, most - 1) for name, most in whole}
            event["z"] = arguments.number(where, "z", event.get("z"), -1, MOST_MM / 1000)
            if not isinstance(event.get("told"), dict):
                arguments.refuse(where, "told", "a place", event.get("told"))
        else:
            event = {"box": None, "heights": event.get("heights")}
        if "center" in event:
            pallet = self.packer.pallet
            over = 1000 * pallet.overhang
            x, y, z = _three(WHERE, "center", "three numbers, x, y and z in millimetres", event["center"])
            event["center"] = [
                arguments.number(WHERE, "center x", x, 0.0 - over, 1000 * pallet.length + over),
                arguments.number(WHERE, "center y", y, 0.0 - over, 1000 * pallet.width + over),
                arguments.number(WHERE, "center z", z, -SLACK_MM, MOST_MM),
            ]
            event["degrees"] = arguments.number(WHERE, "turn", event.get("degrees"), -360, 360)
        if event.get("heights") is not None:
            self._heights(event["heights"])
        return event


def _pallet(opened: Mapping[str, Any]) -> Pallet:
    given: Any = opened.get("pallet", "eur")
    if isinstance(given, str):
        along_x, along_y, height = PRESETS[arguments.choice(WHERE, "pallet", given, PRESETS)]
    else:
        sides = _sides(WHERE, "pallet", given)
        along_x = sides[0] / 1000
        along_y = sides[1] / 1000
        height = sides[2] / 1000

    def length(name: str, default: float, low: float, high: float = MOST_MM) -> float:
        return arguments.number(WHERE, name, opened[name], low, high) / 1000 if name in opened else default

    most_height = length("height", height, 1)
    weight = math.inf
    if "weight" in opened:
        weight = arguments.number(WHERE, "weight", opened["weight"], above=0)
    return Pallet(
        along_x,
        along_y,
        most_height,
        weight=weight,
        gap=length("gap", 0.0, 0, 1000),
        overhang=length("overhang", 0.0, 0, 1000),
        cell=length("grid", 0.01, 1, 1000),
    )


@lru_cache(maxsize=16)
def _packer(pallet: Pallet, rule: str, policy: str, device: str | torch.device) -> Packer:
    return Packer(pallet, stability=rule, policy=policy, device=device)


def _box(given: Any, name: str) -> dict[str, Any]:
    _keys(name, given, ("id", "sides", "weight", "fragile", "max_load"))
    where = f"{WHERE}: {name}"
    box: dict[str, Any] = {"sides": _sides(where, "sides", given.get("sides"))}
    box["weight"] = arguments.number(where, "weight", given.get("weight", 0.0), 0, 1e5)
    box["fragile"] = arguments.flag(where, "fragile", given.get("fragile", False))
    if "max_load" in given:
        box["max_load"] = arguments.number(where, "max_load", given["max_load"], 0, 1e5)
    known = given.get("id")
    if known is not None:
        if not isinstance(known, str | int) or len(str(known)) > 100:
            arguments.refuse(where, "id", "a text or a whole number of at most 100 characters", known)
        box["id"] = known
    return box


def _sides(where: str, name: str, given: object) -> list[float]:
    sides = _three(where, name, "three lengths, [length, width, height] in millimetres", given)
    return [arguments.number(where, name, side, 1, MOST_MM) for side in sides]


def _three(where: str, name: str, wanted: str, given: object) -> tuple[Any, ...]:
    found = arguments.listed(where, name, wanted, given)
    if len(found) != 3:
        arguments.refuse(where, name, wanted, given)
    return found


def _keys(name: str, given: object, known: Sequence[str]) -> None:
    """Refuse what is no dict, and keys that nothing reads."""
    if not isinstance(given, Mapping) or not set(given) <= set(known):
        came = list(given) if isinstance(given, Mapping) else given
        arguments.refuse(WHERE, name, f"an object with some of {', '.join(known)}", came)


def _millimetres(lengths: Tensor) -> list[float]:
    return [round(1000 * length, 3) for length in lengths.tolist()]


def _metres(sides: Sequence[float]) -> list[float]:
    return [side / 1000 for side in sides]


def _boxes_of(boxes: Sequence[Mapping[str, Any]]) -> Boxes:
    sizes = [_metres(box["sides"]) for box in boxes]
    loads = [0.0 if box["fragile"] else box.get("max_load", math.inf) for box in boxes]
    return Boxes.of(sizes, [box["weight"] for box in boxes], max_load=loads)


def _choice(event: Mapping[str, Any], device: torch.device) -> Choice:
    """Return the choice of one row that an event records."""
    whole = {name: torch.tensor([event[name]], device=device, dtype=torch.int64) for name in ("turn", "x", "y")}
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    z = torch.tensor([event["z"]], dtype=torch.float32, device=device)
    return Choice(box=zero, offer=zero, slot=zero, number=zero, fresh=zero > 0, z=z, **whole)
