"""The benchmark of the frame pipeline, in small.

It times nothing that shows another picture.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import frame_pipeline
from torchrl_gpu.streaming.codecs import pipeline

SMALL = ["--device=cpu", "--seconds=0.02", "--repetitions=2"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_pipeline, "SIZES", ((320, 240),))
    # there is more of an edge in a small picture
    monkeypatch.setattr(frame_pipeline, "PSNR", {"JPEG": 28.0, "H.264": 25.0})


def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert frame_pipeline.main([*SMALL, f"--output={tmp_path / 'result.json'}"]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert [section["title"] for section in result["sections"]] == ["JPEG 320×240", "H.264 320×240"]
    for section in result["sections"]:
        assert all(row["rate"] > 0 for row in section["rows"])
    assert not any(check["difference"] for check in result["parity"])
    assert "× OpenCV" in capsys.readouterr().out


def test_swapped_channels_are_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = pipeline.encode_jpeg
    monkeypatch.setattr(pipeline, "encode_jpeg", lambda array, quality, bgr: right(array, quality, bgr=not bgr))
    assert frame_pipeline.main([*SMALL, f"--output={tmp_path / 'result.json'}"]) == 1
    said = capsys.readouterr()
    assert "parity fails in OpenCV (240, 320, 3): " in said.err
    assert "frames/s" not in said.out
    assert not list(tmp_path.iterdir())
