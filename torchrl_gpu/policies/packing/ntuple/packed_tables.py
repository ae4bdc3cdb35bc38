"""Sparse serialisation of n-tuple tables: the weights that have learned, and the one value of all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchrl_gpu.policies.packing.ntuple.values import PatchPlan
from torchrl_gpu.system import arguments
from torchrl_gpu.system.arguments import shown

MOST_ENTRIES = 2**24  # of tables that are packed: readers do not take more memory than that for a small file
_NUMBERS = ("weight", "drift", "path")


def pack_tables(module: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """State dict with sparse tables: of 8.7 million weights, the some hundred thousand that have learned.

    In place of the `weight`, `drift` and `path` (E,) of `PatchTables` stand those of the entries that have learned,
    with the numbers of these as `learned` (M,) int32, and the weight of all others as `other` (1,). Of entries that are
    the same turned or mirrored one is named. Tables stay as they are where that would not give back the same bits,
    where more than a quarter has learned, and where there are more than `MOST_ENTRIES`. Waits for the device.
    """
    packed = dict(state)
    for prefix, plan in _plans_of(module):
        small = _packed(plan, [state.get(prefix + name) for name in _NUMBERS])
        if small is not None:
            packed |= {prefix + name: value for name, value in small.items()}
    return packed


def unpack_table(where: str, prefix: str, plan: PatchPlan, state: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `pack_tables` for one table, whose names begin with `prefix`; a dense state dict passes through.

    The plan gives the number of entries, and no memory is taken for more.

    Raises:
        ValueError: The state names entries that the table has not, or one twice, or has other numbers than one for
            each.
    """
    dense = dict(state)
    if prefix + "learned" not in state:
        return dense
    held = {name: dense.pop(prefix + name, None) for name in ("learned", "other", *_NUMBERS)}
    place = f"{where}: {prefix.removesuffix('.')}" if prefix else where
    for name, value in zip(_NUMBERS, _unpacked(place, plan, held), strict=True):
        dense[prefix + name] = value
    return dense


def _plans_of(module: nn.Module) -> Iterator[tuple[str, PatchPlan]]:
    """Plan of each table in a module, with the beginning of its names in a state dict."""
    for name, each in module.named_modules():
        plan = getattr(each, "plan", None)
        if isinstance(plan, PatchPlan):
            yield f"{name}." if name else "", plan


def _packed(plan: PatchPlan, numbers: list[Any]) -> dict[str, Tensor] | None:
    """Sparse form of tables; None where they must stay as they are."""
    if plan.entries > MOST_ENTRIES or any(not isinstance(each, Tensor) or each.is_meta for each in numbers):
        return None
    weight, drift, path = numbers
    learned = (drift.view(torch.int32) | path.view(torch.int32)).nonzero()[:, 0]
    if 4 * len(learned) > plan.entries:
        return None
    images = images_of(plan, learned)
    untouched = torch.ones_like(weight, dtype=torch.uint8)
    for each in images:
        untouched[each] = 0
    other = weight[untouched.argmax()[None]]  # not a view, with which a file would hold all of them
    found = weight[learned]
    same = torch.equal(spread(plan, images, found, other).view(torch.int32), weight.view(torch.int32))
    small = {"learned": learned.int(), "other": other, "weight": found, "drift": drift[learned], "path": path[learned]}
    return small if same else None


def _unpacked(where: str, plan: PatchPlan, held: Mapping[str, Any]) -> list[Tensor]:
    learned = arguments.tensor(where, "learned", held["learned"], torch.int32, (None,))
    count = len(learned)
    most = plan.entries
    if 4 * count > most:  # as images are found, each takes many times its room in the file
        raise ValueError(f"{where}: want learned to name at most a quarter of {most:,} entries; got {count:,}")
    if count and not bool((learned.diff() > 0).all() & (learned[0] >= 0) & (learned[-1] < most)):
        raise ValueError(f"{where}: want learned to rise, from 0 or more to below {most:,}; got {shown(learned)}")
    learned = learned.long()
    other = arguments.tensor(where, "other", held["other"], torch.float32, (1,))
    weight, drift, path = (arguments.tensor(where, name, held[name], torch.float32, (count,)) for name in _NUMBERS)
    made = [spread(plan, images_of(plan, learned), weight, other)]
    for each in (drift, path):
        made.append(each.new_zeros(plan.entries))
        made[-1][learned] = each
    return made


def spread(plan: PatchPlan, images: list[Tensor], weight: Tensor, other: Tensor) -> Tensor:
    """All weights (E,) of the tables: `weight` (M,) at these images (`images_of`), `other` (1,) elsewhere."""
    made = other.expand(plan.entries).clone()
    for each, part in zip(images, weight.split([each.shape[1] for each in images]), strict=True):
        made[each] = part
    return made


def images_of(plan: PatchPlan, entries: Tensor) -> list[Tensor]:
    """Indices (J, M) equivalent to `entries` when turned or mirrored, for each table; `entries` int64 rise."""
    offsets = [each.offset for each in plan.tables]
    bounds = torch.searchsorted(
        entries, torch.tensor([*offsets, plan.entries], device=entries.device, dtype=torch.int64)
    ).tolist()
    parts = zip(offsets, bounds, bounds[1:], strict=False)
    return [plan.images(table, entries[begin:end] - at) for table, (at, begin, end) in enumerate(parts)]
