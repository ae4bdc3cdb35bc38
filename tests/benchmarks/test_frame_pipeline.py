"""The benchmark of the frame pipeline runs, and times nothing that shows another picture."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from torchrl_gpu.streaming.codecs import pipeline

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("frame_pipeline", ROOT / "benchmarks" / "frame_pipeline.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SIZES", ((320, 240),))
    words = ["--device=cpu", "--seconds=0.02", "--repetitions=2", f"--output={tmp_path / 'result.json'}"]
    monkeypatch.setattr(sys, "argv", ["frame_pipeline.py", *words])
    monkeypatch.setattr(module, "PSNR", {"JPEG": 28.0, "H.264": 25.0})  # there is more of an edge in a small picture
    return module


def test_it_runs(benchmark, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    assert benchmark.main() == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert [section["title"] for section in result["sections"]] == ["JPEG 320×240", "H.264 320×240"]
    assert all(row["rate"] > 0 for section in result["sections"] for row in section["rows"])
    assert not any(check["difference"] for check in result["parity"])
    assert {"commit", "device", "versions"} <= set(result["machine"])
    assert "× OpenCV" in capsys.readouterr().out


def test_swapped_channels_are_not_timed(  # type: ignore[no-untyped-def]
    benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = pipeline.compress
    monkeypatch.setattr(pipeline, "compress", lambda array, quality, bgr: right(array, quality, bgr=not bgr))
    assert benchmark.main() == 1
    said = capsys.readouterr()
    assert "parity fails in OpenCV (240, 320, 3): " in said.err
    assert "frames/s" not in said.out
    assert not list(tmp_path.iterdir())
