"""The cases of RoboBPP's board: rows of the workbook by their numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.envs.packing.items.test_factories import PICKED, installed, table
from torchrl_gpu.envs.packing.items import BoardCases, board_cases
from torchrl_gpu.envs.packing.items.board_cases import BOARD_CASES, TEST_ROWS, BoardCase
from torchrl_gpu.envs.packing.protocols import PALLETS
from torchrl_gpu.envs.packing.types import Bin

assert installed
BIN = Bin(PALLETS["repetitive"]["bin_size"], PALLETS["repetitive"]["resolution"])
# Boxes as long as the number of their row, plus 20 cm.
PICKS = [["a", "2", str(20 + row), "19.1", "17.04"] for row in range(12)]


@pytest.fixture
def short_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cases of three boxes, of rows 7 to 9 and 2 to 4."""
    monkeypatch.setattr(board_cases, "BOARD_CASES", (BoardCase(0, 7), BoardCase(4, 2)))
    monkeypatch.setattr(board_cases, "CASE_BOXES", 3)


def lengths(source: BoardCases, num_envs: int, episode: int, num_items: int = 3) -> list[list[float]]:
    """Lengths of the boxes of an episode of each environment, centimetres."""
    _, sequences = source.build(BIN, "yaw", num_items, num_envs)
    env = torch.arange(num_envs)
    key = sequences.begin(0, env, torch.full_like(env, episode))
    items = sequences.items(key, torch.arange(num_items).expand(num_envs, -1))
    found: list[list[float]] = source.true_sides(BIN)[items.numpy()][..., 0].tolist()
    return found


def test_board_cases_are_rows_of_the_test_file_and_then_of_the_training_file(
    installed: Path, short_cases: None
) -> None:
    table(installed / "time_series" / "pg_test.xlsx", [PICKED, *PICKS[:3]])
    table(installed / "time_series" / "pg_train.xlsx", [PICKED, *PICKS[3:]])
    source = BoardCases()
    assert source.sides[0].tolist() == [27, 19.1, 17.0]
    assert lengths(source, 2, 0) == [[27, 28, 29], [22, 23, 24]]
    # One environment plays them in turn.
    assert lengths(source, 1, 1) == [[22, 23, 24]]
    assert lengths(source, 1, 2) == [[27, 28, 29]]
    assert lengths(source, 2, 0, num_items=2) == [[27, 28], [22, 23]]


def test_board_cases_prefer_the_whole_workbook(installed: Path, short_cases: None) -> None:
    table(installed / "time_series" / "pg.xlsx", [PICKED, *PICKS[::-1]])
    assert lengths(BoardCases(), 1, 0) == [[24, 23, 22]]


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (PICKS[:9], r"9 rows; case 0 ends at row 10: install packsim 0.0.4"),
        ([PICKS[0], ["b", "1", "", "3", "4"], *PICKS], "row 1 has no three positive sides"),
    ],
)
def test_board_cases_refuse_another_workbook(
    installed: Path, short_cases: None, rows: list[list[object]], wanted: str
) -> None:
    table(installed / "time_series" / "pg.xlsx", [PICKED, *rows])
    with pytest.raises(ValueError, match=wanted):
        BoardCases()


def test_board_cases_refuse_a_bin_that_a_box_does_not_fit(installed: Path, short_cases: None) -> None:
    table(installed / "time_series" / "pg.xlsx", [PICKED, *PICKS])
    with pytest.raises(ValueError, match="bin_size"):
        BoardCases().build(Bin((0.28, 0.28, 1.0), (28, 28)), "yaw", 3, 1)


def test_five_known_cases_lie_in_the_test_rows() -> None:
    assert [case.case for case in BOARD_CASES if case.rows == "test"] == [2, 11, 14, 22, 29]
    assert len({case.case for case in BOARD_CASES}) == 22
    # A case that begins in the test rows and ends in the training rows is none of the test rows.
    assert BoardCase(0, TEST_ROWS - 80).rows == "test"
    assert BoardCase(0, TEST_ROWS - 79).rows == "train"
    assert np.diff(sorted(case.first_row for case in BOARD_CASES)).min() > 0
