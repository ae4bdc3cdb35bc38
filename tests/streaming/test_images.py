"""What passes as a frame, and that nothing is copied on the way to NumPy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from torchrl_gpu.streaming.images import check_frame, check_frames, to_array

WRONG = {
    "channels first": np.zeros((3, 4, 5), np.uint8),
    "grey": np.zeros((4, 5), np.uint8),
    "alpha": np.zeros((4, 5, 4), np.uint8),
    "float": torch.zeros(4, 5, 3),
    "signed": np.zeros((4, 5, 3), np.int8),
    "a batch": torch.zeros(2, 4, 5, 3, dtype=torch.uint8),
    "no rows": np.zeros((0, 5, 3), np.uint8),
    "too wide": np.broadcast_to(np.uint8(0), (1, 65501, 3)),
    "a list": [[[0, 0, 0]]],
    "nothing": None,
    "a scalar": np.uint8(3)[None].reshape(()),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_frame_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(ValueError, match=r"^camera: want .*; got .+$"):
        check_frame(WRONG[name], "camera")


@pytest.mark.parametrize("frame", [np.zeros((1, 1, 3), np.uint8), torch.zeros(7, 5, 4, dtype=torch.uint8)[..., :3]])
def test_a_frame_of_either_library_passes(frame: np.ndarray | torch.Tensor) -> None:
    check_frame(frame, "camera")


def test_frames_are_a_batch_or_a_list() -> None:
    check_frames(np.zeros((0, 4, 5, 3), np.uint8), "camera")
    check_frames(torch.zeros(2, 4, 5, 3, dtype=torch.uint8), "camera")
    check_frames([np.zeros((4, 5, 3), np.uint8), torch.zeros(6, 7, 3, dtype=torch.uint8)], "camera")
    for wrong in (np.zeros((4, 5, 3), np.uint8), [WRONG["grey"]], "frames"):
        with pytest.raises(ValueError, match=r"^camera: want .*; got .+$"):
            check_frames(wrong, "camera")


@pytest.mark.parametrize("strided", [False, True])
def test_memory_on_the_cpu_is_shared(strided: bool) -> None:
    tensor = torch.arange(60, dtype=torch.uint8).reshape(5, 3, 4)
    tensor = tensor[..., :3] if strided else tensor.permute(2, 0, 1)
    array = to_array(tensor)
    tensor[0, 0, 0] = 77
    assert array[0, 0, 0] == 77
    assert to_array(array) is array
    assert np.array_equal(array, np.array(tensor.tolist()))


def test_encoding_needs_no_torch(child_environment: dict[str, str]) -> None:
    code = """
import sys, numpy
from torchrl_gpu.streaming import h264, jpeg, mp4
frame = numpy.zeros((16, 16, 3), numpy.uint8)
assert jpeg.encode_jpeg(frame) and h264.H264Encoder(16, 16, codec="x264").encode(frame).key
print("torch" in sys.modules)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=child_environment, check=True, timeout=60
    )
    assert run.stdout.strip() == "False"
