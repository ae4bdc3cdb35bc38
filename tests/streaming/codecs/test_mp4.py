"""MP4 files, played back."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from tests.streaming.pictures import psnr, scene
from torchrl_gpu.streaming.codecs import mp4
from torchrl_gpu.streaming.codecs.libavcodec import MATRIX
from torchrl_gpu.streaming.codecs.mp4 import Mp4Writer, letterbox


def play(path: Path) -> list[np.ndarray]:
    """RGB frames."""
    with av.open(path) as file:
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]


@pytest.mark.parametrize("fps", [29.97, 12.5])
def test_mp4_plays_what_was_written(tmp_path: Path, fps: float) -> None:
    frames = [scene(shift=shift) for shift in range(30)]
    with Mp4Writer(tmp_path / "deep" / "down" / "run.mp4", fps) as writer:
        for frame in frames:
            writer.write(torch.from_numpy(frame))
    assert writer.num_frames == 30
    played = play(writer.path)
    assert all(psnr(picture, frame) > 28 for picture, frame in zip(played, frames, strict=True))
    content = writer.path.read_bytes()
    assert 0 < content.index(b"moov") < content.index(b"mdat"), "the index lies in front"
    with av.open(writer.path) as file:
        stream = file.streams.video[0]
        stamps = [frame.pts * stream.time_base for frame in file.decode(stream)]
        told = stream.codec_context.name, stream.pix_fmt, stream.codec_context.colorspace
    assert told == ("h264", "yuv420p", MATRIX)
    assert {b - a for a, b in itertools.pairwise(stamps)} == {1 / Fraction(fps).limit_denominator(1001)}


def test_channels_are_not_swapped(tmp_path: Path) -> None:
    red = np.full((64, 64, 3), (220, 30, 10), np.uint8)
    with Mp4Writer(tmp_path / "run.mp4", 30) as writer:
        writer.write(red)
        writer.write(red[..., ::-1], bgr=True)
    assert all(np.abs(picture.astype(int) - red).max() <= 6 for picture in play(writer.path))


def test_odd_sides_grow_and_other_sizes_are_fitted(tmp_path: Path) -> None:
    white = np.full((200, 100, 3), 255, np.uint8)
    with Mp4Writer(tmp_path / "run.mp4", 30) as writer:
        for frame in (scene(121, 161), white, scene(122, 162)):
            writer.write(frame)
    odd, tall, even = play(writer.path)
    assert odd.shape == tall.shape == even.shape == (122, 162, 3)
    assert psnr(odd[:121, :161], scene(121, 161)) > 28
    assert psnr(even, scene(122, 162)) > 28
    # 61 of 162 columns wide, in the middle.
    assert tall[:, 60:100].min() > 245
    assert max(tall[:, :48].max(), tall[:, 114:].max()) < 10


@pytest.mark.parametrize(
    ("shape", "box"),
    [
        ((50, 100), (25, 75, 0, 100)),
        ((10, 5), (0, 100, 25, 75)),
        ((400, 400), (0, 100, 0, 100)),
        ((1, 900), (49, 50, 0, 100)),
    ],
)
def test_fitted_by_hand(shape: tuple[int, int], box: tuple[int, int, int, int]) -> None:
    canvas = letterbox(np.full((*shape, 3), 200, np.uint8), 100, 100)
    expected = np.zeros((100, 100, 3), np.uint8)
    top, bottom, left, right = box
    expected[top:bottom, left:right] = 200
    assert np.array_equal(canvas, expected)
    fits = scene(99, 100)
    assert letterbox(fits, 100, 100) is fits


def test_the_name_comes_last(tmp_path: Path) -> None:
    path = tmp_path / "run.mp4"
    path.write_bytes(b"an older one")
    writer = Mp4Writer(path, 30)
    writer.write(scene())
    assert path.read_bytes() == b"an older one"
    assert {each.name for each in tmp_path.iterdir()} == {"run.mp4", "run.mp4.part"}
    writer.close()
    writer.close()
    assert list(tmp_path.iterdir()) == [path]
    assert len(play(path)) == 1


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(OSError, match="runs"):
        Mp4Writer(tmp_path / "runs" / "run.mp4", 30).write(scene())
    (tmp_path / "run.mp4.part").mkdir()
    writer = Mp4Writer(tmp_path / "run.mp4", 30)
    with pytest.raises(OSError, match="directory"):
        writer.write(scene())
    writer.close()
    assert {each.name for each in tmp_path.iterdir()} == {"runs", "run.mp4.part"}


def test_without_a_frame_there_is_no_file(tmp_path: Path) -> None:
    with Mp4Writer(tmp_path / "run.mp4", 30):
        pass
    assert list(tmp_path.iterdir()) == []


def test_mp4_keeps_what_led_to_an_exception(tmp_path: Path) -> None:
    def fail() -> None:
        with Mp4Writer(tmp_path / "run.mp4", 30) as writer:
            writer.write(scene())
            writer.write(scene())
            raise KeyError("the run died")

    with pytest.raises(KeyError, match=r"run died"):
        fail()
    assert len(play(tmp_path / "run.mp4")) == 2


def test_mp4_that_cannot_be_finished_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    writer = Mp4Writer(tmp_path / "run.mp4", 30)
    writer.write(scene())
    monkeypatch.setattr(mp4.os, "replace", full)
    with pytest.raises(OSError, match=r"No space"):
        writer.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError, match=r"^Mp4Writer .*closed$"):
        writer.write(scene())


def test_mp4_refuses_wrong_frames(tmp_path: Path) -> None:
    for fps in (0, -1, float("nan"), 1e6):
        with pytest.raises(ValueError, match=r"^Mp4Writer: fps .*, not "):
            Mp4Writer(tmp_path / "run.mp4", fps)
    writer = Mp4Writer(tmp_path / "run.mp4", 30)
    with pytest.raises(ValueError, match=r"^Mp4Writer: .*H×W×3"):
        writer.write(np.zeros((4, 4), np.uint8))
    with pytest.raises(RuntimeError, match=r"^Mp4Writer: x264 .*40000×2: "):
        writer.write(np.zeros((2, 40000, 3), np.uint8))
    assert list(tmp_path.iterdir()) == []
    writer.write(scene())
    writer.close()
    assert len(play(writer.path)) == 1
