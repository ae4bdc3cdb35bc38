"""JPEG on the GPU by NVJPEG, through torchcodec or torchvision."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import torch
from torch import Tensor

from torchrl_gpu.streaming.codecs.images import to_array
from torchrl_gpu.system import machine
from torchrl_gpu.system.self_tests import SelfTest, usable

Backend: TypeAlias = Callable[[list[Tensor], int], list[Tensor]]
"""Turns planar pictures (3, H, W) and a quality into files, (bytes,) uint8, on the same device."""

# The first and the last bytes of a JPEG file.
_START = b"\xff\xd8"
_END = b"\xff\xd9"
_DEPRECATED = "The image decoding and encoding capabilities of TorchVision are deprecated"
# Pixels. NVJPEG has refused pictures of a few.
_PROBE_SIDE = 256


class NvJpeg:
    """JPEG files, 4:4:4, of frames that lie on one CUDA device.

    NVJPEG gave torn pictures when several threads or streams used it at once. So one thread of the process encodes, on
    a stream other than the caller's. It begins when the work is done that the caller had queued on its stream, and
    holds the frames until their files are on the host.

    Args:
        device: Of the frames.
        backends: By name; the first that encodes a picture here is used. None for those that are installed.

    Raises:
        RuntimeError: None of them does; the message says why.
    """

    def __init__(self, device: torch.device, backends: dict[str, Backend] | None = None) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        problems = []
        for name, backend in (installed_backends(device) if backends is None else backends).items():
            self.backend = name
            self._encode = backend
            # A backend may end the process, so those that are installed have a self-test in another one first.
            problem = _failure(name, device) if backends is None else ""
            problem = problem or self._probe()
            if not problem:
                return
            problems.append(f"{name}: {problem}")
        raise RuntimeError("; ".join(problems) or f"NVJPEG needs a CUDA device, not {device}")

    def encode(self, frames: Tensor | Sequence[Tensor], quality: int, *, bgr: bool = False) -> list[bytes]:
        """Encode frames in one call.

        Args:
            frames: B×H×W×3 uint8, or a sequence whose sizes may differ.
            quality: 1 to 100.
            bgr: Whether the channels are blue, green, red.

        Returns:
            The files, in order.
        """
        if not len(frames):
            return []
        ready = None
        if self._stream is not None:
            ready = torch.cuda.Event(blocking=True)
            ready.record(torch.cuda.current_stream(self.device))
        return _encoder_thread().submit(self._work, frames, ready, quality, bgr).result()

    def _work(
        self, frames: Tensor | Sequence[Tensor], ready: torch.cuda.Event | None, quality: int, bgr: bool
    ) -> list[bytes]:
        """Encode, in the encoder thread.

        The host waits, since NVJPEG reads on a stream of its own that waits for nobody.
        """
        stream = contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        with stream, torch.no_grad():
            if ready is not None:
                ready.synchronize()
            planes = planar(frames, self.device, bgr=bgr)
            if self._stream is not None:
                self._stream.synchronize()
            files = self._encode(planes, quality)
            # All files in one copy.
            data = to_array(torch.cat(files)).tobytes()
        ends = list(itertools.accumulate(map(len, files)))
        return [data[end - len(file) : end] for end, file in zip(ends, files, strict=True)]

    def _probe(self) -> str:
        """Return why the backend encodes nothing, "" if it has just encoded a picture."""
        ramp = torch.arange(_PROBE_SIDE, dtype=torch.uint8, device=self.device)
        frame = ramp[:, None, None].expand(_PROBE_SIDE, _PROBE_SIDE, 3)
        try:
            (file,) = self.encode([frame], 80)
        except Exception as error:
            # A library of another version may raise anything.
            return " ".join(str(error).split()) or type(error).__name__
        return "" if file.startswith(_START) and file.endswith(_END) else "what it gives is no JPEG file"


# -- self-tests: a backend may end the process that tries it -----------------------------------------------------------


def _failure(name: str, device: torch.device) -> str:
    """Return why a backend fails its self-test, "" if it passes."""
    if device.type != "cuda":
        return ""
    depends_on = {"backend": name, "torch": torch.__version__, "package": str(machine.version(name))}
    depends_on |= machine.cuda_versions(device)
    test = SelfTest(f"JPEG by {name} on {device}", f"{__name__}:self_test", (name, str(device)), depends_on)
    return test.failure()


def self_test(name: str, device: str) -> str:
    """Return why a backend encodes nothing on a device, "" if it does."""
    there = usable(device)
    try:
        NvJpeg(there, {name: installed_backends(there)[name]})
    except RuntimeError as error:
        return str(error).removeprefix(f"{name}: ")
    return ""


# -- backends ----------------------------------------------------------------------------------------------------------


def planar(frames: Tensor | Sequence[Tensor], device: torch.device, *, bgr: bool = False) -> list[Tensor]:
    """Return frames as NVJPEG takes them: on the device, (3, H, W), contiguous, RGB."""
    if isinstance(frames, Tensor):
        planes = frames.to(device).permute(0, 3, 1, 2)
        return list((planes.flip(1) if bgr else planes).contiguous().unbind(0))
    return [planar(frame[None], device, bgr=bgr)[0] for frame in frames]


_encoder_thread = functools.cache(functools.partial(ThreadPoolExecutor, 1, thread_name_prefix="nvjpeg"))


def installed_backends(device: torch.device) -> dict[str, Backend]:
    return {"torchcodec": torchcodec, "torchvision": torchvision} if device.type == "cuda" else {}


def torchcodec(planes: list[Tensor], quality: int) -> list[Tensor]:
    """Encode by torchcodec, from 0.16."""
    encoder = importlib.import_module("torchcodec.encoders").JpegEncoder
    return [encoder(picture).to_tensor(quality=quality) for picture in planes]


def torchvision(planes: list[Tensor], quality: int) -> list[Tensor]:
    """Encode by torchvision, whose encoder is deprecated from 0.29 on."""
    io = importlib.import_module("torchvision.io")
    # Every call warns and names torchcodec, which has been tried by then. `catch_warnings` would hide the warnings of
    # other threads, and filters may have been reset since the last call.
    if not any(getattr(text, "pattern", text) == _DEPRECATED for _, text, *_ in warnings.filters):
        warnings.filterwarnings("ignore", _DEPRECATED, DeprecationWarning, r"torchvision\.io\.image")
    files: list[Tensor] = io.encode_jpeg(planes, quality)
    device = files[0].device
    if device.type == "cuda":
        # It copies the files on the device's default stream, for which the caller's stream does not wait.
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.default_stream(device))
        event.synchronize()
    return files
