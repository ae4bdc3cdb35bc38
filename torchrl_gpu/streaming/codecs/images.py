"""Frames, and their JPEGs by OpenCV.

Frames are arrays of NumPy or tensors of torch on any device. This module does not import torch.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn, TypeAlias

import numpy as np

from torchrl_gpu.streaming.codecs.extras import load

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeIs

Frame: TypeAlias = "np.ndarray | Tensor"
Depth: TypeAlias = "tuple[float, float] | Tensor | None"
"""Metres of the first and the last colour; a tensor has shape (2,)."""

Range: TypeAlias = "tuple[float, float] | None"
"""Metres of the first and the last colour, as a caller asks for them; None takes them from the frame."""

MAX_SIDE = 65500  # pixels
# For messages.
FORMATS = (
    "a frame of uint8, H×W×3 (RGB), H×W×4 (RGBA) or H×W×1 or H×W (gray), or of float32 or float16 metres, H×W×1 or H×W"
    " (depth), or a batch of them, N×H×W×C, of NumPy or torch"
)

Kind = Literal["rgb", "rgba", "gray", "depth"]
_KINDS: dict[tuple[str, int], Kind] = {
    ("uint8", 1): "gray",
    ("uint8", 3): "rgb",
    ("uint8", 4): "rgba",
    ("float32", 1): "depth",
    ("float16", 1): "depth",
}


class FrameFormat(NamedTuple):
    """Meaning and number of the values of a frame.

    Attributes:
        kind: What the values mean. Depth is in metres.
        number: N of a batch N×H×W×C; None for a single frame.
        height, width: Of one frame, pixels.
    """

    kind: Kind
    number: int | None
    height: int
    width: int


class Packet(NamedTuple):
    """One encoded frame.

    Attributes:
        data: Its bytes; empty if the codec keeps the frame for later.
        key: Whether a decoder can start here.
    """

    data: bytes
    key: bool


def is_tensor(value: object) -> TypeIs[Tensor]:
    """Return whether a value is a tensor.

    Nothing is one before the program has imported torch.
    """
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def plain_frame(frame: object, where: str, wanted: str = FORMATS) -> Frame:
    """Return a frame as a plain array or tensor.

    Its shape and dtype are those of its memory; a subclass may report others.

    Args:
        frame: Anything.
        where: Who asks, for the error.
        wanted: What it should be, for the error.

    Raises:
        ValueError: It is neither an array nor a tensor of strided numbers.
    """
    if isinstance(frame, np.ndarray):
        return np.asarray(frame)
    if not is_tensor(frame):
        _refuse(where, wanted, type(frame).__name__)
    torch = sys.modules["torch"]
    tensor = frame
    kind = type(frame)
    if kind is not torch.Tensor and "__torch_dispatch__" not in vars(kind):
        with torch._C.DisableTorchFunctionSubclass():
            tensor = torch.Tensor.as_subclass(frame, torch.Tensor)
    if tensor.is_nested:
        _refuse(where, wanted, "a nested tensor")
    if tensor.device.type == "meta":
        _refuse(where, wanted, "a meta tensor")
    if tensor.layout is not torch.strided:
        _refuse(where, wanted, f"a {str(tensor.layout).removeprefix('torch.')} tensor")
    return tensor


def format_of(frame: Frame, where: str, wanted: str = FORMATS) -> FrameFormat:
    """Return the format of what `plain_frame` gave, by its last axis and dtype.

    The shape is H×W, H×W×C or N×H×W×C. So a batch of gray or depth frames is N×H×W×1, and N×H×W is refused.

    Args:
        frame: Plain.
        where: Who asks, for the error.
        wanted: What it should be, for the error.

    Raises:
        ValueError: It is of another format.
    """
    shape = tuple(frame.shape)
    is_swapped = isinstance(frame, np.ndarray) and not frame.dtype.isnative
    dtype = "" if is_swapped else str(frame.dtype).removeprefix("torch.")
    kind = _KINDS.get((dtype, _num_channels(shape)))
    if kind is None:
        refuse(frame, where, wanted)
    number = shape[0] if len(shape) == 4 else None
    sides = shape[:2] if number is None else shape[1:3]
    height, width = sides
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
        raise ValueError(f"{where}: a frame must have sides of 1 to {MAX_SIDE} pixels, not {_text_of(shape)}")
    return FrameFormat(kind, number, height, width)


def _num_channels(shape: tuple[int, ...]) -> int:
    """Return the number of channels of a shape.

    0 for a shape that no frame has.
    """
    if len(shape) == 2:
        return 1
    return shape[-1] if len(shape) in (3, 4) else 0


def refuse(frame: Frame, where: str, wanted: str) -> NoReturn:
    """Raise the ValueError of a frame of another shape or dtype."""
    shape = _text_of(tuple(frame.shape)) or "a scalar"
    _refuse(where, wanted, f"{shape} of {frame.dtype}")


def _refuse(where: str, wanted: str, given: str) -> NoReturn:
    raise ValueError(f"{where}: expected {wanted}, not {given}")


def _text_of(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def check_frame(frame: Frame, where: str) -> None:
    """Check that a value is H×W×3 uint8, an array or a tensor.

    Raises:
        ValueError: It is something else, or its sides are not from 1 to 65500 pixels.
    """
    wanted = "a frame H×W×3 of uint8, NumPy or torch"
    found = format_of(plain_frame(frame, where, wanted), where, wanted)
    if found.kind != "rgb" or found.number is not None:
        refuse(frame, where, wanted)


def to_array(frame: Frame) -> np.ndarray:
    """Return a frame, or a batch of them, for NumPy.

    It shares the memory of a frame on the CPU, and is a copy of any other.
    """
    if isinstance(frame, np.ndarray):
        return frame
    # `Tensor.numpy` refuses what needs gradients, and what torch only marks as negated.
    frame = frame.detach().resolve_neg()
    if frame.is_cuda:
        return _copy_to_host(frame)
    array: np.ndarray = frame.cpu().numpy()
    return array


def _copy_to_host(tensor: Tensor) -> np.ndarray:
    """Copy a CUDA tensor into pinned memory, on the current stream.

    A copy to pageable memory takes longer, and none of it runs at the same time as kernels.
    """
    torch = sys.modules["torch"]
    try:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    except RuntimeError:
        # No memory can be pinned here.
        return tensor.cpu().numpy()
    host.copy_(tensor, non_blocking=True)
    # Waiting for the stream itself would spin on a core that others need; for a blocking event the thread sleeps.
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(tensor.device))
    event.synchronize()
    return host.numpy()


def encode_jpeg(frame: Frame, quality: int = 80, *, bgr: bool = False) -> bytes:
    """Return the JPEG, 4:2:0, of a frame H×W×3 uint8.

    Frame and quality must have been checked before. Any number of threads may call it.
    """
    cv2 = load("cv2")
    array = to_array(frame)
    blue_first = array if bgr else cv2.cvtColor(array, cv2.COLOR_RGB2BGR)
    options = [cv2.IMWRITE_JPEG_QUALITY, int(quality)]
    done, data = cv2.imencode(".jpg", blue_first, options)
    assert done, "OpenCV refused a frame that was checked"
    return data.tobytes()


def check_quality(quality: int, where: str) -> None:
    """Check the quality of a JPEG.

    Raises:
        ValueError: It is no integer from 1 to 100.
    """
    if isinstance(quality, bool) or not isinstance(quality, int | np.integer) or not 1 <= quality <= 100:
        raise ValueError(f"{where}: quality must be an integer from 1 to 100, not {quality!r}")
