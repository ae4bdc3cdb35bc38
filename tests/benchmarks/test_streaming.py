"""The benchmark of the server measures what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import streaming

for needed in ("aiohttp", "cv2", "av"):
    pytest.importorskip(needed)


def test_viewers_are_counted_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "result.json"
    streaming.main(["--parts", "viewers", "slow", "--viewers", "3", "--seconds", "1.5", "--output", str(output)])
    result = json.loads(output.read_text())
    assert len(result["parts"]["viewers"]["fps"]) == 3
    assert all(0 < rate < 40 for rate in result["parts"]["viewers"]["fps"])
    # The viewer takes a fifth of a second for each picture.
    assert 0 < result["parts"]["slow"]["fps"][0] <= 5.5
    assert 40_000 < result["parts"]["viewers"]["frame_bytes"] < 60_000
    assert {"commit", "device", "versions"} <= set(result["machine"])
    assert result["machine"]["versions"]["aiohttp"]
    assert [row["target"] for row in result["rows"]] == [29.5, 1.3]
    assert "slowest of 3 viewers: " in capsys.readouterr().out


def test_stretches_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    words = []

    class Viewer:
        url = ""

        def say(self, word: str) -> int:
            words.append(word)
            return 7

    class Stream:
        url = "http://here/"

    clock = [100.0]
    monkeypatch.setattr(streaming.time, "perf_counter", lambda: clock[0])
    turns = streaming.Turns(Stream(), Viewer(), pairs=2, stretch_s=10.0)

    def steps(number: int, seconds: float) -> bool:
        over = False
        for _ in range(number):
            clock[0] += seconds
            over = turns.step()
        return over

    # The first stretch warms up: 12 s, 4 steps to a stretch.
    assert not steps(4, 3.0)
    assert not steps(4, 1.0)
    assert not steps(4, 2.0)
    assert not steps(4, 1.0)
    assert steps(4, 4.0)
    assert words == ["on", "off", "on", "off"]
    assert turns.pairs == [(1.0, 0.5), (1.0, 0.25)]
    assert turns.pictures == [7, 7]
    assert turns.watched_s == 24.0
