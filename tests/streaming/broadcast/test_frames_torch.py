"""Frames that are tensors."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from tests.no_host_reads import NoHostReads
from tests.streaming.broadcast.test_frames import pictured
from torchrl_gpu.streaming.broadcast.frames import depth_meta, record_event
from torchrl_gpu.streaming.codecs import pixels
from torchrl_gpu.streaming.codecs.images import format_of


def copied(frame: torch.Tensor) -> Any:
    return pictured(frame)[0]


def frames() -> dict[str, torch.Tensor]:
    """A frame of each format."""
    made = torch.Generator().manual_seed(0)
    depth = torch.rand(3, 4, 6, 1, generator=made)
    depth[0, 0, :3, 0] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    bytes_ = torch.randint(0, 255, (3, 4, 6, 4), dtype=torch.uint8, generator=made)
    return {
        "rgb": bytes_[..., :3],
        "rgba": bytes_,
        "gray": bytes_[0, ..., 0],
        "depth": depth,
        "half": depth[0, ..., 0].half(),
        "constant": torch.full((2, 3), 4.0),
        "unmeasured": torch.full((2, 3), torch.nan),
        "extreme": torch.tensor([[-3e38, 0.0, 3e38]]),
    }


@pytest.mark.parametrize("name", frames())
def test_both_libraries_make_the_same_picture(name: str) -> None:
    frame = frames()[name]
    np.testing.assert_array_equal(copied(frame), copied(frame.numpy()))
    assert record_event(copied(frame)) is None
    np.testing.assert_array_equal(copied(frame.requires_grad_(frame.is_floating_point())), copied(frame.detach()))


@pytest.mark.parametrize("name", frames())
def test_what_runs_on_a_device_makes_the_same_picture_and_reads_nothing(name: str) -> None:
    """The operators of a GPU, run on the host under a mode that refuses what would wait."""
    frame, expected = frames()[name], copied(frames()[name])
    found = format_of(frame, "test")
    pixels._color_map_on(frame.device)  # comes to the device once
    with NoHostReads(), mock.patch.object(pixels, "to_array", side_effect=AssertionError("brought to the host")):
        depth = pixels.measured_range(OnDevice(frame)) if found.kind == "depth" else None  # type: ignore[arg-type]
        canvas = torch.empty(expected.shape, dtype=torch.uint8)
        pixels.paint(canvas, frame, found, depth)
    np.testing.assert_allclose(canvas.numpy().astype(int), expected, atol=3)  # a colour of the map, where it rounds
    if found.kind == "depth":
        assert depth_meta(depth) == depth_meta(pixels.measured_range(frame))


class OnDevice:
    """A tensor that says that it lies on a GPU."""

    is_cuda = True

    def __init__(self, tensor: torch.Tensor) -> None:
        self.detach = tensor.detach


@pytest.mark.gpu
@pytest.mark.parametrize("name", frames())
def test_torch_on_the_gpu_stays_there_and_does_not_wait(name: str) -> None:
    frame = frames()[name].cuda()
    pixels._color_map_on(frame.device)  # comes to the device once
    torch.cuda.set_sync_debug_mode("error")
    try:
        picture: Any
        depth: Any
        picture, depth = pictured(frame)
        depth = None if depth is None else depth.to("cpu", non_blocking=True)
        event = record_event(picture)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    event.synchronize()
    np.testing.assert_allclose(picture.cpu().numpy().astype(int), copied(frame.cpu()), atol=3)
    assert depth_meta(depth) == depth_meta(pictured(frame.cpu())[1])
