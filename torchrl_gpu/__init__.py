"""Reinforcement learning whose environment, policy, replay and update live on one device.

Importing this package loads neither torch nor lightning; they come with the first name that needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrl_gpu.device import get_device

__version__ = "0.1.0"
__all__ = ["__version__", "get_device"]


def __getattr__(name: str) -> Any:
    if name == "get_device":
        from torchrl_gpu.device import get_device

        return get_device
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
