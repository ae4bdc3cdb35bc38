"""JPEG files by OpenCV, decoded again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.streaming.pictures import decode_jpeg, psnr, scene
from torchrl_gpu.streaming.codecs import jpeg
from torchrl_gpu.streaming.codecs.jpeg import check_quality, encode_jpeg

FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda frame: frame,
    "tensor": torch.from_numpy,
    "read-only": lambda frame: np.broadcast_to(frame, frame.shape),
    "upside down": lambda frame: frame[::-1].copy()[::-1],
    "reversed channels": lambda frame: frame[..., ::-1].copy()[..., ::-1],
    "without alpha": lambda frame: np.concatenate([frame, frame[..., :1]], -1)[..., :3],
    "tensor without alpha": lambda frame: torch.from_numpy(np.concatenate([frame, frame[..., :1]], -1))[..., :3],
    "channels first": lambda frame: torch.from_numpy(frame.transpose(2, 0, 1).copy()).permute(1, 2, 0),
    "columns first": lambda frame: np.asfortranarray(frame),
    "of a batch": lambda frame: torch.from_numpy(np.stack([frame[::-1], frame]))[1],
}


@pytest.mark.parametrize("shape", [(120, 160), (121, 161), (1, 1), (3, 400)])
def test_a_frame_comes_back(shape: tuple[int, int]) -> None:
    assert psnr(decode_jpeg(encode_jpeg(scene(*shape))), scene(*shape)) > 30


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_frame_gives_the_same_file(form: str) -> None:
    assert encode_jpeg(FORMS[form](scene())) == encode_jpeg(scene())


def test_red_stays_red_and_blue_first_is_said() -> None:
    red = np.full((16, 16, 3), (255, 0, 0), np.uint8)
    assert np.abs(decode_jpeg(encode_jpeg(red)).astype(int) - red).max() <= 3
    assert encode_jpeg(red[..., ::-1], bgr=True) == encode_jpeg(red)


@pytest.mark.parametrize("bgr", [False, True])
def test_opencv_reads_a_tensor_where_it_lies(bgr: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, read = torch.from_numpy(scene()), []

    def encode(_: str, frame: np.ndarray, __: list[int]) -> tuple[bool, np.ndarray]:
        read.append(frame)
        return True, np.zeros(1, np.uint8)

    def convert(frame: np.ndarray, _: int) -> np.ndarray:
        read.append(frame)
        return frame.copy()

    stand_in = SimpleNamespace(imencode=encode, cvtColor=convert, COLOR_RGB2BGR=0, IMWRITE_JPEG_QUALITY=1)
    monkeypatch.setattr(jpeg, "load", lambda _: stand_in)
    encode_jpeg(tensor, bgr=bgr)
    assert read[0].ctypes.data == tensor.data_ptr()
    assert len(read) == (1 if bgr else 2)


def test_more_quality_more_bytes_and_nearer() -> None:
    files = [encode_jpeg(scene(), quality) for quality in (1, 50, np.int64(100))]
    nearness = [psnr(decode_jpeg(file), scene()) for file in files]
    assert sorted(files, key=len) == files
    assert sorted(nearness) == nearness
    assert nearness[0] < nearness[2]


@pytest.mark.parametrize("quality", [0, 101, -1, 80.0, True, "80", None])
def test_a_quality_that_is_none(quality: object) -> None:
    with pytest.raises(ValueError, match=r"^camera: want a quality of 1 to 100; got "):
        check_quality(quality, "camera")


def test_threads_may_encode_at_once() -> None:
    frames = [scene(shift=shift) for shift in range(40)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(encode_jpeg, frames)) == [encode_jpeg(frame) for frame in frames]
