"""Rows of curricula: the published ones, and what a user may give."""

from __future__ import annotations

from typing import Any

import pytest

from torchrl_gpu.envs.marine.levels import EVALUATION, FINAL_TEST, PAPER, Level, Sizes, chosen_levels

NONE = (None, None, None, None)


def test_the_rows_of_the_papers() -> None:
    for version, per_step in (("v2", (7, 8, 10)), ("v3", (5, 0, 4))):
        rows = PAPER[version]
        assert [row.from_step for row in rows] == [i * 1_000_000 for i in range(6)]
        assert [row.min_distance for row in rows] == [30, 35, 40, 40, 40, 40]
        assert rows[-1][1:4] == per_step
        assert Sizes.of(rows) == per_step
    assert [row[1:] for row in EVALUATION["v3"]] == [row[1:] for row in PAPER["v3"]]
    assert {row.min_distance for row in EVALUATION["v2"] + FINAL_TEST} == {40}
    assert [row[1:4] for row in FINAL_TEST] == [(3, 4, 4), (4, 5, 5), (5, 6, 6), (6, 7, 7), (7, 8, 8)]


def test_what_is_not_given_is_the_version_s_own() -> None:
    assert chosen_levels("v2", NONE, None) == (Level(0, 5, 6, 6, 40.0),)
    assert chosen_levels("v3", NONE, None) == (Level(0, 5, 0, 4, 40.0),)
    assert chosen_levels("v2", (3, None, 0, 30), None) == (Level(0, 3, 6, 0, 30.0),)


def test_rows_and_words() -> None:
    assert chosen_levels("v2", NONE, "paper") == PAPER["v2"]
    assert chosen_levels("v3", NONE, "evaluation") == EVALUATION["v3"]
    assert chosen_levels("v2", NONE, "test") == FINAL_TEST
    rows = [[0, 1, 0, 0, 10], (500, 2, 1, 3, 20.5)]
    assert chosen_levels("v2", NONE, rows) == (Level(0, 1, 0, 0, 10.0), Level(500, 2, 1, 3, 20.5))


def test_there_is_room_for_one_obstacle_at_least() -> None:
    assert Sizes.of((Level(0, 3, 0, 0, 30.0),)) == (3, 0, 1)


@pytest.mark.parametrize(
    ("version", "single", "curriculum", "message"),
    [
        ("v2", (3, None, None, None), "paper", "a curriculum, or robots"),
        ("v3", NONE, "test", "one of paper, evaluation; got 'test'"),
        ("v2", NONE, "papers", "rows, or one of paper, evaluation, test; got 'papers'"),
        ("v2", NONE, [], "from step 0 on; got steps"),
        ("v2", NONE, [(5, 1, 0, 0, 10)], "from step 0 on"),
        ("v2", NONE, [(0, 1, 0, 0, 10), (9, 1, 0, 0, 10), (5, 1, 0, 0, 10)], "in order"),
        ("v2", NONE, [(0, 1, 0, 10)], "a row of a curriculum wants from_step"),
        ("v2", (0, None, None, None), None, "at least one robot"),
        ("v2", (None, -1, None, None), None, "no count or distance below 0"),
        ("v2", (None, None, None, -1.0), None, "no count or distance below 0"),
    ],
)
def test_what_makes_no_sense_is_refused(version: str, single: Any, curriculum: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chosen_levels(version, single, curriculum)
