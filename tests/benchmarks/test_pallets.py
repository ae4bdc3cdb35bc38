"""A short run of the benchmark of pallets.

Every section has its columns, and what was measured is kept.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks import pallets
from benchmarks.tables import listed

pytest.importorskip("mujoco")
BOX = {"length/mm": 600, "width/mm": 400, "height/mm": 220, "weight/kg": 6.3}
ROTATIONS = "ID,X,Y,Z,ROTATION_XYZ,ROTATION_YXZ,ROTATION_ZYX,ROTATION_YZX,ROTATION_XZY,ROTATION_ZXY,COPIES"


@pytest.fixture
def sequences(tmp_path: Path) -> Path:
    (tmp_path / "br1").mkdir()
    for problem in range(1, 6):
        (tmp_path / "br1" / f"BR1_{problem}_items.csv").write_text(f"{ROTATIONS}\n0,200,230,100,1,1,0,0,0,0,5\n")
    order = {"item_sequence": {str(i): BOX | {"id": i} for i in range(1, 4)}}
    (tmp_path / "bed-bpp-5.json").write_text(json.dumps({"7": order}))
    return tmp_path


def test_sections_are_measured_and_kept(sequences: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = sequences / "pallets.json"
    run = ["--sequences", str(sequences), "--output", str(output), "--tries", "4", "--repeats", "1"]
    pallets.main([*run, "--sections", "containers", "sessions"])
    # A run continues where it stopped.
    monkeypatch.setattr(pallets, "_container", pytest.fail)
    pallets.main([*run, "--sections", "orders", "containers"])
    sections = {each["title"]: each for each in json.loads(output.read_text())["sections"]}
    assert list(sections) == ["orders", "containers", "sessions"]
    assert [(row["boxes"], row["pallets"], row["fallen"]) for row in sections["orders"]["rows"]] == [(3, 1, 0)] * 6
    # Four of the five boxes fit: 2 × 1 a layer, two layers.
    whole = 100 * 4 * 2 * 2.3 * 1 / (5.87 * 2.33 * 2.2)
    assert [row["filled"] for row in sections["containers"]["rows"]] == [pytest.approx(whole, rel=1e-4)] * 10
    assert all(0 < row["offer"] <= row["offer p99"] for row in sections["sessions"]["rows"])
    for each in sections.values():
        assert listed(each).count("\n") == 2 + len(each["rows"])
        assert each["machine"]["cores"] > 0


@pytest.mark.skipif(not importlib.util.find_spec("packsim"), reason="wants the extra robobpp")
def test_the_rule_is_timed_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    pallets.main(["--sections", "steps", "evaluated", "--repeats=1", "--pallets=2", "--boxes=3", "--cases=2"])
    shown = capsys.readouterr().out
    assert shown.count("load_bearing") == 2
