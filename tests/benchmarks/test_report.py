"""Ratios are to the rows of the same section."""

from __future__ import annotations

from benchmarks.report import section
from torchrl_gpu.bench.timing import TimedRow


def test_ratios_are_to_the_rows_of_the_same_section() -> None:
    loop = TimedRow("NumPy, loop", lambda calls: None, seconds=[2.0])
    best = TimedRow("Jumanji BinPack-v2, 64", lambda calls: None, 64, seconds=[8.0])
    worse = TimedRow("Jumanji BinPack-v2, 1", lambda calls: None, 1, seconds=[1.0])
    ours = TimedRow("ours, 4", lambda calls: None, 4, seconds=[1.0])
    rows = section("a title", "steps/s", [loop, best, worse, ours])["rows"]
    assert rows[3]["ratios"] == {"numpy_loop": 8.0, "jumanji_best": 0.5}  # 4/s against 1/2/s and 8/s
    assert [row["ratios"] for row in rows[:3]] == [{}, {}, {}]
