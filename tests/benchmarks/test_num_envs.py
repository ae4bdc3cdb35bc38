"""Curves by number of environments.

Each has as many steps, seconds that grow, and values of validation.
"""

from __future__ import annotations

import pytest

from benchmarks import num_envs


def test_a_curve_has_all_its_steps_and_grows_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(num_envs, "FRAMES", 1024)
    monkeypatch.setattr(num_envs, "LOOKS", 4)
    points = num_envs.train(4, "cpu")
    assert [point["frames"] for point in points] == [256, 512, 768, 1024]
    seconds = [point["seconds"] for point in points]
    assert seconds == sorted(seconds)
    assert all(0 < point["utilization"] < 1 for point in points)
    row = num_envs.row_of(4, points)
    assert row["updates"] == 8
    assert row["quarter_s"] == points[0]["seconds"]
    assert row["all_s"] == points[3]["seconds"]
