"""`PackingSession`: a pallet that is packed one box at a time.

The client tells where each box really lies.

A session is its settings and the list of what happened on its pallet. The state of the pallet follows from these, so
that a session read from a file, or one whose last event is undone, has the same state to the bit. Lengths are
millimetres, x and y from the corner of the pallet, z from its top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from torchrl_gpu.envs.packing.types import STABILITY_RULES
from torchrl_gpu.palletizing.events import (
    MOST_MM,
    WHERE,
    Box,
    Confirmed,
    Event,
    Measured,
    Offered,
    Plain,
    Reported,
    boxes_of,
    checked_object,
    heights_text,
    placed_in,
    read_event,
    read_heights,
    read_sides,
)
from torchrl_gpu.palletizing.measured import ReportedBox, check_map
from torchrl_gpu.palletizing.packer import HEURISTICS, Choice, Packer, Pallets
from torchrl_gpu.palletizing.pallet import PRESETS, Pallet
from torchrl_gpu.palletizing.prepared_boxes import PreparedBoxes
from torchrl_gpu.palletizing.snapshot import pallets_of, snapshot_of
from torchrl_gpu.policies.packing.pretrained import PackingPolicy
from torchrl_gpu.system import arguments

MOST_OFFERED = 64
MOST_EVENTS = 1024
MOST_CELLS = 2**17
SETTINGS = ("pallet", "height", "weight", "gap", "overhang", "grid", "noise", "rule", "policy")
# Measured heightmaps that are kept for `undo`.
_MOST_MAPS = 8
# A measured height may be this far below the top of the pallet, and above the highest load.
_BELOW_MM = -50.0
_ABOVE_MM = 500.0
# Most of the settings `gap`, `overhang`, `grid` and `noise`.
_MOST_SETTING_MM = 1000.0


class Progress(NamedTuple):
    """Events of a session, and the load that follows from them.

    Attributes:
        events: All of them. The heightmaps of the first ones may be removed.
        pending: The box that was offered last, until it is confirmed, reported or measured.
        loaded: One row with one pallet.
        cut: Snapshot of the pallet after the last event whose heightmap was removed. The later events follow from it.
    """

    events: tuple[Event, ...]
    pending: Offered | None
    loaded: Pallets
    cut: Plain | None = None


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
        ValueError: A setting is something else, or the pallet has too many cells. Calls raise it for an argument
            that is not valid, and for a call out of turn.
    """

    def __init__(self, opened: Mapping[str, object], device: str | torch.device = "auto") -> None:
        checked_object("open", opened, SETTINGS)
        self.opened = dict(opened)
        pallet = _pallet(opened)
        cells_x, cells_y = pallet.cells
        if cells_x * cells_y > MOST_CELLS:
            raise ValueError(
                f"{WHERE}: grid must give a pallet at most {MOST_CELLS:,} cells; got {cells_x:,} × {cells_y:,}"
            )
        rule = arguments.choice(WHERE, "rule", opened.get("rule", "load_bearing"), STABILITY_RULES)
        policies = (*HEURISTICS, *PackingPolicy.names())
        policy = arguments.choice(WHERE, "policy", opened.get("policy", "orders"), policies)
        noise_mm = arguments.number(WHERE, "noise", opened.get("noise", 5.0), 0, _MOST_SETTING_MM)
        self.noise = noise_mm / 1000
        self.packer = _packer(pallet, rule, policy, device)

    def begin(self) -> Progress:
        """Return the progress of an empty pallet."""
        empty = self.packer.empty(1)
        # A packer opens a pallet with its first box, while that of a session is open before.
        number = torch.zeros_like(empty.number)
        opened = torch.ones_like(empty.opened)
        return Progress((), None, empty._replace(number=number, opened=opened))

    def restore(self, events: Sequence[object], waits: object, cut: object = None) -> Progress:
        """Restore the progress of a file, and check what it holds.

        Args:
            events: Plain data of the events.
            waits: Plain data of the box that waits, or None.
            cut: Snapshot that stands for the first events, or None.

        Raises:
            ValueError: They are not those of such a session.
        """
        if len(events) > MOST_EVENTS:
            raise ValueError(f"{WHERE}: {len(events):,} events are more than {MOST_EVENTS:,}")
        progress = self._replay([read_event(event, self.packer) for event in events], cut)
        if waits is None:
            return progress
        waiting = read_event(waits, self.packer)
        if not isinstance(waiting, Confirmed):
            arguments.refuse(WHERE, "waits", "the event of a box", waits)
        return progress._replace(pending=waiting.offered)

    def _replay(self, events: Sequence[Event], cut: object) -> Progress:
        """Replay checked events.

        Those up to the last removed heightmap are in the snapshot `cut`.
        """
        removed = [i for i, event in enumerate(events) if _is_removed(event)]
        progress = self.begin()
        first = 0
        if removed:
            if cut is None:
                raise ValueError(
                    f"{WHERE}: a heightmap that the state follows from was removed by an earlier version of this"
                    " package; move the file away, open the session anew and measure the pallet"
                )
            first = removed[-1] + 1
            snapshot, loaded = pallets_of(cut, self.packer, progress.loaded, MOST_EVENTS)
            progress = Progress(tuple(events[:first]), None, loaded, snapshot)
        for event in events[first:]:
            progress = self._apply(progress, event)
        return progress

    def totals(self, progress: Progress) -> Plain:
        """Return the number of boxes, their weight, and the share of room that is filled."""
        pallets = progress.loaded
        filled = float(pallets.volume[0, 0]) / self.packer.pallet.volume
        weight = float(pallets.weight[0, 0])
        packed = sum(placed_in(event) is not None for event in progress.events)
        return {"packed": packed, "weight": round(weight, 3), "filled": round(filled, 4)}

    def status(self, progress: Progress) -> Plain:
        """Full status: totals, heightmap size, pending box, plan so far."""
        status = self.totals(progress)
        status["cells"] = list(self.packer.bin.cells)
        status["grid"] = round(1000 * self.packer.pallet.cell, 6)
        status["waits"] = None if progress.pending is None else progress.pending.answer
        status["plan"] = self.plan(progress)
        return status

    def offer(self, progress: Progress, boxes: object) -> tuple[Progress, Plain]:
        """Find the place of the best of some boxes.

        The answer has its number among them, its corner, the centre of its base, its sides along x, y and z, and its
        turn about z in degrees. The number is None where none finds room, for `reasons`.
        """
        if progress.pending is not None:
            raise ValueError(f"{WHERE}: confirm, report, measure or undo the pending box before offering another")
        self._check_room(progress)
        given = arguments.listed(WHERE, "boxes", f"a list of 1 to {MOST_OFFERED} boxes", boxes)
        if not 1 <= len(given) <= MOST_OFFERED:
            raise ValueError(f"{WHERE}: boxes must be 1 to {MOST_OFFERED} boxes, not {len(given)}")
        found = [Box.read(box, f"boxes[{i}]") for i, box in enumerate(given)]
        # Whether a box fits an empty pallet decides only which one a new pallet begins with, and a session takes no new
        # one. Every place on its own pallet is tested below; `_reasons` makes the other test where nothing fits.
        prepared = self.packer.prepare(boxes_of(found), test_fit=False)
        numbers = torch.arange(len(found), device=self.packer.device, dtype=torch.int64)
        choice = self.packer.choose(progress.loaded, prepared, numbers[None])
        number = int(choice.box)
        # A session has one pallet. What the packer would put on a new one finds no room.
        if number < 0 or bool(choice.fresh):
            return progress, self.totals(progress) | {"box": None, "reasons": self._reasons(found)}
        box = found[number]
        answer: Plain = {"box": number}
        if box.id is not None:
            answer["id"] = box.id
        answer |= self._place_data(choice, prepared)
        z = float(choice.z)
        turn = int(choice.turn)
        offered = Offered(box, answer, z, turn, x=int(choice.x), y=int(choice.y))
        return progress._replace(pending=offered), self.totals(progress) | answer

    def confirm(self, progress: Progress) -> tuple[Progress, Plain]:
        """Confirm that the pending box was placed as planned."""
        return self._add(progress, Confirmed(self._pending(progress, "confirm")))

    def report(self, progress: Progress, center: object, turn: object, sure: object = False) -> tuple[Progress, Plain]:
        """Note that the pending box lies elsewhere.

        `center` is that of its base, `turn` the degrees from its listed sides about z. What is unlikely is refused
        unless the client is `sure`, and what is impossible is always refused.
        """
        offered = self._pending(progress, "report")
        is_sure = arguments.flag(WHERE, "sure", sure)
        event = Reported.read(offered, center, turn, self.packer.pallet)
        reported = ReportedBox(self.packer, progress.loaded, event)
        reported.check_base()
        doubts = reported.doubts()
        if doubts and not is_sure:
            raise ValueError(
                f"{WHERE}: center or turn is doubtful: {'; '.join(doubts)}. If the box lies there, report it again with"
                " sure: true"
            )
        return self._add(progress, event)

    def measure(self, progress: Progress, heights: object, sure: object = False) -> tuple[Progress, Plain]:
        """Take the measured heights (X, Y) of the pallet, with the pending box, if any.

        A map that is far from the expected one is refused unless the client is `sure`.
        """
        flat = self._checked_heights(heights)
        self._check_room(progress)
        text = heights_text(flat)
        placed = None if progress.pending is None else Confirmed(progress.pending)
        # The pending box is on the map already, so that it is expected there.
        if not arguments.flag(WHERE, "sure", sure):
            seen, expected = self._seen(self._with_box(progress.loaded, placed), text)
            check_map(seen, expected, self.packer, self.noise)
        return self._add(self._cut(progress), Measured(placed, text))

    def _checked_heights(self, heights: object) -> list[float]:
        """Check measured heights, and return them row after row."""
        cells_x, cells_y = self.packer.bin.cells
        wanted = f"{cells_x} lists of {cells_y} numbers"
        rows = arguments.listed(WHERE, "heights", wanted, heights)
        flat: list[float] = []
        for row in rows:
            if isinstance(row, list):
                flat += row
        sizes = [len(row) if isinstance(row, list) else None for row in rows]
        if sizes != [cells_y] * cells_x:
            raise ValueError(f"{WHERE}: heights must be {wanted}; got {len(rows)} lists of {len(flat)} numbers in all")
        # The very types: true and false are integers otherwise.
        if not all(type(value) in (int, float) for value in flat):
            raise ValueError(f"{WHERE}: heights must be {wanted}; got other values")
        low = _BELOW_MM
        high = 1000 * self.packer.pallet.height + _ABOVE_MM
        # Not-a-number is outside of any limits.
        wrong = [value for value in flat if not low <= value <= high]
        if wrong:
            raise ValueError(f"{WHERE}: heights must be from {low:g} to {high:g} mm; got {arguments.shown(wrong[0])}")
        return flat

    def _cut(self, progress: Progress) -> Progress:
        """Replace the oldest heightmap by a snapshot where there are too many.

        At most `_MOST_MAPS - 1` stay, as a file of all of them would be far too large. The pallet as it was after the
        oldest one follows from nothing else: without the snapshot, the events after it would be replayed on another
        pallet.
        """
        maps: list[tuple[int, Measured]] = []
        for i, event in enumerate(progress.events):
            if isinstance(event, Measured) and event.heights is not None:
                maps.append((i, event))
        if len(maps) < _MOST_MAPS:
            return progress
        at, oldest = maps[-_MOST_MAPS]
        before = self._replay(progress.events[: at + 1], progress.cut)
        events = list(progress.events)
        events[at] = replace(oldest, heights=None)
        return progress._replace(events=tuple(events), cut=snapshot_of(before.loaded))

    def undo(self, progress: Progress) -> tuple[Progress, Plain]:
        """Undo the offer of the pending box, or else the last event."""
        if progress.pending is None:
            if not progress.events:
                raise ValueError(f"{WHERE}: there is nothing to undo: the pallet is empty")
            events = progress.events[:-1]
            # The snapshot is the state after the last removed heightmap. Where that event itself is undone, the events
            # before it tell the state only if none of their own heightmaps was removed.
            if _is_removed(progress.events[-1]) and any(_is_removed(event) for event in events):
                raise ValueError(f"{WHERE}: undo reaches back over {_MOST_MAPS} measured heightmaps, and no further")
            progress = self._replay(events, progress.cut)
        progress = progress._replace(pending=None)
        return progress, self.totals(progress)

    def plan(self, progress: Progress) -> list[Plain]:
        """List the boxes in their sequence: id, and place as far as it is known."""
        found = []
        for event in progress.events:
            match placed_in(event):
                case Confirmed(offered):
                    row = dict(offered.answer)
                    row.pop("box", None)
                    found.append(row)
                case Reported(offered, center, degrees):
                    row = {name: value for name, value in offered.answer.items() if name == "id"}
                    row |= {"center": center, "turn": degrees, "sides": offered.box.sides}
                    found.append(row)
        return found

    def _check_room(self, progress: Progress) -> None:
        if len(progress.events) >= MOST_EVENTS:
            raise ValueError(
                f"{WHERE}: the session has {MOST_EVENTS:,} boxes and heightmaps, and no more are kept: close it"
            )

    def _pending(self, progress: Progress, call: str) -> Offered:
        if progress.pending is None:
            raise ValueError(f"{WHERE}: {call} needs a pending box: offer one first")
        return progress.pending

    def _add(self, progress: Progress, event: Event) -> tuple[Progress, Plain]:
        self._check_room(progress)
        progress = self._apply(progress, event)
        return progress, self.totals(progress)

    def _apply(self, progress: Progress, event: Event) -> Progress:
        """Return the progress after an event.

        This is the only place where a pallet changes.
        """
        pallets = self._with_box(progress.loaded, placed_in(event))
        match event:
            case Measured(heights=str(text)):
                seen, _ = self._seen(pallets, text)
                pallets = self.packer.set_heightmap(pallets, 0, 0, seen)
        return Progress((*progress.events, event), None, pallets, progress.cut)

    def _with_box(self, pallets: Pallets, placed: Confirmed | Reported | None) -> Pallets:
        """Return the pallet with a box, if any, in its place."""
        if placed is None:
            return pallets
        prepared = self.packer.prepare(boxes_of([placed.offered.box]), test_fit=False)
        # Maps of loads cost time in every step, so that they are kept from the first box on that limits its load.
        if bool(prepared.max_load.isfinite()) and not pallets.tracks_loads:
            pallets = self.packer.limit_loads(pallets, MOST_EVENTS)
        match placed:
            case Confirmed(offered):
                return self.packer.place(pallets, prepared, offered.choice(self.packer.device))
            case Reported():
                reported = ReportedBox(self.packer, pallets, placed)
                return self.packer.lay(pallets, prepared, reported.rest())

    def _seen(self, pallets: Pallets, text: str) -> tuple[Tensor, Tensor]:
        """Return the heights (X, Y) from now on, and those expected, in metres.

        A measured height that is near the expected one counts as noise.
        """
        expected = pallets.heightmap[0, 0] - self.packer.pallet.deck
        seen = read_heights(text, self.packer.bin.cells).to(self.packer.device)
        # The noise would make places uneven that boxes could stand on.
        is_noise = (seen - expected).abs() <= self.noise + 1e-6
        return torch.where(is_noise, expected, seen), expected

    def _reasons(self, boxes: Sequence[Box]) -> list[str]:
        """Return why none of some boxes finds room.

        Raises:
            ValueError: None fits an empty pallet.
        """
        reasons = self.packer.prepare(boxes_of(boxes)).reasons
        if all(reasons):
            sides = " × ".join(f"{side:g}" for side in boxes[0].sides)
            raise ValueError(f"{WHERE}: the box of {sides} mm fits no empty pallet: it is {reasons[0]}")
        return [reason or "no room for it on this pallet" for reason in reasons]

    def _place_data(self, choice: Choice, prepared: PreparedBoxes) -> Plain:
        """Plain data of the place of a choice."""
        corner_m, sides_m = self.packer.corner(choice, prepared)
        corner = _millimetres(corner_m[0])
        sides = _millimetres(sides_m[0])
        x, y, z = corner
        length, width, _ = sides
        center = [round(x + length / 2, 3), round(y + width / 2, 3), z]
        return {"corner": corner, "center": center, "sides": sides, "turn": 90 * int(choice.turn)}


def _is_removed(event: Event) -> bool:
    """Whether an event had a heightmap that was removed."""
    return isinstance(event, Measured) and event.heights is None


def _pallet(opened: Mapping[str, object]) -> Pallet:
    """Make the pallet of the settings."""
    given = opened.get("pallet", "eur")
    # A name says the most height as well, and so do three sides.
    if isinstance(given, str):
        length, width, height = PRESETS[arguments.choice(WHERE, "pallet", given, PRESETS)]
    else:
        sides = read_sides(WHERE, "pallet", given)
        length = sides[0] / 1000
        width = sides[1] / 1000
        height = sides[2] / 1000

    def metres(name: str, default: float, low: float, high: float) -> float:
        if name not in opened:
            return default
        return arguments.number(WHERE, name, opened[name], low, high) / 1000

    most_height = metres("height", height, 1, MOST_MM)
    weight = math.inf
    if "weight" in opened:
        weight = arguments.number(WHERE, "weight", opened["weight"], above=0)
    return Pallet(
        length,
        width,
        most_height,
        weight=weight,
        gap=metres("gap", 0.0, 0, _MOST_SETTING_MM),
        overhang=metres("overhang", 0.0, 0, _MOST_SETTING_MM),
        cell=metres("grid", 0.01, 1, _MOST_SETTING_MM),
    )


# Sessions of equal settings share their packer, as it takes long to make and has no state.
@lru_cache(maxsize=16)
def _packer(pallet: Pallet, rule: str, policy: str, device: str | torch.device) -> Packer:
    return Packer(pallet, stability=rule, policy=policy, device=device)


def _millimetres(lengths: Tensor) -> list[float]:
    return [round(1000 * length, 3) for length in lengths.tolist()]
