"""Batched environments whose state never leaves the device.

Tasks are in folders of their names, adapters to other libraries in `adapters`, worker processes in `workers`. Policies
are in `torchrl_gpu.policies`, training in `torchrl_gpu.training`. Read `episodic.py` first, then `base.py`.
"""

import importlib
from typing import TYPE_CHECKING

from torchrl_gpu.envs.adapters.rsl_rl import RslRlVecEnv
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.dishes.env import DishwashingEnv
from torchrl_gpu.envs.episodic import Advanced, EpisodicEnv
from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.packing.env import PackingEnv
from torchrl_gpu.envs.pixels import FromPixels

if TYPE_CHECKING:
    from torchrl_gpu.envs.adapters.gymnasium import GymnasiumVectorEnv
    from torchrl_gpu.envs.adapters.stable_baselines3 import Sb3VecEnv

__all__ = [
    "Advanced",
    "BatchedEnv",
    "DishwashingEnv",
    "EpisodicEnv",
    "FromPixels",
    "GymnasiumVectorEnv",
    "MarineNavEnv",
    "PackingEnv",
    "RslRlVecEnv",
    "Sb3VecEnv",
]

# Adapters that need an extra are imported at first use, by the modules that hold them.
_OF_EXTRAS = {"GymnasiumVectorEnv": "gymnasium", "Sb3VecEnv": "stable_baselines3"}


def __getattr__(name: str) -> object:
    if name in _OF_EXTRAS:
        module = importlib.import_module(f"{__name__}.adapters.{_OF_EXTRAS[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
