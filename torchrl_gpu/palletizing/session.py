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
    NextPallet,
    Offered,
    Plain,
    Reported,
    Skipped,
    boxes_of,
    checked_object,
    heights_text,
    on_pallet,
    placed_in,
    read_event,
    read_heights,
    read_sides,
)
from torchrl_gpu.palletizing.measured import ReportedBox, check_map
from torchrl_gpu.palletizing.order_plan import OrderPlan, OrderState, make_plan, read_order, read_plan
from torchrl_gpu.palletizing.packer import HEURISTICS, Choice, Packer, Pallets
from torchrl_gpu.palletizing.pallet import PRESETS, Pallet
from torchrl_gpu.palletizing.planned_places import lay_planned, reserve, test_planned
from torchrl_gpu.palletizing.prepared_boxes import PreparedBoxes
from torchrl_gpu.palletizing.snapshot import pallets_of, snapshot_of
from torchrl_gpu.policies.packing.pretrained import PackingPolicy
from torchrl_gpu.system import arguments

MOST_OFFERED = 64
MOST_EVENTS = 1024
MOST_CELLS = 2**17
SETTINGS = ("pallet", "height", "weight", "gap", "overhang", "grid", "noise", "rule", "policy", "order", "in_order")
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


class _Simulated(NamedTuple):
    """What comes of an order whose boxes come in a given sequence.

    Attributes:
        followed: Boxes at planned places.
        pallets: That are needed.
        last_m3: Volume of the boxes on the last one.
    """

    followed: int
    pallets: int
    last_m3: float


class PackingSession:
    """Rules of one pallet.

    Every call takes a `Progress` and returns the next one, with an answer of plain data.

    Args:
        opened: `SETTINGS`, all of which may be left out: `pallet` is one of `PRESETS` or its sides [length, width,
            height]; `height` and `weight` (kilograms) are the most of the load; `gap` between boxes and `overhang` over
            each edge; `grid` is the side of a cell; `noise` is what a measured height may be off (5 by default) where
            another is expected, which then stays; `rule` one of `STABILITY_RULES`; `policy` one of `HEURISTICS` or a
            policy that comes with the package. `order` lists all boxes that will come, lines with a `quantity`: they
            are planned at once, see `OrderPlan`. `in_order` says that they come in the order of these lines.
        device: As in `get_device`.
        plan: Plain data of the plan of the order, as `plan_data` gave it; None to make it.

    Raises:
        ValueError: A setting is something else, or the pallet has too many cells. Calls raise it for an argument
            that is not valid, and for a call out of turn.
    """

    def __init__(self, opened: Mapping[str, object], device: str | torch.device = "auto", plan: object = None) -> None:
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
        self.order = self._read_order(opened, rule, device, plan)

    def _read_order(
        self, opened: Mapping[str, object], rule: str, device: str | torch.device, plan: object
    ) -> OrderPlan | None:
        """Plan the order of the settings, or read its plan."""
        in_order = arguments.flag(WHERE, "in_order", opened.get("in_order", False))
        if "order" not in opened:
            arguments.check_effect(WHERE, "an order", in_order=(in_order, False))
            return None
        lines = read_order(opened["order"])
        if plan is not None:
            return read_plan(plan, lines)
        made = make_plan(lines, self.packer.pallet, rule, device)
        return self._choose_for_sequence(made) if in_order else made

    def _choose_for_sequence(self, plan: OrderPlan) -> OrderPlan:
        """Give a plan up if boxes in the order of the lines need fewer pallets without it.

        Both are tried out, as nobody can tell before how much of a plan some sequence leaves.
        """
        self.order = plan
        with_plan = self._simulate()
        boxes = len(plan.sequence)
        if with_plan.followed == boxes:
            return plan.with_note(f"all {boxes} boxes follow the plan in this order")
        self.order = OrderPlan(plan.lines, [], plan.reasons)
        without = self._simulate()
        number = f"{with_plan.followed} of {boxes} boxes follow the plan in this order"
        # Of as many pallets the last one should hold little.
        is_as_good = (with_plan.pallets, with_plan.last_m3) <= (without.pallets, without.last_m3)
        if with_plan.followed and is_as_good:
            return plan.with_note(f"{number}, on {_pallets(with_plan)}; the others are placed as they come")
        return self.order.with_note(
            f"only {number}, on {_pallets(with_plan)}: it is given up, and each box is placed as it comes, on"
            f" {_pallets(without)}"
        )

    def _simulate(self) -> _Simulated:
        """Place the boxes of the order as they come in the order of the lines."""
        assert self.order is not None
        progress = self.begin()
        followed = 0
        for line in self.order.sequence:
            box = self.order.lines[line].box.to_json()
            offered, answer = self.offer(progress, [box])
            if answer["box"] is None:
                progress, _ = self.next(progress)
                offered, answer = self.offer(progress, [box])
            followed += answer.get("planned") is True
            progress, _ = self.confirm(offered)
        pallets = OrderState.after(self.order, progress.events).pallet + 1
        return _Simulated(followed, pallets, float(progress.loaded.volume[0, 0]))

    @property
    def plan_data(self) -> Plain | None:
        """Plain data of the plan of the order, None without an order."""
        return None if self.order is None else self.order.to_json()

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
        progress = self._replay([self._read_event(event) for event in events], cut)
        if waits is None:
            return progress
        waiting = self._read_event(waits)
        if not isinstance(waiting, Confirmed):
            arguments.refuse(WHERE, "waits", "the event of a box", waits)
        return progress._replace(pending=waiting.offered)

    def _read_event(self, given: object) -> Event:
        """Check an event of a file, and that the order has what it names."""
        event = read_event(given, self.packer)
        lines = [] if self.order is None else self.order.lines
        places = [] if self.order is None else self.order.places
        line: int | None = None
        place: int | None = None
        match event:
            case Skipped(line):
                pass
            case _:
                placed = placed_in(event)
                if placed is not None:
                    line = placed.offered.line
                    place = placed.offered.place
        if line is not None:
            arguments.whole(f"{WHERE}: event", "line", line, 0, len(lines) - 1)
        if place is not None:
            arguments.whole(f"{WHERE}: event", "place", place, 0, len(places) - 1)
        return event

    def _replay(self, events: Sequence[Event], cut: object) -> Progress:
        """Replay checked events.

        Those up to the last removed heightmap are in the snapshot `cut`, and those up to the last empty pallet are in
        no state.
        """
        loaded = self.begin().loaded
        snapshot: Plain | None = None
        first = 0
        removed = [i for i, event in enumerate(events) if _is_removed(event)]
        if removed:
            if cut is None:
                raise ValueError(
                    f"{WHERE}: a heightmap that the state follows from was removed by an earlier version of this"
                    " package; move the file away, open the session anew and measure the pallet"
                )
            first = removed[-1] + 1
            snapshot, loaded = pallets_of(cut, self.packer, loaded, MOST_EVENTS)
        before = len(events) - len(on_pallet(events))
        if before > first:
            first = before
            loaded = self.begin().loaded
        progress = Progress(tuple(events[:first]), None, loaded, snapshot)
        for event in events[first:]:
            progress = self._apply(progress, event)
        return progress

    def totals(self, progress: Progress) -> Plain:
        """Return the number of boxes, their weight, and the share of room that is filled."""
        pallets = progress.loaded
        filled = float(pallets.volume[0, 0]) / self.packer.pallet.volume
        weight = float(pallets.weight[0, 0])
        packed = sum(placed_in(event) is not None for event in on_pallet(progress.events))
        totals: Plain = {"packed": packed, "weight": round(weight, 3), "filled": round(filled, 4)}
        if self.order is not None:
            state = OrderState.after(self.order, progress.events)
            totals |= {"pallet": state.pallet + 1, "left": sum(state.left)}
        return totals

    def status(self, progress: Progress) -> Plain:
        """Full status: totals, heightmap size, pending box, plan so far."""
        status = self.totals(progress)
        status["cells"] = list(self.packer.bin.cells)
        status["grid"] = round(1000 * self.packer.pallet.cell, 6)
        status["waits"] = None if progress.pending is None else progress.pending.answer
        status["plan"] = self.plan(progress)
        if self.order is not None:
            status |= self._order_status(self.order, progress)
        return status

    def _order_status(self, plan: OrderPlan, progress: Progress) -> Plain:
        """Plain data of an order: what comes next, and what fits no pallet."""
        state = OrderState.after(plan, progress.events)
        to_come = []
        for i in state.to_come():
            place = plan.places[i]
            row: Plain = {"line": place.line, "pallet": place.pallet + 1}
            if plan.lines[place.line].box.id is not None:
                row["id"] = plan.lines[place.line].box.id
            center = [*place.center, place.corner[2]]
            to_come.append(row | {"center": center, "sides": place.sides, "turn": 90 * place.turn})
        left_out = [{"line": i, "reason": reason} for i, reason in enumerate(plan.reasons) if reason]
        return {"pallets": plan.pallets, "note": plan.note, "to_come": to_come, "left_out": left_out}

    def close(self, progress: Progress) -> Plain:
        """Return totals, the boxes in their sequence, and what is left of an order."""
        answer = self.totals(progress)
        answer["plan"] = self.plan(progress)
        if self.order is not None:
            answer["rest"] = OrderState.after(self.order, progress.events).rest()
        return answer

    def offer(self, progress: Progress, boxes: object = None) -> tuple[Progress, Plain]:
        """Find the place of the best of some boxes.

        The answer has its number among them, its corner, the centre of its base, its sides along x, y and z, and its
        turn about z in degrees. The number is None where none finds room, for `reasons`.

        In a session with an order boxes go to planned places where they can. Without `boxes` the session says itself
        which box of the order comes next, by its line.
        """
        if progress.pending is not None:
            raise ValueError(f"{WHERE}: confirm, report, measure or undo the pending box before offering another")
        self._check_room(progress)
        if self.order is None:
            found = self._read_boxes(boxes)
            chosen = self._choose(progress, found)
            if chosen is None:
                return progress, self.totals(progress) | {"box": None, "reasons": self._reasons(found)}
            _, offered = chosen
            return progress._replace(pending=offered), self.totals(progress) | offered.answer
        state = OrderState.after(self.order, progress.events)
        if boxes is None:
            return self._offer_next(progress, state)
        return self._offer_arriving(progress, state, self._read_boxes(boxes))

    def _read_boxes(self, boxes: object) -> list[Box]:
        given = arguments.listed(WHERE, "boxes", f"a list of 1 to {MOST_OFFERED} boxes", boxes)
        if not 1 <= len(given) <= MOST_OFFERED:
            raise ValueError(f"{WHERE}: boxes must be 1 to {MOST_OFFERED} boxes, not {len(given)}")
        return [Box.read(box, f"boxes[{i}]") for i, box in enumerate(given)]

    def _offer_next(self, progress: Progress, state: OrderState) -> tuple[Progress, Plain]:
        """Offer the next box of the plan, or one that the plan has no place left for."""
        for place in state.available():
            line = state.line_for(place)
            box = state.plan.lines[line].box
            offered = self._offer_place(progress, state, box, number=line, line=line, place=place)
            if offered is not None:
                return offered
        lines = state.without_place()[:MOST_OFFERED]
        if not lines:
            reason = "the order is done" if not any(state.left) else "this pallet is done: ask for the next one"
            return progress, self.totals(progress) | {"box": None, "reasons": [reason]}
        boxes = [state.plan.lines[line].box for line in lines]
        beside = self._offer_beside(progress, state, boxes, numbers=lines, lines=lines)
        if beside is not None:
            return beside
        reason = "no room on this pallet for the boxes that the plan cannot place: ask for the next one"
        return progress, self.totals(progress) | {"box": None, "reasons": [reason]}

    def _offer_arriving(self, progress: Progress, state: OrderState, boxes: list[Box]) -> tuple[Progress, Plain]:
        """Offer a planned place to one of some boxes, or else one beside the plan."""
        lines = [state.line_of(box) for box in boxes]
        for place in state.available():
            for number, line in enumerate(lines):
                if line is None or state.plan.kinds[line] != state.kind_of_place(place):
                    continue
                offered = self._offer_place(progress, state, boxes[number], number=number, line=line, place=place)
                if offered is not None:
                    return offered
        beside = self._offer_beside(progress, state, boxes, numbers=range(len(boxes)), lines=lines)
        if beside is not None:
            return beside
        return progress, self.totals(progress) | {"box": None, "reasons": self._reasons(boxes)}

    def _offer_place(
        self, progress: Progress, state: OrderState, box: Box, *, number: int, line: int, place: int
    ) -> tuple[Progress, Plain] | None:
        """Offer a planned place, None where the box may not stand there."""
        planned = state.plan.places[place]
        base = test_planned(self.packer, progress.loaded, on_pallet(progress.events), box, planned)
        if base is None:
            return None
        length, width, height = box.sides
        x, y = planned.center
        sides = [width, length, height] if planned.turn else [length, width, height]
        # A base a rounding error below the pallet's top is no −0.0 for a client.
        z = round(1000 * base, 3) + 0.0
        answer: Plain = {"box": number}
        if box.id is not None:
            answer["id"] = box.id
        answer["corner"] = [round(x - sides[0] / 2, 3), round(y - sides[1] / 2, 3), z]
        answer |= {"center": [x, y, z], "sides": sides, "turn": 90 * planned.turn, "planned": True}
        offered = Offered(box, answer, base, planned.turn, x=0, y=0, line=line, place=place)
        return progress._replace(pending=offered), self.totals(progress) | answer

    def _offer_beside(
        self,
        progress: Progress,
        state: OrderState,
        boxes: list[Box],
        *,
        numbers: Sequence[int],
        lines: Sequence[int | None],
    ) -> tuple[Progress, Plain] | None:
        """Offer a place as boxes come, where the plan cannot be followed, and say why.

        Room that the plan still needs is taken only where there is no other. None where there is no room at all.

        Args:
            progress: Of the session.
            state: Of the order.
            boxes: Of which one is offered a place.
            numbers: That the answer calls them.
            lines: Of the order that they belong to.
        """
        chosen = None
        waiting = [state.plan.places[i] for i in state.waiting()]
        if waiting:
            spared = progress._replace(loaded=reserve(self.packer, progress.loaded, waiting))
            chosen = self._choose(spared, boxes)
        if chosen is None:
            chosen = self._choose(progress, boxes)
        if chosen is None:
            return None
        number, found = chosen
        line = lines[number]
        note = self._why_beside(state, found.box, line)
        # A box of other measures is still the one that was ordered.
        if line is None:
            line = state.line_by_id(found.box)
        answer = found.answer | {"box": numbers[number], "planned": False, "note": note}
        offered = replace(found, answer=answer, line=line)
        return progress._replace(pending=offered), self.totals(progress) | answer

    def _why_beside(self, state: OrderState, box: Box, line: int | None) -> str:
        """Why a box of some line of the order does not follow the plan."""
        sides = " × ".join(f"{side:g}" for side in box.sides)
        if line is None:
            ordered = state.line_by_id(box)
            if ordered is None:
                return f"no box of {sides} mm is left of the order: it is placed as it comes"
            wanted = " × ".join(f"{side:g}" for side in state.plan.lines[ordered].box.sides)
            return f"the box has {sides} mm, and {wanted} mm in the order: it is placed as it comes"
        if not state.plan.places:
            return "the order is not planned: the box is placed as it comes"
        kind = state.plan.kinds[line]
        if any(state.kind_of_place(i) == kind for i in state.available()):
            return "its planned place is not free or does not hold it: it is placed as it comes"
        if any(state.kind_of_place(i) == kind for i in state.waiting()):
            return "other boxes must come below its planned place first: it is placed as it comes"
        return "this pallet has no planned place left for it: it is placed as it comes"

    def skip(self, progress: Progress) -> tuple[Progress, Plain]:
        """Note that the pending box of the order is lost, broken or refused."""
        pending = self._pending(progress, "skip")
        if pending.line is None:
            raise ValueError(f"{WHERE}: skip is for boxes of an order, and this one is in none: undo it")
        return self._add(progress, Skipped(pending.line))

    def next(self, progress: Progress) -> tuple[Progress, Plain]:
        """Take the pallet away, and continue the order on an empty one."""
        if self.order is None:
            raise ValueError(f"{WHERE}: next is for sessions with an order: close this one, and open another")
        if progress.pending is not None:
            raise ValueError(f"{WHERE}: confirm, report, measure or undo the pending box before the next pallet")
        if not any(placed_in(event) for event in on_pallet(progress.events)):
            raise ValueError(f"{WHERE}: next needs boxes on this pallet, and it is empty")
        return self._add(progress, NextPallet())

    def _choose(self, progress: Progress, boxes: list[Box]) -> tuple[int, Offered] | None:
        """Choose one of some boxes, by its number, and its place, None for no room."""
        # Whether a box fits an empty pallet decides only which one a new pallet begins with, and a session takes no new
        # one. Every place on its own pallet is tested below; `_reasons` makes the other test where nothing fits.
        prepared = self.packer.prepare(boxes_of(boxes), test_fit=False)
        numbers = torch.arange(len(boxes), device=self.packer.device, dtype=torch.int64)
        choice = self.packer.choose(progress.loaded, prepared, numbers[None])
        number = int(choice.box)
        # A session has one pallet. What the packer would put on a new one finds no room.
        if number < 0 or bool(choice.fresh):
            return None
        box = boxes[number]
        answer: Plain = {"box": number}
        if box.id is not None:
            answer["id"] = box.id
        answer |= self._place_data(choice, prepared)
        z = float(choice.z)
        turn = int(choice.turn)
        return number, Offered(box, answer, z, turn, x=int(choice.x), y=int(choice.y))

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
        pallet = 1
        for event in progress.events:
            row: Plain = {}
            match placed_in(event):
                case Confirmed(offered):
                    row = dict(offered.answer)
                    row.pop("box", None)
                case Reported(offered, center, degrees):
                    row = {name: value for name, value in offered.answer.items() if name in ("id", "planned", "note")}
                    row |= {"center": center, "turn": degrees, "sides": offered.box.sides}
                case None:
                    pallet += isinstance(event, NextPallet)
                    continue
            # A session without an order has one pallet.
            found.append(row if self.order is None else row | {"pallet": pallet})
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
            case NextPallet():
                pallets = self.begin().loaded
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
            case Confirmed(offered) if offered.place is not None:
                assert self.order is not None
                return lay_planned(self.packer, pallets, prepared, offered, self.order.places[offered.place])
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


def _pallets(simulated: _Simulated) -> str:
    return "1 pallet" if simulated.pallets == 1 else f"{simulated.pallets} pallets"


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
