"""Random numbers by counter in Triton, for CUDA devices.

They take one launch, where torch takes some forty. Defined in `counter_rng`. With `TRITON_INTERPRET=1` the kernel runs
on a CPU.
"""

# Arguments of kernels have no types that mypy knows.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchrl_gpu.envs import counter_rng

# Axes that what is drawn may have.
MOST_AXES = 4

# Draws of one program.
_LANES = 256


@triton.jit
def mixed(x):
    """Hash int64 numbers as `counter_rng.mix` does."""
    x = x & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


@triton.jit
def drawn(mixed_key, counter):
    """Draw as `counter_rng.draw_bits` does, by a key that is mixed already."""
    return mixed(mixed_key ^ mixed(counter.to(tl.int64) + 0x9E3779B9))


_NUMBERS = ["size", "seed", "high", "end"]
_NUMBERS += [f"length_{axis}" for axis in range(MOST_AXES)]
_NUMBERS += [f"key_{axis}" for axis in range(MOST_AXES)]
_NUMBERS += [f"counter_{axis}" for axis in range(MOST_AXES)]


@triton.jit(do_not_specialize=_NUMBERS)
def draw_kernel(
    key, counter, out, size, seed, high, end, length_0, length_1, length_2, length_3,
    key_0, key_1, key_2, key_3, counter_0, counter_1, counter_2, counter_3,
    KIND: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Draw T times by one kind.

    Kinds are "bits", "uniform" numbers, "integers", integers "until" an end, −1 from there on, and keys of an
    "episode". The axes of what is drawn have the lengths `length_0` to `length_3`; key and counter have strides along
    each, so that they need not be copied to be broadcast.
    """
    index = tl.program_id(0) * T + tl.arange(0, T)
    there = index < size
    along_3 = (index % length_3).to(tl.int64)
    index_2 = index // length_3
    along_2 = (index_2 % length_2).to(tl.int64)
    index_1 = index_2 // length_2
    along_1 = (index_1 % length_1).to(tl.int64)
    along_0 = (index_1 // length_1).to(tl.int64)
    key_at = along_0 * key_0 + along_1 * key_1 + along_2 * key_2 + along_3 * key_3
    counter_at = along_0 * counter_0 + along_1 * counter_1 + along_2 * counter_2 + along_3 * counter_3
    name = tl.load(key + key_at, mask=there, other=0)
    place = tl.load(counter + counter_at, mask=there, other=0)
    if KIND == "episode":
        name = drawn(mixed(tl.zeros([T], tl.int64) + seed), name)
    bits = drawn(mixed(name), place)
    if KIND == "uniform":
        # The factor is 2⁻²⁴.
        found = (bits >> 8).to(tl.float32) * 5.9604644775390625e-08
    elif KIND == "integers":
        found = bits * high >> 32
    elif KIND == "until":
        found = tl.where(place < end, bits * high >> 32, -1)
    else:
        tl.static_assert(KIND == "bits" or KIND == "episode", "a kind of draw without a kernel")
        found = bits
    tl.store(out + index, found, mask=there)


def covers(key: Tensor, counter: Tensor) -> bool:
    """Return whether the kernel can draw by a key and a counter."""
    if not key.dtype == counter.dtype == torch.int64 or key.device != counter.device:
        return False
    shape = torch.broadcast_shapes(key.shape, counter.shape)
    # The kernel counts in int32, and the lanes of the last program count beyond the end.
    return len(shape) <= MOST_AXES and shape.numel() < 2**31 - _LANES


def draw(kind: str, key: Tensor, counter: Tensor, *, seed: int = 0, high: int = 0, end: int = 0) -> Tensor:
    """Draw by one of the kinds of `draw_kernel`, in the broadcast shape.

    Args:
        kind: Of `draw_kernel`.
        key: Names sequences of draws, int64.
        counter: Positions in them, int64.
        seed: Of keys of an "episode".
        high: What integers are below.
        end: Counter from which integers "until" it are −1.
    """
    key, counter = torch.broadcast_tensors(key, counter)
    dtype = torch.float32 if kind == "uniform" else torch.int64
    out = torch.empty(key.shape, dtype=dtype, device=key.device)
    lengths = _pad(key.shape, 1)
    key_strides = _pad(key.stride(), 0)
    strides = (*key_strides, *_pad(counter.stride(), 0))
    # Triton makes a number of 2**31 or more an int64, which would compile a second kernel. The low 32 bits count.
    if seed >= 2**31:
        seed -= 2**32
    if out.numel():
        with torch.cuda.device(key.device) if key.is_cuda else contextlib.nullcontext():
            draw_kernel[(triton.cdiv(out.numel(), _LANES),)](
                key, counter, out, out.numel(), seed, high, end, *lengths, *strides,
                KIND=kind, T=_LANES, enable_fp_fusion=False, num_warps=_LANES // 64,
            )  # fmt: skip
    return out


def _pad(numbers: Sequence[int], fill: int) -> tuple[int, ...]:
    """Put `fill` before numbers of axes, up to `MOST_AXES`."""
    return (*[fill] * (MOST_AXES - len(numbers)), *numbers)


def self_test(device: str) -> str:
    """Return how draws on a device differ from those of torch, or "" if they do not."""
    there = torch.device(device)
    key = torch.tensor([0, 1, -1, 2**31, 2**32 - 1, 2**63 - 1, -(2**63)], dtype=torch.int64, device=there)
    numbers = torch.arange(-70, 70, dtype=torch.int64, device=there)
    counter = numbers.view(2, 70)
    # Once without broadcasting, and once with it.
    return _difference(key, counter[0, :7]) or _difference(key[:, None, None], counter)


def _difference(key: Tensor, counter: Tensor) -> str:
    bits = counter_rng.bits_in_torch(key, counter)
    integers = bits * 1000 >> 32
    first = counter_rng.bits_in_torch(torch.full_like(key, 2**32 - 5), key)
    expected = {
        "bits": bits,
        "integers": integers,
        "uniform": (bits >> 8).float() * 2.0**-24,
        "until": torch.where(counter < 9, integers, -1),
        "episode": counter_rng.bits_in_torch(first, counter),
    }
    for kind, numbers in expected.items():
        if not torch.equal(draw(kind, key, counter, seed=2**32 - 5, high=1000, end=9), numbers):
            return f"{kind} drawn for {tuple(numbers.shape)} keys and counters differ from those of torch"
    return ""
