"""The operators against plain Python, on a few values."""

from __future__ import annotations

import torch

from torchrl_gpu.native import operators

_MASK = 0xFFFFFFFF
_KEYS = (0, 1, -1, 12345, 2**31, 2**32 + 7, -(2**40), 987654321)


def problem() -> str:
    """Which operator gives wrong numbers; "" for none."""
    key, counter = torch.tensor(_KEYS), torch.arange(5)
    drawn = operators.draw_bits(key[:, None], counter)
    if drawn.tolist() != [[_bits(each, at) for at in range(5)] for each in _KEYS]:
        return "draw_bits gives wrong numbers"
    mask = (drawn[:, :, None] >> torch.arange(32) & 1).bool().flatten(1)  # (8, 160)
    mask[0] = False
    draw = torch.linspace(0, 0.999, len(mask), dtype=torch.float64)
    rows = zip(mask.tolist(), draw.tolist(), strict=True)
    if operators.pick_true(mask, draw).tolist() != [_pick(*row) for row in rows]:
        return "pick_true gives wrong numbers"
    if operators.any_true(mask).tolist() != [any(row) for row in mask.tolist()]:
        return "any_true gives wrong numbers"
    return ""


def _bits(key: int, counter: int) -> int:
    """As `counter_rng.draw_bits`."""
    return _mix(_mix(key) ^ _mix(counter + 0x9E3779B9))


def _mix(x: int) -> int:
    x &= _MASK
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def _pick(mask: list[bool], draw: float) -> int:
    """The true entry of rank ⌊draw · count⌋; 0 where there is none."""
    there = [index for index, value in enumerate(mask) if value]
    return there[int(draw * len(there))] if there else 0
