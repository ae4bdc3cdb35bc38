"""A device counter read asynchronously."""

from __future__ import annotations

import torch
from torch import Tensor


class DeviceCount:
    """A recent value of a device counter, copied to the host in the background.

    To wait for the device at every training step would cost what CUDA graphs save. The first call waits, so that what
    is counted from there on is exact. A count that is on the host is read at once.
    """

    def __init__(self) -> None:
        self._known = 0
        self._host: Tensor | None = None
        self._copied: torch.cuda.Event

    def __call__(self, count: Tensor | int) -> int:
        """Return the count (int64, a scalar), on CUDA its value of one or a few calls ago."""
        if not isinstance(count, Tensor) or count.device.type != "cuda":
            return int(count)
        if self._host is None:
            self._known = int(count)
            self._host = torch.zeros((), dtype=torch.int64, device="cpu").pin_memory()
        elif not self._copied.query():
            # The copy on its way must not be overwritten.
            return self._known
        else:
            self._known = int(self._host)
        self._host.copy_(count, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record(torch.cuda.current_stream(count.device))
        return self._known
