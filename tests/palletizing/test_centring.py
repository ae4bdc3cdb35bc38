"""Loads moved to the middle of their pallets, and how far off they stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from torchrl_gpu.palletizing import Pallet, pack
from torchrl_gpu.palletizing.centring import MOST_OFF_MIDDLE, centre_loads, off_middle
from torchrl_gpu.palletizing.plan import Placements

PALLET = Pallet(1.2, 0.8, 1.5)


def load(*boxes: tuple[float, ...]) -> Placements:
    """Boxes of x, y, z, length, width, height on the first pallet of the first order."""
    rows = np.array(boxes)
    number = np.arange(len(rows))
    zero = np.zeros_like(number)
    along = np.zeros((len(rows), 3), dtype=np.int64)
    return Placements(zero, number, number, zero, along, corner=rows[:, :3], sides=rows[:, 3:])


def test_load_with_room_comes_to_the_middle() -> None:
    placed = load((0, 0, 0, 0.4, 0.3, 0.2), (0.4, 0, 0, 0.4, 0.3, 0.2))
    assert off_middle(placed.corner, placed.sides, np.array([3.0, 1.0]), PALLET) == pytest.approx(0)
    moved = centre_loads(placed, PALLET, np.array([3.0, 1.0]))
    centre = ((moved.corner + moved.sides / 2)[:, :2] * [[3.0], [1.0]]).sum(0) / 4
    assert centre == pytest.approx([0.6, 0.4])


def test_load_without_room_stays_off_the_middle() -> None:
    placed = load((0, 0, 0, 0.6, 0.8, 0.2), (0.6, 0, 0, 0.6, 0.8, 0.2))
    # 3 kg at 300 mm and 1 kg at 900 mm are at 450 mm together: 150 of 1,200 mm off.
    assert off_middle(placed.corner, placed.sides, np.array([3.0, 1.0]), PALLET) == pytest.approx(0.125)
    # Where a weight is not known, boxes count by their volumes.
    assert off_middle(placed.corner, placed.sides, np.array([3.0, 0.0]), PALLET) == pytest.approx(0)


def test_loads_of_the_example_lie_on_the_middle() -> None:
    plans = pack(ROOT / "examples" / "orders.csv", "eur", device="cpu")
    weights = np.concatenate(plans.found.weights)
    loads = [pallet.placed for pallet in plans.pallets()]
    assert len(loads) == 2
    for each in loads:
        assert off_middle(each.corner, each.sides, weights[each.box], plans.pallet) <= MOST_OFF_MIDDLE
    assert "off the middle" not in plans.told


def test_load_off_the_middle_is_told(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    # Each takes half of the pallet, and one is four times as heavy.
    path.write_text("length mm,width mm,height mm,weight kg\n600,800,300,40\n600,800,300,10\n", encoding="utf-8")
    plans = pack(path, "eur", device="cpu")
    # 40 kg at 300 mm and 10 kg at 900 mm are at 420 mm together: 180 of 1,200 mm off.
    told = "1 of 1 loads lies off the middle by more than 10% of a side; most order all, pallet 1: 15%"
    assert told in plans.told
