"""The picture of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("matplotlib")

from benchmarks.kernels import plot as kernel_plot


def sweep(points: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "machine": {
            "device_name": "a processor",
            "cores": 2,
            "versions": {"torch": "2"},
            "torch_threads": 2,
            "commit": None,
        },
        "sweep": {
            "items": {"footprint": 50, "resolution": 200, "grid_step": 4},
            "num_envs_of_other_axes": 4,
            "point_seconds": 5.0,
            "rows": ["NumPy, windows", "ours eager"],
            "points": points,
            "missing": [{"row": "ours triton", "reason": "no CUDA device: none"}],
        },
    }


def point(axis: str, value: int, row: str, **more: Any) -> dict[str, Any]:
    measured = {"seconds_per_env": 1e-3 * value, "floor_per_env": 1e-5 * value, "device": "cpu"}
    return {"axis": axis, "kind": "irregular", "value": value, "row": row} | (more or measured)


def drawn(points: list[dict[str, Any]], path: Path) -> tuple[str | None, tuple[int, int]]:
    """Format and size of the picture."""
    kernel_plot.draw(sweep(points), path)
    with Image.open(path) as picture:
        return picture.format, picture.size


def test_a_picture_is_1600_pixels_wide(tmp_path: Path) -> None:
    points = [
        point(axis, value, row)
        for axis in kernel_plot.AXES
        for value in (1, 4, 16)
        for row in ("NumPy, windows", "ours eager")
    ]
    assert drawn(points, tmp_path / "sweep.png") == ("PNG", (1600, 1120))


def test_axes_left_out_and_points_left_out_leave_room(tmp_path: Path) -> None:
    points = [
        point("visible", 1, "ours eager"),
        point("visible", 5, "ours eager", skipped="takes about 9 s, of 5 s", shown="> 5 s"),
        point("visible", 1, "NumPy, windows", seconds_per_env=1.0, floor_per_env=None, device="cpu"),
    ]
    assert drawn(points, tmp_path / "sweep.png") == ("PNG", (1600, 1120))
