from __future__ import annotations

import warnings
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from torchrl_gpu.streaming.ros2.images import ENCODINGS, RosImage, area_means, view_pixels
from torchrl_gpu.system.policy_messages import BadMessage

CPU = torch.device("cpu")
GENERATOR = np.random.default_rng(0)


def message(encoding: str, height: int = 6, width: int = 5, *, padding: int = 0, big: bool = False) -> dict[str, Any]:
    """Fields of an image message, and its numbers under `numbers`."""
    kind, channels = ENCODINGS[encoding]
    dtype = np.dtype(kind).newbyteorder(">" if big else "<")
    shape = (height, width, channels) if kind == "u1" else (height, width)
    numbers = (GENERATOR.random(shape) * (1 if kind == "f4" else 255)).astype(dtype)
    rows = numbers.reshape(height, -1).view(np.uint8)
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=99)
    fields = {"height": height, "width": width, "encoding": encoding, "step": padded.shape[1], "is_bigendian": big}
    return {**fields, "data": padded.reshape(-1), "numbers": numbers}


def image(encoding: str, **options: Any) -> tuple[RosImage, np.ndarray]:
    fields = message(encoding, **options)
    numbers = fields.pop("numbers")
    fields["data"].flags.writeable = False
    return RosImage(view_pixels(**fields), encoding), numbers


@pytest.mark.parametrize("padding", [0, 7])
@pytest.mark.parametrize("encoding", [name for name, (kind, _) in ENCODINGS.items() if kind == "u1"])
def test_colours_are_red_green_blue(encoding: str, padding: int) -> None:
    found, numbers = image(encoding, padding=padding)
    wanted = np.repeat(numbers, 3, -1) if encoding == "mono8" else numbers[..., :3]
    wanted = wanted[..., ::-1] if encoding.startswith("bgr") else wanted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same_size = found.resize_rgb(6, 5, CPU)
    assert same_size.dtype is torch.uint8
    np.testing.assert_array_equal(same_size.permute(1, 2, 0).numpy(), wanted)
    if not found.is_bgr:
        assert same_size.data_ptr() == found.pixels.ctypes.data, "the message's own memory"


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("encoding", ["mono16", "16UC1", "32FC1"])
def test_depth_is_metres_in_either_byte_order(encoding: str, big: bool) -> None:
    found, numbers = image(encoding, padding=6, big=big)
    scale = 1.0 if encoding == "32FC1" else 1e-3
    wanted = numbers.astype(np.float32) * np.float32(scale)
    if encoding != "32FC1":
        wanted[numbers == 0] = np.nan
    np.testing.assert_array_equal(found.metres().numpy(), wanted)
    np.testing.assert_array_equal(found.resize_metres(6, 5, CPU)[0].numpy(), np.nan_to_num(wanted))


def test_unmeasured_depth_is_nan_and_zero_for_a_policy() -> None:
    found = RosImage(np.array([[0, 2000]], np.uint16), "16UC1")
    assert torch.isnan(found.metres()).tolist() == [[True, False]]
    assert found.resize_metres(1, 2, CPU).tolist() == [[[0.0, 2.0]]]


@pytest.mark.parametrize("size", [(3, 5), (4, 4), (9, 2), (64, 48), (100, 90)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_sizes_are_those_of_torch_to_the_bit(size: tuple[int, int], channels: int) -> None:
    pixels = GENERATOR.integers(0, 256, (96, 128, channels), np.uint8)
    planes = torch.from_numpy(pixels).permute(2, 0, 1)[None].float()
    wanted = interpolate(planes, size, mode="area")[0].round_().to(torch.uint8).permute(1, 2, 0)
    np.testing.assert_array_equal(area_means(pixels, *size), wanted.numpy())


def test_sums_beyond_32_bits_wrap_and_come_back() -> None:
    pixels = np.full((4096, 4096, 1), 255, np.uint8)
    assert (area_means(pixels, 8, 8) == 255).all()


@pytest.mark.parametrize("shape", [(3000, 2999, 1), (4200, 4099, 1)])
def test_an_area_whose_sum_is_beyond_32_bits_has_its_mean(shape: tuple[int, int, int]) -> None:
    pixels = np.full(shape, 255, np.uint8)
    pixels[: shape[0] // 2] = 251
    wanted = np.rint(pixels.mean())
    assert area_means(pixels, 1, 1).tolist() == [[[wanted]]]


def test_a_resized_picture_has_its_colours() -> None:
    found = RosImage(np.tile(np.uint8([10, 20, 30]), (8, 8, 1)), "bgr8")
    assert found.resize_rgb(3, 2, CPU)[:, 0, 0].tolist() == [30, 20, 10]
    gray = RosImage(np.full((8, 8, 1), 7, np.uint8), "mono8")
    assert gray.resize_rgb(3, 2, CPU).shape == (3, 3, 2)


def test_colours_are_no_depth_and_depth_no_colours() -> None:
    with pytest.raises(BadMessage, match=r"colours, rgb8, bgr8.*16UC1"):
        image("16UC1")[0].resize_rgb(3, 2, CPU)
    with pytest.raises(BadMessage, match=r"depth.*bgr8"):
        image("bgr8")[0].metres()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"encoding": "yuv422"}, "encoding .*rgb8, .*'yuv422'"),
        ({"encoding": "x" * 10_000}, "encoding .*'x{40}'$"),
        ({"height": 7}, "step of 15 and 90 bytes"),
        ({"height": 5}, "step of 15 and 90 bytes"),
        ({"step": 14, "data": np.zeros(84, np.uint8)}, "15 bytes .*step of 14"),
        ({"step": 0, "data": np.zeros(0, np.uint8)}, "15 bytes .*step of 0"),
        ({"width": 0}, "sides .*0×6"),
        ({"height": 0, "data": np.zeros(0, np.uint8)}, "sides .*5×0"),
        ({"height": 2**32 - 1}, "sides .*5×4294967295"),
        ({"width": 16_384, "height": 16_384}, "33554432 pixels at most"),
    ],
)
def test_image_that_does_not_fit_is_refused_before_memory_is_taken(change: dict[str, Any], said: str) -> None:
    fields = message("rgb8")
    del fields["numbers"]
    with pytest.raises(BadMessage, match=said):
        view_pixels(**fields | change)


def test_images_of_ros_become_frames() -> None:
    assert image("bgr8")[0].frame().shape == (6, 5, 3)
    assert image("mono16", big=True)[0].frame().dtype == np.float32
    # The pixels are read-only memory.
    assert cv2.integral(image("rgb8")[0].pixels).shape == (7, 6, 3)
