"""`PalletPlans`: where every box of some orders goes, in the user's units, beside the fewest pallets that could do."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from rich.markup import escape
from rich.table import Table

from torchrl_gpu.envs.packing.items.lists import LENGTHS, SIDES, BoxList
from torchrl_gpu.envs.packing.items.solid import Solid
from torchrl_gpu.envs.packing.plan import PackingPlan, Pose
from torchrl_gpu.palletizing.packer import Pallet
from torchrl_gpu.palletizing.page import write_pages

TOUCH_M = 2e-3  # what is closer to a box's base carries it, in layers
_MOST_SHOWN = 20  # orders of the table on the terminal
_NOISE_M = 3e-7  # in heights, which are sums of float32


class Placements(NamedTuple):
    """P placements; of each order in the order in which they are made."""

    order: np.ndarray  # (P,) int64, number of the order
    step: np.ndarray  # (P,) int64, from 0, within the order
    box: np.ndarray  # (P,) int64, number of the box in the whole list
    pallet: np.ndarray  # (P,) int64, number of the pallet in its order, from 0
    along: np.ndarray  # (P, 3) int64, which of the listed sides lies along x, y and z
    corner: np.ndarray  # (P, 3) float64, metres from the pallet's corner
    sides: np.ndarray  # (P, 3) float64, metres along x, y and z

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Placements:
        """All of some placements, by order and step."""
        if not parts:
            none, three = np.zeros(0, dtype=np.int64), np.zeros((0, 3))
            return cls(none, none, none, none, np.zeros((0, 3), dtype=np.int64), three, three)
        joined = cls(*(np.concatenate(each) for each in zip(*parts, strict=True)))
        return joined.rows(np.lexsort((joined.step, joined.order)))

    def rows(self, chosen: np.ndarray) -> Placements:
        """Some of the placements."""
        return Placements(*(each[chosen] for each in self))


class Verdict(NamedTuple):
    """Verdict of a simulation on a pallet."""

    share: float  # of the boxes that stay within 2 cm and π/6 of the plan
    fallen: list[int]  # sequence numbers of the others, from 1
    seconds: float  # simulated


class LoadedPallet(NamedTuple):
    """One pallet of an order."""

    order: str
    number: int  # from 1, within the order
    placed: Placements
    layer: np.ndarray  # (P,) int64, from 1: one more than that of the boxes below that it touches
    verdict: Verdict | None

    @property
    def name(self) -> str:
        return f"order {self.order}, pallet {self.number}"


class PalletPlans(NamedTuple):
    """Plans of some orders."""

    found: BoxList
    pallet: Pallet
    placed: Placements
    reasons: list[str]  # of each box of the list why it is left out; "" where it is placed
    told: str  # lines about the cells, or nothing
    verdicts: list[Verdict] | None = None  # of each pallet

    def pallets(self) -> list[LoadedPallet]:
        """All pallets, by order and number."""
        p, loaded = self.placed, []
        rank = np.lexsort((p.step, p.pallet, p.order))
        starts = np.flatnonzero(np.diff(p.order[rank]) | np.diff(p.pallet[rank])) + 1
        for i, chosen in enumerate(np.split(rank, starts) if len(rank) else []):
            rows = p.rows(chosen)
            verdict = None if self.verdicts is None else self.verdicts[i]
            order, number = self.found.orders[rows.order[0]], int(rows.pallet[0]) + 1
            loaded.append(LoadedPallet(order, number, rows, layers(rows), verdict))
        return loaded

    def misfits(self) -> list[tuple[int, str, str]]:
        """Line, order and reason of every row of the list whose boxes fit no empty pallet."""
        lines = {}
        for box, reason in enumerate(self.reasons):
            if reason:
                order, label = self.labelled(box)
                lines[label["line"]] = (label["line"], order, reason)
        return sorted(lines.values())

    def labelled(self, box: int) -> tuple[str, dict[str, Any]]:
        """Order and label of a box of the list."""
        order = int(np.searchsorted(self._ends(), box, side="right"))
        labels = self.found.labels[order]
        return self.found.orders[order], labels[box - int(self._ends()[order]) + len(labels)]

    def _ends(self) -> np.ndarray:
        return np.cumsum([len(each) for each in self.found.sizes])

    @property
    def unit_m(self) -> float:
        """Metres of the unit of the file."""
        return LENGTHS[self.found.own_unit] / 1000

    # -- tables ------------------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row of plain values for every box: those that are placed, then those that are left out with the reason."""
        unit, per = self.found.own_unit, self.unit_m
        for pallet in self.pallets():
            for i, box in enumerate(pallet.placed.box.tolist()):
                label = self.labelled(box)[1]
                lengths = [*pallet.placed.corner[i].tolist(), *pallet.placed.sides[i].tolist()]
                written = [_short(each, per) for each in lengths]
                along = pallet.placed.along[i].tolist()
                row = {"order": pallet.order, "pallet": pallet.number, "sequence": i + 1, "layer": int(pallet.layer[i])}
                row |= {"article": label.get("article", ""), "line": label["line"]}
                row |= {f"{name}_{unit}": value for name, value in zip(("x", "y", "z", *SIDES), written, strict=True)}
                row |= {"turned": "yes" if along[0] > along[1] else "no", "up": SIDES[along[2]]}
                yield row | {"weight_kg": label.get("weight/kg", ""), "left out": ""}
        sizes = np.concatenate(self.found.sizes) * LENGTHS[self.found.unit] / 1000
        for box, reason in enumerate(self.reasons):
            if reason:
                order, label = self.labelled(box)
                row = {"order": order, "article": label.get("article", ""), "line": label["line"]}
                size = zip(SIDES, sizes[box].tolist(), strict=True)
                row |= {f"{name}_{unit}": _short(value, per) for name, value in size}
                yield row | {"weight_kg": label.get("weight/kg", ""), "left out": reason}
        for line, order, reason in self.found.faults:
            yield {"order": order, "line": line, "left out": reason}

    def orders(self) -> list[dict[str, Any]]:
        """Counts of every order: boxes, pallets, the fewest that could do by volume and by weight, and fill."""
        counted: dict[str, dict[str, Any]] = {}
        weights = np.nan_to_num(np.concatenate(self.found.weights))
        room = self.pallet.volume / (self.pallet.length * self.pallet.width)
        more = 2 * self.pallet.overhang
        room *= (self.pallet.length + more) * (self.pallet.width + more)
        for pallet in self.pallets():
            nothing = {"order": pallet.order, "boxes": 0, "pallets": 0, "m3": 0.0, "kg": 0.0}
            row = counted.setdefault(pallet.order, nothing)
            row["boxes"] += len(pallet.placed.box)
            row["pallets"] += 1
            row["m3"] += float(pallet.placed.sides.prod(1).sum())
            row["kg"] += float(weights[pallet.placed.box].sum())
            if pallet.verdict is not None:
                row["stand"] = row.get("stand", 0) + (not pallet.verdict.fallen)
                row["fallen"] = row.get("fallen", 0) + len(pallet.verdict.fallen)
        for row in counted.values():
            by_weight = 0.0 if math.isinf(self.pallet.weight) else row["kg"] / self.pallet.weight
            row["at least"] = max(1, math.ceil(row["m3"] / room - 1e-6), math.ceil(by_weight - 1e-6))
            row["fill"] = row["m3"] / (row["pallets"] * self.pallet.volume)
        return list(counted.values())

    def table(self) -> Table:
        """Pallets of every order beside the fewest that could do, for the terminal."""
        rows, simulated = self.orders(), self.verdicts is not None
        p, per, unit = self.pallet, self.unit_m, self.found.own_unit
        size = " × ".join(f"{_short(side, per)}" for side in (p.length, p.width, p.height))
        shown = Table(title=f"pallets of {size} {unit}", title_justify="left")
        shown.add_column("order")
        of_simulation = ("pallets that stand", "fallen") if simulated else ()
        for column in ("boxes", "pallets", "at least", "fill", "kg", *of_simulation):
            shown.add_column(column, justify="right", no_wrap=True)
        for row in rows[:_MOST_SHOWN]:
            shown.add_row(escape(row["order"]), *_cells(row, simulated))
        if len(rows) > _MOST_SHOWN:
            shown.add_row(f"and {len(rows) - _MOST_SHOWN:,} orders more")
        if len(rows) > 1:
            names = ("boxes", "pallets", "at least", "m3", "kg", "stand", "fallen")
            total = {name: sum(row.get(name, 0) for row in rows) for name in names}
            total["fill"] = total["m3"] / (total["pallets"] * p.volume)
            shown.add_row(f"all {len(rows):,}", *_cells(total, simulated), style="bold")
        return shown

    def summary(self) -> dict[str, Any]:
        """The whole plan as plain data, as `plan.json` holds it."""
        p, unit, per = self.pallet, self.found.own_unit, self.unit_m
        names = ("length", "width", "height", "gap", "overhang", "cell")
        lengths = {name: _short(getattr(p, name), per) for name in names}
        verdicts = [
            {"order": each.order, "pallet": each.number, "stands": each.verdict.share, "fallen": each.verdict.fallen}
            for each in self.pallets()
            if each.verdict is not None
        ]
        pallet = {**lengths, "weight_kg": None if math.isinf(p.weight) else p.weight}
        rows = list(self.rows())
        boxes = [{k: v for k, v in row.items() if k != "left out" and v != ""} for row in rows if not row["left out"]]
        left = [{k: v for k, v in row.items() if v != ""} for row in rows if row["left out"]]
        whole = {"unit": unit, "pallet": pallet, "orders": self.orders(), "boxes": boxes, "left_out": left}
        return whole | ({"simulation": verdicts} if self.verdicts is not None else {})

    def write(self, folder: str | Path) -> Path:
        """Writes `plan.csv`, `plan.json`, a page for every pallet and `index.html` into a folder, and returns it."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        summary, rows = self.summary(), list(self.rows())
        header = list(dict.fromkeys(key for row in rows for key in row))
        with (target / "plan.csv").open("w", newline="", encoding="utf-8-sig") as file:  # which Excel takes for UTF-8
            writer = csv.DictWriter(file, header, restval="")
            writer.writeheader()
            writer.writerows(rows)
        (target / "plan.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        write_pages(target, summary)
        return target


def _cells(row: dict[str, Any], simulated: bool) -> list[str]:
    cells = [f"{row[name]:,}" for name in ("boxes", "pallets", "at least")]
    cells += [f"{row['fill']:.1%}", f"{row['kg']:,.1f}" if row["kg"] else "–"]
    return [*cells, f"{row['stand']:,} of {row['pallets']:,}", f"{row['fallen']:,}"] if simulated else cells


def _short(metres: float, unit_m: float) -> float | int:
    """The shortest number for a length in a unit of so many metres, without the noise of float32 heights."""
    value = metres / unit_m
    short = next(s for digits in range(12) if abs((s := round(value, digits)) - value) * unit_m <= _NOISE_M)
    return int(short) if short.is_integer() else short


def layers(placed: Placements) -> np.ndarray:
    """Layer of each box of one pallet, (P,) int64 from 1: one more than that of the boxes below that it touches."""
    low, high = placed.corner, placed.corner + placed.sides
    across = (low[:, None, :2] < high[None, :, :2] - 1e-6) & (low[None, :, :2] < high[:, None, :2] - 1e-6)
    below = across.all(2) & (abs(low[:, None, 2] - high[None, :, 2]) <= TOUCH_M)  # (P, P), of each those that carry it
    found = np.ones(len(low), dtype=np.int64)
    for i in range(len(low)):  # those that carry it are placed before
        found[i] = 1 + found[below[i]].max(initial=0)
    return found


def simulated(plans: PalletPlans, friction: float, say: Callable[[str], None]) -> PalletPlans:
    """The plans with the verdict of MuJoCo on every pallet: without walls, all boxes released at once.

    Weights are those of the list; boxes that have none there are as dense as the others are on average.
    """
    from torchrl_gpu.envs.packing.physics import settle_cases

    loaded = plans.pallets()
    say(f"simulating {len(loaded):,} pallets")
    physical = [_physical(plans, each) for each in loaded]
    cases = settle_cases(physical, progress=True, sequential=False, friction=friction)
    verdicts = [Verdict(case.share, (np.flatnonzero(~case.stable) + 1).tolist(), case.seconds) for case in cases]
    return plans._replace(verdicts=verdicts)


def _physical(plans: PalletPlans, loaded: LoadedPallet) -> PackingPlan:
    p, placed = plans.pallet, loaded.placed
    weights, volume = np.concatenate(plans.found.weights), np.concatenate(plans.found.sizes).prod(1)
    known = ~np.isnan(weights)
    masses = None
    if known.any():
        density = weights[known].sum() / volume[known].sum()
        masses = tuple(np.where(known, weights, volume * density)[placed.box].tolist())
    solids = tuple(Solid.of_box(f"box-{i}", sides) for i, sides in enumerate(placed.sides))
    poses = tuple(Pose(i, np.eye(3), corner) for i, corner in enumerate(placed.corner))
    return PackingPlan(solids, poses, (p.length, p.width, p.height), False, masses)
