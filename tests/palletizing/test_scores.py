"""Scores of plans."""

from __future__ import annotations

import numpy as np
import pytest

from torchrl_gpu.palletizing.scores import is_tower, most_slender_column, presses_on_lighter


def load(*boxes: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Corners and sides of boxes of x, y, z, length, width, height."""
    rows = np.array(boxes)
    return rows[:, :3], rows[:, 3:]


def test_single_box_is_its_own_column() -> None:
    column = most_slender_column(*load((0, 0, 0, 0.4, 0.2, 0.5)))
    assert column == (pytest.approx(0.5), pytest.approx(0.2))
    assert column.tips_at_g == pytest.approx(0.4)


def test_column_counts_from_the_top_of_what_is_beside_it() -> None:
    broad = [(x, 0, 0, 0.4, 0.8, 0.5) for x in (0.0, 0.4, 0.8)]
    alone = [(0.8, 0, 0.5, 0.2, 0.2, 0.3), (0.8, 0, 0.8, 0.2, 0.2, 0.3)]
    column = most_slender_column(*load(*broad, *alone))
    assert column == (pytest.approx(0.6), pytest.approx(0.2))


def test_columns_that_touch_hold_one_another() -> None:
    beside = [(x, 0, 0, 0.2, 0.8, 0.6) for x in (0.0, 0.22, 0.44)]
    apart = [(x, 0, 0, 0.2, 0.8, 0.6) for x in (0.0, 0.24, 0.48)]
    assert most_slender_column(*load(*beside)).width == pytest.approx(0.64)
    # They stand apart, though the load as a whole is broad.
    assert most_slender_column(*load(*apart)) == (pytest.approx(0.6), pytest.approx(0.2))


def test_tower_is_high_for_its_width() -> None:
    assert is_tower(*load((0, 0, 0, 0.2, 0.2, 0.6)))
    assert not is_tower(*load((0, 0, 0, 0.2, 0.2, 0.6), (0.2, 0.2, 0, 0.2, 0.2, 0.6)))


def test_heavy_box_presses_on_a_light_one_that_it_stands_on() -> None:
    corner, sides = load(
        (0, 0, 0, 0.4, 0.4, 0.3),
        (0.4, 0, 0, 0.4, 0.4, 0.3),
        # It stands on both boxes.
        (0.2, 0, 0.3, 0.4, 0.4, 0.2),
        # It stands on the box before, and beside the first one.
        (0.2, 0, 0.5, 0.4, 0.4, 0.2),
    )
    weight = np.array([4.0, 20.0, 9.0, 9.0])
    assert presses_on_lighter(corner, sides, weight).tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("above", "below", "presses"),
    [(6.1, 3.0, True), (6.0, 3.0, False), (4.0, 1.1, False), (4.0, 0.9, True), (50.0, 0.0, False)],
)
def test_lighter_is_less_than_half_and_by_three_kilograms(above: float, below: float, presses: bool) -> None:
    corner, sides = load((0, 0, 0, 0.4, 0.4, 0.3), (0, 0, 0.3, 0.4, 0.4, 0.3))
    # A weight of 0 is not known.
    assert presses_on_lighter(corner, sides, np.array([below, above])).tolist() == [False, presses]


def test_boxes_side_by_side_press_on_nothing() -> None:
    corner, sides = load((0, 0, 0, 0.4, 0.4, 0.3), (0.4, 0, 0.3, 0.4, 0.4, 0.3))
    assert not presses_on_lighter(corner, sides, np.array([1.0, 50.0])).any()
