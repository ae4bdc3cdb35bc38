"""Frames, arrays of NumPy or tensors of torch on any device, and their JPEGs by OpenCV. Does not import torch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn, TypeAlias

import numpy as np

from torchrl_gpu.streaming.codecs.extras import load

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeIs

Frame: TypeAlias = "np.ndarray | Tensor"
Depth: TypeAlias = "tuple[float, float] | Tensor | None"  # metres of the first and the last colour, (2,)
Range: TypeAlias = "tuple[float, float] | None"  # those of a caller; None takes them from the frame

MAX_SIDE = 65500  # of a JPEG, pixels
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
    """Meaning and number of the values of a frame."""

    kind: Kind  # depth is in metres
    number: int | None  # N of a batch N×H×W×C; None for a single frame
    height: int  # of one frame, pixels
    width: int


class Packet(NamedTuple):
    """One encoded frame."""

    data: bytes  # empty where the codec keeps the frame for later
    key: bool  # whether a decoder can start here


def is_tensor(value: object) -> TypeIs[Tensor]:
    """True for a tensor; nothing is one before the program has imported torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def plain_frame(frame: object, where: str, wanted: str = FORMATS) -> Frame:
    """A frame as an array or tensor whose shape and dtype are those of its memory, whatever a subclass says.

    ValueError where it is neither, or a tensor that holds no strided numbers.
    """
    if isinstance(frame, np.ndarray):
        return np.asarray(frame)
    if not is_tensor(frame):
        raise ValueError(f"{where}: want {wanted}; got {type(frame).__name__}")
    torch, tensor = sys.modules["torch"], frame
    if type(frame) is not torch.Tensor and "__torch_dispatch__" not in vars(type(frame)):
        with torch._C.DisableTorchFunctionSubclass():
            tensor = torch.Tensor.as_subclass(frame, torch.Tensor)
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.device.type == "meta":
        kind = "nested" if tensor.is_nested else "meta" if tensor.device.type == "meta" else str(tensor.layout)
        raise ValueError(f"{where}: want {wanted}; got a {kind.removeprefix('torch.')} tensor")
    return tensor


def format_of(frame: Frame, where: str, wanted: str = FORMATS) -> FrameFormat:
    """The format of what `plain_frame` gave, H×W, H×W×C or N×H×W×C, by its last axis and dtype; ValueError for others.

    So a batch of gray or depth frames is N×H×W×1, and N×H×W is refused.
    """
    shape = tuple(frame.shape)
    channels = {2: 1, 3: shape[-1], 4: shape[-1]}.get(len(shape), 0) if shape else 0
    is_swapped = isinstance(frame, np.ndarray) and not frame.dtype.isnative
    dtype = "" if is_swapped else str(frame.dtype).removeprefix("torch.")
    kind = _KINDS.get((dtype, channels))
    if kind is None:
        refuse(frame, where, wanted)
    number = shape[0] if len(shape) == 4 else None
    height, width = shape[:2] if number is None else shape[1:3]
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
        raise ValueError(f"{where}: want sides of 1 to {MAX_SIDE} pixels; got {'×'.join(map(str, shape))}")
    return FrameFormat(kind, number, height, width)


def refuse(frame: Frame, where: str, wanted: str) -> NoReturn:
    """Raises the ValueError of a frame of another shape or dtype."""
    raise ValueError(f"{where}: want {wanted}; got {'×'.join(map(str, frame.shape)) or 'a scalar'} of {frame.dtype}")


def check_frame(frame: Frame, where: str) -> None:
    """Raises ValueError unless a value is H×W×3 uint8, an array or a tensor, with sides of 1 to 65500 pixels."""
    wanted = "a frame H×W×3 of uint8, NumPy or torch"
    found = format_of(plain_frame(frame, where, wanted), where, wanted)
    if found.kind != "rgb" or found.number is not None:
        refuse(frame, where, wanted)


def to_array(frame: Frame) -> np.ndarray:
    """A frame, or a batch of them, for NumPy: the same memory where it lies on the CPU, a copy where it does not."""
    if isinstance(frame, np.ndarray):
        return frame
    frame = frame.detach().resolve_neg()
    array: np.ndarray = _fetched(frame) if frame.is_cuda else frame.cpu().numpy()
    return array


def _fetched(tensor: Tensor) -> np.ndarray:
    # Pinned, on the current stream: a copy to pageable memory takes longer, and none of it runs beside kernels.
    torch = sys.modules["torch"]
    try:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    except RuntimeError:  # no memory can be pinned here
        return tensor.cpu().numpy()
    host.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(tensor.device))
    event.synchronize()
    return host.numpy()


def encode_jpeg(frame: Frame, quality: int = 80, *, bgr: bool = False) -> bytes:
    """The JPEG, 4:2:0, of a frame H×W×3 uint8 and a quality that were checked before; from any number of threads."""
    cv2, array = load("cv2"), to_array(frame)
    blue_first = array if bgr else cv2.cvtColor(array, cv2.COLOR_RGB2BGR)
    done, data = cv2.imencode(".jpg", blue_first, [cv2.IMWRITE_JPEG_QUALITY, int(quality)])
    assert done, "OpenCV refused a frame that was checked"
    return data.tobytes()


def check_quality(quality: int, where: str) -> None:
    if isinstance(quality, bool) or not isinstance(quality, int | np.integer) or not 1 <= quality <= 100:
        raise ValueError(f"{where}: want a quality of 1 to 100; got {quality!r}")
