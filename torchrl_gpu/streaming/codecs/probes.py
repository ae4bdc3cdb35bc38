"""What this machine really encodes: each answer comes from a frame that was encoded, not from a list of codecs.

Every function gives the reason why not, in one line, empty where it works. None of them depends on another: a Hopper
chip has NVJPEG and no NVENC.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from torchrl_gpu import proofs
from torchrl_gpu.device import cuda_problem as cuda_missing
from torchrl_gpu.streaming.codecs import libavcodec

if TYPE_CHECKING:
    import torch


def cuda_problem(device: torch.device) -> str:
    """Why a device is not a CUDA device that computes; tried by a sum that is read back."""
    import torch

    if device.type != "cuda":
        return cuda_missing() or f"the device is {device}"
    try:
        right = int(torch.ones(2, device=device, dtype=torch.float32).sum()) == 2
    except RuntimeError as error:
        return _first_line(error)
    return "" if right else f"{device} adds one and one to something else"


def nvjpeg_problem(device: torch.device) -> str:
    """Why NVJPEG encodes nothing on a device."""
    from torchrl_gpu.streaming.codecs.nvjpeg import NvJpeg

    try:
        NvJpeg(device)
    except RuntimeError as error:
        return _first_line(error)
    return ""


@functools.cache
def nvenc_problem() -> str:
    """Why NVENC encodes nothing here. Asked once per process, since each trial makes a context on the GPU; where there
    is one, in a process of its own first."""
    return ("" if cuda_missing() else _nvenc_problem_apart()) or libavcodec.codec_problem("nvenc")


def _nvenc_problem_apart() -> str:
    import torch

    from torchrl_gpu import machine

    depends_on = machine.cuda_versions(torch.device("cuda")) | {"av": str(machine.version("av"))}
    return proofs.problem(
        proofs.Trial("H.264 by NVENC", "torchrl_gpu.streaming.codecs.libavcodec:codec_problem", ("nvenc",), depends_on)
    )


@functools.cache
def x264_problem() -> str:
    """Why x264 encodes nothing here."""
    return libavcodec.codec_problem("x264")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].strip()
