"""A short run of the benchmark of the rule load_bearing.

What the rule allows stays, and not all that stays under `none` does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import load_bearing

pytest.importorskip("mujoco")


def test_what_the_rule_allows_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["load_bearing", "--piles", "4", "--places", "4", "--output", str(path)])
    load_bearing.main()
    result = json.loads(path.read_text())
    assert result["tried"] > 20
    for curve in result["places"].values():
        assert curve["falls"] == 0
        assert curve["allowed"] + curve["refused"] == result["tried"]
    piles = result["piles"]
    assert all(row["stays"] == 1 for name, row in piles.items() if name.startswith("load_bearing"))
    assert piles["none"]["stays"] < 0.9
