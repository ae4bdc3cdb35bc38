"""The benchmark of free places, on a few boxes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import free_places, robobpp_physics
from tests.envs.packing.items.test_factories import installed

assert installed


def test_both_ways_pack_the_same_sequences_of_training_rows(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    words = ["free_places", "--case", "boards, 4 degrees", "--sequences", "2", "--output", str(path)]
    monkeypatch.setattr(sys, "argv", words)
    free_places.main()
    case = json.loads(path.read_text())["cases"]["boards, 4 degrees"]
    by_weights, looking = case["policies"]["by weights"], case["policies"]["free places"]
    assert case["gain"] == pytest.approx(looking["utilization"] - by_weights["utilization"])
    assert 0 < by_weights["utilization"] < 1
    assert looking["decision_ms"] > 0
    assert "boards, 4 degrees" in capsys.readouterr().out


def test_shares_are_those_of_the_container_and_not_of_the_longer_bin(installed: Path) -> None:
    rule: dict[str, object] = {"stability": "load_bearing", "margin": 0.03}
    roomy = rule | robobpp_physics.boxes_of("boards", "train", 0.01)
    plan, other = robobpp_physics.pallets("boards", "boards", roomy, 2)
    case = free_places.compare(free_places.Case("boards", "boards", rule, 0.01, 2.0), 2)
    filled = [each.utilization(len(each.boxes)) for each in (plan, other)]
    assert case["policies"]["by weights"]["utilization"] == pytest.approx(sum(filled) / 2, abs=1e-5)
