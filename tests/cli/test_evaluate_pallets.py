"""`torchrl-gpu evaluate pallets` as it is typed.

Two boards stand in for a factory's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.envs.packing.items.test_board_cases import PICKS, short_cases
from tests.envs.packing.items.test_factories import PICKED, installed, table
from torchrl_gpu import cli

assert installed
assert short_cases
QUICK = ["evaluate", "pallets", "--protocol=boards", "--device=cpu", "--policy", "dbl", "--cases=2"]


def test_evaluate_pallets_prints_and_writes_its_results(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mujoco")
    path = tmp_path / "table.json"
    words = [*QUICK, "--physics", "--stability=support", "--timed=1", f"--output={path}"]
    assert cli.main(words, "torchrl-gpu") is None
    result, shown = json.loads(path.read_text()), capsys.readouterr().out
    row = result["policies"][0]
    assert (result["evaluation"], result["sequences"]["stability"], row["simulated"]) == ("pallets", "support", 2)
    assert row["pyramidality"] >= row["utilization"] > 0.3
    assert 0 <= row["stands"] <= 1
    assert [each["policy"] for each in result["published"]][-1] == "PCT, RoboBPP"
    assert all(word in shown for word in ("boards: 2 sequences", "occupancy", "stands", "of 2", "ms for one bin"))


def test_evaluate_pallets_lists_the_cases_of_the_board(
    installed: Path, short_cases: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(installed / "time_series" / "pg.xlsx", [PICKED, *PICKS])
    path = tmp_path / "table.json"
    words = ["evaluate", "pallets", "--protocol=repetitive-board", "--device=cpu", "--timed=0", f"--output={path}"]
    assert cli.main([*words, "--policy", "dbl", "first-fit"], "torchrl-gpu") is None
    result = json.loads(path.read_text())
    assert result["sequences"]["cases"] == [
        {"case": 0, "first_row": 7, "rows": "test"},
        {"case": 4, "first_row": 2, "rows": "test"},
    ]
    deepest, first_fit = result["policies"]
    assert deepest["boxes"] == first_fit["boxes"] == [3, 3]
    # All boxes are placed on the floor, and are a little smaller than their cells.
    assert deepest["occupancies"] == pytest.approx([19.1 / 20] * 2, abs=1e-3)
    means = deepest["means"]["test rows"]
    assert list(deepest["means"]) == ["test rows"]
    assert means["cases"] == 2
    assert means["utilization"] == pytest.approx(sum(deepest["utilizations"]) / 2, abs=1e-6)
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("first row", "mean of 2", "test rows"))
    assert cli.main([*words, "--policy", "dbl", "--first=1", "--cases=2"], "torchrl-gpu") == 2
    assert "2 sequences from number 1 on; it has 2 in all" in capsys.readouterr().err


def test_policies_of_placement_weights_play_once_more_and_look_at_free_places(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.json"
    words = ["evaluate", "pallets", "--protocol=boards", "--device=cpu", "--cases=1", f"--output={path}"]
    words += ["--policy", "boards", "dbl", "--stability=load_bearing", "--free_places=5"]
    assert cli.main(words, "torchrl-gpu") is None
    rows = {row["policy"]: row for row in json.loads(path.read_text())["policies"]}
    looking = rows["pretrained boards, free places"]
    assert len(rows) == 3
    assert looking["knows"] == "the distribution"
    assert looking["utilization"] > 0.3
    assert "pretrained boards, free places" in capsys.readouterr().out


def test_nothing_that_leans_may_bear_load(installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    words = [*QUICK, "--stability=load_bearing", "--margin=0", "--max_tilt=0", "--bearing_tilt=0", f"--output={path}"]
    assert cli.main(words, "torchrl-gpu") is None
    result = json.loads(path.read_text())
    assert result["sequences"]["bearing_tilt"] == 0


def test_heights_of_plans_are_not_rounded_to_cells(installed: Path) -> None:
    from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite
    from torchrl_gpu.policies.packing import DeepestBottomLeft

    suite = ProtocolSuite("boards", 1, device="cpu")
    placed = suite.plans(suite.play(DeepestBottomLeft(suite.env)))[0]["placements"]
    assert {each["size"][2] for each in placed} == {8.5, 9}
    assert {each["corner"][2] % 1 for each in placed} == {0, 0.5}


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("--protocol=rs", "--protocol must be one of repetitive, repetitive-board, diverse, boards; got 'rs'"),
        ("--stability=glue", "Bin: stability must be one of none, "),
        ("--margin=0.1", "--margin does nothing without --stability load_bearing"),
        ("--max_tilt=2", "--max_tilt does nothing without --stability load_bearing"),
        ("--bearing_tilt=-1", "--bearing_tilt must be a finite number, at least 0; got -1"),
        ("--max_tilt=level", "--max_tilt must be a finite number, at least 0; got level"),
        ("--free_places=2", "--free_places needs a policy of placement weights, such as --policy diverse; got none"),
        ("--free_places=0", "--free_places"),
        ("--sequences=mine.json", "unknown options: --sequences=mine.json"),
    ],
)
def test_evaluate_pallets_refuses_wrong_options_in_one_line(
    installed: Path, word: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*QUICK, word], "torchrl-gpu") == 2
    assert wanted in capsys.readouterr().err.strip()
