"""Plans for Jumanji's BinPack, checked and played in its environment."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import jumanji_bin_pack
from benchmarks.jumanji_bin_pack import (
    CONTAINER,
    SEARCHES,
    UM_PER_MM,
    BinPlan,
    Jumanji,
    check,
    hanging,
    push_into_corner,
)

LENGTH, WIDTH, HEIGHT = CONTAINER


def cut_container(seed: int, cuts: int) -> np.ndarray:
    """Boxes that fill the container: each cut goes through one of them, (B, 3)."""
    draw = np.random.default_rng(seed)
    boxes = [list(CONTAINER)]
    for _ in range(cuts):
        whole = boxes.pop(int(draw.integers(len(boxes))))
        axis = int(draw.integers(3))
        share = int(draw.integers(whole[axis] // 4, whole[axis] // 2))
        one = [*whole]
        one[axis] = share
        whole[axis] -= share
        boxes += [one, whole]
    return np.array(boxes)


def plan_of(*rows: tuple[int, ...]) -> BinPlan:
    """A plan of rows of x, y, z and three sides, millimetres."""
    values = np.array(rows, dtype=np.int64) * UM_PER_MM
    return BinPlan(np.arange(len(rows)), values[:, :3], values[:, 3:])


class MadeUp:
    """Stands for Jumanji where that is not installed."""

    def draw(self, seed: int) -> np.ndarray:
        return cut_container(seed, cuts=4)

    def play(self, seed: int, plan: BinPlan) -> float:
        return plan.filled


@pytest.mark.parametrize("search", list(SEARCHES))
def test_container_cut_into_few_boxes_is_filled_again(search: str) -> None:
    sizes = cut_container(seed=1, cuts=4)
    placed = SEARCHES[search](jumanji_bin_pack.list_of(sizes), 64)
    plan = jumanji_bin_pack.fullest_bin(placed)
    check(plan, sizes)
    assert len(plan.box) == len(sizes)
    assert plan.filled == 1
    assert hanging(plan) == 0


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ((99, 0, 0, 100, 100, 100), "boxes 0 and 1 overlap"),
        ((-1, 200, 0, 100, 100, 100), "outside the container"),
        ((LENGTH - 99, 0, 0, 100, 100, 100), "outside the container"),
        ((0, 0, HEIGHT - 99, 100, 100, 100), "outside the container"),
    ],
)
def test_box_inside_another_or_outside_is_a_fault(row: tuple[int, ...], fault: str) -> None:
    plan = plan_of((0, 0, 0, 100, 100, 100), row)
    with pytest.raises(ValueError, match=fault):
        check(plan, plan.sides // UM_PER_MM)


def test_boxes_that_touch_are_no_fault_and_turned_or_doubled_ones_are() -> None:
    plan = plan_of((0, 0, 0, 100, 200, 100), (100, 0, 0, 100, 200, 100), (0, 0, 100, 100, 200, 100))
    sizes = plan.sides // UM_PER_MM
    check(plan, sizes)
    turned = sizes[:, [1, 0, 2]]
    with pytest.raises(ValueError, match="turned"):
        check(plan, turned)
    twice = BinPlan(np.array([0, 1, 1]), plan.corner, plan.sides)
    with pytest.raises(ValueError, match="twice"):
        check(twice, sizes)


def test_box_in_the_air_or_on_an_edge_hangs() -> None:
    base = (0, 0, 0, 100, 100, 100)
    assert hanging(plan_of(base, (0, 0, 100, 50, 50, 50))) == 0
    assert hanging(plan_of(base, (0, 0, 101, 50, 50, 50))) == 1
    assert hanging(plan_of(base, (100, 0, 100, 50, 50, 50))) == 1


def test_boxes_are_pushed_until_each_meets_a_neighbour_or_a_wall() -> None:
    pushed = push_into_corner(plan_of((300, 40, 7, 100, 100, 100), (500, 60, 9, 100, 100, 100)))
    assert pushed.corner.tolist() == [[0, 0, 0], [100 * UM_PER_MM, 0, 0]]


def test_plan_by_halves_of_a_millimetre_is_checked_exactly() -> None:
    sizes = np.array([[LENGTH, WIDTH, 100], [101, 200, 100], [100, 200, 100]])
    # The two upper boxes touch, and begin at half a millimetre.
    corner = np.array([[0, 0, 0], [100_500, 0, 100_000], [201_500, 0, 100_000]])
    plan = BinPlan(np.arange(3), corner, sizes * UM_PER_MM)
    check(plan, sizes)
    assert push_into_corner(plan).corner[1:, 0].tolist() == [0, 101_000]
    corner[2, 0] -= 1
    with pytest.raises(ValueError, match="overlap"):
        check(plan, sizes)


def test_rows_are_measured_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jumanji_bin_pack, "Jumanji", MadeUp)
    output = tmp_path / "result.json"
    run = ["--searches", "blocks", "--tries", "16", "--output", str(output)]
    jumanji_bin_pack.main(["--instances", "1", *run])
    first = json.loads(output.read_text())["rows"][0]
    jumanji_bin_pack.main(["--instances", "2", *run])
    (row,) = json.loads(output.read_text())["rows"]
    assert row["seconds"][0] == first["seconds"][0]
    assert len(row["seconds"]) == 2
    assert row["filled"] == row["played"]
    assert "of 2 instances" in capsys.readouterr().out


def test_plan_is_played_in_jumanji_to_the_share_that_it_fills() -> None:
    pytest.importorskip("jumanji")
    jumanji = Jumanji()
    sizes = jumanji.draw(1)
    assert int(sizes.prod(1).sum()) == LENGTH * WIDTH * HEIGHT
    result = jumanji_bin_pack.measure(jumanji, "blocks", 128, seed=1)
    assert result["played"] == pytest.approx(result["filled"], abs=1e-5)
    # A box above the floor has no empty maximal space with its corner.
    alone = BinPlan(np.array([0]), np.array([[0, 0, 1]]), sizes[:1] * UM_PER_MM)
    assert jumanji.play(1, alone) == 0
