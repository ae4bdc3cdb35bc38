"""Scores of plans."""

from __future__ import annotations

import numpy as np
import pytest

from torchrl_gpu.palletizing.scores import is_tower, most_slender_column


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
