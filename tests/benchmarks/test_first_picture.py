"""The benchmark of a newcomer's first picture counts what it says."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import pytest

from tests.benchmarks.test_streaming import load
from tests.streaming.viewers import producing, server


def test_pictures_per_training_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    benchmark = load("first_picture", monkeypatch)
    assert benchmark.pictures_per_step([8, 16, 24], 8) == 1.0
    assert benchmark.pictures_per_step([8, 24, 24, 40], 8) == pytest.approx(3 / 5)
    assert benchmark.pictures_per_step([8], 8) == 1.0
    assert benchmark.pictures_per_step([], 8) == 0.0


def test_a_visit_sees_what_a_server_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    benchmark = load("first_picture", monkeypatch)
    with server() as stream_server:
        stream_server.declare("env0")
        with producing(stream_server, "env0"):  # each picture is a step
            args = argparse.Namespace(visits=2, pictures=5, seconds=20.0, pause_s=0.0)
            found = asyncio.run(benchmark.visit(stream_server.url, args))
    assert len(found["pages"]) == len(found["snapshots_s"]) == 2
    for page in found["pages"]:
        assert len(page["steps"]) == len(set(page["steps"])) == 5
        assert 0 < benchmark.pictures_per_step(page["steps"], 1) <= 1.0
        assert len(page["gaps_s"]) == 6
