"""Frames in, JPEG and H.264 out, encoded on the GPU if this machine really can."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
# Backends that have failed, which is logged once in a process.
WARNED: set[str] = set()
# For messages.
_BATCH = "frames N×H×W×C, of uint8 with 1, 3 or 4 channels or of float32 or float16 with 1, or a list of frames"


class GpuFramePipeline:
    """Encodes frames of NumPy or torch, of any format that `images.FORMATS` names.

    Strides may be any. Three axes are H×W×C; a batch N×H×W×C makes one picture, a grid, except in `encode_jpeg_batch`.
    What is transparent shows white behind it; depth is drawn in colours over `depth_range`, metres, or over what the
    frame holds, and gray where it is NaN or infinite. Channels are red, green, blue unless `bgr` is set.

    A frame is encoded where it lies: one on the GPU by NVJPEG if that works, all others by OpenCV. Any thread may call
    any method; encoding after `close` is a RuntimeError.

    Args:
        device: Whose frames NVJPEG takes, as for `get_device`.
        h264: "nvenc", "x264", or "auto": NVENC if it works, x264 otherwise.
        fps: Frames per second that the rate control of H.264 counts on.

    Attributes:
        device: The torch device.
        has_cuda: Whether the device is a CUDA device that computes.
        has_nvjpeg: Whether NVJPEG has encoded a picture on it.
        has_nvenc: Whether NVENC has encoded a picture on this machine; it takes frames of any device.
        problems: For each of "cuda", "nvjpeg" and "nvenc" that does not work: why not.

    Raises:
        ValueError: An argument is invalid, or there is no such device.
        RuntimeError: `h264` is "nvenc", and NVENC does not work here; the message says why.
    """

    def __init__(self, device: str | torch.device = "auto", h264: str = "auto", *, fps: float = 30.0) -> None:
        check_codec(h264, "GpuFramePipeline")
        self.device = get_device(device)
        self.h264 = h264
        self.fps = fps
        self._nvjpeg: NvJpeg | None = None
        nvjpeg_problem = ""
        try:
            self._nvjpeg = NvJpeg(self.device)
        except RuntimeError as error:
            nvjpeg_problem = str(error)
        found = {"cuda": probes.cuda_problem(self.device), "nvjpeg": nvjpeg_problem, "nvenc": probes.nvenc_problem()}
        self.problems = {name: problem for name, problem in found.items() if problem}
        self.has_cuda = "cuda" not in self.problems
        self.has_nvjpeg = "nvjpeg" not in self.problems
        self.has_nvenc = "nvenc" not in self.problems
        if h264 == "nvenc" and not self.has_nvenc:
            raise RuntimeError(f"GpuFramePipeline: h264='nvenc' does not work here: {self.problems['nvenc']}")
        self._lock = threading.Lock()
        self._encoder: H264Encoder | None = None
        self._closed = False

    def encode_jpeg(self, rgb: Frame, quality: int = 80, *, bgr: bool = False, depth_range: Range = None) -> bytes:
        """Encode a frame as a JPEG file of a quality of 1 to 100."""
        check_quality(quality, "encode_jpeg")
        picture, is_rgb = as_rgb(rgb, "encode_jpeg", depth_range=depth_range)
        self._refuse_if_closed()
        return self._jpegs([picture], quality, bgr and not is_rgb)[0]

    def encode_jpeg_numpy(
        self, rgb: np.ndarray, quality: int = 80, *, bgr: bool = False, depth_range: Range = None
    ) -> bytes:
        """Encode an array as a JPEG file, by OpenCV.

        Otherwise as `encode_jpeg`.
        """
        if not isinstance(rgb, np.ndarray):
            raise ValueError(f"encode_jpeg_numpy: rgb must be a NumPy array, not {type(rgb).__name__}")
        return self.encode_jpeg(rgb, quality, bgr=bgr, depth_range=depth_range)

    def encode_jpeg_batch(
        self, frames: Frame | Sequence[Frame], quality: int = 80, *, bgr: bool = False, depth_range: Range = None
    ) -> list[bytes]:
        """Encode several frames as JPEG files, in their order.

        Frames on the GPU are encoded in one call. Depth takes its range from each frame, unless it is given.

        Args:
            frames: N×H×W×C, or a list of frames of any formats, sizes and devices.
            quality: 1 to 100.
            bgr: Whether the channels are blue, green, red.
            depth_range: Metres of the first and the last colour of depth.
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
        # Pictures of depth are red first whatever `bgr` says, so that a mixed list takes a call for each.
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
        """Encode the next frame of the pipeline's one H.264 stream, Annex B.

        The bytes may be none before the first packet. Another size or bitrate reopens the encoder, so that the frame is
        a key frame.

        Raises:
            RuntimeError: No codec that may be used takes the frame.
        """
        picture, is_rgb = as_rgb(rgb, "encode_h264", depth_range=depth_range)
        with self._lock:
            self._refuse_if_closed()
            if self._encoder is None or self._encoder.bitrate != bitrate:
                height, width = picture.shape[:2]
                self._encoder = H264Encoder(width, height, self.fps, bitrate, self.h264)
            return self._encoder.encode(picture, key_frame, bgr=bgr and not is_rgb).data

    def flush(self) -> bytes:
        """Return the last bytes of the H.264 encoder, usually none.

        The next frame is a key frame.
        """
        with self._lock:
            self._refuse_if_closed()
            return b"" if self._encoder is None else self._encoder.flush()

    def close(self) -> None:
        """Free the encoders. Closing again does nothing."""
        with self._lock:
            self._closed = True
            self._encoder = None
            self._nvjpeg = None

    def __enter__(self) -> GpuFramePipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _jpegs(self, frames: Frame | Sequence[Frame], quality: int, bgr: bool) -> list[bytes]:
        """Return the files of frames that were checked.

        Frames on the GPU are encoded in one call.
        """
        # Another thread may close the pipeline meanwhile.
        nvjpeg = self._nvjpeg
        if not isinstance(frames, list | tuple):
            if nvjpeg is not None and _is_on_gpu(frames):
                return _encode_by_nvjpeg(nvjpeg, frames, quality, bgr)
            frames = list(to_array(frames))  # type: ignore[arg-type]
        if nvjpeg is None:
            return [encode_jpeg(frame, quality, bgr=bgr) for frame in frames]
        on_gpu = [_is_on_gpu(frame) for frame in frames]
        frames_on_gpu = list(itertools.compress(frames, on_gpu))
        files = iter(_encode_by_nvjpeg(nvjpeg, frames_on_gpu, quality, bgr))
        return [
            next(files) if is_on_gpu else encode_jpeg(frame, quality, bgr=bgr)
            for frame, is_on_gpu in zip(frames, on_gpu, strict=True)
        ]

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError("GpuFramePipeline is closed")


def _encode_by_nvjpeg(nvjpeg: NvJpeg, frames: Frame | Sequence[Frame], quality: int, bgr: bool) -> list[bytes]:
    """Encode by NVJPEG, or by OpenCV if it refuses or the GPU's memory is full."""
    try:
        return nvjpeg.encode(frames, quality, bgr=bgr)  # type: ignore[arg-type]
    except Exception as error:
        # In the middle of a run a library or a driver may raise anything.
        if nvjpeg.backend not in WARNED:
            WARNED.add(nvjpeg.backend)
            lines = str(error).strip().splitlines()
            problem = lines[0] if lines else type(error).__name__
            _LOG.warning(
                "GpuFramePipeline: NVJPEG through %s fails (%s); OpenCV encodes such frames instead",
                nvjpeg.backend,
                problem,
            )
        on_host = frames if isinstance(frames, list) else to_array(frames)  # type: ignore[arg-type]
        return [encode_jpeg(frame, quality, bgr=bgr) for frame in on_host]


def _is_on_gpu(frame: object) -> bool:
    return is_tensor(frame) and frame.device.type == "cuda"
