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
from torchrl_gpu.palletizing.packer import HEURISTICS, PRESETS, Boxes, Choice, Goods, Packer, Pallet, Pallets
from torchrl_gpu.policies.packing.pretrained import PackingPolicy
from torchrl_gpu.system import arguments

WHERE = "session"
MOST_OFFERED = 64
MOST_EVENTS = 1024
MOST_CELLS = 2**17
MOST_MM = 10_000.0
SETTINGS = ("pallet", "height", "weight", "gap", "overhang", "grid", "noise", "rule", "policy")
_MOST_MAPS = 8  # measured heightmaps that are kept for `undo`
_BELOW_MM, _ABOVE_MM = -50.0, 500.0  # that a measured height may be below the pallet's top, and above the highest load
_SLACK_MM = 10.0  # by which a reported box may reach into others
_TOUCH_M = 0.0005  # by which a box may reach into a cell that it does not take


class Progress(NamedTuple):
    """Events of a session, as plain data, and the load that follows from them."""

    events: tuple[dict[str, Any], ...]
    waits: dict[str, Any] | None  # event of the box that was offered last, until it is confirmed
    loaded: Pallets  # of one row with one pallet


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

    def restored(self, events: Sequence[Any], waits: Any) -> Progress:
        """The progress of events that were kept, which are validated."""
        if len(events) > MOST_EVENTS:
            raise ValueError(f"{WHERE}: want at most {MOST_EVENTS:,} events; got {len(events):,}")
        progress = self.begin()
        for event in events:
            progress = self._happened(progress, self._event(event))
        if waits is not None and (waits := self._event(waits))["box"] is None:
            arguments.refuse(WHERE, "waits", "the event of a box", waits)
        return progress._replace(waits=waits)

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

    def report(self, progress: Progress, center: Any, turn: Any) -> tuple[Progress, dict[str, Any]]:
        """The box that waits lies elsewhere: the centre of its base, and degrees from its listed sides about z."""
        event = self._waiting(progress, "report")
        event = self._event(event | {"center": center, "degrees": turn})
        sides = torch.tensor(event["box"]["sides"][:2], dtype=torch.float64, device="cpu") / 1000
        under = self._taken(event, sides - 2 * (self.packer.pallet.cell + _SLACK_MM / 1000))
        heights = 1000 * (progress.loaded.heightmap[0, 0] - self.packer.pallet.deck)
        highest = float(torch.where(under, heights, -math.inf).max())
        if highest > event["center"][2] + _SLACK_MM:
            came = f"a base at {event['center'][2]:g} mm, where others reach {highest:.0f}"
            raise ValueError(f"{WHERE}: center must be a free place; got {came}")
        return self._add(progress, event)

    def measure(self, progress: Progress, heights: Any) -> tuple[Progress, dict[str, Any]]:
        """The pallet as measured: heights (X, Y) of the cells, with the box that waits where there is one."""
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
        tenths = (10 * np.array(flat, dtype=np.float64)).round().astype("<i4")
        text = base64.b64encode(zlib.compress(tenths.tobytes())).decode()
        event = (progress.waits or {"box": None}) | {"heights": text}
        events, maps = list(progress.events), [i for i, each in enumerate(progress.events) if "heights" in each]
        if len(maps) >= _MOST_MAPS:  # no state needs the older ones
            events[maps[-_MOST_MAPS]] = events[maps[-_MOST_MAPS]] | {"heights": None}
        return self._add(progress._replace(events=tuple(events)), event)

    def undo(self, progress: Progress) -> tuple[Progress, dict[str, Any]]:
        """The progress without the box that waits, or else without the last event."""
        if progress.waits is None:
            if not progress.events:
                raise ValueError(f"{WHERE}: want something to undo; got an empty pallet")
            events = progress.events[:-1]
            measured = [event["heights"] for event in events if "heights" in event]
            if measured and measured[-1] is None:
                raise ValueError(f"{WHERE}: want at most {_MOST_MAPS - 1} measured heightmaps undone; got another undo")
            progress = self.restored(events, None)
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
        pallets, packer = progress.loaded, self.packer
        if event["box"] is not None:
            goods = packer.goods(_goods_of([event["box"]]), tested=False)
            heights = pallets.heightmap[0, 0] - packer.pallet.deck
            nearest = self._nearest(event, goods, heights) if "center" in event else {}
            if bool(goods.max_load.isfinite()) and not pallets.top.numel():
                pallets = packer.limited(pallets, MOST_EVENTS)  # boxes below are as the floor
            pallets = packer.place(pallets, goods, _choice({**event, **nearest}, packer.device))
            if "center" in event:
                sides = torch.tensor(event["box"]["sides"], dtype=torch.float64, device="cpu") / 1000
                taken = self._taken(event, sides[:2] + packer.pallet.gap)
                top = event["center"][2] / 1000 + float(sides[2])
                pallets = packer.measured(pallets, 0, 0, torch.where(taken, heights.clamp_min(top), heights))
        if event.get("heights") is not None:
            expected = pallets.heightmap[0, 0] - packer.pallet.deck
            seen = self._heights(event["heights"]).to(packer.device)
            seen = torch.where((seen - expected).abs() <= self.noise + 1e-6, expected, seen)
            pallets = packer.measured(pallets, 0, 0, seen)
        return Progress((*progress.events, event), None, pallets)

    def _nearest(self, event: Mapping[str, Any], goods: Goods, heights: Tensor) -> dict[str, Any]:
        """The placement on whole cells that is next to a reported one, by which it bears load."""
        pallet, turn = self.packer.pallet, round(event["degrees"] / 90) % 2
        extent = goods.catalogue.extent[0, turn].tolist()
        x, y = (
            min(max(round((at / 1000 - first) / pallet.cell - along / 2), 0), cells - along)
            for at, first, along, cells in zip(event["center"], pallet.origin, extent, pallet.cells, strict=False)
        )
        return {"turn": turn, "x": x, "y": y, "z": float(heights[x : x + extent[0], y : y + extent[1]].max())}

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

    def _taken(self, event: Mapping[str, Any], sides: Tensor) -> Tensor:
        """Cells (X, Y) that a rectangle of sides (2,) metres reaches into, where a box was reported."""
        pallet, turn = self.packer.pallet, math.radians(event["degrees"])
        dx, dy = (
            first + pallet.cell * (torch.arange(cells, dtype=torch.float64, device="cpu") + 0.5) - at / 1000
            for first, cells, at in zip(pallet.origin, pallet.cells, event["center"], strict=False)
        )
        dx, dy, half = dx[:, None], dy[None], pallet.cell / 2 - _TOUCH_M
        cos, sin, (a, b) = math.cos(turn), math.sin(turn), (sides.clamp_min(0) / 2).tolist()
        more = half * (abs(cos) + abs(sin))
        # Two rectangles meet where their projections on the axes of both do.
        own = ((dx * cos + dy * sin).abs() < a + more) & ((dy * cos - dx * sin).abs() < b + more)
        along_x, along_y = a * abs(cos) + b * abs(sin) + half, a * abs(sin) + b * abs(cos) + half
        return (own & (dx.abs() < along_x) & (dy.abs() < along_y)).to(self.packer.device)

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
            sides = (*(1000 * s for s in (self.packer.pallet.length, self.packer.pallet.width)), MOST_MM)
            center = _three(WHERE, "center", "three numbers, x, y and z in millimetres", event["center"])
            lowest = (0, 0, -_SLACK_MM)
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
