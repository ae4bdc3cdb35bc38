"""Batched environments whose state never leaves the device."""

from torchrl_gpu.envs.adapters.rsl_rl import RslRlVecEnv
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.dishes.env import DishwashingEnv
from torchrl_gpu.envs.episodic import Advanced, EpisodicEnv
from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.packing.env import PackingEnv
from torchrl_gpu.envs.pixels import FromPixels

__all__ = [
    "Advanced",
    "BatchedEnv",
    "DishwashingEnv",
    "EpisodicEnv",
    "FromPixels",
    "MarineNavEnv",
    "PackingEnv",
    "RslRlVecEnv",
]
