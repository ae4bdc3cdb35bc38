"""Self-test of the C++ operators against known results."""

from __future__ import annotations

import torch

from torchrl_gpu.native import operators

# By key, the bits of the counters 0 to 3 as `counter_rng.draw_bits` defines them.
_BITS = {
    0: [2926543089, 587614100, 3611133913, 2242130007],
    -1: [584422765, 3896282126, 948074587, 669113510],
    2**31: [2910044769, 1573909606, 863744087, 2981291548],
    5 - 2**40: [392224323, 2257233470, 2945362972, 2918109836],
}

# Cut for the keys 1 and 2 as `CutSequences.cut` defines them. First a stack, then layers.
_STACK = (6, 7, 6, 2, 5, 0, 8, 3)
_ITEMS_OF_STACK = [[12, 10, 0, 40, 36, 6, 38, 42], [42, 40, 5, 37, 8, 10, 21, 21]]
_LAYERS = (6, 7, 6, 2, 5, 1, 8, 32)
_ITEMS_OF_LAYERS = [[38, 42, 2, 14, 4, 8, 40, 36], [42, 10, 36, 5, 38, 5, 8, 40]]


def wrong_operator() -> str:
    """Return the name and fault of the first operator with wrong results, or ""."""
    key = _integers(list(_BITS))
    counter = _integers(range(4))
    drawn = operators.draw_bits(key[:, None], counter)
    if drawn.tolist() != list(_BITS.values()):
        return "draw_bits gives wrong numbers"
    mask = (drawn[:, :, None] >> _integers(range(32)) & 1).bool().flatten(1)  # (4, 128)
    # A row without a true value is a case of its own in every operator.
    mask[0] = False
    draw = torch.linspace(0, 0.999, len(mask), dtype=torch.float64, device="cpu")
    rows = zip(mask.tolist(), draw.tolist(), strict=True)
    picked = [_pick(*row) for row in rows]
    if operators.pick_true(mask, draw).tolist() != picked:
        return "pick_true gives wrong numbers"
    # Two bits make scores with ties, (4, 128).
    scores = [(drawn >> shift & 3).double().repeat(1, 32) for shift in (0, 2)]
    columns = [score.tolist() for score in scores]
    ranked = zip(*columns, mask.tolist(), strict=True)
    best = [_best(*row) for row in ranked]
    if operators.first_best(scores, mask).tolist() != best:
        return "first_best gives wrong numbers"
    has_true = [any(row) for row in mask.tolist()]
    if operators.any_true(mask).tolist() != has_true:
        return "any_true gives wrong numbers"
    bounds = [0.0, 1.0, 2.5]
    counted = []
    counted_scores = scores[0]
    for chosen, values in zip(mask.tolist(), counted_scores.tolist(), strict=True):
        counted.append([_at_most(bound, chosen, values) for bound in bounds])
    found = operators.count_at_most(counted_scores.float(), mask, bounds)
    if found.tolist() != counted:
        return "count_at_most gives wrong numbers"
    return _wrong_cut(_STACK, _ITEMS_OF_STACK) or _wrong_cut(_LAYERS, _ITEMS_OF_LAYERS)


def _wrong_cut(cuts: tuple[int, ...], items: list[list[int]]) -> str:
    """Return the name and fault of an operator that cuts wrong items, or ""."""
    keys = _integers([1, 2])
    if operators.cut_boxes(keys, cuts)[1].tolist() != items:
        return "cut_boxes gives wrong numbers"
    cached_key = _integers([[-1, -1], [-1, -1]])
    cached_length = _integers([0, 0])
    cached_items = _integers([[[0] * 8] * 2] * 2)
    position = _integers([range(8)] * 2)
    # The second time they come from the cached sequences.
    for _ in range(2):
        found = operators.cut_items(keys, position, cuts, cached_key, cached_length, cached_items)
        if found.tolist() != items:
            return "cut_items gives wrong numbers"
    return ""


def _pick(mask: list[bool], draw: float) -> int:
    """Return the index of the true value of rank ⌊draw · count⌋, 0 for none."""
    true = [index for index, value in enumerate(mask) if value]
    return true[int(draw * len(true))] if true else 0


def _best(first: list[float], second: list[float], legal: list[bool]) -> int:
    """Return the index of the first legal element with the least scores, 0 for none."""
    found = [(*scores, index) for index, scores in enumerate(zip(first, second, strict=True)) if legal[index]]
    return min(found)[-1] if found else 0


def _at_most(bound: float, chosen: list[bool], values: list[float]) -> int:
    """Count the chosen values at or below a bound."""
    return sum(is_chosen and value <= bound for is_chosen, value in zip(chosen, values, strict=True))


def _integers(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cpu")
