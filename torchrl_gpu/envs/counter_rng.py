"""Counter-based random numbers: the draws of environment i depend on the seed and its own history, on nothing else."""

from typing import TypeVar

import torch
from torch import Tensor

from torchrl_gpu import native

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
    return mix(mix(key) ^ mix(counter + 0x9E3779B9))


def seed_bits(seed: int) -> int:
    """32-bit seed of a 64-bit one; a seed in [0, 2**32) stands for itself."""
    low, high = seed & _MASK, seed >> 32 & _MASK
    return mix(mix(low) ^ high) if high else low


def episode_key(seed: int, env: Tensor, episode: Tensor) -> Tensor:
    """Random 32-bit key of each (seed, environment, episode); int64 (N,)."""
    return draw_bits(draw_bits(torch.full_like(env, seed_bits(seed)), env), episode)


def draw_integers(key: Tensor, counter: Tensor, high: int) -> Tensor:
    """Random integers in [0, high) for each (key, counter); int64, the broadcast shape. `high` is at most 2**31."""
    return (draw_bits(key, counter) * high) >> 32
