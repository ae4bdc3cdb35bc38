"""What a frame is: H×W×3 uint8, RGB unless `bgr` says otherwise, of NumPy or torch, on any device, in any strides.

Nothing here imports torch: a program that has tensors has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    Frame: TypeAlias = np.ndarray | Tensor

MAX_SIDE = 65500  # of a JPEG, pixels


def is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def check_frame(frame: Frame, where: str) -> None:
    """Lets one frame pass.

    Raises:
        ValueError: It is not H×W×3 uint8, of an array or a tensor, with sides of 1 to 65500 pixels.
    """
    _check(frame, 3, where, "a frame H×W×3 of uint8, NumPy or torch")


def check_frames(frames: Frame | Sequence[Frame], where: str) -> None:
    """Lets several frames pass: B×H×W×3, or a sequence of H×W×3 whose sizes may differ.

    Raises:
        ValueError: They are something else.
    """
    if isinstance(frames, list | tuple):
        for frame in frames:
            check_frame(frame, where)
    else:
        _check(frames, 4, where, "frames B×H×W×3 of uint8, NumPy or torch, or a list of H×W×3")


def to_array(frame: Frame) -> np.ndarray:
    """A frame, or a batch of them, for NumPy: the same memory where it lies on the CPU, a copy where it does not."""
    if isinstance(frame, np.ndarray):
        return frame
    array: np.ndarray = frame.cpu().numpy()
    return array


def _check(frame: Any, num_axes: int, where: str, wanted: str) -> None:
    if not (isinstance(frame, np.ndarray) or is_tensor(frame)):
        raise ValueError(f"{where}: want {wanted}; got {type(frame).__name__}")
    shape = tuple(frame.shape)
    if str(frame.dtype).removeprefix("torch.") != "uint8" or len(shape) != num_axes or shape[-1] != 3:
        raise ValueError(f"{where}: want {wanted}; got {'×'.join(map(str, shape)) or 'a scalar'} of {frame.dtype}")
    if not all(1 <= side <= MAX_SIDE for side in shape[-3:-1]):
        raise ValueError(f"{where}: want sides of 1 to {MAX_SIDE} pixels; got {'×'.join(map(str, shape))}")
