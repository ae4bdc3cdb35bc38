"""Random numbers by counter, whose draws depend on a key and a position alone.

A generator with a state would give environment i other numbers whenever another environment drew, so that batches of
two sizes, or of several processes, would play other episodes. Here each draw is a hash of a key and a position.
"""

from types import ModuleType
from typing import TypeVar

import torch
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.system.tracing import is_traced
from torchrl_gpu.system.triton_kernels import load_kernels

TRITON_DRAWS = "torchrl_gpu.envs.triton_draws"
_MASK = 0xFFFFFFFF
Bits = TypeVar("Bits", Tensor, int)


def mix(x: Bits) -> Bits:
    """Hash the low 32 bits of each int64 element, or of a whole number.

    Two rounds of xor-shift and multiply. The constants were found by exhaustive bias search (C. Wellons,
    "hash-prospector", public domain).

    Returns:
        Numbers in [0, 2**32), of the shape of `x`.
    """
    x = x & _MASK
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def draw_bits(key: Tensor, counter: Tensor) -> Tensor:
    """Draw 32 random bits for each (key, counter), at any position in any order.

    Both are int64 and broadcast: `key` names a sequence of draws, `counter` is the position in it.

    Returns:
        int64 in [0, 2**32).
    """
    if native.runs_on(key):
        return native.draw_bits(key, counter)
    kernels = _kernels(key, counter)
    if kernels is not None:
        return kernels.draw("bits", key, counter)
    return bits_in_torch(key, counter)


def bits_in_torch(key: Tensor, counter: Tensor) -> Tensor:
    """Draw as `draw_bits` does, by torch: the definition for all backends."""
    # Without the constant, key and counter could change places, and wherever they are equal the draw would be 0.
    return mix(mix(key) ^ mix(counter + 0x9E3779B9))


def _kernels(key: Tensor, counter: Tensor) -> ModuleType | None:
    """Return Triton kernels for a key and a counter, or None if torch draws."""
    # A traced graph holds torch's operators, which its compiler fuses.
    if not key.is_cuda or is_traced():
        return None
    kernels = load_kernels("random numbers by counter", TRITON_DRAWS, key.device)
    return kernels if kernels is not None and kernels.covers(key, counter) else None


def seed_bits(seed: int) -> int:
    """Return the 32-bit seed of a 64-bit one.

    A seed in [0, 2**32) is unchanged.
    """
    low = seed & _MASK
    high = seed >> 32 & _MASK
    return mix(mix(low) ^ high) if high else low


def episode_key(seed: int, env: Tensor, episode: Tensor) -> Tensor:
    """Return a random 32-bit key for each (seed, environment, episode), int64 (N,)."""
    kernels = _kernels(env, episode)
    if kernels is not None:
        return kernels.draw("episode", env, episode, seed=seed_bits(seed))
    return draw_bits(draw_bits(torch.full_like(env, seed_bits(seed)), env), episode)


def draw_integers(key: Tensor, counter: Tensor, high: int, end: int | None = None) -> Tensor:
    """Draw random integers in [0, high) for each (key, counter).

    They are int64, of the broadcast shape. `high` is at most 2**31. If `end` is given, they are -1 from that counter
    on.
    """
    kernels = _kernels(key, counter)
    if kernels is not None:
        kind = "integers" if end is None else "until"
        return kernels.draw(kind, key, counter, high=high, end=end or 0)
    # Multiply and shift (Lemire 2019) without rejection: a draw that were rejected would need a second counter, and
    # the bias is at most `high` / 2**32.
    found = (draw_bits(key, counter) * high) >> 32
    if end is None:
        return found
    return torch.where(counter < end, found, -1)


def draw_uniform(key: Tensor, counter: Tensor) -> Tensor:
    """Draw random numbers in [0, 1) for each (key, counter).

    They are float32 of 24 random bits each, of the broadcast shape.
    """
    kernels = _kernels(key, counter)
    if kernels is not None:
        return kernels.draw("uniform", key, counter)
    return (draw_bits(key, counter) >> 8).float() * 2.0**-24
