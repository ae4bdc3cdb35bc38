"""Known cases of RoboBPP's own board (arXiv 2512.04415).

The board prints, for each of its 30 `repetitive` cases and each of twelve methods, the number of boxes placed and the
share filled: prefix sums of volumes in a fixed order. 22 cases are windows of 80 consecutive rows of the factory's
workbook. Of the 199 different sums printed for them, 196 agree to the last digit. The other three are of case 18, whose
first 66 boxes agree and whose last ones must come in another order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torchrl_gpu.envs.packing.items.factories import FactoryBoxes, RunSequences, read_picks
from torchrl_gpu.envs.packing.items.source import Built, PooledSequences
from torchrl_gpu.envs.packing.types import Bin
from torchrl_gpu.system import arguments

CASE_BOXES = 80
# The first rows of the workbook are those of `pg_test.xlsx`, all others those of `pg_train.xlsx`.
TEST_ROWS = 3353

# Case of the board, and its first row, counted from 0 behind the header.
_FIRST_ROWS = {
    0: 4921,
    2: 1662,
    3: 4838,
    4: 10120,
    5: 14779,
    6: 6602,
    8: 12937,
    9: 4829,
    11: 1607,
    12: 12991,
    13: 12847,
    14: 1594,
    16: 5634,
    17: 12940,
    18: 6743,
    19: 10523,
    20: 10106,
    22: 1652,
    24: 6641,
    27: 10137,
    28: 13264,
    29: 893,
}


class BoardCase(NamedTuple):
    """A case of the board.

    Attributes:
        case: Its number there, 0 to 29.
        first_row: Row of its first box in the workbook, from 0.
    """

    case: int
    first_row: int

    @property
    def rows(self) -> str:
        """Split that the boxes lie in, "train" or "test"."""
        return "test" if self.first_row + CASE_BOXES <= TEST_ROWS else "train"


BOARD_CASES = tuple(BoardCase(case, first_row) for case, first_row in _FIRST_ROWS.items())


class BoardCases(FactoryBoxes):
    """The 22 cases of `repetitive` as `BOARD_CASES` lists them, 80 boxes each.

    Environment i plays case i of that list, then i + num_envs, and so on.

    Args:
        clearance: As for `FactoryBoxes`.

    Attributes:
        cases: In that order.

    Raises:
        ModuleNotFoundError: The extra `robobpp` is not installed.
        ValueError: The workbook lacks a column or rows of a case; and, from `build`, a box does not fit the bin.
    """

    def __init__(self, clearance: float = 0.0) -> None:
        self.data = "repetitive"
        self.split = "board"
        self.clearance = arguments.number("BoardCases", "clearance", clearance, 0)
        self.cases = BOARD_CASES
        sides = read_picks()
        last = max(self.cases, key=lambda each: each.first_row)
        needed = last.first_row + CASE_BOXES
        if len(sides) < needed:
            raise ValueError(
                f"BoardCases: pg.xlsx has {len(sides):,} rows; case {last.case} ends at row {needed:,}:"
                " install packsim 0.0.4"
            )
        windows = [sides[each.first_row : each.first_row + CASE_BOXES] for each in self.cases]
        self.sides = np.concatenate(windows)
        self.shares = np.ones(len(self.sides))

    def build(self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int) -> Built:
        catalogue, runs = super().build(bin_, orientations, num_items, num_envs)
        assert isinstance(runs, RunSequences)
        # Boxes that do not fit are not among the rows, which no longer make up the cases then.
        if len(runs.rows) < len(self.sides):
            arguments.refuse("BoardCases", "bin_size", "one that every box of the cases fits", bin_.size)
        cases = runs.rows.view(len(self.cases), CASE_BOXES)
        return catalogue, PooledSequences(cases[:, :num_items].contiguous(), True, num_envs)
