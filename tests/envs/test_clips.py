"""Clips as a sheet of their frames."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchrl_gpu.envs import DishwashingEnv
from torchrl_gpu.envs.clips import sheet


def frames(length: int, height: int, width: int) -> Tensor:
    """Each of one colour, no two alike, none black.

    Their first pixel is white.
    """
    out = (torch.arange(length, dtype=torch.uint8) + 1)[:, None, None, None].expand(-1, 3, height, width).clone()
    out[:, :, 0, 0] = 255
    return out


@pytest.mark.parametrize(
    ("length", "size", "room", "across", "scale"),
    [
        # Width and height of the picture: two rows of two, each twice as large.
        (4, (2, 2), (8, 8), 2, 2),
        (4, (2, 2), (16, 4), 4, 2),
        # A pixel row that is left over in each place stays black.
        (4, (2, 2), (4, 17), 1, 2),
        (3, (2, 2), (9, 9), 2, 2),
        (1, (3, 5), (12, 7), 1, 2),
    ],
)
def test_frames_lie_in_rows_and_keep_their_pixels(
    length: int, size: tuple[int, int], room: tuple[int, int], across: int, scale: int
) -> None:
    (width, height), clip = room, frames(length, *size)
    out = sheet(clip, width, height)
    assert out.shape == (height, width, 3)
    assert out.dtype == torch.uint8
    for i in range(length):
        own = (out == i + 1).all(-1)
        assert own.sum() == (size[0] * size[1] - 1) * scale**2
        rows, columns = own.nonzero().unbind(1)
        down = -(-length // across)
        assert rows.min() // (height // down) == rows.max() // (height // down) == i // across
        assert columns.min() // (width // across) == columns.max() // (width // across) == i % across
        white = (out[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] == 255).all(-1).nonzero()
        # First pixel, first place.
        assert white.tolist() == torch.cartesian_prod(torch.arange(scale), torch.arange(scale)).tolist()


def test_what_is_too_large_is_made_smaller() -> None:
    out = sheet(frames(4, 64, 64), 32, 32)
    shown = out.flatten(0, 1).unique(dim=0).tolist()
    assert {(i, i, i) for i in range(1, 5)} <= set(map(tuple, shown))


def test_the_overlay_of_a_shift_is_its_own_clip() -> None:
    env = DishwashingEnv(3, observe_as="video", frame_size=(32, 32), max_steps=9, device="cpu", seed=1)
    seen = env.rollout(5)[:, -1]["next", "clip"]
    assert list(env.overlays) == ["seen"]
    for row in range(3):
        assert torch.equal(env.overlay("seen", row, 64, 64, None), sheet(seen[row], 64, 64))
    assert not torch.equal(env.overlay("seen", 0, 64, 64, None), env.overlay("seen", 1, 64, 64, None))
    assert not DishwashingEnv(1, device="cpu").overlays
