"""A device counter read asynchronously."""

from __future__ import annotations

import torch
from torch import Tensor


class DeviceCount:
    """A recent value of a device counter: it is copied to the host in the background, and read once the copy is there.

    To wait for the device at every training step would cost what CUDA graphs save. The first call waits, so that what
    is counted from there on is exact. A count that is on the host is read at once.
    """

    def __init__(self) -> None:
        self._known = 0
        self._host: Tensor | None = None
        self._copied: torch.cuda.Event

    def __call__(self, count: Tensor | int) -> int:
        """The count (int64, a scalar); where it is on CUDA, its value of one or a few calls ago."""
        if not isinstance(count, Tensor) or count.device.type != "cuda":
            return int(count)
        if self._host is None:
            self._known, self._host = int(count), torch.zeros((), dtype=torch.int64, device="cpu").pin_memory()
        elif not self._copied.query():
            return self._known  # the copy on its way must not be overwritten
        else:
            self._known = int(self._host)
        self._host.copy_(count, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record(torch.cuda.current_stream(count.device))
        return self._known
