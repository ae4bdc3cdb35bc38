"""Colours as BT.601 defines them, and sides that are even."""

from __future__ import annotations

import numpy as np
import pytest

from tests.streaming.pictures import scene
from torchrl_gpu.streaming.codecs.yuv import even, to_i420


@pytest.mark.parametrize(
    ("rgb", "yuv"),
    [  # ITU-R BT.601: Y = 16 + 65.481 R + 128.553 G + 24.966 B of R, G, B from 0 to 1; U and V end at 16 and 240
        ((0, 0, 0), (16, 128, 128)),
        ((255, 255, 255), (235, 128, 128)),
        ((255, 0, 0), (81, 90, 240)),
        ((0, 255, 0), (145, 54, 34)),
        ((0, 0, 255), (41, 240, 110)),
    ],
)
def test_by_hand(rgb: tuple[int, int, int], yuv: tuple[int, int, int]) -> None:
    planes = to_i420(np.full((4, 6, 3), rgb, np.uint8)).ravel()
    y, u, v = np.split(planes.astype(int), [24, 30])
    assert [np.abs(plane - wanted).max() <= 1 for plane, wanted in zip((y, u, v), yuv, strict=True)] == [True] * 3


def test_blue_first() -> None:
    assert np.array_equal(to_i420(scene()[..., ::-1], bgr=True), to_i420(scene()))


@pytest.mark.parametrize("shape", [(4, 6), (3, 6), (4, 5), (1, 1), (121, 161)])
def test_odd_sides_grow_by_a_copy(shape: tuple[int, int]) -> None:
    frame = scene(*shape)
    planes = to_i420(frame)
    height, width = even(shape[0]), even(shape[1])
    assert planes.shape == (height * 3 // 2, width)
    grown = np.pad(frame, ((0, height - shape[0]), (0, width - shape[1]), (0, 0)), mode="edge")
    assert np.array_equal(planes, to_i420(grown))


def test_even() -> None:
    assert [even(side) for side in (1, 2, 641, 642)] == [2, 2, 642, 642]
