"""The Physics Pack of RoboBPP.

The tests are about the layout by hand, what stands by both engines, and a run that continues.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import robobpp_physics as physics
from benchmarks.robobpp_physics import Box, Pallet
from tests.envs.packing.items.test_board_cases import PICKS, short_cases
from tests.envs.packing.items.test_factories import PICKED, installed, table
from tests.records import with_values

assert installed
assert short_cases
pytest.importorskip("mujoco")
BASE = Box((0.4, 0.395, 0.3), (0.4, 0.4), (0.0, 0.0, 0.0))
# Its middle is 10 cm inside.
ON_TOP = Box((0.4, 0.4, 0.3), (0.4, 0.4), (0.1, 0.0, 0.3))
# It stands 5 cm outside.
OVER = with_values(ON_TOP, corner=(0.25, 0.0, 0.3))


def pallet(*boxes: Box) -> Pallet:
    return Pallet("diverse", (1.2, 1.0, 1.7), boxes)


def test_boxes_lie_as_packsim_lays_them_out() -> None:
    # 0.2 mm a centimetre between cells, mirrored: (120 − 10 − 20) and (100 − 20) cells of 10.2 mm.
    assert pallet().target(ON_TOP).tolist() == pytest.approx([0.918, 0.816])
    assert pallet(BASE, ON_TOP).utilization(1) == pytest.approx(0.4 * 0.395 * 0.3 / 2.04)
    first = 0.4 * 0.395 * 0.3 / (0.4 * 0.4 * 0.3)
    # The second box covers 30 × 40 cells of the first, and as many beside 10 × 40 of the floor.
    both = (0.4 * 0.395 * 0.3 + 0.4 * 0.4 * 0.3) / (0.1 * 0.4 * 0.3 + 0.4 * 0.4 * 0.6)
    assert pallet(BASE, ON_TOP).occupancy(1) == pytest.approx(first)
    assert pallet(BASE, ON_TOP).occupancy(2) == pytest.approx((first + both) / 2)
    assert pallet(BASE).occupancy(0) == 0


ENGINES = [
    "mujoco",
    pytest.param(
        "bullet",
        marks=pytest.mark.skipif(
            not (importlib.util.find_spec("pybullet") and importlib.util.find_spec("packsim")),
            reason="wants PyBullet and the extra robobpp",
        ),
    ),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("last", "placed"), [(ON_TOP, 2), (OVER, 1)])
def test_a_box_whose_middle_is_over_nothing_ends_the_run(engine: str, last: Box, placed: int) -> None:
    found = physics.ENGINES[engine](pallet(BASE, last))
    assert (found["placed"], found["collapsed"]) == (placed, placed < 2)
    assert (found["moved_m"] > 0.04) == (placed < 2)
    assert found["fallen"] == (None if placed == 2 else 1)


def test_a_run_goes_on_where_it_stopped(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, made = tmp_path / "results.json", []
    answer = {"placed": 1, "collapsed": True, "fallen": 0, "moved_m": 1.0}
    monkeypatch.setitem(physics.ENGINES, "mujoco", lambda plan: made.append(plan) or dict(answer))
    words = ["--data", "boards", "--stability=support", "--engines", "mujoco", f"--output={path}"]
    for number, runs in ((1, 1), (3, 3), (3, 3)):
        physics.main([*words, f"--sequences={number}"])
        rows = json.loads(path.read_text())["runs"]["boards / dbl / support"]
        assert len(made) == len(rows) == runs
    assert rows["2"]["mujoco"]["utilization"] == pytest.approx(made[2].utilization(1))
    assert "boards / dbl / support" in capsys.readouterr().out


def test_a_plan_ends_before_it_is_exposed_too_much() -> None:
    tower = [Box((0.4, 0.4, 0.2), (0.4, 0.4), (0.0, 0.0, 0.2 * level)) for level in range(4)]
    plan = pallet(*tower)
    # Of two, three and four boxes: 0, 1 · 1 and 1 · 2 + 2 · 1, by their number.
    for most, number in ((4.0, 4), (1.0, 4), (0.99, 3), (1 / 3, 3), (0.3, 2), (0.0, 2)):
        assert plan.exposed_up_to(most).boxes == tuple(tower[:number])


def test_a_clearance_is_kept_between_boxes_and_not_at_the_far_sides(installed: Path) -> None:
    # Of a clearance that is not whole cells a box without room for it would lie outside.
    for clearance in (0.009, 0.015):
        assert physics.boxes_of("boards", "test", clearance).keys() == {"items"}
    roomy = physics.boxes_of("boards", "test", 0.01)
    (planned,) = physics.pallets("boards", "dbl", roomy, 1)
    assert planned.size == physics.PALLETS["boards"]["bin_size"]
    sides = np.array([np.add(box.corner[:2], box.cells) for box in planned.boxes])
    assert (sides <= np.array(planned.size[:2]) + 1e-9).all()
    for number, box in enumerate(planned.boxes):
        for other in planned.boxes[:number]:
            beside = abs(np.subtract(box.corner, other.corner)) < 1e-9
            # At one height and in one line, something is free between them.
            if beside[2] and beside[1]:
                first, second = sorted([box, other], key=lambda each: each.corner[0])
                assert second.corner[0] >= first.corner[0] + first.cells[0] + 0.01 - 1e-9


def test_released_rules_lay_boxes_as_they_do_in_the_math_pack(installed: Path, short_cases: None) -> None:
    table(installed / "time_series" / "pg.xlsx", [PICKED, *PICKS])
    sides = physics.BoardCases().sides.reshape(2, 3, 3)
    plans = physics.released_pallets("DBL", 2)
    assert [plan.size for plan in plans] == [(1.34, 1.25, 1.0)] * 2
    for plan, boxes in zip(plans, sides, strict=True):
        counted, occupancy = physics.released_rules.pack(
            physics.released_rules.RULES["DBL"],
            physics.released_rules.in_cells(boxes),
            (134, 125, 100.0),
            boxes.prod(1),
        )
        assert len(plan.boxes) == counted == 3
        assert plan.occupancy(3) == pytest.approx(occupancy, rel=1e-5)
        assert [sorted(box.sides) for box in plan.boxes] == [pytest.approx(sorted(each / 100)) for each in boxes]


def test_cases_of_the_board_are_played_in_their_order(installed: Path, short_cases: None, tmp_path: Path) -> None:
    table(installed / "time_series" / "pg.xlsx", [PICKED, *PICKS])
    path = tmp_path / "physics.json"
    words = ["--data", "repetitive-board", "--engines", "mujoco", f"--output={path}"]
    physics.main([*words, "--policy", "dbl", "released-DBL"])
    runs = json.loads(path.read_text())["runs"]
    assert list(runs) == ["repetitive-board / dbl / none", "repetitive-board / released-DBL / none"]
    assert [list(run) for run in runs.values()] == [["0", "1"]] * 2
    for wrong, wanted in (
        (["--split=train"], "has cases of its own and no --split train"),
        (["--policy=released-PCT"], "--policy must be one of released-DBL, released-LSAH, "),
        (["--policy=released-DBL", "--stability=support"], "released-DBL needs --data repetitive-board alone"),
    ):
        with pytest.raises(ValueError, match=wanted):
            physics.main([*words, *wrong])


def test_a_clearance_that_lets_further_boxes_in_is_refused(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = iter([np.zeros((3, 3)), np.zeros((2, 3))])
    monkeypatch.setattr(physics.FactoryBoxes, "true_sides", lambda self, bin_: next(sides))
    with pytest.raises(ValueError, match=r"--clearance must let no box of boards in .*, which 0.03 m does"):
        physics.boxes_of("boards", "test", 0.03)


def test_free_places_change_a_plan_and_know_training_rows_alone(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = []
    made = physics.FactoryBoxes.build

    def build(self: physics.FactoryBoxes, *given: object) -> object:
        splits.append(self.split)
        return made(self, *given)

    rule = {"stability": "load_bearing", "items": physics.FactoryBoxes("boards", "test")}
    (plain,) = physics.pallets("boards", "boards", rule, 1)
    monkeypatch.setattr(physics.FactoryBoxes, "build", build)
    (looked,) = physics.pallets("boards", "boards", rule, 1, look=5.0)
    assert splits[-1] == "train"
    assert looked != plain
    with pytest.raises(ValueError, match="--free_places needs a policy of placement weights"):
        physics.pallets("boards", "dbl", rule, 1, look=5.0)


def test_rows_say_what_they_were_planned_with(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    answer = {"placed": 1, "collapsed": False, "fallen": None, "moved_m": 0.0}
    monkeypatch.setitem(physics.ENGINES, "mujoco", lambda plan: dict(answer))
    words = ["--data", "boards", "--policy", "boards", "--stability=load_bearing", "--engines", "mujoco"]
    words += ["--sequences=1", f"--output={path}"]
    physics.main([*words, "--clearance=0.01", "--free_places=5", "--exposure=2"])
    (name,) = json.loads(path.read_text())["runs"]
    assert name == "boards / boards / load_bearing / clearance 0.01 m / free places 5 / exposed up to 2"
    for option in ("--free_places=5", "--exposure=2"):
        with pytest.raises(ValueError, match="does nothing without"):
            physics.main([*words, "--rehearsed=2", option])


TILTED = {"stability": "load_bearing", "max_tilt": 10.0}


def test_placements_that_are_rehearsed_move_nothing_far(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shifts, tried = [], physics.MujocoPile.tried
    monkeypatch.setattr(physics.MujocoPile, "tried", lambda *a: shifts.append(tried(*a)) or shifts[-1])
    plan = physics.Rehearsal("boards", "boards", TILTED, 3, "mujoco", physics.FAR, False)(0)
    near = [len(shift) for shift in shifts if shift.max() < physics.FAR * 0.07]
    # No box comes twice, and none is left out.
    assert near == list(range(1, len(plan.boxes) + 1))
    assert len(near) > 2


def rehearsed(monkeypatch: pytest.MonkeyPatch, shifts: list[tuple[int, float]], gently: bool) -> tuple[list, list]:
    """Plan with trials that end with given shifts.

    `shifts` are (number of boxes, displacement of each) by trial. Returns the boxes of the plan, and those that were
    tried.
    """
    tried = []
    found = {}
    given = iter(shifts)

    def trial(self: object, box: Box) -> np.ndarray:
        tried.append(box)
        number, shift = next(given)
        found[box] = np.full((number, 2), shift)
        return found[box]

    monkeypatch.setattr(physics.MujocoPile, "tried", trial)
    monkeypatch.setattr(physics.MujocoPile, "put", lambda self, box: found[box])
    plan = physics.Rehearsal("boards", "boards", TILTED, 2, "mujoco", physics.FAR, gently)(0)
    assert next(given, None) is None
    return list(plan.boxes), tried


def test_trials_lie_where_the_plan_lies_with_a_clearance(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = []
    put = physics.MujocoPile.put

    def noted(pile: physics.MujocoPile, box: Box) -> np.ndarray:
        where.append(pile.pallet.target(box).tolist())
        return put(pile, box)

    monkeypatch.setattr(physics.MujocoPile, "put", noted)
    rule = TILTED | physics.boxes_of("boards", "test", 0.01)
    plan = physics.Rehearsal("boards", "boards", rule, 1, "mujoco", physics.FAR, False)(0)
    assert plan.boxes
    for box in plan.boxes:
        assert plan.target(box).tolist() in where


def test_the_best_placement_that_moves_nothing_far_is_made(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (plain,) = physics.pallets("boards", "boards", TILTED, 1)
    # Of boards 7 cm end a pallet.
    shifts = [(1, 0.0), (2, 0.05), (2, 0.01), (3, 0.06), (3, 0.06)]
    plan, tried = rehearsed(monkeypatch, shifts, gently=False)
    assert tried[:2] == list(plain.boxes[:2])
    assert plan == [tried[0], tried[2]]
    assert tried[2] != tried[1]


def test_gently_the_first_of_those_that_move_the_pile_least_is_made(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second choice moves less.
    second = [(2, 0.02), (2, 0.01)]
    # Both move the new box about as far.
    third = [(3, 0.019), (3, 0.018)]
    # Little.
    fourth = [(4, 0.003)]
    shifts = [(1, 0.0), *second, *third, *fourth, (5, 0.06), (5, 0.06)]
    plan, tried = rehearsed(monkeypatch, shifts, gently=True)
    assert plan == [tried[0], tried[2], tried[3], tried[5]]
    assert tried[2] != tried[1]
    assert tried[4] != tried[3]


def test_a_turned_box_lies_as_one_of_turned_sides() -> None:
    turned = with_values(BASE, sides=(0.395, 0.4, 0.3))
    for sides in (BASE.sides, turned.sides):
        pile = physics.MujocoPile(pallet(), [sides])
        assert pile.put(turned).max() < 1e-3
        assert abs(pile.data.xmat[1].reshape(3, 3)) @ sides == pytest.approx(turned.sides, abs=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_box_that_is_tried_leaves_the_others_as_they_were(engine: str) -> None:
    with physics.open_pile(engine, pallet(), [BASE.sides, ON_TOP.sides]) as pile:
        pile.put(BASE)
        shifts = [pile.tried(box) for box in (ON_TOP, OVER, ON_TOP)]
        again = pile.put(ON_TOP)
    assert shifts[1].max() > 0.04
    assert shifts[2] == pytest.approx(shifts[0], abs=1e-4)
    assert again == pytest.approx(shifts[0], abs=0 if engine == "bullet" else 1e-4)


def test_heuristics_have_no_values_to_rehearse_by(installed: Path, tmp_path: Path) -> None:
    words = ["--data=boards", "--engines=mujoco", "--rehearsed=2", f"--output={tmp_path / 'results.json'}"]
    with pytest.raises(ValueError, match=r"--rehearsed .* not dbl"):
        physics.main(words)
