"""Boxes rest on boxes.

They never rest on the room that is kept between them, nor on what rounding to cells adds.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from torchrl_gpu.palletizing import Boxes, Packer, Pallet, pack

DIRECTIONS = np.stack([np.cos(np.arange(90) * math.tau / 90), np.sin(np.arange(90) * math.tau / 90)], 1)
CONTACT_M = 0.0016


def packed(pallet: Pallet, sizes: Tensor, step: int = 1, policy: str = "dbl") -> tuple[np.ndarray, np.ndarray]:
    """Pack one pallet, in the order of the boxes.

    Returns:
        Lower corners and sides, (B, 3) each, of the boxes that it takes.
    """
    packer = Packer(pallet, turns="yaw", policy=policy, step=step, device="cpu")
    prepared = packer.prepare(Boxes.of(sizes))
    state = packer.empty(1)
    corners = []
    sides = []
    for number in range(len(sizes)):
        choice = packer.choose(state, prepared, torch.tensor([[number]]))
        if int(choice.box[0]) < 0 or (bool(choice.fresh[0]) and corners):
            continue
        corner, side = packer.corner(choice, prepared)
        state = packer.place(state, prepared, choice)
        corners.append(corner[0].numpy())
        sides.append(side[0].numpy())
    return np.array(corners), np.array(sides)


def rectangle(low: np.ndarray, high: np.ndarray) -> list[list[float]]:
    """Corners of a rectangle, by its lowest and its highest."""
    return [[low[0], low[1]], [low[0], high[1]], [high[0], low[1]], [high[0], high[1]]]


def contacts(corners: np.ndarray, sides: np.ndarray, number: int) -> np.ndarray:
    """Corners (C, 2) of the areas that a box shares with what it rests on."""
    first = corners[number]
    end = first + sides[number]
    if first[2] < CONTACT_M:
        return np.array(rectangle(first, end))
    found = []
    for below in range(number):
        if abs(corners[below, 2] + sides[below, 2] - first[2]) > CONTACT_M:
            continue
        low = np.maximum(first[:2], corners[below, :2])
        high = np.minimum(end[:2], corners[below, :2] + sides[below, :2])
        if (high - low > 1e-9).all():
            found += rectangle(low, high)
    return np.array(found).reshape(-1, 2)


def is_held(corners: np.ndarray, sides: np.ndarray, number: int) -> bool:
    """Whether the middle of a box lies in the hull of what it touches."""
    touched = contacts(corners, sides, number)
    middle = corners[number, :2] + sides[number, :2] / 2
    if not len(touched):
        return False
    # In every direction some contact is as far out as the middle.
    furthest = ((touched - middle) @ DIRECTIONS.T).max(0)
    return bool((furthest >= -1e-6).all())


def random_boxes(seed: int, low_mm: int = 105, high_mm: int = 400) -> Tensor:
    generator = np.random.default_rng(seed)
    millimetres = generator.integers(low_mm, high_mm, (40, 3))
    millimetres[:, 2] = generator.choice([100, 150, 200], 40)
    return torch.from_numpy(millimetres / 1000.0)


@pytest.mark.parametrize(
    ("gap", "cell", "step"),
    [(0.0, 0.05, 1), (0.015, 0.02, 1), (0.03, 0.02, 1), (0.1, 0.02, 1), (0.1, 0.05, 2), (0.0, 0.1, 1), (0.03, 0.04, 3)],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_middle_of_every_box_lies_over_what_it_touches(gap: float, cell: float, step: int, seed: int) -> None:
    pallet = Pallet(1.2, 0.8, 1.5, gap=gap, cell=cell)
    corners, sides = packed(pallet, random_boxes(seed), step)
    assert len(corners) > 5
    assert [number for number in range(len(corners)) if not is_held(corners, sides, number)] == []


def test_boxes_of_whole_cells_have_whole_soles() -> None:
    sizes = torch.from_numpy(np.random.default_rng(2).integers(5, 20, (30, 3)) / 50.0)
    prepared = Packer(Pallet(1.2, 0.8, 1.5, cell=0.02), device="cpu").prepare(Boxes.of(sizes))
    assert prepared.soles.is_whole


def test_sole_is_what_lies_wholly_under_the_box() -> None:
    # 430 mm and a gap of 30 take 23 cells of 20 mm, whose middle 430 hold 21 whole ones; 300 and the gap take 17.
    prepared = Packer(Pallet(1.2, 0.8, 1.5, gap=0.03, cell=0.02), turns="fixed", device="cpu").prepare(
        Boxes.of([[0.43, 0.3, 0.2]])
    )
    assert prepared.catalogue.extent[0, 0].tolist() == [23, 17]
    assert prepared.soles.catalogue.extent[0, 0].tolist() == [21, 15]
    assert prepared.soles.rim[0, 0].tolist() == [1, 1]


def test_box_that_fills_no_cell_stands_on_the_floor_and_carries_nothing() -> None:
    sizes = torch.tensor([[0.105, 0.105, 0.1]] * 200)
    corners, _ = packed(Pallet(1.2, 0.8, 1.5, cell=0.1), sizes)
    assert len(corners) == 24
    assert (corners[:, 2] == 0).all()


def test_plans_tell_of_boxes_that_fill_no_cell(tmp_path: Path) -> None:
    orders = tmp_path / "orders.csv"
    orders.write_text("Length_mm,Width_mm,Height_mm,Qty\n105,105,100,3\n400,300,200,2\n", encoding="utf-8")
    assert "3 boxes fill no whole cell of 100 mm" in pack(orders, cell="100mm", visible=1, device="cpu").told
    assert "fill no whole cell" not in pack(orders, cell="20mm", visible=1, device="cpu").told
    assert "fill no whole cell" not in pack(orders, cell="100mm", visible=1, stability="support", device="cpu").told
    # Whole orders are planned by exact lengths.
    assert "fill no whole cell" not in pack(orders, cell="100mm", device="cpu").told
