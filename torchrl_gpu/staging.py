"""From host memory to a device, through pinned memory."""

from __future__ import annotations

import logging
from typing import TypeVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

_LOG = logging.getLogger(__name__)

Held = TypeVar("Held", Tensor, TensorDictBase)


class Staging:
    """Copies what was gathered in host memory to a device, without waiting for it where memory can be pinned.

    Where it cannot, the plain copy does the same, more slowly; that is logged once.

    Args:
        where: The first part of that line.
        what: What is copied, in one word, such as "clips".
        device: Where to.
    """

    def __init__(self, where: str, what: str, device: torch.device) -> None:
        self.device, self._said = device, f"{where}: {what} are copied from pageable memory, as pinning failed"
        self._pins = device.type == "cuda"

    def __call__(self, held: Held) -> Held:
        """The same on the device."""
        if self._pins:
            try:
                held = held.pin_memory()
            except RuntimeError as error:
                self._pins = False
                _LOG.warning("%s: %s", self._said, error)
        return held.to(self.device, non_blocking=self._pins)
