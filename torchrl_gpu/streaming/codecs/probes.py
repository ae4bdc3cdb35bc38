"""Self-tests of codecs and devices.

Each returns in one line why something does not work here; "" if it has just worked.
"""

from __future__ import annotations

import functools
import os
from importlib import metadata
from typing import TYPE_CHECKING

from torchrl_gpu.device import cuda_problem as cuda_missing
from torchrl_gpu.streaming.codecs import libavcodec
from torchrl_gpu.system import nvidia
from torchrl_gpu.system.self_tests import SelfTest, Unavailable, one_line, usable

if TYPE_CHECKING:
    import torch


def cuda_problem(device: torch.device) -> str:
    """Return why a device is not a CUDA device that computes."""
    if device.type != "cuda":
        return cuda_missing() or f"the device is {device}"
    try:
        usable(str(device))
    except Unavailable as error:
        return str(error)
    return ""


def nvjpeg_problem(device: torch.device) -> str:
    """Return why NVJPEG encodes nothing on a device."""
    from torchrl_gpu.streaming.codecs.nvjpeg import NvJpeg

    try:
        NvJpeg(device)
    except RuntimeError as error:
        return one_line(str(error))
    return ""


@functools.cache
def nvenc_problem() -> str:
    """Return why NVENC encodes nothing here.

    It is found out once per process, since each encoder makes a context on the GPU.
    """
    # Without torch, whose import takes seconds and half a gigabyte: a program that streams arrays has no use for it.
    driver = nvidia.driver()
    av_version = _version("av")
    if driver and av_version:
        depends_on = {"driver": driver, "chips": ", ".join(nvidia.chips()), "av": av_version}
        depends_on["visible"] = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        test = SelfTest("H.264 by NVENC", f"{libavcodec.__name__}:codec_problem", ("nvenc",), depends_on)
        problem = test.failure()
        if problem:
            return problem
    return libavcodec.codec_problem("nvenc")


@functools.cache
def x264_problem() -> str:
    """Return why x264 encodes nothing here."""
    return libavcodec.codec_problem("x264")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
