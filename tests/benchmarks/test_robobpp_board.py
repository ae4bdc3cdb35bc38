"""RoboBPP's board: its ranking, its rules by hand, and its cases by its rules."""

from __future__ import annotations

import importlib.util
import json
from statistics import fmean

import numpy as np
import pytest

from benchmarks import robobpp_board
from benchmarks.released_rules import RULES, Pile, Placed, in_cells, pack
from benchmarks.robobpp_board import RESULTS, WEIGHTS, composites, placed_among
from torchrl_gpu.envs.packing.items.board_cases import BOARD_CASES

PRINTED = robobpp_board.read_printed()
# Cases whose boxes come in another order than the rows.
NOT_EXACT = (18, 29)
ROWS = {
    "most": {"utilization": 0.6, "occupancy": 0.9, "decision_s": 1.0},
    "fast": {"utilization": 0.2, "occupancy": 0.5, "decision_s": 0.0},
    "half": {"utilization": 0.4, "occupancy": 0.7, "decision_s": 0.25},
}


# -- ranking -----------------------------------------------------------------------------------------------------------


def test_decision_times_are_those_of_each_way() -> None:
    evaluations = {"boards": {"policies": [{"policy": "pretrained boards", "decision_alone_ms": 5.0}]}}
    ways = {"by weights": {"decision_ms": 4.0}, robobpp_board.LOOKS: {"decision_ms": 20.0}}
    looks = {"cases": {"boards": {"policies": ways}, "boards, 1 degree": {"policies": {}}}}
    found = robobpp_board.decision_times(evaluations, looks)
    assert found == {("boards", "boards"): 0.005, ("boards", robobpp_board.LOOKS): 0.02}


def test_composites_by_hand() -> None:
    found = composites(ROWS, WEIGHTS["math"])
    assert found == pytest.approx({"most": 0.86, "fast": 0.14, "half": 0.3 + 0.13 + 0.14 * 0.75})


def test_a_row_outside_the_others_stretches_their_scale() -> None:
    better = {"utilization": 1.0, "occupancy": 0.9, "decision_s": 2.0}
    composite, place = placed_among(ROWS, better, WEIGHTS["math"])
    assert (composite, place) == (pytest.approx(0.86), 1)
    worse = {"utilization": 0.2, "occupancy": 0.5, "decision_s": 2.0}
    assert placed_among(ROWS, worse, WEIGHTS["math"]) == (0, 4)


def test_composites_refuse_a_metric_in_which_all_are_equal() -> None:
    with pytest.raises(ValueError, match=r"2 rows .*occupancy 0.9"):
        composites({"a": ROWS["most"], "b": ROWS["most"] | {"utilization": 0.1}}, WEIGHTS["math"])


@pytest.mark.parametrize("setting", WEIGHTS)
@pytest.mark.parametrize("data", robobpp_board.DATA)
def test_printed_composites_are_the_weighted_sums_of_the_printed_means(setting: str, data: str) -> None:
    rows = PRINTED["means"][setting][data]
    found = composites(rows, WEIGHTS[setting])
    assert sum(WEIGHTS[setting].values()) == pytest.approx(1)
    assert len(rows) == 12
    printed = PRINTED["composites"][setting][data]
    assert {name: found[name] for name in printed} == pytest.approx(printed, abs=0.001)
    assert max(printed, key=printed.get) == max(found, key=found.get)


@pytest.mark.parametrize("pack", WEIGHTS)
def test_printed_means_are_those_of_the_printed_cases(pack: str) -> None:
    for method, columns in PRINTED[robobpp_board.CASES_OF[pack]].items():
        found = {"decision_s": fmean(np.divide(columns["planning_s"], columns["boxes"]))}
        found |= {metric: fmean(columns[metric]) for metric in WEIGHTS[pack] if metric != "decision_s"}
        assert all(len(values) == 30 for values in columns.values())
        assert found == pytest.approx(PRINTED["means"][pack]["repetitive"][method], abs=0.0006), method


def test_released_rules_that_were_carried_out_are_compared_with_what_is_printed() -> None:
    ours = {"placed": 19, "utilization": 0.4, "occupancy": 0.9, "static_stability": 0.4, "local_mean_m": 0.01}
    runs = {"repetitive-board / released-DBL / none": {"0": {"bullet": ours}, "1": {"sha256": "no engine yet"}}}
    found = robobpp_board.carry_out_released(PRINTED, runs)
    assert list(found) == ["DBL"]
    assert found["DBL"]["cases"] == [{"case": 0, "printed": 19, "placed": 19}]
    assert found["DBL"]["means"]["static"] == {"printed": 0.368, "found": 0.4}


def test_runs_of_the_boards_cases_are_ranked_among_means_of_these_cases() -> None:
    found = {"utilization": 0.5, "static_stability": 0.3, "local_mean_m": 0.02, "collapsed": False, "occupancy": 0.9}
    of_cases = {str(number): {"bullet": found} for number in range(len(BOARD_CASES))}
    times = {("repetitive", "repetitive"): 0.01}
    (row,) = robobpp_board.physics_rows(PRINTED, {"repetitive-board / repetitive / none": of_cases}, times)
    assert row["pallets"] == 22
    assert row["decision_s"] == 0.01
    assert row["composite"][0] == row["composite"][1]
    del of_cases["3"]
    assert robobpp_board.physics_rows(PRINTED, {"repetitive-board / repetitive / none": of_cases}, times) == []


def test_missing_metrics_bound_the_composite_of_a_physics_run() -> None:
    found = {"utilization": 0.5, "static_stability": 0.3, "local_mean_m": 0.02, "collapsed": False}
    runs = {"boards / ours": {str(number): {"bullet": found} for number in range(30)}, "boards / few": {}}
    (row,) = robobpp_board.physics_rows(PRINTED, runs, {})
    low, high = row["composite"]
    # Occupancy and decision time are missing.
    assert high - low == pytest.approx(0.29)
    assert row["local_m"] == pytest.approx(0.02)
    fallen = {number: {"bullet": found | {"collapsed": True}} for number in map(str, range(30))}
    (row,) = robobpp_board.physics_rows(PRINTED, {"boards / ours": fallen}, {})
    assert "local_m" not in row
    assert row["composite"][1] - row["composite"][0] == pytest.approx(0.38)
    whole = {number: {"bullet": found | {"occupancy": 0.7}} for number in map(str, range(30))}
    (row,) = robobpp_board.physics_rows(PRINTED, {"boards / ours": whole}, {("boards", "ours"): 0.01})
    assert row["composite"][0] == row["composite"][1]
    assert row["place"][0] == row["place"][1]
    # What was chosen by training rows is not ranked by them.
    assert robobpp_board.physics_rows(PRINTED, {"boards / ours / training rows": whole}, {}) == []
    # A look at free places takes its own time.
    times = {("boards", "ours"): 0.01, ("boards", robobpp_board.LOOKS): 0.02}
    looking = {"boards / ours / free places 5": whole}
    (row,) = robobpp_board.physics_rows(PRINTED, looking, times)
    assert row["decision_s"] == 0.02
    # What asks an engine decides as fast as the engine does.
    rehearsed = {"boards / ours / rehearsed 8 in bullet": whole}
    (row,) = robobpp_board.physics_rows(PRINTED, rehearsed, {("boards", "ours"): 0.01})
    assert row["composite"][1] - row["composite"][0] == pytest.approx(0.10)


# -- rules by hand -----------------------------------------------------------------------------------------------------


def test_boxes_are_rounded_as_in_packsim() -> None:
    assert in_cells(np.array([[20.2, 19.0, 17.04], [35.00000001, 1.5, 8.55]])) == [(21, 19, 17.0), (35, 2, 8.6)]


def test_released_dbl_takes_a_higher_place_near_the_corner() -> None:
    pile = Pile((150, 20, 10.0), [(149, 10, 1.0)])
    pile.place(Placed(149, 10, 0, 0), 1.0)
    # On the box costs 100, beside it 10, and at its far end 149 more.
    assert RULES["DBL"](pile, (1, 1, 1.0)) == Placed(1, 1, 0, 10)
    pile.place(Placed(149, 10, 0, 10), 1.0)
    assert RULES["DBL"](pile, (1, 1, 1.0)) == Placed(1, 1, 0, 0)


def test_released_dbl_bounds_a_turned_box_by_its_unturned_sides() -> None:
    pile = Pile((4, 4, 1.0), [(1, 1, 1.0)])
    pile.place(Placed(3, 4, 0, 0), 1.0)
    # The free strip x = 3 holds a box of 1 × 3, and one of 3 × 1 if it is turned: x is at most 4 − 3 then.
    assert RULES["DBL"](pile, (1, 3, 1.0)) == Placed(1, 3, 3, 0)
    assert RULES["DBL"](pile, (3, 1, 1.0)) is None
    assert RULES["BR"](pile, (3, 1, 1.0)) == Placed(1, 3, 3, 0)


def test_released_bph_needs_no_space_that_holds_the_box() -> None:
    pile = Pile((4, 4, 2.0), [(1, 1, 1.0)])
    pile.place(Placed(3, 1, 0, 0), 1.0)
    # The first corner is that of the strip beside the box, which is one cell long. The box does not fit the bin there.
    assert min(pile.spaces, key=lambda space: (space[2], space[1], space[0]))[:3] == (3, 0, 0)
    # At the next corner, (0, 1), it does.
    assert RULES["OnlineBPH"](pile, (2, 2, 1.0)) == Placed(2, 2, 0, 1)
    assert RULES["OnlineBPH"](pile, (1, 3, 1.0)) == Placed(1, 3, 3, 0)


def test_released_br_takes_the_largest_space() -> None:
    pile = Pile((4, 6, 2.0), [(1, 1, 1.0), (4, 6, 2.0)])
    pile.place(Placed(1, 6, 0, 0), 1.0)
    # 3 × 6 × 2 cells beside the box, 4 × 6 × 1 above it.
    assert RULES["BR"](pile, (1, 1, 1.0)) == Placed(1, 1, 1, 0)


def test_released_lsah_leaves_what_would_be_as_large_as_the_container() -> None:
    boxes = [(2, 2, 1.0), (2, 2, 1.0)]
    assert pack(RULES["LSAH"], boxes, (2, 2, 2.0), [4.0, 4.0]) == (1, 1.0)
    assert pack(RULES["BR"], boxes, (2, 2, 2.0), [4.0, 3.0]) == (2, pytest.approx((1 + 7 / 8) / 2))


# -- cases -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("packsim") is None, reason="wants the extra robobpp")
def test_released_rules_place_the_printed_number_of_boxes_in_every_known_case() -> None:
    found = robobpp_board.run_released(PRINTED)
    assert list(found) == ["DBL", "LSAH", "BR", "OnlineBPH"]
    for rows in found.values():
        exact = [row for row in rows if row["case"] not in NOT_EXACT]
        assert len(exact) == len(BOARD_CASES) - 2
        assert [row["released"] for row in exact] == [row["printed"] for row in exact]
        occupancies = [row["released_occupancy"] for row in exact]
        assert occupancies == pytest.approx([row["printed_occupancy"] for row in exact], abs=0.00056)
    assert found == json.loads((RESULTS / "robobpp_board.json").read_text())["released"]
