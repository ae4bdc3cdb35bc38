"""`torchrl-gpu evaluate pallets` as it is typed.

Two boards stand in for a factory's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.envs.packing.items.test_factories import installed
from torchrl_gpu import cli

assert installed
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
        ("--protocol=rs", "--protocol must be one of repetitive, diverse, boards; got 'rs'"),
        ("--stability=glue", "Bin: stability must be one of none, "),
        ("--margin=0.1", "--margin does nothing without --stability load_bearing"),
        ("--max_tilt=2", "--max_tilt does nothing without --stability load_bearing"),
        ("--sequences=mine.json", "unknown options: --sequences=mine.json"),
    ],
)
def test_evaluate_pallets_refuses_wrong_options_in_one_line(
    installed: Path, word: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*QUICK, word], "torchrl-gpu") == 2
    assert wanted in capsys.readouterr().err.strip()
