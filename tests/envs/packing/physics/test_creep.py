"""Exposure to creep: piles by hand, and the same numbers from contacts of boxes."""

from __future__ import annotations

import numpy as np
import pytest

from torchrl_gpu.envs.packing.physics.creep import Exposure, Footprint


def exposed(*boxes: Footprint) -> float:
    exposure = Exposure((12, 10))
    for box in boxes:
        exposure.add(box)
    return exposure.mean


BASE = Footprint(0, 0, 4, 4, 0.0, 0.1)
BESIDE = Footprint(6, 0, 4, 4, 0.0, 0.1)


def test_what_stands_on_the_floor_is_not_exposed() -> None:
    assert exposed() == 0
    assert exposed(BASE, BESIDE) == 0


@pytest.mark.parametrize("height", [0.05, 0.1, 0.3])
def test_of_a_tower_levels_count_by_the_boxes_that_came_after(height: float) -> None:
    tower = [Footprint(0, 0, 4, 4, level * height, height) for level in range(4)]
    # Levels 0 to 3, after which 3, 2, 1 and 0 boxes came.
    assert exposed(*tower) == (0 * 3 + 1 * 2 + 2 * 1 + 3 * 0) / 4


def test_the_longest_chain_to_the_floor_counts() -> None:
    low = Footprint(6, 0, 4, 4, 0.0, 0.05)
    second = Footprint(6, 0, 4, 4, 0.05, 0.05)
    bridge = Footprint(0, 0, 10, 4, 0.1, 0.1)
    assert exposed(BASE, low, second, bridge, Footprint(0, 6, 2, 2, 0.0, 0.1)) == (0 + 0 + 1 * 2 + 2 * 1 + 0) / 5


@pytest.mark.parametrize(("top", "level"), [(0.1, 2), (0.07, 2), (0.061, 2), (0.059, 1), (0.03, 1)])
def test_a_box_that_leans_rests_on_what_is_up_to_4_cm_lower(top: float, level: int) -> None:
    lower = BESIDE._replace(height=top / 2)
    on_lower = lower._replace(base=top / 2)
    leaning = Footprint(0, 0, 10, 4, 0.1, 0.1)
    last = Footprint(0, 6, 2, 2, 0.0, 0.1)
    assert exposed(BASE, lower, on_lower, leaning, last) == (1 * 2 + level * 1) / 5


def by_contacts(boxes: list[Footprint]) -> float:
    """The same number from who rests on whom, box by box."""
    levels: list[int] = []
    for number, box in enumerate(boxes):
        below = []
        for level, other in zip(levels, boxes[:number], strict=True):
            meets_x = min(box.x + box.length, other.x + other.length) > max(box.x, other.x)
            meets_y = min(box.y + box.width, other.y + other.width) > max(box.y, other.y)
            if meets_x and meets_y and abs(other.base + other.height - box.base) < 1e-6:
                below.append(level)
        levels.append(1 + max(below) if below else 0)
    after = len(boxes) - 1 - np.arange(len(boxes))
    return float((np.array(levels) * after).mean())


def test_random_piles_are_exposed_as_their_contacts_say() -> None:
    random = np.random.default_rng(5)
    for _ in range(20):
        tops = np.zeros((12, 10))
        boxes = []
        exposure = Exposure((12, 10))
        for _ in range(25):
            length = int(random.integers(2, 6))
            width = int(random.integers(2, 6))
            x = int(random.integers(0, 13 - length))
            y = int(random.integers(0, 11 - width))
            window = tops[x : x + length, y : y + width]
            # Heights differ by more than what leans, or not at all.
            box = Footprint(x, y, length, width, float(window.max()), 0.1)
            window[:] = box.base + box.height
            foretold = exposure.after()
            exposure.add(box)
            boxes.append(box)
            assert exposure.mean == pytest.approx(foretold)
        assert exposure.mean == pytest.approx(by_contacts(boxes))
