"""Frames in, JPEG and H.264 out, encoded on the GPU where this machine really can."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchrl_gpu.device import get_device
from torchrl_gpu.streaming.codecs import probes
from torchrl_gpu.streaming.codecs.h264 import H264Encoder, check_codec
from torchrl_gpu.streaming.codecs.images import (
    Frame,
    Range,
    check_quality,
    encode_jpeg,
    format_of,
    is_tensor,
    plain_frame,
    refuse,
    to_array,
)
from torchrl_gpu.streaming.codecs.nvjpeg import NvJpeg
from torchrl_gpu.streaming.codecs.pixels import as_rgb

if TYPE_CHECKING:
    import torch

_LOG = logging.getLogger(__name__)
_WARNED: set[str] = set()  # the backends whose failure has been logged in this process
_BATCH = "frames N×H×W×C, of uint8 with 1, 3 or 4 channels or of float32 or float16 with 1, or a list of frames"


class GpuFramePipeline:
    """Encodes frames of NumPy or torch, of any format that `images.FORMATS` names, in any strides.

    Three axes are H×W×C; a batch N×H×W×C makes one picture, a grid, but in `encode_jpeg_batch`. What is transparent
    shows white behind it; depth is drawn in colours over `depth_range`, metres, or over what the frame holds, and
    gray where it is NaN or infinite. Channels are red, green, blue unless `bgr` is set.

    A frame is encoded where it lies: one on the GPU by NVJPEG where that works, all others by OpenCV. Any thread may
    call any method; encoding after `close` is a RuntimeError.

    Args:
        device: Whose frames NVJPEG takes, as for `get_device`.
        h264: "nvenc", "x264", or "auto": NVENC where it works, x264 otherwise.
        fps: Frames per second that the rate control of H.264 counts on.

    Attributes:
        device: The torch device.
        has_cuda: Whether the device is a CUDA device that computes.
        has_nvjpeg: Whether NVJPEG has encoded a picture on it.
        has_nvenc: Whether NVENC has encoded a picture on this machine; it takes frames of any device.
        problems: For each of "cuda", "nvjpeg" and "nvenc" that does not work: why not.

    Raises:
        ValueError: An argument is something else, or there is no such device.
        RuntimeError: `h264` is "nvenc", and NVENC does not work here; the message says why.
    """

    def __init__(self, device: str | torch.device = "auto", h264: str = "auto", *, fps: float = 30.0) -> None:
        check_codec(h264, "GpuFramePipeline")
        self.device, self.h264, self.fps = get_device(device), h264, fps
        self._nvjpeg: NvJpeg | None = None
        nvjpeg_problem = ""
        try:
            self._nvjpeg = NvJpeg(self.device)
        except RuntimeError as error:
            nvjpeg_problem = str(error)
        found = {"cuda": probes.cuda_problem(self.device), "nvjpeg": nvjpeg_problem, "nvenc": probes.nvenc_problem()}
        self.problems = {name: problem for name, problem in found.items() if problem}
        self.has_cuda, self.has_nvjpeg, self.has_nvenc = (not problem for problem in found.values())
        if h264 == "nvenc" and not self.has_nvenc:
            raise RuntimeError(f"GpuFramePipeline: want NVENC, as h264='nvenc' says; got {self.problems['nvenc']}")
        self._lock = threading.Lock()
        self._encoder: H264Encoder | None = None
        self._closed = False

    def encode_jpeg(self, rgb: Frame, quality: int = 80, *, bgr: bool = False, depth_range: Range = None) -> bytes:
        """A frame as a JPEG file of a quality of 1 to 100."""
        check_quality(quality, "encode_jpeg")
        picture, is_rgb = as_rgb(rgb, "encode_jpeg", depth_range=depth_range)
        self._refuse_if_closed()
        return self._jpegs([picture], quality, bgr and not is_rgb)[0]

    def encode_jpeg_numpy(
        self, rgb: np.ndarray, quality: int = 80, *, bgr: bool = False, depth_range: Range = None
    ) -> bytes:
        """A frame that is an array, as a JPEG file, by OpenCV; otherwise as `encode_jpeg`."""
        if not isinstance(rgb, np.ndarray):
            raise ValueError(f"encode_jpeg_numpy: want a NumPy array; got {type(rgb).__name__}")
        return self.encode_jpeg(rgb, quality, bgr=bgr, depth_range=depth_range)

    def encode_jpeg_batch(
        self, frames: Frame | Sequence[Frame], quality: int = 80, *, bgr: bool = False, depth_range: Range = None
    ) -> list[bytes]:
        """Frames N×H×W×C, or a list of frames of any formats, sizes and devices, as JPEG files in their order.

        Those on the GPU are encoded in one call. Depth takes its range from each frame, unless it is given.
        """
        where = "encode_jpeg_batch"
        check_quality(quality, where)
        self._refuse_if_closed()
        if not isinstance(frames, list | tuple):
            frames = plain_frame(frames, where, _BATCH)
            found = format_of(frames, where, _BATCH)
            if found.number is None:
                refuse(frames, where, _BATCH)
            if found.kind == "rgb" and depth_range is None:
                return self._jpegs(frames, quality, bgr)
        pictures = [as_rgb(frame, where, depth_range=depth_range) for frame in frames]
        if not bgr or not any(is_rgb for _, is_rgb in pictures):
            return self._jpegs([picture for picture, _ in pictures], quality, bgr)
        return [self._jpegs([picture], quality, not is_rgb)[0] for picture, is_rgb in pictures]

    def encode_h264(
        self,
        rgb: Frame,
        bitrate: int = 8_000_000,
        *,
        key_frame: bool = False,
        bgr: bool = False,
        depth_range: Range = None,
    ) -> bytes:
        """The next frame of the pipeline's one H.264 stream, Annex B; may be empty before the first packet.

        Another size or bitrate reopens the encoder, so that the frame is a key frame. RuntimeError where no codec that
        may be used takes the frame.
        """
        picture, is_rgb = as_rgb(rgb, "encode_h264", depth_range=depth_range)
        with self._lock:
            self._refuse_if_closed()
            if self._encoder is None or self._encoder.bitrate != bitrate:
                height, width = picture.shape[:2]
                self._encoder = H264Encoder(width, height, self.fps, bitrate, self.h264)
            return self._encoder.encode(picture, key_frame, bgr=bgr and not is_rgb).data

    def flush(self) -> bytes:
        """The last bytes of the H.264 encoder, usually none; the next frame is a key frame."""
        with self._lock:
            self._refuse_if_closed()
            return b"" if self._encoder is None else self._encoder.flush()

    def close(self) -> None:
        """Frees the encoders. Closing again does nothing."""
        with self._lock:
            self._closed, self._encoder, self._nvjpeg = True, None, None

    def __enter__(self) -> GpuFramePipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _jpegs(self, frames: Frame | Sequence[Frame], quality: int, bgr: bool) -> list[bytes]:
        """Files of frames that were checked: those of frames on the GPU in one call."""
        nvjpeg = self._nvjpeg
        if not isinstance(frames, list | tuple):
            if nvjpeg is not None and _is_on_gpu(frames):
                return _by_nvjpeg(nvjpeg, frames, quality, bgr)
            frames = list(to_array(frames))  # type: ignore[arg-type]
        taken = [nvjpeg is not None and _is_on_gpu(frame) for frame in frames]
        on_gpu = iter(_by_nvjpeg(nvjpeg, list(itertools.compress(frames, taken)), quality, bgr) if nvjpeg else ())
        return [
            next(on_gpu) if gpu else encode_jpeg(frame, quality, bgr=bgr)
            for frame, gpu in zip(frames, taken, strict=True)
        ]

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError("GpuFramePipeline: want an open pipeline; got one that was closed")


def _by_nvjpeg(nvjpeg: NvJpeg, frames: Any, quality: int, bgr: bool) -> list[bytes]:
    """By NVJPEG, or by OpenCV where it refuses or the GPU's memory is full."""
    try:
        return nvjpeg.encode(frames, quality, bgr=bgr)
    except Exception as error:  # whatever a library or a driver raises, amid a run
        if nvjpeg.backend not in _WARNED:
            _WARNED.add(nvjpeg.backend)
            problem = (str(error).strip().splitlines() or [type(error).__name__])[0]
            _LOG.warning(
                "GpuFramePipeline: NVJPEG through %s fails (%s); OpenCV encodes such frames instead",
                nvjpeg.backend,
                problem,
            )
        frames = frames if isinstance(frames, list) else to_array(frames)
        return [encode_jpeg(frame, quality, bgr=bgr) for frame in frames]


def _is_on_gpu(frame: Any) -> bool:
    return is_tensor(frame) and frame.device.type == "cuda"
