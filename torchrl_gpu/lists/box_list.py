"""`BoxList`.

The boxes of a list, grouped by customer order, and what was understood of the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, NotRequired, TypedDict

import numpy as np

from torchrl_gpu.lists.numbers import NumberStyle
from torchrl_gpu.lists.sheets import Table

# Facts about a box that plans show: its line in the file, its article, its weight.
Label = TypedDict("Label", {"line": int, "article": NotRequired[str], "weight/kg": NotRequired[float]})


class Fault(NamedTuple):
    """A row that gives no box.

    Attributes:
        line: Line of the file.
        order: Order of the row.
        reason: What is wrong, with the user's own value.
    """

    line: int
    order: str
    reason: str


@dataclass(frozen=True)
class ColumnReading:
    """How a column was read.

    Attributes:
        header: Its header.
        unit: Unit of its numbers, "" where it has none or the rows say theirs.
        example: Its first cell, as it stands there and as it was understood.
        note: What was done with its values, such as dividing a total by the quantity.
    """

    header: str
    unit: str = ""
    example: str = ""
    note: str = ""


@dataclass(frozen=True)
class Source:
    """The file of a list, in its own form.

    Attributes:
        sheet: Name of the sheet that was read, "" where there are none.
        header_line: Line of the header, 0 for a list without one.
        encoding: Encoding of a text file.
        delimiter: Sign between its cells.
        style: How its numbers are written.
        table: Its rows, None for a list that was made otherwise.
        notes: What a reader should know about how the file was read.
    """

    sheet: str = ""
    header_line: int = 0
    encoding: str = ""
    delimiter: str = ""
    style: NumberStyle = field(default_factory=NumberStyle)
    table: Table | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class BoxList:
    """Boxes of a list, in its order, grouped by customer order.

    Lists and arrays below hold one entry for each order, and in it one for each box.

    Attributes:
        orders: Names of the orders.
        sizes: Sides, (boxes, 3) float64, in `unit`.
        values: The other columns of `columns.COLUMNS` by name, (boxes,): float64 for numbers and flags, objects for
            text; a list without the column has its default.
        up: Mask of the sides that may be vertical, (boxes, 3) bool; the height alone means "this side up".
        labels: Of each box its "line" in the file, and "article" and "weight/kg" if the list has them.
        unit: "cells", "m", "cm" or "mm".
        own_unit: Unit of the file, which may also be inches or feet.
        own_weight_unit: Unit of the file's weights.
        names_unit: Whether the file says its unit.
        columns: Headers of the columns that were read, by their meaning.
        unread: Other headers.
        faults: Rows that give no box.
        doubts: Sentences about what may have been understood wrongly, each with what to say.
        readings: How each column was read, by its meaning.
        source: The file in its own form.
    """

    orders: list[str]
    sizes: list[np.ndarray]
    values: dict[str, list[np.ndarray]]
    up: list[np.ndarray]
    labels: list[list[Label]]
    unit: str
    own_unit: str
    names_unit: bool
    columns: dict[str, str]
    unread: list[str]
    faults: list[Fault]
    doubts: list[str] = field(default_factory=list)
    readings: dict[str, ColumnReading] = field(default_factory=dict)
    own_weight_unit: str = "kg"
    source: Source = field(default_factory=Source)

    @property
    def weights(self) -> list[np.ndarray]:
        """Kilograms, (boxes,) float64.

        NaN where the list has none.
        """
        return self.values["weight"]

    @property
    def max_loads(self) -> list[np.ndarray]:
        """Kilograms that may lie on a box, (boxes,) float64.

        Inf where the list has no limit.
        """
        return self.values["max_load"]

    @property
    def fragile(self) -> list[np.ndarray]:
        """Mask of the boxes on which nothing may lie, (boxes,) bool."""
        stackable = self.values["stackable"]
        return [(f > 0) | (s == 0) for f, s in zip(self.values["fragile"], stackable, strict=True)]

    @property
    def bottom_only(self) -> list[np.ndarray]:
        """Mask of the boxes that stand on the pallet itself, (boxes,) bool."""
        return [flags > 0 for flags in self.values["bottom_only"]]
