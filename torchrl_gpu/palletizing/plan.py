"""`PalletPlans`: where every box of some orders goes, in the user's units.

Its counts stand next to the fewest pallets that volume and weight allow.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NotRequired, Self, TypedDict, cast

import numpy as np
from rich.markup import escape
from rich.table import Table

from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.plan import PackingPlan, Pose
from torchrl_gpu.lists.box_list import BoxList, Label
from torchrl_gpu.lists.columns import SIDES
from torchrl_gpu.lists.units import LENGTHS
from torchrl_gpu.palletizing.index_page import write_index
from torchrl_gpu.palletizing.page import PalletVerdict, PlanSummary, Row, write_pages
from torchrl_gpu.palletizing.pallet import Pallet
from torchrl_gpu.palletizing.plan_csv import write_plan_csv, write_plan_xlsx
from torchrl_gpu.system.extras import how_to_install

_LOG = logging.getLogger(__name__)

# A box carries another, and so is a layer below it, where top and base are this close.
TOUCH_M = 2e-3
# Orders of the table on the terminal.
_MOST_SHOWN = 20
# Heights are sums of float32, and so off by about this much.
_NOISE_M = 3e-7
# Rounding errors of volumes and weights must not ask for one more pallet.
_ROUNDING = 1e-6
_MOST_DIGITS = 11
# A box that has left the pallet is at least so far away, and no unit needs more digits.
_FAR_M = 10.0
# A box that is so far from its place has moved, metres.
_GONE_M = 0.02
_MOVED_DIGITS = 3


class _Extra(NamedTuple):
    """The package that a file needs, and the extra that brings it."""

    package: str
    extra: str


_EXTRAS = {"plan.xlsx": _Extra("openpyxl", "lists"), "plan.pdf": _Extra("matplotlib", "plots")}


class Placements(NamedTuple):
    """Placements of P boxes, those of each order in the order in which they are made.

    Attributes:
        order: Number of the order, (P,) int64.
        step: Number of the placement within its order, from 0, (P,) int64.
        box: Number of the box in the whole list, (P,) int64.
        pallet: Number of the pallet in its order, from 0, (P,) int64.
        along: Which of the listed sides lies along x, y and z, (P, 3) int64.
        corner: Lower corner, metres from the pallet's corner, (P, 3) float64.
        sides: Metres along x, y and z, (P, 3) float64.
    """

    order: np.ndarray
    step: np.ndarray
    box: np.ndarray
    pallet: np.ndarray
    along: np.ndarray
    corner: np.ndarray
    sides: np.ndarray

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Placements:
        """Join some placements, sorted by order and step."""
        if not parts:
            return cls._make_empty()
        # Parts may come in any sequence, such as by the length of their orders.
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        joined = cls(*columns)
        return joined.rows(np.lexsort((joined.step, joined.order)))

    @classmethod
    def _make_empty(cls) -> Placements:
        no_numbers = np.zeros(0, dtype=np.int64)
        no_lengths = np.zeros((0, 3))
        return cls(
            order=no_numbers,
            step=no_numbers,
            box=no_numbers,
            pallet=no_numbers,
            along=np.zeros((0, 3), dtype=np.int64),
            corner=no_lengths,
            sides=no_lengths,
        )

    def rows(self, chosen: np.ndarray) -> Placements:
        """Some of the placements, by number or by mask."""
        return Placements(*(column[chosen] for column in self))


class Verdict(NamedTuple):
    """Verdict of a simulation on a pallet.

    Attributes:
        share: Share of the boxes that stay within 2 cm and π/6 of the plan.
        fallen: Sequence numbers of the others, from 1.
        seconds: Physical time that was simulated.
    """

    share: float
    fallen: list[int]
    seconds: float


class RoadVerdict(NamedTuple):
    """What became of a pallet on the road, see `physics.transport`.

    Attributes:
        moved: Metres that each box was from its place afterwards, (P,) float64.
        holds: Whether all boxes are within what EUMOS 40509 allows.
        first: Sequence number, from 1, of the box that went first, 0 where all hold.
        on: Sequence numbers of the boxes that it stood on, none on the pallet itself.
        direction: In which the load was pushed then.
        wrapped_g: Acceleration at which the load tips if it is wrapped to one block, in g.
    """

    moved: np.ndarray
    holds: bool
    first: int
    on: list[int]
    direction: str
    wrapped_g: float


class LoadedPallet(NamedTuple):
    """One pallet of an order.

    Attributes:
        order: Name of the order.
        number: From 1, within the order.
        placed: Its boxes.
        layer: Layer of each box, from 1, see `layers`, (P,) int64.
        verdict: None without a simulation.
    """

    order: str
    number: int
    placed: Placements
    layer: np.ndarray
    verdict: Verdict | None

    @property
    def name(self) -> str:
        return f"order {self.order}, pallet {self.number}"


# Plain counts of an order. "stand" and "fallen" are there after a simulation.
OrderRow = TypedDict(
    "OrderRow",
    {
        "order": str,
        "boxes": int,
        "pallets": int,
        "m3": float,
        "kg": float,
        "stand": NotRequired[int],
        "fallen": NotRequired[int],
        "at least": int,
        "fill": float,
    },
)


@dataclass
class _OrderCounts:
    """Counts of an order, or of all orders.

    Attributes:
        boxes, pallets: That are placed, and that they take.
        volume_m3, weight_kg: Of the boxes.
        standing: Pallets of which no box falls in the simulation.
        fallen: Boxes that fall there.
        fewest: Pallets that could do at best, by volume and by weight.
    """

    boxes: int = 0
    pallets: int = 0
    volume_m3: float = 0.0
    weight_kg: float = 0.0
    standing: int = 0
    fallen: int = 0
    fewest: int = 0

    def add(self, other: _OrderCounts) -> None:
        self.boxes += other.boxes
        self.pallets += other.pallets
        self.volume_m3 += other.volume_m3
        self.weight_kg += other.weight_kg
        self.standing += other.standing
        self.fallen += other.fallen
        self.fewest += other.fewest

    def fill(self, pallet_m3: float) -> float:
        """Share of the pallets' room that is filled."""
        return self.volume_m3 / (self.pallets * pallet_m3)


class PalletPlans(NamedTuple):
    """Plans of some orders.

    Attributes:
        found: The list of boxes.
        pallet: That they go on.
        placed: Where they go.
        reasons: Why each box of the list is left out, "" where it is placed.
        told: Lines that are shown before the table, or "".
        verdicts: Of each pallet, in the order of `pallets`. None without a simulation.
        road: Of each pallet on the road. None without a simulation of that.
    """

    found: BoxList
    pallet: Pallet
    placed: Placements
    reasons: list[str]
    told: str
    verdicts: list[Verdict] | None = None
    road: list[RoadVerdict] | None = None

    def pallets(self) -> list[LoadedPallet]:
        """All pallets, by order and number."""
        placed = self.placed
        # With several open pallets those of an order are loaded in turn, so that each has its boxes put together.
        rank = np.lexsort((placed.step, placed.pallet, placed.order))
        if not len(rank):
            return []
        is_other_order = np.diff(placed.order[rank])
        is_other_pallet = np.diff(placed.pallet[rank])
        starts = np.flatnonzero(is_other_order | is_other_pallet) + 1
        loaded = []
        for i, chosen in enumerate(np.split(rank, starts)):
            rows = placed.rows(chosen)
            order = self.found.orders[rows.order[0]]
            number = int(rows.pallet[0]) + 1
            verdict = None if self.verdicts is None else self.verdicts[i]
            loaded.append(LoadedPallet(order, number, rows, layers(rows), verdict))
        return loaded

    def misfits(self) -> list[tuple[int, str, str]]:
        """Line, order and reason of every row of the list whose boxes fit no empty pallet."""
        lines = {}
        for box, reason in enumerate(self.reasons):
            if reason:
                # A line of the list may stand for many boxes.
                order, label = self.order_and_label(box)
                lines[label["line"]] = (label["line"], order, reason)
        return sorted(lines.values())

    def order_and_label(self, box: int) -> tuple[str, Label]:
        """Order of a box of the list, and its label."""
        # Boxes are numbered through the whole list, order after order.
        ends = np.cumsum([len(sizes) for sizes in self.found.sizes])
        order = int(np.searchsorted(ends, box, side="right"))
        labels = self.found.labels[order]
        first = int(ends[order]) - len(labels)
        return self.found.orders[order], labels[box - first]

    @property
    def unit_m(self) -> float:
        """Metres of the unit of the file."""
        return LENGTHS[self.found.own_unit] / 1000

    # -- tables ------------------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[Row]:
        """A row of plain values for every box.

        Those that are placed come first, then those that are left out, with the reason, then the rows of the list that
        give no box.
        """
        for number, pallet in enumerate(self.pallets()):
            for i in range(len(pallet.placed.box)):
                row = self._placed_row(pallet, i)
                if self.road is not None:
                    moved = min(float(self.road[number].moved[i]), _FAR_M)
                    row[f"moved_{self.found.own_unit}"] = round(moved / self.unit_m, _MOVED_DIGITS)
                yield row
        sizes_m = np.concatenate(self.found.sizes) * LENGTHS[self.found.unit] / 1000
        for box, reason in enumerate(self.reasons):
            if reason:
                yield self._left_out_row(box, sizes_m[box], reason)
        for line, order, reason in self.found.faults:
            yield {"order": order, "line": line, "left out": reason}

    def _placed_row(self, pallet: LoadedPallet, i: int) -> Row:
        placed = pallet.placed
        _, label = self.order_and_label(int(placed.box[i]))
        row: Row = {"order": pallet.order, "pallet": pallet.number, "sequence": i + 1}
        row["layer"] = int(pallet.layer[i])
        row["article"] = label.get("article", "")
        row["line"] = label["line"]
        row |= self._lengths(("x", "y", "z"), placed.corner[i])
        row |= self._lengths(SIDES, placed.sides[i])
        along_x, along_y, along_z = placed.along[i].tolist()
        row["turned"] = "yes" if along_x > along_y else "no"
        row["up"] = SIDES[along_z]
        row["front"] = _front(placed.sides[i])
        row["weight_kg"] = label.get("weight/kg", "")
        row["left out"] = ""
        return row

    def _left_out_row(self, box: int, size_m: np.ndarray, reason: str) -> Row:
        order, label = self.order_and_label(box)
        row: Row = {"order": order, "article": label.get("article", ""), "line": label["line"]}
        row |= self._lengths(SIDES, size_m)
        row["weight_kg"] = label.get("weight/kg", "")
        row["left out"] = reason
        return row

    def _lengths(self, names: Sequence[str], lengths_m: np.ndarray) -> Row:
        """Lengths by name and unit, as they are written."""
        unit = self.found.own_unit
        row: Row = {}
        for name, length in zip(names, lengths_m.tolist(), strict=True):
            row[f"{name}_{unit}"] = _short(length, self.unit_m)
        return row

    def orders(self) -> list[OrderRow]:
        """Plain counts of every order.

        They are boxes, pallets, the fewest pallets that could do by volume and by weight, and fill. After a simulation
        also pallets that stand, and boxes that fall.
        """
        rows = []
        for order, counts in self._counts().items():
            row = {"order": order, "boxes": counts.boxes, "pallets": counts.pallets}
            row |= {"m3": counts.volume_m3, "kg": counts.weight_kg}
            if self.verdicts is not None:
                row |= {"stand": counts.standing, "fallen": counts.fallen}
            row |= {"at least": counts.fewest, "fill": counts.fill(self.pallet.volume)}
            # The keys stand in the order of the file, in which those of a simulation come in the middle.
            rows.append(cast("OrderRow", row))
        return rows

    def _counts(self) -> dict[str, _OrderCounts]:
        """Counts of every order by its name."""
        # Boxes of unknown weight add none.
        weights = np.nan_to_num(np.concatenate(self.found.weights))
        counted: dict[str, _OrderCounts] = {}
        for pallet in self.pallets():
            counts = counted.setdefault(pallet.order, _OrderCounts())
            counts.boxes += len(pallet.placed.box)
            counts.pallets += 1
            counts.volume_m3 += float(pallet.placed.sides.prod(1).sum())
            counts.weight_kg += float(weights[pallet.placed.box].sum())
            if pallet.verdict is not None:
                counts.standing += not pallet.verdict.fallen
                counts.fallen += len(pallet.verdict.fallen)
        for counts in counted.values():
            counts.fewest = self._fewest(counts)
        return counted

    def _fewest(self, counts: _OrderCounts) -> int:
        """Pallets that boxes need at best, by their volume and by their weight."""
        pallet = self.pallet
        # What may stick out over the edges is room as well.
        height = pallet.volume / (pallet.length * pallet.width)
        overhang = 2 * pallet.overhang
        room = height * ((pallet.length + overhang) * (pallet.width + overhang))
        by_volume = math.ceil(counts.volume_m3 / room - _ROUNDING)
        by_weight = 0
        if math.isfinite(pallet.weight):
            by_weight = math.ceil(counts.weight_kg / pallet.weight - _ROUNDING)
        return max(1, by_volume, by_weight)

    def table(self) -> Table:
        """Make the table of all orders, for the terminal."""
        counted = self._counts()
        pallet = self.pallet
        sides = (pallet.length, pallet.width, pallet.height)
        size = " × ".join(str(_short(side, self.unit_m)) for side in sides)
        shown = Table(title=f"pallets of {size} {self.found.own_unit}", title_justify="left")
        shown.add_column("order")
        columns = ["boxes", "pallets", "at least", "fill", "kg"]
        if pallet.own_weight:
            columns.append("with pallets")
        if self.verdicts is not None:
            columns += ["pallets that stand", "fallen"]
        for column in columns:
            shown.add_column(column, justify="right", no_wrap=True)
        for order, counts in list(counted.items())[:_MOST_SHOWN]:
            shown.add_row(escape(order), *self._cells(counts))
        if len(counted) > _MOST_SHOWN:
            shown.add_row(f"and {len(counted) - _MOST_SHOWN:,} orders more")
        if len(counted) > 1:
            total = _OrderCounts()
            for counts in counted.values():
                total.add(counts)
            shown.add_row(f"all {len(counted):,}", *self._cells(total), style="bold")
        return shown

    def _cells(self, counts: _OrderCounts) -> list[str]:
        """Cells of the table for an order, or for all of them."""
        cells = [f"{counts.boxes:,}", f"{counts.pallets:,}", f"{counts.fewest:,}"]
        cells.append(f"{counts.fill(self.pallet.volume):.1%}")
        cells.append(f"{counts.weight_kg:,.1f}" if counts.weight_kg else "–")
        if self.pallet.own_weight:
            gross_kg = counts.weight_kg + counts.pallets * self.pallet.own_weight
            cells.append(f"{gross_kg:,.1f}" if counts.weight_kg else "–")
        if self.verdicts is not None:
            cells.append(f"{counts.standing:,} of {counts.pallets:,}")
            cells.append(f"{counts.fallen:,}")
        return cells

    def summary(self) -> PlanSummary:
        """The whole plan as plain data, as `plan.json` holds it."""
        boxes: list[Row] = []
        left_out: list[Row] = []
        for row in self.rows():
            # Plain data names nothing that is not there, while a table needs its columns.
            if row["left out"]:
                left_out.append(_without_empty(row))
            else:
                del row["left out"]
                boxes.append(_without_empty(row))
        summary: PlanSummary = {
            "unit": self.found.own_unit,
            "pallet": self._pallet_row(),
            "orders": [dict(row) for row in self.orders()],
            "boxes": boxes,
            "left_out": left_out,
        }
        if self.verdicts is not None:
            summary["simulation"] = self._verdict_rows()
        return summary

    def _pallet_row(self) -> Row:
        row: Row = {}
        for name in ("length", "width", "height", "gap", "overhang", "cell"):
            row[name] = _short(getattr(self.pallet, name), self.unit_m)
        if self.pallet.own_weight:
            row["own_weight_kg"] = self.pallet.own_weight
            row["own_height"] = _short(self.pallet.own_height, self.unit_m)
        row["weight_kg"] = None if math.isinf(self.pallet.weight) else self.pallet.weight
        return row

    def _verdict_rows(self) -> list[PalletVerdict]:
        rows: list[PalletVerdict] = []
        for pallet in self.pallets():
            verdict = pallet.verdict
            if verdict is not None:
                row = PalletVerdict(
                    order=pallet.order, pallet=pallet.number, stands=verdict.share, fallen=verdict.fallen
                )
                rows.append(row)
        return rows

    def write(self, folder: str | Path, say: Callable[[str], None] = _LOG.warning) -> Path:
        """Write the plan into a folder, and return the folder.

        It gets `plan.csv`, `plan.json`, a page for every pallet and `index.html`; `plan.xlsx` where openpyxl is
        installed, and `plan.pdf` where matplotlib is.

        Args:
            folder: Made where it is not there.
            say: Called with a line about each file that is not written, or not as it should be.
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        summary = self.summary()
        write_plan_csv(target / "plan.csv", self.rows(), self.found)
        text = json.dumps(summary, indent=1, ensure_ascii=False) + "\n"
        (target / "plan.json").write_text(text, encoding="utf-8")
        # Of an earlier plan: where they cannot be written now, they must not stand beside this one.
        for name in _EXTRAS:
            (target / name).unlink(missing_ok=True)
        pages = write_pages(target, summary)
        lacking = []
        if not write_plan_xlsx(target / "plan.xlsx", self.rows(), self.found):
            lacking.append("plan.xlsx")
        faults = _print_plan(target / "plan.pdf", summary)
        if faults is None:
            lacking.append("plan.pdf")
        for fault in faults or ():
            say(fault)
        if lacking:
            say(_lacking_words(lacking))
        # It links what has been written.
        write_index(target, summary, pages)
        return target


def _print_plan(path: Path, summary: PlanSummary) -> list[str] | None:
    """Write `plan.pdf`, and return a line for each fault, or None without matplotlib."""
    try:
        importlib.import_module("matplotlib")
    except ModuleNotFoundError:
        return None
    from torchrl_gpu.palletizing.plan_pdf import write_plan_pdf

    try:
        return write_plan_pdf(path, summary)
    except (OSError, RuntimeError) as error:
        # An installed font may turn out to be broken as it is drawn, and the plan must not be lost with it.
        path.unlink(missing_ok=True)
        return [f"plan.pdf is not written: {error}"]


def _lacking_words(lacking: Sequence[str]) -> str:
    """Which files are not written, and how to install what they need."""
    needed = " and ".join(f"{name} (needs {_EXTRAS[name].package})" for name in lacking)
    extras = ",".join(_EXTRAS[name].extra for name in lacking)
    return f"not written: {needed}; to install what is missing: {how_to_install(extras)}"


def _front(sides: np.ndarray) -> str:
    """Which of the two horizontal sides of a box shows at the front of the pallet.

    The front is the pallet's edge along x, with y = 0.
    """
    along_x, along_y, _ = sides.tolist()
    if abs(along_x - along_y) <= _NOISE_M:
        return "equal sides"
    return "long side" if along_x > along_y else "short side"


def _without_empty(row: Row) -> Row:
    return {name: value for name, value in row.items() if value != ""}


def _short(metres: float, unit_m: float) -> float | int:
    """Shortest number for a length in a unit, without the noise of float32 heights."""
    value = metres / unit_m
    short = value
    # The first number of digits that comes close enough is the shortest.
    for digits in range(_MOST_DIGITS + 1):
        short = round(value, digits)
        if abs(short - value) * unit_m <= _NOISE_M:
            break
    return int(short) if short.is_integer() else short


def _carriers(placed: Placements) -> np.ndarray:
    """Whether box j of one pallet carries box i, at [i, j], (P, P) bool."""
    low = placed.corner
    high = placed.corner + placed.sides
    starts_before = low[:, None, :2] < high[None, :, :2] - 1e-6
    ends_behind = low[None, :, :2] < high[:, None, :2] - 1e-6
    overlaps = (starts_before & ends_behind).all(2)
    base = low[:, None, 2]
    top = high[None, :, 2]
    touches = abs(base - top) <= TOUCH_M
    return np.asarray(overlaps & touches)


def layers(placed: Placements) -> np.ndarray:
    """Layer of each box of one pallet, from 1, (P,) int64.

    It is one more than the highest layer among the boxes that carry the box.
    """
    carries = _carriers(placed)
    layer = np.ones(len(placed.box), dtype=np.int64)
    # Boxes are in the order of placing, so that those that carry a box have their layers before it.
    for i in range(len(layer)):
        layer[i] = 1 + layer[carries[i]].max(initial=0)
    return layer


def simulate(plans: PalletPlans, friction: float, report: Callable[[str], None]) -> PalletPlans:
    """Return the plans with the verdict of MuJoCo on every pallet.

    There are no walls, and all boxes are released at once. Weights are those of the list; boxes that have none there
    are as dense as the others are on average.

    Args:
        plans: Of all orders.
        friction: Coulomb's coefficient.
        report: Called with a line about the progress.
    """
    from torchrl_gpu.envs.packing.physics import settle_cases

    loaded = plans.pallets()
    report(f"simulating {len(loaded):,} pallets")
    packings = [_packing_of(plans, pallet) for pallet in loaded]
    cases = settle_cases(packings, progress=True, sequential=False, friction=friction)
    verdicts = []
    for case in cases:
        fallen = np.flatnonzero(~case.stable) + 1
        verdicts.append(Verdict(case.share, fallen.tolist(), case.seconds))
    return plans._replace(verdicts=verdicts)


def _packing_of(plans: PalletPlans, loaded: LoadedPallet) -> PackingPlan:
    """The boxes of a pallet as solids, with their weights where the list has any."""
    pallet = plans.pallet
    placed = loaded.placed
    # Without any weight the simulation takes one density for all.
    weights = np.concatenate(plans.found.weights)
    volumes = np.concatenate(plans.found.sizes).prod(1)
    is_known = ~np.isnan(weights)
    masses = None
    if is_known.any():
        density = weights[is_known].sum() / volumes[is_known].sum()
        of_all = np.where(is_known, weights, volumes * density)
        masses = tuple(of_all[placed.box].tolist())
    solids = tuple(Solid.of_box(f"box-{i}", sides) for i, sides in enumerate(placed.sides))
    poses = tuple(Pose(i, np.eye(3), corner) for i, corner in enumerate(placed.corner))
    return PackingPlan(solids, poses, (pallet.length, pallet.width, pallet.height), False, masses)


def transport(plans: PalletPlans, friction: float, report: Callable[[str], None]) -> PalletPlans:
    """Return the plans with what becomes of every pallet on the road, by EUMOS 40509.

    Boxes are loose. What a pallet that is wrapped to one block holds stands beside it.

    Args:
        plans: Of all orders.
        friction: Coulomb's coefficient.
        report: Called with a line about the progress.
    """
    from torchrl_gpu.envs.packing.physics import tipping_g, transport_cases

    loaded = plans.pallets()
    report(f"pushing {len(loaded):,} pallets")
    packings = [_packing_of(plans, pallet) for pallet in loaded]
    road = []
    for pallet, packing, case in zip(loaded, packings, transport_cases(packings, friction=friction), strict=True):
        first = 0
        on: list[int] = []
        if case.first is not None:
            first = case.first + 1
            carriers = _carriers(pallet.placed)[case.first]
            on = (np.flatnonzero(carriers) + 1).tolist()
        road.append(RoadVerdict(case.moved, case.holds, first, on, case.direction, tipping_g(packing)))
    return plans._replace(road=road)


def road_lines(plans: PalletPlans) -> list[str]:
    """Make a line about each pallet on the road.

    It says which box goes first, on what that stands, and how far it goes.
    """
    lines = []
    for pallet, road in zip(plans.pallets(), plans.road or [], strict=False):
        words = "holds 0.5 g in every direction unwrapped" if road.holds else _words_on_first(plans, pallet, road)
        lines.append(f"{pallet.name}: {words}; wrapped to one block it tips at {road.wrapped_g:.2f} g")
    return lines


def _words_on_first(plans: PalletPlans, pallet: LoadedPallet, road: RoadVerdict) -> str:
    """Which box goes first, on what it stands, how far it goes, and how many move."""
    box = road.first - 1
    _, label = plans.order_and_label(int(pallet.placed.box[box]))
    article = label.get("article", f"line {label['line']}")
    below = f"boxes {', '.join(map(str, road.on))}" if road.on else "the pallet"
    distance_mm = 1000 * min(float(road.moved[box]), _FAR_M)
    num_moved = int((road.moved > _GONE_M).sum())
    first = f"box {road.first} ({article}), which stands on {below}, goes first, {distance_mm:.0f} mm"
    return f"at 0.5 g to {road.direction} {first}; {num_moved} boxes move"
