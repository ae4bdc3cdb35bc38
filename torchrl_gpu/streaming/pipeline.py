"""Frames in, JPEG and H.264 out, encoded on the GPU where this machine really can."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchrl_gpu.device import get_device
from torchrl_gpu.streaming import probes
from torchrl_gpu.streaming.h264 import H264Encoder, check_codec
from torchrl_gpu.streaming.images import check_frame, check_frames, is_tensor, to_array
from torchrl_gpu.streaming.jpeg import check_quality, compress
from torchrl_gpu.streaming.nvjpeg import NvJpeg

if TYPE_CHECKING:
    import torch

    from torchrl_gpu.streaming.images import Frame

_LOG = logging.getLogger(__name__)
_SAID: set[str] = set()  # the backends whose failure has been logged in this process


class GpuFramePipeline:
    """Encodes frames H×W×3 uint8, RGB unless `bgr` is set, of NumPy or torch, in any strides.

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
        self._nvjpeg, nvjpeg_problem = _nvjpeg(self.device)
        found = {
            "cuda": probes.cuda_problem(self.device),
            "nvjpeg": nvjpeg_problem,
            "nvenc": probes.nvenc_problem(),
        }
        self.problems = {name: problem for name, problem in found.items() if problem}
        self.has_cuda, self.has_nvjpeg, self.has_nvenc = (not problem for problem in found.values())
        if h264 == "nvenc" and not self.has_nvenc:
            raise RuntimeError(f"GpuFramePipeline: want NVENC, as h264='nvenc' says; got {self.problems['nvenc']}")
        self._lock = threading.Lock()
        self._encoder: H264Encoder | None = None
        self._closed = False

    def encode_jpeg(self, rgb: Frame, quality: int = 80, *, bgr: bool = False) -> bytes:
        """A frame H×W×3 as a JPEG file.

        Raises:
            ValueError: The frame is something else, or the quality is not 1 to 100.
            RuntimeError: The pipeline is closed.
        """
        check_frame(rgb, "encode_jpeg")
        check_quality(quality, "encode_jpeg")
        self._refuse_if_closed()
        return self._jpegs([rgb], quality, bgr)[0]

    def encode_jpeg_numpy(self, rgb: np.ndarray, quality: int = 80, *, bgr: bool = False) -> bytes:
        """A frame that is an array, as a JPEG file, by OpenCV; otherwise as `encode_jpeg`."""
        if not isinstance(rgb, np.ndarray):
            raise ValueError(f"encode_jpeg_numpy: want a NumPy array; got {type(rgb).__name__}")
        return self.encode_jpeg(rgb, quality, bgr=bgr)

    def encode_jpeg_batch(
        self, frames: Frame | Sequence[Frame], quality: int = 80, *, bgr: bool = False
    ) -> list[bytes]:
        """Frames B×H×W×3, or a list of H×W×3 of any sizes and devices, as JPEG files in their order.

        Those on the GPU are encoded in one call.

        Raises:
            ValueError: The frames are something else, or the quality is not 1 to 100.
            RuntimeError: The pipeline is closed.
        """
        check_frames(frames, "encode_jpeg_batch")
        check_quality(quality, "encode_jpeg_batch")
        self._refuse_if_closed()
        return self._jpegs(frames, quality, bgr)

    def encode_h264(self, rgb: Frame, bitrate: int = 8_000_000, *, key_frame: bool = False, bgr: bool = False) -> bytes:
        """The next frame H×W×3 of the pipeline's one H.264 stream, Annex B; may be empty before the first packet.

        Another size or bitrate reopens the encoder, so that the frame is a key frame.

        Raises:
            ValueError: The frame is something else.
            RuntimeError: The pipeline is closed, or no codec that may be used takes the frame.
        """
        check_frame(rgb, "encode_h264")
        with self._lock:
            self._refuse_if_closed()
            if self._encoder is None or self._encoder.bitrate != bitrate:
                height, width = rgb.shape[:2]
                self._encoder = H264Encoder(width, height, self.fps, bitrate, self.h264)
            return self._encoder.encode(rgb, key_frame, bgr=bgr).data

    def flush(self) -> bytes:
        """What the H.264 encoder still held, usually nothing; the next frame is a key frame."""
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
        if nvjpeg is None:
            return _by_opencv(frames, quality, bgr)
        taken = [_is_on_gpu(frame) for frame in frames]
        on_gpu = iter(_by_nvjpeg(nvjpeg, list(itertools.compress(frames, taken)), quality, bgr))
        on_host = iter(_by_opencv([frame for frame, gpu in zip(frames, taken, strict=True) if not gpu], quality, bgr))
        return [next(on_gpu) if gpu else next(on_host) for gpu in taken]

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError("GpuFramePipeline: want an open pipeline; got one that was closed")


def _nvjpeg(device: torch.device) -> tuple[NvJpeg | None, str]:
    """NVJPEG on a device, or why there is none."""
    try:
        return NvJpeg(device), ""
    except RuntimeError as error:
        return None, str(error)


def _by_nvjpeg(nvjpeg: NvJpeg, frames: Any, quality: int, bgr: bool) -> list[bytes]:
    """By NVJPEG, or by OpenCV where it refuses or the GPU's memory is full."""
    try:
        return nvjpeg.encode(frames, quality, bgr=bgr)
    except RuntimeError as error:
        _say_once(nvjpeg.backend, str(error).splitlines()[0])
        return _by_opencv(frames if isinstance(frames, list) else to_array(frames), quality, bgr)


def _by_opencv(frames: Iterable[Frame], quality: int, bgr: bool) -> list[bytes]:
    return [compress(to_array(frame), quality, bgr=bgr) for frame in frames]


def _is_on_gpu(frame: Any) -> bool:
    return is_tensor(frame) and frame.device.type == "cuda"


def _say_once(backend: str, problem: str) -> None:
    if backend not in _SAID:
        _SAID.add(backend)
        _LOG.warning(
            "GpuFramePipeline: NVJPEG through %s fails (%s); OpenCV encodes such frames instead", backend, problem
        )
