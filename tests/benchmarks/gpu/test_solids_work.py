"""The model of `drop_solids`.

The tests are about which placements and cells it counts, and the published prediction.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.gpu import solids_work
from benchmarks.gpu.chips import DEVICES
from benchmarks.gpu.solids_work import Loop, Tile


def tile_of(size: tuple[int, int], window: list[int], kept: bool, x: int, last_x: int, y: int) -> Tile:
    places = (np.array([each]) for each in (x, last_x, y))
    return Tile(0, 0, 0, 0, np.array([0]), size, kept, window, *places)


def test_pairs_of_placements_by_hand() -> None:
    # Of 10 cells an item of 5 has placements at 0, 2, 4 and flush at 5; of 6 cells an item of 3 at 0, 2 and flush at 3.
    x, y, last_x = solids_work.placements((5, 3), [0, 0, 10, 6], (10, 6), 2)
    found = list(zip(x.tolist(), last_x.tolist(), y.tolist(), strict=True))
    assert found[:3] == [(0, 2, 0), (0, 2, 2), (0, 2, 3)]
    assert found[3:6] == [(4, 4, 0), (4, 4, 2), (4, 4, 3)]
    assert found[6:] == [(5, 5, 0), (5, 5, 2), (5, 5, 3)]


def test_only_cells_in_the_window_and_with_material_are_counted() -> None:
    # Cells 1 to 3 of rows of 4.
    spans = np.full((1, 1, 4), 1 | 4 << 16)
    everything = tile_of((4, 4), [0, 0, 9, 9], False, 2, 3, 2)
    assert solids_work.count_cells(everything, spans) == 4 * 3
    # A change of the cells (5, 4) lies under row 3 or 2, and under column 2.
    changed = tile_of((4, 4), [5, 4, 6, 5], True, 2, 3, 2)
    assert changed.reached == (2, 4, 2, 3)
    assert solids_work.count_cells(changed, spans) == 2


def test_the_slowest_pipe_and_the_longest_warp_count() -> None:
    assert Loop({"VIADDMNMX": 16, "LDG": 5, "PRMT": 4, "IMAD": 3}, 1).clocks == 40
    assert Loop({"LDG": 20, "IMAD": 30}, 2).clocks == 40
    h100 = DEVICES["H100"]
    assert solids_work.seconds(528e6, 10, 44, h100) == pytest.approx(1e6 * 44 / 1.98e9)
    assert solids_work.seconds(528, 1e6, 44, h100) == pytest.approx(1e6 * 44 / 1.98e9)


def test_the_published_prediction_is_within_five_bounds_where_nothing_waits() -> None:
    (section,) = json.loads(solids_work.RESULT.read_text(encoding="utf-8"))["sections"]
    assert "prediction" in section["title"]
    before, *_, now = section["rows"]
    assert float(before["over"]) > 5 > float(now["over"])
