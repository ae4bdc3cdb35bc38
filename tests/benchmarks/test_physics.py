"""The benchmark of the ways of judging stability runs, in small, with and without meshes."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchrl_gpu.envs.packing.items import ProceduralSolids

pytest.importorskip("mujoco")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """What the script writes, given its arguments; its procedural bins are of 2 cm cells."""
    spec = importlib.util.spec_from_file_location("physics_benchmark", ROOT / "benchmarks" / "physics.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    own = module._bins

    def coarse(folder: Path | None) -> list[Any]:
        meshes = [bins._replace(resolution=20) for bins in own(folder) if bins.name == "meshes"]
        return [*meshes, module.Bins("procedural", ProceduralSolids(6, 0.1, 0.2, shapes=("u_shape",)), 20)]

    def script(*words: str) -> dict[str, Any]:
        path = tmp_path / "result.json"
        monkeypatch.setattr(sys, "argv", ["physics.py", *words, "--items=4", f"--output={path}"])
        monkeypatch.setattr(module, "_bins", coarse)
        module.main()
        result: dict[str, Any] = json.loads(path.read_text())
        return result

    return script


def test_it_runs(run: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    (section,) = run()["sections"]
    assert [row["items"] for row in section["rows"]] == [
        "procedural, heightmap minimisation",
        "procedural, random legal",
    ]
    for row in section["rows"]:
        assert set(section["columns"]) <= set(row)
        assert row["packed"] == 4
        assert row["parts"] == 3 * 4  # two walls and a floor each
        assert all(0 <= row[key] <= 1 for key in ("whole", "one_by_one", "last"))
        assert all(row[key] > 0 for key in ("whole_s", "one_by_one_s", "last_ms"))
    assert section["rows"][0]["last"] == 1  # on the floor, side by side
    assert "one by one: S" in capsys.readouterr().out


def test_with_meshes(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    creation = pytest.importorskip("trimesh").creation
    (tmp_path / "meshes").mkdir()
    creation.box((0.1, 0.1, 0.1)).export(tmp_path / "meshes" / "small.stl")
    creation.box((2.0, 2.0, 2.0)).export(tmp_path / "meshes" / "huge.stl")
    result = run(str(tmp_path / "meshes"))
    assert result["files"] == ["small.stl"]
    assert [row["items"].split(",")[0] for row in result["sections"][0]["rows"]] == ["meshes"] * 2 + ["procedural"] * 2
    assert str(tmp_path) not in json.dumps(result)
