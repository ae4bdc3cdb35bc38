"""The benchmark of the server measures what it says."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]

for needed in ("aiohttp", "cv2", "av"):
    pytest.importorskip(needed)


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_viewers_are_counted_one_by_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark, output = load("streaming", monkeypatch), tmp_path / "result.json"
    words = ["--parts", "viewers", "slow", "--viewers", "3", "--seconds", "1.5", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["streaming.py", *words])
    benchmark.main()
    result = json.loads(output.read_text())
    assert len(result["parts"]["viewers"]["fps"]) == 3
    assert all(0 < rate < 40 for rate in result["parts"]["viewers"]["fps"])
    assert 0 < result["parts"]["slow"]["fps"][0] <= 5.5  # it takes a fifth of a second for each
    assert 40_000 < result["parts"]["viewers"]["frame_bytes"] < 60_000
    assert {"commit", "device", "versions"} <= set(result["machine"])
    assert result["machine"]["versions"]["aiohttp"]
    assert [row["target"] for row in result["rows"]] == [29.5, 1.3]
    assert "slowest of 3 viewers: " in capsys.readouterr().out


def test_rows_beside_their_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = load("streaming", monkeypatch)
    rate = benchmark.Row("rate", 29.6, "1/s", 29.5, least=True)
    cost = benchmark.Row("hook", 5.5, "µs", 5.0)
    assert (rate.met, cost.met) == (True, False)
    assert benchmark.line(rate) == "  rate: 29.6 1/s, wanted ≥ 29.5 1/s: met"
    assert benchmark.line(cost) == "  hook: 5.5 µs, wanted ≤ 5 µs: MISSED"


def test_stretches_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark, words = load("streaming", monkeypatch), []

    class Viewer:
        url = ""

        def say(self, word: str) -> int:
            words.append(word)
            return 7

    class Stream:
        url = "http://here/"

    clock = [100.0]
    monkeypatch.setattr(benchmark.time, "perf_counter", lambda: clock[0])
    turns = benchmark.Turns(Stream(), Viewer(), pairs=2, stretch_s=10.0)

    def steps(number: int, seconds: float) -> bool:
        over = False
        for _ in range(number):
            clock[0] += seconds
            over = turns.step()
        return over

    assert not steps(4, 3.0)  # warms up: 12 s, 4 steps to a stretch
    assert not steps(4, 1.0)
    assert not steps(4, 2.0)
    assert not steps(4, 1.0)
    assert steps(4, 4.0)
    assert words == ["on", "off", "on", "off"]
    assert turns.pairs == [(1.0, 0.5), (1.0, 0.25)]
    assert turns.pictures == [7, 7]
    assert turns.watched_s == 24.0
