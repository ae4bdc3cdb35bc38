"""The benchmark of real meshes runs on two made ones, and writes nothing that its own checks contradict."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

creation = pytest.importorskip("trimesh").creation

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = ["--cell=0.02", "--bin_size", "0.4", "0.4", "0.3", "--bins=1"]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Of a ball of 8 cm and a box of a metre."""
    folder = tmp_path / "meshes"
    folder.mkdir()
    creation.icosphere(subdivisions=2, radius=0.04).export(folder / "ball.stl")
    creation.box((0.3, 0.5, 1.0)).export(folder / "box.obj")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["real_meshes.py", str(folder), *SMALL, f"--output={tmp_path / 'result.json'}"])
    for name in ("real_meshes", "mesh_heightmaps"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("real_meshes")


def test_it_runs(benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main() == 0
    text = (tmp_path / "result.json").read_text()
    assert str(tmp_path) not in text
    result = json.loads(text)
    assert {"commit", "device", "versions"} <= set(result["machine"])
    heightmaps, packing = (section["rows"] for section in result["sections"])
    assert [row["file"] for row in heightmaps] == ["ball.stl", "box.obj"]
    assert [row["longest_side_cm"] for row in heightmaps] == pytest.approx([8, 12], abs=0.1)  # the box made smaller
    assert [row["triangles"] for row in heightmaps] == [320, 12]
    assert all(row["cells"] > 0 and row["processor_ms"] > 0 for row in heightmaps)
    assert [row["rule"] for row in packing] == list(benchmark.RULES)
    for row in packing:
        assert row["objects"] > 5
        assert 0 < row["pyramidality"] <= row["most_pyramidality"] <= 1
        assert row["overlap_cells"] == row["walls_cells"] == 0
    assert "deepest overlap, cells" in capsys.readouterr().out
    for section in result["sections"]:
        assert all(set(section["columns"]) <= set(row) for row in section["rows"])


def test_maps_that_rays_contradict_are_not_written(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = benchmark.rasterise

    def low(*args: object) -> list[object]:
        return [maps._replace(top=maps.top - 0.001) for maps in right(*args)]

    monkeypatch.setattr(benchmark, "rasterise", low)
    assert benchmark.main() == 1
    assert "ball.stl: want no cell that rays contradict; got" in capsys.readouterr().err
    assert not (tmp_path / "result.json").exists()
