"""Boxes of three factories, those of RoboBPP (arXiv 2512.04415).

They are read from the installed package `packsim`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.envs.counter_rng import draw_bits, draw_integers
from torchrl_gpu.envs.packing.items.boxes import written
from torchrl_gpu.envs.packing.items.source import NUM_BITS, Built, DrawnSequences, ItemSource
from torchrl_gpu.envs.packing.types import Bin, Catalogue
from torchrl_gpu.lists.files import table_rows
from torchrl_gpu.lists.numbers import number_of
from torchrl_gpu.system import arguments
from torchrl_gpu.system.extras import how_to_install

DATA = ("repetitive", "diverse", "boards")
SPLITS = ("train", "test")
_FILES = {
    "repetitive": {"train": "time_series/pg_train.xlsx", "test": "time_series/pg_test.xlsx"},
    "diverse": {"train": "occupancy/deli.xlsx", "test": "occupancy/deli.xlsx"},
    "boards": {"train": "flat_long/opai_train.txt", "test": "flat_long/opai_test.txt"},
}
_SIDES = {"repetitive": ["Length_cm", "Width_cm", "Height_cm"], "diverse": ["尺寸（L）", "尺寸（W）", "尺寸（H）"]}
# Share of an article in all that was sent.
_SHARE = "占比"
# By falling share, one article in five is for tests.
_EVERY = 5


@dataclass(frozen=True)
class RunSequences(DrawnSequences):
    """Runs of consecutive rows, each from a row drawn uniformly."""

    # Catalogue rows, int64.
    rows: Tensor  # (R,)
    length: int

    def items(self, key: Tensor, position: Tensor) -> Tensor:
        last = max(1, len(self.rows) - self.length + 1)
        start = draw_integers(key, torch.zeros_like(key), last)[:, None]
        found = self.rows[(start + position).clamp(0, len(self.rows) - 1)]
        return torch.where(position < self.length, found, -1)

    def to(self, device: torch.device) -> RunSequences:
        return RunSequences(self.rows.to(device), self.length)


@dataclass(frozen=True)
class WeightedSequences(DrawnSequences):
    """Items drawn independently, each with a probability of its own."""

    # An item is of this row or of an earlier one if its drawn bits are below, int64.
    below: Tensor  # (M,)
    length: int

    def items(self, key: Tensor, position: Tensor) -> Tensor:
        drawn = torch.searchsorted(self.below, draw_bits(key[:, None], position), right=True)
        return torch.where(position < self.length, drawn, -1)

    def to(self, device: torch.device) -> WeightedSequences:
        return WeightedSequences(self.below.to(device), self.length)


class FactoryBoxes(ItemSource):
    """Boxes of a factory's records, in sequences drawn by counter.

    Boxes are of true length and width, rounded up to whole cells when packed, and of a height in whole millimetres, as
    `packsim` rounds them. Those that fit the bin in no orientation, or have no size, are never drawn.

    Args:
        data: "repetitive" (cases picked for orders: runs of consecutive rows), "diverse" (goods of an office supplier,
            drawn by their share of what was sent) or "boards" (furniture boards, drawn uniformly).
        split: "train" or "test": the files of that name; of the one file of "diverse" every fifth good, by falling
            share, is for tests.
        clearance: Metres that stay free behind each box along x and y at least, so that a neighbour that has moved is
            not in its way. What rounding up to whole cells leaves counts towards them. A box that the bin holds only
            without them keeps none.

    Raises:
        ModuleNotFoundError: The extra `robobpp` is not installed.
        ValueError: A file lacks a column or holds no boxes; and, from `build`, none fits the bin.
    """

    unit = "cm"

    def __init__(self, data: str = "repetitive", split: str = "train", clearance: float = 0.0) -> None:
        self.data = arguments.choice("FactoryBoxes", "data", data, DATA)
        self.split = arguments.choice("FactoryBoxes", "split", split, SPLITS)
        self.clearance = arguments.number("FactoryBoxes", "clearance", clearance, 0)
        self.sides, self.shares = _read(data, split)

    def build(self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int) -> Built:
        if orientations != "yaw":
            arguments.refuse("FactoryBoxes", "orientations", "yaw, as goods stand upright", orientations)
        turned, inside = self._turned(bin_)
        roomy, has_room = self._turned(bin_, self.clearance)
        turned = np.where(has_room[:, None, None], roomy, turned)
        sides, first, row = np.unique(self.sides[inside], axis=0, return_index=True, return_inverse=True)
        if not len(sides):
            raise ValueError(f"FactoryBoxes: no box of {self.data} fits the bin of {written(bin_.size, 'cm', bin_)}")
        volume = torch.from_numpy((sides / 100).prod(1))
        catalogue = Catalogue.of_boxes(torch.from_numpy(turned[inside][first]), volume)
        rows = torch.from_numpy(row.reshape(-1))
        if self.data == "repetitive":
            return catalogue, RunSequences(rows, min(num_items, len(rows)))
        # Drawn bits are compared with the cumulated shares, which needs one search for each item and no table.
        shares = np.bincount(row.reshape(-1), self.shares[inside])
        below = np.round(shares.cumsum() / shares.sum() * NUM_BITS).astype(np.int64)
        return catalogue, WeightedSequences(torch.from_numpy(below), num_items)

    def label(self, item: int, bin_: Bin) -> dict[str, object]:
        """Label of a row of the catalogue: its true sides, centimetres."""
        return {"item": item, "sides": self.true_sides(bin_)[item].tolist()}

    def true_sides(self, bin_: Bin) -> np.ndarray:
        """Return the true sides of every row of the catalogue of a bin.

        Length, width and height, (M, 3) float64, centimetres.
        """
        return np.unique(self.sides[self._turned(bin_)[1]], axis=0)

    def _turned(self, bin_: Bin, clearance: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Return boxes (R, 2, 3) as listed and turned, and the mask of those that fit.

        Sides are cells along x and y, with so many metres to spare at least, and metres of height.
        """
        turned = self.sides[:, [[0, 1, 2], [1, 0, 2]]] / 100
        turned[..., :2] = np.ceil((turned[..., :2] + clearance) / bin_.cell - 1e-6)
        return turned, self._fits(turned, bin_)

    @staticmethod
    def _fits(turned: np.ndarray, bin_: Bin) -> np.ndarray:
        """Mask of the boxes (R, 2, 3) that a bin holds in some orientation, (R,) bool."""
        room = np.array([*bin_.cells, bin_.size[2]]) + 1e-6
        return np.asarray((turned <= room).all(-1).any(-1))


def read_picks() -> np.ndarray:
    """Read the true sides of all picked cases, in the order of `pg.xlsx`.

    They are (R, 3) float64, centimetres. Where the package has no such workbook, its rows are those of the test file
    and then those of the training file.

    ValueError where a row has no three positive sides, since rows are known by their numbers.
    """
    files = ["time_series/pg.xlsx"]
    if not (data_folder() / files[0]).is_file():
        files = [_FILES["repetitive"]["test"], _FILES["repetitive"]["train"]]
    parts = []
    for name in files:
        cells = _read_cells(name, _SIDES["repetitive"])
        without = np.flatnonzero(~(cells > 0).all(1))
        if len(without):
            raise ValueError(f"FactoryBoxes: {data_folder() / name}: row {without[0]} has no three positive sides")
        parts.append(cells)
    sides = np.concatenate(parts)
    sides[:, 2] = sides[:, 2].round(1)
    return sides


def _read(data: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Read the boxes of a split, in the order of the file.

    Sides are (R, 3) float64, centimetres; the shares of the boxes are (R,).
    """
    name = _FILES[data][split]
    cells = _read_cells(name, [*_SIDES.get(data, []), *([_SHARE] if data == "diverse" else [])])
    boxes = cells[(cells > 0).all(1)]
    if not len(boxes):
        raise ValueError(f"FactoryBoxes: {data_folder() / name}: no box has three positive sides")
    if data == "diverse":
        boxes = boxes[np.argsort(-boxes[:, 3], kind="stable")]
        boxes = boxes[(np.arange(len(boxes)) % _EVERY == 0) == (split == "test")]
    boxes[:, 2] = boxes[:, 2].round(1)
    return boxes[:, :3], boxes[:, 3] if data == "diverse" else np.ones(len(boxes))


def _read_cells(name: str, wanted: list[str]) -> np.ndarray:
    """Read columns of a file of the package as numbers, (R, C) float64.

    What is no number becomes 0. A file without a header, of which no columns are wanted, has three.
    """
    path = data_folder() / name
    if not path.is_file():
        raise ValueError(f"FactoryBoxes: {path.parent} has no {name}; install packsim 0.0.4")
    rows = table_rows(path, f"FactoryBoxes: {path}")
    columns = _found(next(rows, []), wanted, path) if wanted else [0, 1, 2]
    full = (row for row in rows if len(row) > max(columns))
    return np.array([_numbers(row, columns) for row in full]).reshape(-1, len(columns))


def _numbers(row: Sequence[object], columns: list[int]) -> list[float]:
    return [number_of(row[at]) or 0.0 for at in columns]


def _found(header: Sequence[object], wanted: list[str], path: Path) -> list[int]:
    missing = [name for name in wanted if name not in header]
    if missing:
        raise ValueError(f"FactoryBoxes: {path}: the column {missing[0]} is missing; needed are {', '.join(wanted)}")
    return [header.index(name) for name in wanted]


def data_folder() -> Path:
    """Folder of the data in `packsim`, which is not imported: that needs OMPL."""
    found = importlib.util.find_spec("packsim")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(
            "FactoryBoxes: the boxes are in packsim, which is not installed;"
            f" to install it: {how_to_install('robobpp')}",
            name="packsim",
        )
    return Path(found.submodule_search_locations[0]) / "data"
