"""Frames of every accepted form.

Nothing is copied on the way to NumPy, and JPEGs by OpenCV are decoded again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.streaming.pictures import decode_jpeg, psnr, scene
from torchrl_gpu.streaming.codecs.images import (
    check_frame,
    check_quality,
    encode_jpeg,
    format_of,
    plain_frame,
    to_array,
)


@pytest.mark.parametrize(
    "frame",
    [
        np.zeros((4, 5), np.uint8),
        np.zeros((4, 5, 4), np.uint8),
        torch.zeros(2, 4, 5, 3, dtype=torch.uint8),
        np.zeros((4, 5, 3), np.int8),
        None,
    ],
)
def test_a_frame_of_another_format_is_refused_in_one_line(frame: object) -> None:
    with pytest.raises(ValueError, match=r"^camera: .*H×W×3 of uint8.*, not .+$"):
        check_frame(frame, "camera")  # type: ignore[arg-type]


@pytest.mark.parametrize("frame", [np.zeros((1, 1, 3), np.uint8), torch.zeros(7, 5, 4, dtype=torch.uint8)[..., :3]])
def test_a_frame_of_either_library_passes(frame: np.ndarray | torch.Tensor) -> None:
    check_frame(frame, "camera")


@pytest.mark.parametrize("library", [np.zeros, torch.zeros])
@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "number"),
    [
        ((4, 5, 3), "uint8", "rgb", None),
        ((4, 5, 4), "uint8", "rgba", None),
        ((4, 5), "uint8", "gray", None),
        ((4, 5, 1), "uint8", "gray", None),
        ((3, 4), "uint8", "gray", None),
        ((4, 5), "float32", "depth", None),
        ((4, 5, 1), "float16", "depth", None),
        ((7, 4, 5, 3), "uint8", "rgb", 7),
        ((7, 4, 5, 4), "uint8", "rgba", 7),
        ((7, 4, 5, 1), "uint8", "gray", 7),
        ((7, 4, 5, 1), "float32", "depth", 7),
    ],
)
def test_the_format_of_a_frame(library: Any, shape: tuple[int, ...], dtype: str, kind: str, number: int | None) -> None:
    frame = library(shape, dtype=getattr(torch if library is torch.zeros else np, dtype))
    height, width = shape[:2] if number is None else shape[1:3]
    assert format_of(plain_frame(frame, "camera"), "camera") == (kind, number, height, width)


class Lying(np.ndarray):
    """An array that gives itself out for a picture."""

    shape = property(lambda self: (4, 5, 3))  # type: ignore[assignment]
    dtype = property(lambda self: np.dtype(np.uint8))  # type: ignore[assignment]


class LyingTensor(torch.Tensor):
    """A tensor that does."""

    shape = property(lambda self: torch.Size([4, 5, 3]))  # type: ignore[assignment]
    dtype = property(lambda self: torch.uint8)  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"it was asked for {function}")


class Pretender:
    """No array at all."""

    shape = (4, 5, 3)
    dtype = np.dtype(np.uint8)
    is_cuda = False
    ndim = 3


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(np.zeros((3, 4, 5), np.uint8), id="channels first"),
        pytest.param(np.zeros((4, 5, 3), np.int8), id="signed"),
        pytest.param(np.zeros((7, 4, 5), np.uint8), id="a batch of gray without an axis of channels"),
        pytest.param(np.zeros((4, 5, 2), np.uint8), id="two channels"),
        pytest.param(torch.zeros(4, 5, 3), id="three channels of metres"),
        pytest.param(np.zeros((4, 5)), id="double"),
        pytest.param(torch.zeros(4, 5, dtype=torch.bfloat16), id="bfloat16"),
        pytest.param(torch.zeros(4, 5, dtype=torch.complex64), id="complex"),
        pytest.param(np.zeros((4, 5), bool), id="bool"),
        pytest.param(torch.zeros(4, 5, dtype=torch.int64), id="int64"),
        pytest.param(np.zeros((4, 5), ">f4" if sys.byteorder == "little" else "<f4"), id="swapped bytes"),
        pytest.param(np.zeros((4, 5), [("r", "u1")]), id="structured"),
        pytest.param(np.zeros((4, 5), object), id="objects"),
        pytest.param(np.zeros(5, np.uint8), id="one axis"),
        pytest.param(np.zeros((1, 1, 4, 5, 3), np.uint8), id="five axes"),
        pytest.param(np.zeros((), np.uint8), id="no axis"),
        pytest.param(np.zeros((0, 5), np.uint8), id="no rows"),
        pytest.param(torch.zeros(2, 4, 0, 3, dtype=torch.uint8), id="no columns"),
        pytest.param(np.zeros((4, 5, 0), np.uint8), id="no channels"),
        pytest.param(np.broadcast_to(np.uint8(0), (1, 65501)), id="too wide"),
        pytest.param(torch.zeros(4, 5, 3, dtype=torch.uint8).to_sparse(), id="sparse"),
        pytest.param(torch.zeros(4, 5, 3, dtype=torch.uint8, device="meta"), id="without memory"),
        pytest.param(np.zeros(7).view(Lying), id="a lying array"),
        pytest.param(torch.zeros(7).as_subclass(LyingTensor), id="a lying tensor"),
        pytest.param(Pretender(), id="a pretender"),
        pytest.param([[0]], id="a list"),
        pytest.param(None, id="nothing"),
    ],
)
def test_frame_without_a_format_is_refused_in_one_line(frame: object) -> None:
    with pytest.raises(ValueError, match=r"^camera: .*, not .+$"):
        format_of(plain_frame(frame, "camera"), "camera")


@pytest.mark.parametrize("strided", [False, True])
def test_memory_on_the_cpu_is_shared(strided: bool) -> None:
    tensor = torch.arange(60, dtype=torch.uint8).reshape(5, 3, 4)
    tensor = tensor[..., :3] if strided else tensor.permute(2, 0, 1)
    array = to_array(tensor)
    tensor[0, 0, 0] = 77
    assert array[0, 0, 0] == 77
    assert to_array(array) is array
    assert np.array_equal(array, np.array(tensor.tolist()))


@pytest.mark.parametrize("shape", [(120, 160), (121, 161), (1, 1), (3, 400)])
def test_a_frame_comes_back(shape: tuple[int, int]) -> None:
    assert psnr(decode_jpeg(encode_jpeg(scene(*shape))), scene(*shape)) > 30


def with_alpha(frame: np.ndarray) -> np.ndarray:
    return np.concatenate([frame, frame[..., :1]], -1)


# Views of NumPy arrays, by the kind of their memory.
FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda frame: frame,
    "read-only": lambda frame: np.broadcast_to(frame, frame.shape),
    "upside down": lambda frame: frame[::-1].copy()[::-1],
    "without alpha": lambda frame: with_alpha(frame)[..., :3],
    "columns first": np.asfortranarray,
}
FORMS["reversed channels"] = lambda frame: frame[..., ::-1].copy()[..., ::-1]

# Tensors, and views of them.
FORMS["tensor"] = torch.from_numpy
FORMS["tensor without alpha"] = lambda frame: torch.from_numpy(with_alpha(frame))[..., :3]
FORMS["channels first"] = lambda frame: torch.from_numpy(frame.transpose(2, 0, 1).copy()).permute(1, 2, 0)
FORMS["of a batch"] = lambda frame: torch.from_numpy(np.stack([frame[::-1], frame]))[1]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_frame_gives_the_same_file(form: str) -> None:
    assert encode_jpeg(FORMS[form](scene())) == encode_jpeg(scene())


def test_red_stays_red_and_blue_first_is_said() -> None:
    red = np.full((16, 16, 3), (255, 0, 0), np.uint8)
    assert np.abs(decode_jpeg(encode_jpeg(red)).astype(int) - red).max() <= 3
    assert encode_jpeg(red[..., ::-1], bgr=True) == encode_jpeg(red)


def test_more_quality_more_bytes_and_nearer() -> None:
    files = [encode_jpeg(scene(), quality) for quality in (1, 50, np.int64(100))]
    nearness = [psnr(decode_jpeg(file), scene()) for file in files]
    assert sorted(files, key=len) == files
    assert sorted(nearness) == nearness
    assert nearness[0] < nearness[2]


@pytest.mark.parametrize("quality", [0, 101, -1, 80.0, True, "80", None])
def test_a_quality_that_is_none(quality: object) -> None:
    with pytest.raises(ValueError, match=r"^camera: quality .*, not "):
        check_quality(quality, "camera")
