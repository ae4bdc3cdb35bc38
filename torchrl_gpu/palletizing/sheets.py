"""Pallets of a plan layer by layer, as they are stacked and printed.

`plan_pdf` draws them. All lengths are in the unit of the list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from torchrl_gpu.palletizing.page import PlanSummary, Row

# Boxes that overlap by less, as a share of the height of the load, are beside one another.
_ROUNDING = 1e-6


class PlacedBox(NamedTuple):
    """A box in its place.

    Attributes:
        number: In the order of placing, from 1.
        layer: From 1.
        name: Its article, or its line of the list where it has none.
        low, high: Lower and upper corner from the pallet's corner, along x, y and z.
        up: The listed side that is vertical.
        front: Which of its sides shows at the front of the pallet: "long side", "short side" or "equal sides".
        weight_kg: None where the list has none.
    """

    number: int
    layer: int
    name: str
    low: tuple[float, float, float]
    high: tuple[float, float, float]
    up: str
    front: str
    weight_kg: float | None

    @property
    def sides(self) -> tuple[float, float, float]:
        low_x, low_y, low_z = self.low
        high_x, high_y, high_z = self.high
        return high_x - low_x, high_y - low_y, high_z - low_z


class BoxKind(NamedTuple):
    """Boxes of a layer that are equal and lie alike."""

    name: str
    sides: tuple[float, float, float]
    words: str
    numbers: list[int]


class LayerView(NamedTuple):
    """A layer of a pallet as it is seen from above.

    Attributes:
        number: Of the layer, from 1.
        boxes: Its boxes, in the order of placing.
        below: Boxes of lower layers that no other one of them hides, from the lowest top to the highest.
        earlier: Boxes of higher layers that lie below a box of this one, each with that box. The layer of a box follows
            from what it stands on, so that a box may hang over another one of a higher layer: a stacker who finishes
            layer after layer would have to push that one in from the side.
    """

    number: int
    boxes: list[PlacedBox]
    below: list[PlacedBox]
    earlier: list[tuple[PlacedBox, PlacedBox]]


@dataclass(frozen=True)
class LoadedSheets:
    """A pallet, of which each layer is a sheet.

    Attributes:
        order, number, of: Which pallet it is, of how many of the order.
        boxes: In the order of placing.
        fallen: Numbers of boxes that do not stay in place in a simulation, None without one.
    """

    order: str
    number: int
    of: int
    boxes: list[PlacedBox]
    fallen: list[int] | None

    @property
    def layers(self) -> int:
        return max(box.layer for box in self.boxes)

    @property
    def height(self) -> float:
        return max(box.high[2] for box in self.boxes)

    @property
    def weight_kg(self) -> float:
        """Sum of the weights that are known."""
        return sum(box.weight_kg or 0.0 for box in self.boxes)

    @property
    def is_weighed(self) -> bool:
        """Whether every box has a weight."""
        return all(box.weight_kg for box in self.boxes)

    def kg_words(self, own_kg: float) -> str:
        """Weight with that of the pallet itself, after "≥" where some boxes have none."""
        if not self.weight_kg:
            return "–"
        weight = f"{self.weight_kg + own_kg:.1f}"
        return weight if self.is_weighed else f"≥ {weight}"

    def standing_words(self) -> str:
        """What became of the boxes in a simulation, "" without one."""
        if self.fallen is None:
            return ""
        return f"{len(self.fallen)} fall" if self.fallen else "all stand"

    def centre_of_gravity(self) -> tuple[float, float, float]:
        """Middle of what weighs, or of what takes room where some box has no weight."""
        is_weighed = self.is_weighed
        total = 0.0
        sums = [0.0, 0.0, 0.0]
        for box in self.boxes:
            length, width, height = box.sides
            share = box.weight_kg if is_weighed and box.weight_kg else length * width * height
            total += share
            for axis in range(3):
                sums[axis] += share * (box.low[axis] + box.high[axis]) / 2
        return sums[0] / total, sums[1] / total, sums[2] / total

    def views(self) -> Iterator[LayerView]:
        """Every layer from above, from the lowest one up."""
        low = np.array([box.low for box in self.boxes])
        high = np.array([box.high for box in self.boxes])
        top = high[:, 2]
        layer = np.array([box.layer for box in self.boxes])
        rounding = _ROUNDING * top.max()
        # Box i and box j, at [i, j].
        overlaps = _pairs_along(low, high - rounding, axis=0) & _pairs_along(low, high - rounding, axis=1)
        is_below = top[:, None] <= low[None, :, 2] + rounding
        is_later = layer[:, None] > layer[None, :]
        earlier = np.argwhere(overlaps & is_below & is_later).tolist()
        is_hidden_by = top[:, None] < top[None, :]
        for axis in range(2):
            is_hidden_by &= low[:, None, axis] >= low[None, :, axis] - rounding
            is_hidden_by &= high[:, None, axis] <= high[None, :, axis] + rounding
        by_top = np.argsort(top, kind="stable").tolist()
        for number in range(1, self.layers + 1):
            is_lower = layer < number
            is_seen = is_lower & ~is_hidden_by[:, is_lower].any(1)
            boxes = [box for box in self.boxes if box.layer == number]
            below = [self.boxes[i] for i in by_top if is_seen[i]]
            pairs = [(self.boxes[i], self.boxes[j]) for i, j in earlier if layer[j] == number]
            yield LayerView(number, boxes, below, pairs)


def _pairs_along(low: np.ndarray, high: np.ndarray, axis: int) -> np.ndarray:
    """Whether boxes i and j overlap along an axis, at [i, j], (P, P) bool."""
    starts_before = low[:, None, axis] < high[None, :, axis]
    ends_behind = low[None, :, axis] < high[:, None, axis]
    return np.asarray(starts_before & ends_behind)


def kinds_of(boxes: Sequence[PlacedBox]) -> list[BoxKind]:
    """Boxes of a layer, those together that are equal and lie alike."""
    found: dict[tuple[object, ...], BoxKind] = {}
    for box in boxes:
        sides = tuple(float(f"{side:.9g}") for side in box.sides)
        words = f"{box.up} up, {front_words(box.front)}"
        kind = BoxKind(box.name, box.sides, words, [])
        found.setdefault((box.name, sides, words), kind).numbers.append(box.number)
    return list(found.values())


def front_words(side: str) -> str:
    """Words for a stacker, such as "long side to the front"."""
    return "any side to the front" if side == "equal sides" else f"{side} to the front"


def pallets_of(summary: PlanSummary) -> list[LoadedSheets]:
    """Pallets of a plan, by order and number."""
    boxes: dict[tuple[str, int], list[PlacedBox]] = {}
    for row in summary["boxes"]:
        key = (str(row["order"]), int(_number(row, "pallet")))
        boxes.setdefault(key, []).append(_placed_box(row, summary["unit"]))
    fallen: dict[tuple[str, int], list[int]] = {}
    for verdict in summary.get("simulation", []):
        fallen[verdict["order"], verdict["pallet"]] = verdict["fallen"]
    of_order = Counter(order for order, _ in boxes)
    pallets = []
    for (order, number), placed in boxes.items():
        pallets.append(LoadedSheets(order, number, of_order[order], placed, fallen.get((order, number))))
    return pallets


def _placed_box(row: Row, unit: str) -> PlacedBox:
    x, y, z = _lengths(row, ("x", "y", "z"), unit)
    length, width, height = _lengths(row, ("length", "width", "height"), unit)
    number = int(_number(row, "sequence"))
    layer = int(_number(row, "layer"))
    name = str(row.get("article", f"line {row['line']}"))
    high = (x + length, y + width, z + height)
    weight_kg = _number(row, "weight_kg") if "weight_kg" in row else None
    return PlacedBox(
        number=number,
        layer=layer,
        name=name,
        low=(x, y, z),
        high=high,
        up=str(row["up"]),
        front=str(row["front"]),
        weight_kg=weight_kg,
    )


def count_words(summary: PlanSummary, pallets: Sequence[LoadedSheets]) -> str:
    """How many orders, pallets and boxes there are, and the size of the pallets."""
    size = summary["pallet"]
    num_orders = len({pallet.order for pallet in pallets})
    num_boxes = sum(len(pallet.boxes) for pallet in pallets)
    counts = [_count(num_orders, "order"), _count(len(pallets), "pallet"), _count(num_boxes, "box", "boxes")]
    return f"{', '.join(counts)} on pallets of {size['length']} × {size['width']} {summary['unit']}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"1 {one}" if number == 1 else f"{number:,} {many or one + 's'}"


def reason_lines(left_out: Sequence[Row]) -> list[str]:
    """A line for each row of the list that is left out, with the number of its boxes."""
    counted = Counter(_reason_line(row) for row in left_out)
    return [line if number == 1 else f"{line} ({number:,} boxes)" for line, number in counted.items()]


def _reason_line(row: Row) -> str:
    article = f", {row['article']}" if row.get("article") else ""
    return f"line {row['line']}, order {row['order']}{article}: {row['left out']}"


def short(value: float) -> str:
    """Write a length with five digits at most, without separators of thousands."""
    return f"{float(f'{value:.5g}'):.10g}"


def _lengths(row: Row, names: tuple[str, str, str], unit: str) -> tuple[float, float, float]:
    first, second, third = names
    return _number(row, f"{first}_{unit}"), _number(row, f"{second}_{unit}"), _number(row, f"{third}_{unit}")


def _number(row: Row, name: str) -> float:
    return float(cast("float", row[name]))


def runs(numbers: Sequence[int]) -> str:
    """Write ascending numbers with their runs drawn together: "1–4, 7"."""
    return ", ".join(_runs(numbers))


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    first = 0
    for i, number in enumerate(numbers):
        is_end = i + 1 == len(numbers) or numbers[i + 1] != number + 1
        if not is_end:
            continue
        # Two numbers are a list, not a range.
        if i - first < 2:
            yield from map(str, numbers[first : i + 1])
        else:
            yield f"{numbers[first]}–{number}"
        first = i + 1
