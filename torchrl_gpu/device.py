"""The one place that decides on which device things live."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_KNOWN = "auto, cpu, cuda, cuda:N or a torch.device of these types"


def get_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device that a word names: `cpu`, or `cuda` with its index.

    Args:
        device: "auto" (the current CUDA device if there is one, else the CPU), "cpu", "cuda" (the current one),
            "cuda:N", or a `torch.device`.

    Raises:
        ValueError: The word is none of these, CUDA is not available, or there is no CUDA device of that index.
    """
    import torch

    if not isinstance(device, str | torch.device):
        raise ValueError(f"get_device: device must be {_KNOWN}, not {device!r}")
    word = str(device)
    if word == "auto":
        word = "cpu" if cuda_problem() else "cuda"
    if re.fullmatch(r"cpu(:0)?", word):
        return torch.device("cpu")
    match = re.fullmatch(r"cuda(?::(\d+))?", word)
    if match is None:
        raise ValueError(f"get_device: device must be {_KNOWN}, not {word!r}")
    return _cuda_device(word, match[1])


def cuda_problem() -> str:
    """Return why CUDA cannot be used here, in one line, or "" if it can.

    CUDA is initialised only if nothing else is wrong.
    """
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA"
    if torch.cuda.is_available():
        return ""
    try:
        torch.cuda.init()
    # Depending on what is wrong, torch raises RuntimeError, AssertionError or a type of its own.
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        return text.split(". ")[0].rstrip(".")
    return "the driver shows no device (is CUDA_VISIBLE_DEVICES empty?)"


def _cuda_device(word: str, index: str | None) -> torch.device:
    import torch

    problem = cuda_problem()
    if problem:
        raise ValueError(f"get_device: no usable CUDA device for {word!r}: {problem}")
    count = torch.cuda.device_count()
    number = torch.cuda.current_device() if index is None else int(index)
    if number >= count:
        raise ValueError(f"get_device: the index must be below {count}, the number of CUDA devices here, not {word!r}")
    return torch.device("cuda", number)


def now(device: torch.device) -> float:
    """Return the seconds of a clock, once the device has finished its work."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return time.perf_counter()
