"""Counter-based random numbers: the draws of environment i depend on the seed and its own history, on nothing else."""

from typing import Any, TypeVar

import torch
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.system.tracing import is_traced
from torchrl_gpu.system.triton_kernels import load_kernels

TRITON_DRAWS = "torchrl_gpu.envs.triton_draws"
_MASK = 0xFFFFFFFF
Bits = TypeVar("Bits", Tensor, int)


def mix(x: Bits) -> Bits:
    """Hash of the low 32 bits of each int64 element, or of a whole number; in [0, 2**32), same shape.

    Two rounds of xor-shift and multiply; constants found by exhaustive bias search (C. Wellons, "hash-prospector",
    public domain).
    """
    x = x & _MASK
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def draw_bits(key: Tensor, counter: Tensor) -> Tensor:
    """32 random bits for each (key, counter), readable at any position in any order; int64 in [0, 2**32).

    Both are int64 and broadcast: `key` names a sequence of draws, `counter` is the position in it.
    """
    if native.runs_on(key):
        return native.draw_bits(key, counter)
    if (kernels := _kernels(key, counter)) is not None:
        return kernels.draw("bits", key, counter)
    return bits_in_torch(key, counter)


def bits_in_torch(key: Tensor, counter: Tensor) -> Tensor:
    """As `draw_bits`: the definition."""
    return mix(mix(key) ^ mix(counter + 0x9E3779B9))


def _kernels(key: Tensor, counter: Tensor) -> Any:
    """Triton kernels that draw for a key and a counter, or None where torch draws."""
    if not key.is_cuda or is_traced():
        return None
    kernels = load_kernels("random numbers by counter", TRITON_DRAWS, key.device)
    return kernels if kernels is not None and kernels.covers(key, counter) else None


def seed_bits(seed: int) -> int:
    """32-bit seed of a 64-bit one; a seed in [0, 2**32) stands for itself."""
    low, high = seed & _MASK, seed >> 32 & _MASK
    return mix(mix(low) ^ high) if high else low


def episode_key(seed: int, env: Tensor, episode: Tensor) -> Tensor:
    """Random 32-bit key of each (seed, environment, episode); int64 (N,)."""
    if (kernels := _kernels(env, episode)) is not None:
        return kernels.draw("episode", env, episode, seed=seed_bits(seed))
    return draw_bits(draw_bits(torch.full_like(env, seed_bits(seed)), env), episode)


def draw_integers(key: Tensor, counter: Tensor, high: int, end: int | None = None) -> Tensor:
    """Random integers in [0, high) for each (key, counter).

    They are int64, of the broadcast shape. `high` is at most 2**31. From the counter `end` on, where one is given, they
    are -1.
    """
    if (kernels := _kernels(key, counter)) is not None:
        kind = "integers" if end is None else "until"
        return kernels.draw(kind, key, counter, high=high, end=end or 0)
    found = (draw_bits(key, counter) * high) >> 32
    return found if end is None else torch.where(counter < end, found, -1)


def draw_uniform(key: Tensor, counter: Tensor) -> Tensor:
    """Random numbers in [0, 1) for each (key, counter).

    They are float32 of 24 random bits each, of the broadcast shape.
    """
    if (kernels := _kernels(key, counter)) is not None:
        return kernels.draw("uniform", key, counter)
    return (draw_bits(key, counter) >> 8).float() * 2.0**-24
