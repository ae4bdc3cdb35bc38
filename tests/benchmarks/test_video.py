"""The benchmark of learning from video in small: both sides do the same, and a difference forbids a ratio."""

from __future__ import annotations

from typing import Any

import pytest

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
