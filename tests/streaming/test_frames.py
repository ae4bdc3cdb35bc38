"""Frames as they come from simulators, and the pictures that they make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streaming.pictures import scene
from torchrl_gpu.streaming.frames import (
    LARGEST_SIDE,
    Layout,
    canvas_shape,
    check_state,
    clean_meta,
    copy_pixels,
    grid,
)


def copied(frame: Any, into: np.ndarray | None = None) -> np.ndarray:
    return copy_pixels(frame, canvas_shape(frame), into)


@settings(deadline=None)
@given(st.integers(1, 2000))
def test_a_grid_is_the_smallest_that_holds_all_and_as_square_as_can_be(number: int) -> None:
    rows, columns = grid(number)
    assert (rows - 1) * columns < number <= rows * columns
    assert rows <= columns
    assert (columns - 1) ** 2 < number <= columns**2


def test_a_frame_is_copied_whatever_its_strides() -> None:
    wide = np.random.default_rng(0).integers(0, 255, (12, 20, 4), dtype=np.uint8)
    for frame in (wide[..., :3], wide[::2, ::-1, :3], np.asfortranarray(wide[..., :3])):
        picture = copied(frame)
        assert picture.flags.c_contiguous
        assert not np.shares_memory(picture, frame)
        np.testing.assert_array_equal(picture, frame)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 7, 12])
def test_a_batch_is_tiled_row_by_row_and_the_rest_is_black(number: int) -> None:
    frames = np.stack([np.full((4, 6, 3), 10 + i, np.uint8) for i in range(number)])
    rows, columns = grid(number)
    dirty = np.full((rows * 4, columns * 6, 3), 255, np.uint8)
    picture = copied(frames, dirty)
    assert picture is dirty
    for i in range(rows * columns):
        row, column = divmod(i, columns)
        tile = picture[row * 4 : row * 4 + 4, column * 6 : column * 6 + 6]
        assert np.unique(tile).tolist() == ([10 + i] if i < number else [0])


def test_a_buffer_of_another_size_is_not_used() -> None:
    buffer = np.zeros((3, 3, 3), np.uint8)
    assert copied(scene(4, 6), buffer) is not buffer


@pytest.mark.parametrize(
    "frame",
    [
        np.zeros((4, 6), np.uint8),
        np.zeros((4, 6, 4), np.uint8),
        np.zeros((4, 6, 3), np.float32),
        np.zeros((0, 6, 3), np.uint8),
        np.zeros((0, 4, 6, 3), np.uint8),
        np.zeros((1, 1, 4, 6, 3), np.uint8),
        np.zeros((1, LARGEST_SIDE + 1, 3), np.uint8),
        [[[1, 2, 3]]],
        None,
    ],
)
def test_what_is_no_picture(frame: Any) -> None:
    with pytest.raises(ValueError, match="publish: want uint8 pixels, H×W×3 or N×H×W×3"):
        Layout().see(frame)


def test_a_layout_follows_the_frames() -> None:
    layout = Layout()
    layout.see(scene(4, 6))
    assert layout.shape == (4, 6, 3)
    layout.see(np.zeros((2, 4, 6, 3), np.uint8))
    assert layout.shape == (4, 12, 3)
    with pytest.raises(ValueError):
        layout.see(np.zeros((2, 4, 6, 3), np.int64))
    with pytest.raises(ValueError):
        layout.see(None)


def test_metadata_is_made_json() -> None:
    meta = {"step": np.int64(3), "return": np.float32(0.5), "nan": float("nan"), "name": "a", "done": np.bool_(True)}
    assert clean_meta(meta) == {"step": 3, "return": 0.5, "nan": None, "name": "a", "done": True}
    assert clean_meta(None) == {}


@pytest.mark.parametrize(
    "meta", [{"a": [1]}, {"a": np.zeros(2)}, {1: 2}, {"a": "x" * 2000}, {str(i): i for i in range(99)}]
)
def test_metadata_that_is_not_json(meta: Any) -> None:
    with pytest.raises(ValueError, match="StreamServer: want"):
        clean_meta(meta)


def test_state_may_hold_lists() -> None:
    assert check_state({"commands": ["pause", "reset"], "paused": False, "sizes": (1, np.int32(2))}) == {
        "commands": ["pause", "reset"],
        "paused": False,
        "sizes": [1, 2],
    }
    with pytest.raises(ValueError, match="at most 64 values of state"):
        check_state({"commands": ["pause"] * 99})
    with pytest.raises(ValueError, match="want numbers"):
        check_state({"commands": [["pause"]]})
