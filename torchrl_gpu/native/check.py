"""The operators against plain Python, on a few values."""

from __future__ import annotations

import itertools

import torch

from torchrl_gpu.native import operators

_MASK = 0xFFFFFFFF
_CUTS = {  # a stack, layers; by `CutSequences.cut`, of the keys 1 and 2
    (6, 7, 6, 2, 5, 0, 8, 3): ((12, 10, 0, 40, 36, 6, 38, 42), (42, 40, 5, 37, 8, 10, 21, 21)),
    (6, 7, 6, 2, 5, 1, 8, 32): ((38, 42, 2, 14, 4, 8, 40, 36), (42, 10, 36, 5, 38, 5, 8, 40)),
}
_KEYS = (0, 1, -1, 12345, 2**31, 2**32 + 7, -(2**40), 987654321)


def problem() -> str:
    """Which operator gives wrong numbers; "" for none."""
    key, counter = (
        torch.tensor(_KEYS, dtype=torch.int64, device="cpu"),
        torch.arange(5, dtype=torch.int64, device="cpu"),
    )
    drawn = operators.draw_bits(key[:, None], counter)
    if drawn.tolist() != [[_bits(each, at) for at in range(5)] for each in _KEYS]:
        return "draw_bits gives wrong numbers"
    mask = (drawn[:, :, None] >> torch.arange(32, dtype=torch.int64, device="cpu") & 1).bool().flatten(1)  # (8, 160)
    mask[0] = False
    draw = torch.linspace(0, 0.999, len(mask), dtype=torch.float64, device="cpu")
    rows = zip(mask.tolist(), draw.tolist(), strict=True)
    if operators.pick_true(mask, draw).tolist() != [_pick(*row) for row in rows]:
        return "pick_true gives wrong numbers"
    if operators.any_true(mask).tolist() != [any(row) for row in mask.tolist()]:
        return "any_true gives wrong numbers"
    return next(filter(None, itertools.starmap(_cut_problem, _CUTS.items())), "")


def _cut_problem(cuts: tuple[int, ...], wanted: tuple[tuple[int, ...], ...]) -> str:
    key, cut = (
        torch.tensor([1, 2], dtype=torch.int64, device="cpu"),
        torch.tensor(wanted, dtype=torch.int64, device="cpu"),
    )
    if not operators.cut_boxes(key, cuts)[1].equal(cut):
        return "cut_boxes gives wrong numbers"
    kept = key.new_full((2, 2), -1), torch.zeros_like(key), key.new_zeros(2, 2, 8)
    position = torch.arange(8, dtype=torch.int64, device="cpu").expand(2, 8)
    if not all(operators.cut_items(key, position, cuts, *kept).equal(cut) for _ in range(2)):
        return "cut_items gives wrong numbers"
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
