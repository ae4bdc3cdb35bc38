"""The benchmark of learning from video in small: both sides do the same, and a difference forbids a ratio."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import video


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "NUM_ENVS", 4)


def test_a_row_is_complete() -> None:
    row = video.training("simple2dcnn", 16, 8, 40, 1)
    assert row["env_steps_per_s"] == pytest.approx(16 / row["step_s"])
    assert row["updates_per_s"] == pytest.approx(2 / row["step_s"])
    assert row["episodes_per_hour"] == pytest.approx(row["env_steps_per_s"] * 30)
    assert row["ratio"] == pytest.approx(row["plain_step_s"] / row["step_s"])
    assert row["plain_replay_mb"] == pytest.approx(40 * 2 * 4 * 3 * 16 * 16 / 1e6)


def test_rows_that_are_measured_again_take_the_place_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(arch: str, side: int, batch_size: int, *args: int) -> dict[str, Any]:
        row = dict.fromkeys(("updates_per_s", "env_steps_per_s", "episodes_per_hour", "ratio", "replay_mb"), 1.0)
        return {"encoder": arch, "batch_size": batch_size, "plain_replay_mb": 1.0, "turn": len(calls), **row}

    monkeypatch.setattr(video, "training", measured)
    monkeypatch.setattr(video, "stepping", lambda *args: {"clip_frames_per_s": len(calls), "share": 0.5})
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    path, calls = tmp_path / "video.json", list[list[str]]()
    for words in (["--batch_sizes", "8"], ["--encoders", "r3d18", "--batch_sizes", "8", "16"]):
        monkeypatch.setattr(sys, "argv", ["video.py", "--output", str(path), *words])
        video.main()
        calls.append(words)
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["stepping"]["clip_frames_per_s"] == 0
    found = {(row["encoder"], row["batch_size"]): row["turn"] for row in result["sections"][0]["rows"]}
    first = dict.fromkeys(((name, 8) for name in video.ENCODERS if name != "r3d18"), 0)
    assert found == {**first, ("r3d18", 8): 1, ("r3d18", 16): 1}
    assert all(row["cpu"] for row in result["sections"][0]["rows"])


def test_where_losses_differ_there_is_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = video.StackedOnTheHost.sample

    def brighter(self: Any, index: Any) -> Any:
        batch = sample(self, index)
        batch["clip"] = batch["clip"] // 2
        return batch

    monkeypatch.setattr(video.StackedOnTheHost, "sample", brighter)
    with pytest.raises(AssertionError, match=r"simple2dcnn: losses are .* no ratio"):
        video.training("simple2dcnn", 16, 8, 40, 1)


def test_stepping_is_beside_its_ceiling() -> None:
    row = video.stepping(4, 16, 2)
    assert row["share"] == pytest.approx(row["clip_frames_per_s"] / row["copying_per_s"])
    assert row["steps_per_s"] == pytest.approx(row["clip_frames_per_s"] / 4)
