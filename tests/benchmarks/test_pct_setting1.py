"""The rule of PCT's setting 1.

The tests are laws by hand, verdicts of the released code, and a short run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import pct_setting1
from benchmarks.pct_setting1 import Pile

# Of 40 piles packed below, by the code that was released with the paper: placements tried, allowed, and boxes packed.
RELEASED = (34264, 22171, 663)


def packed(*boxes: tuple[tuple[int, int, int], tuple[int, int, int]]) -> Pile:
    pile = Pile()
    assert all(pile.add(corner, size) for corner, size in boxes)
    return pile


def test_a_box_stands_where_its_centre_is_over_what_it_rests_on() -> None:
    pile = packed(((0, 0, 0), (4, 4, 2)))
    assert pile.allows((1, 0, 2), (4, 4, 1))
    assert not pile.allows((3, 0, 2), (4, 4, 1))
    # The hull is a tenth smaller than what is touched.
    assert not pile.allows((2, 0, 2), (4, 4, 1))


def test_a_load_that_tips_a_box_further_down_is_refused() -> None:
    pile = packed(((0, 0, 0), (2, 4, 2)), ((0, 0, 2), (3, 4, 1)))
    assert pile.allows((0, 0, 3), (2, 4, 5))
    # It stands by itself, and its load lies beyond the lowest box.
    assert not pile.allows((2, 0, 3), (2, 4, 5))


def test_two_share_a_load_by_the_lever() -> None:
    pile = packed(((0, 0, 0), (2, 2, 2)), ((6, 0, 0), (2, 2, 2)), ((0, 0, 2), (8, 2, 1)))
    (left, right), load = pile.boxes[:2], 16.0
    assert [left.load[2] - 8, right.load[2] - 8] == [load / 2, load / 2]
    assert pile.add((0, 0, 3), (2, 2, 4))
    assert left.load[2] > right.load[2]


def test_verdicts_are_those_of_the_released_code() -> None:
    rng, counts = np.random.default_rng(7), np.zeros(3, dtype=int)
    for _ in range(40):
        heights, pile = np.zeros((10, 10), dtype=int), Pile()
        while True:
            allowed = []
            length, width, height = rng.integers(1, 6, 3).tolist()
            for x in range(11 - length):
                for y in range(11 - width):
                    corner = x, y, int(heights[x : x + length, y : y + width].max())
                    if corner[2] + height <= 10:
                        counts[0] += 1
                        allowed += [corner] * pile.allows(corner, (length, width, height))
            counts[1] += len(allowed)
            if not allowed:
                break
            x, y, z = sorted(allowed, key=lambda corner: corner[2])[rng.integers(min(8, len(allowed)))]
            if not pile.add((x, y, z), (length, width, height)):
                break
            counts[2] += 1
            heights[x : x + length, y : y + width] = z + height
    assert tuple(counts.tolist()) == RELEASED


@pytest.mark.parametrize("futures", [[], ["--futures", "2"]])
def test_a_short_run_fills_most_of_the_bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, futures: list[str]) -> None:
    output = tmp_path / "result.json"
    arguments = ["--sequences", "4", "--batch", "2", *futures, "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["pct_setting1", *arguments])
    pct_setting1.main()
    result = json.loads(output.read_text())
    assert len(result["utilizations"]) == 4
    assert 0.6 < result["utilization"] < 1
