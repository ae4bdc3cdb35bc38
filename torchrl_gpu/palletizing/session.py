"""`PackingSession`: a pallet that is packed one box at a time, told where each box really lies.

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
from torchrl_gpu.palletizing.packer import HEURISTICS, PRESETS, Boxes, Choice, Goods, Packer, Pallet, Pallets
from torchrl_gpu.palletizing.snapshot import pallets_of, snapshot_of
from torchrl_gpu.policies.packing.pretrained import PackingPolicy
from torchrl_gpu.system import arguments

MOST_OFFERED = 64
MOST_EVENTS = 1024
MOST_CELLS = 2**17
MOST_MM = 10_000.0
SETTINGS = ("pallet", "height", "weight", "gap", "overhang", "grid", "noise", "rule", "policy")
_MOST_MAPS = 8  # measured heightmaps that are kept for `undo`
_BELOW_MM, _ABOVE_MM = -50.0, 500.0  # that a measured height may be below the pallet's top, and above the highest load


class Progress(NamedTuple):
    """Events of a session, as plain data, and the load that follows from them."""

    events: tuple[dict[str, Any], ...]
    waits: dict[str, Any] | None  # event of the box that was offered last, until it is confirmed
    loaded: Pallets  # of one row with one pallet
    # Snapshot of the pallet after the last event whose heightmap was removed, from which the later ones follow
    cut: dict[str, Any] | None = None


class PackingSession:
    """The rules of one pallet. Every call takes a `Progress` and gives the next one, beside an answer of plain data.

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
        """An empty pallet."""
        empty = self.packer.empty(1)
        pallets = empty._replace(number=torch.zeros_like(empty.number), opened=torch.ones_like(empty.opened))
        return Progress((), None, pallets)

    def restored(self, events: Sequence[Any], waits: Any, cut: Any = None) -> Progress:
        """The progress of events, and of the snapshot that stands for the first of them, which are validated."""
        if len(events) > MOST_EVENTS:
            raise ValueError(f"{WHERE}: want at most {MOST_EVENTS:,} events; got {len(events):,}")
        progress = self._replayed([self._event(event) for event in events], cut)
        if waits is not None and (waits := self._event(waits))["box"] is None:
            arguments.refuse(WHERE, "waits", "the event of a box", waits)
        return progress._replace(waits=waits)

    def _replayed(self, events: Sequence[dict[str, Any]], cut: Any) -> Progress:
        """The progress of validated events; those up to the last removed heightmap are in the snapshot `cut`."""
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
            progress = self._happened(progress, event)
        return progress

    def told(self, progress: Progress) -> dict[str, Any]:
        """Number of boxes, weight and share of the pallet's room that is filled."""
        pallets = progress.loaded
        filled = float(pallets.volume[0, 0]) / self.packer.pallet.volume
        packed = sum(event["box"] is not None for event in progress.events)
        return {"packed": packed, "weight": round(float(pallets.weight[0, 0]), 3), "filled": round(filled, 4)}

    def about(self, progress: Progress) -> dict[str, Any]:
        """Answer of `told`, the cells of a heightmap, the place of the box that waits, and the plan up to now."""
        waits = None if progress.waits is None else progress.waits["told"]
        cells, grid = list(self.packer.bin.cells), round(1000 * self.packer.pallet.cell, 6)
        return self.told(progress) | {"cells": cells, "grid": grid, "waits": waits, "plan": self.plan(progress)}

    # -- calls ------------------------------------------------------------------------------------------------------

    def offer(self, progress: Progress, boxes: Any) -> tuple[Progress, dict[str, Any]]:
        """The place of the best of some boxes: its number among them, its corner, the centre of its base, its sides
        along x, y and z, and its turn about z in degrees. The number is None where none finds room, for `reasons`.
        """
        if progress.waits is not None:
            raise ValueError(f"{WHERE}: want confirm, report, measure or undo for the box that waits; got another box")
        self._check_room(progress)
        given = arguments.listed(WHERE, "boxes", f"a list of 1 to {MOST_OFFERED} boxes", boxes)
        if not 1 <= len(given) <= MOST_OFFERED:
            raise ValueError(f"{WHERE}: want 1 to {MOST_OFFERED} boxes; got {len(given)}")
        found = [_box(box, f"boxes[{i}]") for i, box in enumerate(given)]
        goods = self.packer.goods(_goods_of(found), tested=False)
        offered = torch.arange(len(found), device=self.packer.device, dtype=torch.int64)[None]
        choice = self.packer.choose(progress.loaded, goods, offered)
        number = int(choice.box)
        if number < 0 or bool(choice.fresh):
            return progress, self.told(progress) | {"box": None, "reasons": self._reasons(found)}
        told = {"box": number} | ({"id": found[number]["id"]} if "id" in found[number] else {})
        told |= self._place(choice, goods)
        event = {"box": found[number], "told": told, "z": float(choice.z)}
        event |= {name: int(getattr(choice, name)) for name in ("turn", "x", "y")}
        return progress._replace(waits=event), self.told(progress) | told

    def confirm(self, progress: Progress) -> tuple[Progress, dict[str, Any]]:
        """The box that waits lies where it was to."""
        return self._add(progress, self._waiting(progress, "confirm"))

    def report(self, progress: Progress, center: Any, turn: Any, sure: Any = False) -> tuple[Progress, dict[str, Any]]:
        """The box that waits lies elsewhere: the centre of its base, and degrees from its listed sides about z.

        What is unlikely is refused unless the client is `sure`, and what cannot be is refused always.
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
        """The pallet as measured: heights (X, Y) of the cells, with the box that waits where there is one.

        A map that is far from the expected one is refused unless the client is `sure`.
        """
        cells = self.packer.bin.cells
        wanted = f"{cells[0]} lists of {cells[1]} numbers"
        rows = arguments.listed(WHERE, "heights", wanted, heights)
        flat = [value for row in rows if isinstance(row, list) for value in row]
        if len(rows) != cells[0] or any(not isinstance(row, list) or len(row) != cells[1] for row in rows):
            raise ValueError(f"{WHERE}: heights must be {wanted}; got {len(rows)} lists of {len(flat)} numbers in all")
        if not all(type(value) in (int, float) for value in flat):
            raise ValueError(f"{WHERE}: heights must be {wanted}; got other values")
        low, high = _BELOW_MM, 1000 * self.packer.pallet.height + _ABOVE_MM
        if wrong := [value for value in flat if not low <= value <= high]:
            raise ValueError(f"{WHERE}: heights must be from {low:g} to {high:g} mm; got {arguments.shown(wrong[0])}")
        self._check_room(progress)
        tenths = (10 * np.array(flat, dtype=np.float64)).round().astype("<i4")
        text = base64.b64encode(zlib.compress(tenths.tobytes())).decode()
        event = (progress.waits or {"box": None}) | {"heights": text}
        if not arguments.flag(WHERE, "sure", sure):
            check_map(*self._seen(self._placed(progress.loaded, event), text), self.packer, self.noise)
        return self._add(self._cut(progress), event)

    def _cut(self, progress: Progress) -> Progress:
        """The progress with at most `_MOST_MAPS - 1` heightmaps: a snapshot takes the place of the oldest one.

        A file of all of them would be far too large. The pallet as it was after the oldest one follows from nothing
        else: without the snapshot, the events after it would be replayed on another pallet.
        """
        maps = [i for i, event in enumerate(progress.events) if event.get("heights") is not None]
        if len(maps) < _MOST_MAPS:
            return progress
        oldest = maps[-_MOST_MAPS]
        before = self._replayed(progress.events[: oldest + 1], progress.cut)
        events = list(progress.events)
        events[oldest] = events[oldest] | {"heights": None}
        return progress._replace(events=tuple(events), cut=snapshot_of(before.loaded))

    def undo(self, progress: Progress) -> tuple[Progress, dict[str, Any]]:
        """The progress without the box that waits, or else without the last event."""
        if progress.waits is None:
            if not progress.events:
                raise ValueError(f"{WHERE}: want something to undo; got an empty pallet")
            events = progress.events[:-1]
            measured = [event["heights"] for event in events if "heights" in event]
            if measured and measured[-1] is None:
                raise ValueError(f"{WHERE}: want at most {_MOST_MAPS - 1} measured heightmaps undone; got another undo")
            progress = self._replayed(events, progress.cut)
        progress = progress._replace(waits=None)
        return progress, self.told(progress)

    def plan(self, progress: Progress) -> list[dict[str, Any]]:
        """Boxes in their sequence: their id, and where they lie as far as it is known."""
        found = []
        for event in progress.events:
            if event["box"] is not None:
                box = {name: value for name, value in event["told"].items() if name != "box"}
                if "center" in event:
                    box = {name: box[name] for name in box if name == "id"}
                    box |= {"center": event["center"], "turn": event["degrees"], "sides": event["box"]["sides"]}
                found.append(box)
        return found

    # -- events -----------------------------------------------------------------------------------------------------

    def _check_room(self, progress: Progress) -> None:
        if len(progress.events) >= MOST_EVENTS:
            raise ValueError(f"{WHERE}: want at most {MOST_EVENTS:,} boxes and heightmaps; got another")

    def _waiting(self, progress: Progress, call: str) -> dict[str, Any]:
        if progress.waits is None:
            raise ValueError(f"{WHERE}: want an offer before {call}; got no box that waits")
        return progress.waits

    def _add(self, progress: Progress, event: dict[str, Any]) -> tuple[Progress, dict[str, Any]]:
        self._check_room(progress)
        progress = self._happened(progress, event)
        return progress, self.told(progress)

    def _happened(self, progress: Progress, event: dict[str, Any]) -> Progress:
        """The progress after an event; the only place where a pallet changes."""
        pallets = self._placed(progress.loaded, event)
        if event.get("heights") is not None:
            pallets = self.packer.measured(pallets, 0, 0, self._seen(pallets, event["heights"])[0])
        return Progress((*progress.events, event), None, pallets, progress.cut)

    def _placed(self, pallets: Pallets, event: Mapping[str, Any]) -> Pallets:
        """The pallet after the box of an event, if it has one, lies where it was offered or reported."""
        if event["box"] is None:
            return pallets
        goods = self.packer.goods(_goods_of([event["box"]]), tested=False)
        if bool(goods.max_load.isfinite()) and not pallets.top.numel():
            pallets = self.packer.limited(pallets, MOST_EVENTS)  # boxes below are as the floor
        if "center" in event:
            return self.packer.lay(pallets, goods, ReportedBox(self.packer, pallets, event).lying())
        return self.packer.place(pallets, goods, _choice(event, self.packer.device))

    def _seen(self, pallets: Pallets, text: str) -> tuple[Tensor, Tensor]:
        """Heights (X, Y) as they are from now on, by a measured map, and those expected; metres above the pallet."""
        expected = pallets.heightmap[0, 0] - self.packer.pallet.deck
        seen = self._heights(text).to(self.packer.device)
        return torch.where((seen - expected).abs() <= self.noise + 1e-6, expected, seen), expected

    def _reasons(self, boxes: Sequence[Mapping[str, Any]]) -> list[str]:
        """Why none of some boxes finds room; ValueError where none fits an empty pallet."""
        reasons = self.packer.goods(_goods_of(boxes)).reasons
        if all(reasons):
            sides = " × ".join(f"{side:g}" for side in boxes[0]["sides"])
            raise ValueError(f"{WHERE}: want a box that fits an empty pallet; got {sides} mm, {reasons[0]}")
        return [reason or "no room for it on this pallet" for reason in reasons]

    def _place(self, choice: Choice, goods: Goods) -> dict[str, Any]:
        found = self.packer.corner(choice, goods)
        corner, sides = ([round(1000 * length, 3) for length in each[0].tolist()] for each in found)
        center = [round(corner[0] + sides[0] / 2, 3), round(corner[1] + sides[1] / 2, 3), corner[2]]
        return {"corner": corner, "center": center, "sides": sides, "turn": 90 * int(choice.turn)}

    def _heights(self, text: str) -> Tensor:
        """Measured heights (X, Y), metres, out of an event."""
        cells = self.packer.bin.cells
        raw = zlib.decompressobj().decompress(base64.b64decode(text), 4 * math.prod(cells) + 1)
        return torch.from_numpy(np.frombuffer(raw, "<i4").reshape(cells) / 1e4).float()

    def _event(self, given: Any) -> dict[str, Any]:
        """An event, validated: of a file, or with a pose that a client sent."""
        where, (cells_x, cells_y) = f"{WHERE}: event", self.packer.bin.cells
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
            over = 1000 * self.packer.pallet.overhang
            sides = (*(1000 * s + over for s in (self.packer.pallet.length, self.packer.pallet.width)), MOST_MM)
            center = _three(WHERE, "center", "three numbers, x, y and z in millimetres", event["center"])
            lowest = (0.0 - over, 0.0 - over, -SLACK_MM)
            event["center"] = [
                arguments.number(WHERE, f"center {axis}", value, low, high)
                for axis, value, low, high in zip("xyz", center, lowest, sides, strict=True)
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
        along_x, along_y, height = (each / 1000 for each in _sides(WHERE, "pallet", given))

    def length(name: str, default: float, low: float, high: float = MOST_MM) -> float:
        return arguments.number(WHERE, name, opened[name], low, high) / 1000 if name in opened else default

    return Pallet(
        along_x,
        along_y,
        length("height", height, 1),
        weight=arguments.number(WHERE, "weight", opened["weight"], above=0) if "weight" in opened else math.inf,
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
    if (known := given.get("id")) is not None:
        if not isinstance(known, str | int) or len(str(known)) > 100:
            arguments.refuse(where, "id", "a text or a whole number of at most 100 characters", known)
        box["id"] = known
    return box


def _sides(where: str, name: str, given: Any) -> list[float]:
    sides = _three(where, name, "three lengths, [length, width, height] in millimetres", given)
    return [arguments.number(where, name, side, 1, MOST_MM) for side in sides]


def _three(where: str, name: str, wanted: str, given: Any) -> tuple[Any, ...]:
    found = arguments.listed(where, name, wanted, given)
    if len(found) != 3:
        arguments.refuse(where, name, wanted, given)
    return found


def _keys(name: str, given: Any, known: Sequence[str]) -> None:
    """Raises ValueError for what is no dict, and for keys that nothing reads."""
    if not isinstance(given, Mapping) or not set(given) <= set(known):
        came = list(given) if isinstance(given, Mapping) else given
        arguments.refuse(WHERE, name, f"an object with some of {', '.join(known)}", came)


def _goods_of(boxes: Sequence[Mapping[str, Any]]) -> Boxes:
    sizes = [[side / 1000 for side in box["sides"]] for box in boxes]
    loads = [0.0 if box["fragile"] else box.get("max_load", math.inf) for box in boxes]
    return Boxes.of(sizes, [box["weight"] for box in boxes], max_load=loads)


def _choice(event: Mapping[str, Any], device: torch.device) -> Choice:
    """The choice of one row that an event records."""
    whole = {name: torch.tensor([event[name]], device=device, dtype=torch.int64) for name in ("turn", "x", "y")}
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    z = torch.tensor([event["z"]], dtype=torch.float32, device=device)
    return Choice(box=zero, offer=zero, slot=zero, number=zero, fresh=zero > 0, z=z, **whole)
