"""Patterns of a layer: best known numbers of boxes, and the laws of any layout."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from torchrl_gpu.palletizing.layer_patterns import LayerPattern, best_pattern

INCH = 0.0254
# Pallet, box, and the most boxes on a layer: by hand, or by Morabito and Morales (1998) for the last ones.
BEST_KNOWN = [
    (1.2, 0.8, 0.4, 0.3, 8),
    (1.2, 0.8, 0.6, 0.4, 4),
    (1.2, 0.8, 0.3, 0.2, 16),
    (1.2, 0.8, 0.2, 0.15, 32),
    (1.2, 0.8, 0.4, 0.266, 9),
    (1.2, 1.0, 0.5, 0.3, 8),
    (1.2, 1.0, 0.4, 0.333, 9),
    (1.2, 0.8, 0.171, 0.133, 42),
]
IN_INCHES = [(48, 40, 9.6, 8, 25), (48, 40, 16, 40 / 3, 9)]
BEST_KNOWN += [(*(side * INCH for side in case[:4]), case[4]) for case in IN_INCHES]
# Layers of the literature on which five blocks are known to miss the best number, by one.
HARD = [(0.43, 0.26, 0.07, 0.03, 53), (0.49, 0.28, 0.08, 0.03, 57), (0.57, 0.34, 0.07, 0.04, 69)]


def check_layout(pattern: LayerPattern, sides: tuple[float, float, float, float]) -> None:
    """Boxes lie on the rectangle and apart."""
    length, width, along, across = sides
    side_x = np.where(pattern.turned, across, along)
    side_y = np.where(pattern.turned, along, across)
    low = np.stack([pattern.x, pattern.y], 1)
    high = low + np.stack([side_x, side_y], 1)
    assert low.min(initial=0) >= 0
    assert (high <= np.array([length, width]) + 1e-4).all()
    apart = (low[:, None] >= high[None] - 1e-9).any(2)
    apart |= apart.T
    assert (apart | np.eye(len(low), dtype=bool)).all()


@pytest.mark.parametrize("case", BEST_KNOWN, ids=str)
def test_pattern_has_the_best_known_number_of_boxes(case: tuple[float, float, float, float, int]) -> None:
    *sides, best = case
    pattern = best_pattern(*sides)
    assert pattern.number == best
    check_layout(pattern, (sides[0], sides[1], sides[2], sides[3]))


@pytest.mark.parametrize("case", HARD, ids=str)
def test_pattern_misses_a_hard_layer_by_one_box_at_most(case: tuple[float, float, float, float, int]) -> None:
    *sides, best = case
    assert best - 1 <= best_pattern(*sides).number <= best


def test_random_patterns_are_layouts_and_no_worse_than_rows() -> None:
    draw = random.Random(0)
    for _ in range(60):
        length, width = draw.uniform(0.6, 1.3), draw.uniform(0.6, 1.3)
        along, across = draw.uniform(0.12, 0.7), draw.uniform(0.12, 0.7)
        pattern = best_pattern(length, width, along, across)
        straight = math.floor(length / along) * math.floor(width / across)
        turned = math.floor(length / across) * math.floor(width / along)
        assert pattern.number >= max(straight, turned)
        check_layout(pattern, (length, width, along, across))


@pytest.mark.parametrize("sides", [(1.2, 0.8, 0.047, 0.031), (1.2, 1.0, 0.011, 0.007), (1.2, 0.8, 0.003, 0.002)])
def test_many_small_boxes_fill_the_layer(sides: tuple[float, float, float, float]) -> None:
    pattern = best_pattern(*sides)
    assert pattern.number * sides[2] * sides[3] > 0.97 * sides[0] * sides[1]
    if pattern.number < 2000:
        check_layout(pattern, sides)


def test_boxes_that_may_not_turn_lie_in_rows() -> None:
    pattern = best_pattern(1.2, 0.8, 0.3, 0.4, may_turn=False)
    assert pattern.number == 8
    assert not pattern.turned.any()
    assert best_pattern(1.2, 0.8, 1.3, 0.1, may_turn=False).number == 0
