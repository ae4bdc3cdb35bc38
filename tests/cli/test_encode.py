"""`torchrl-gpu encode`: the table, what is skipped, and what opens afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.demonstrations import drawn
from torchrl_gpu import cli
from torchrl_gpu.demonstrations import load_demonstrations


def run(*args: object) -> int | str | None:
    return cli.main(["encode", *map(str, args)], program="torchrl-gpu")


def test_a_dataset_is_decoded_once_and_opens_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = drawn.write_dataset(tmp_path / "sink")
    assert run(root, "--size", 12, 16) is None
    out = capsys.readouterr().out
    assert "4 episodes, frames of 12×16" in out
    assert f"Written: {root}.clips, 22 frames of 4 episodes" in out
    opened = load_demonstrations(f"{root}.clips", device="cpu")
    direct = load_demonstrations(root, device="cpu", size=(12, 16))
    assert torch.equal(opened.frames, direct.frames)
    assert (opened.rows == direct.rows).all()


def test_bad_videos_stand_in_the_table_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [drawn.write_plain(tmp_path, name, i, 5) for i, name in enumerate("abc")]
    drawn.write_video(paths[1], [drawn.picture(1, i) for i in range(5)], fps=30)
    paths[2].write_bytes(b"hello")
    assert run(*paths, "--output", tmp_path / "out") is None
    text = "".join(capsys.readouterr().out.split())
    assert "want10framesasecond;got30" in text
    assert "wantanMP4file" in text
    store = load_demonstrations(tmp_path / "out", device="cpu")
    assert store.lengths == [5]
    assert list(store.skipped) == list(map(str, paths[1:]))
    assert run(*paths, "--output", tmp_path / "strict", "--on_bad", "raise") == 2
    assert capsys.readouterr().err.startswith(f"error: demonstrations: {paths[1]}: want 10 frames a second; got 30")
    assert not (tmp_path / "strict").exists()


def test_what_is_encoded_is_not_encoded_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(drawn.write_plain(tmp_path, "a", 0, 3), "--output", tmp_path / "out")
    assert run(tmp_path / "out") == 2
    assert "which has been encoded" in capsys.readouterr().err
