"""Frames that are tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from torchrl_gpu.streaming.frames import canvas_shape, copy_pixels, event_behind


def copied(frame: torch.Tensor) -> Any:
    return copy_pixels(frame, canvas_shape(frame))


def test_torch_on_the_host() -> None:
    batch = torch.arange(2 * 4 * 6 * 4, dtype=torch.uint8).reshape(2, 4, 6, 4)[..., :3]
    picture = copied(batch)
    np.testing.assert_array_equal(picture[:, :6], batch[0].numpy())
    np.testing.assert_array_equal(picture[:, 6:], batch[1].numpy())
    assert event_behind(picture) is None


@pytest.mark.gpu
def test_torch_on_the_gpu_stays_there_and_does_not_wait() -> None:
    batch = torch.randint(0, 255, (3, 4, 6, 4), dtype=torch.uint8, device="cuda")[..., :3]
    torch.cuda.set_sync_debug_mode("error")
    try:
        picture: Any = copied(batch)
        event = event_behind(picture)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    event.synchronize()
    np.testing.assert_array_equal(picture.cpu().numpy(), copied(batch.cpu()))
