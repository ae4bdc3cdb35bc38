"""Reinforcement learning on one device: environment, policy, replay and update.

Importing this package loads neither torch nor lightning; they come with the first name that needs them. The rooms are
the folders here, which `docs/architecture.md` describes; what they are for is in `README.md`. Read `envs/episodic.py`
first, or `cli` for the commands.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchrl_gpu.device import get_device

# OpenMP reads this when torch is imported. Its threads wait for their next operator by spinning, by default for
# milliseconds, on a core that the kernels' threads or another process want. Those that sleep at once are late for it.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

__version__ = "0.1.0"
__all__ = ["__version__", "get_device"]


def __getattr__(name: str) -> object:
    if name == "get_device":
        from torchrl_gpu.device import get_device

        return get_device
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
