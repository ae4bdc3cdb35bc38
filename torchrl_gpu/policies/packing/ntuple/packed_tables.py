"""Sparse form of n-tuple tables in files.

It holds the weights that have learned, and the one value of all others: of millions of weights only some hundred
thousand ever learn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from torchrl_gpu.policies.packing.ntuple.values import PatchPlan
from torchrl_gpu.system import arguments
from torchrl_gpu.system.arguments import shown

# Largest tables that are packed, entries. Readers take no more memory than that for a small file.
MOST_ENTRIES = 2**24
_NUMBERS = ("weight", "drift", "path")


def pack_tables(module: nn.Module, state: Mapping[str, object]) -> dict[str, object]:
    """Return a state dict with sparse tables.

    In place of the `weight`, `drift` and `path` (E,) of `PatchTables` stand those of the entries that have learned,
    with the numbers of these entries as `learned` (M,) int32, and the weight of all others as `other` (1,). Of entries
    that are the same when turned or mirrored, one is named.

    Tables stay dense if the sparse form would not give back the same bits, if more than a quarter has learned, and if
    there are more than `MOST_ENTRIES`. Waits for the device.
    """
    packed = dict(state)
    for prefix, plan in _plans_of(module):
        numbers = [state.get(prefix + name) for name in _NUMBERS]
        small = _pack(plan, numbers)
        if small is not None:
            packed |= {prefix + name: value for name, value in small.items()}
    return packed


def unpack_table(where: str, prefix: str, plan: PatchPlan, state: Mapping[str, object]) -> dict[str, object]:
    """Inverse of `pack_tables` for one table. Dense state dicts pass through.

    The plan gives the number of entries, and no memory is taken for more.

    Args:
        where: Name of the file in errors.
        prefix: What the names of the table's entries begin with.
        plan: Patches of the table.
        state: State dict of the file.

    Raises:
        ValueError: The state names entries that the table does not have, or one twice, or not one number for each.
    """
    dense = dict(state)
    if prefix + "learned" not in state:
        return dense
    names = ("learned", "other", *_NUMBERS)
    held = {name: dense.pop(prefix + name, None) for name in names}
    place = f"{where}: {prefix.removesuffix('.')}" if prefix else where
    for name, value in zip(_NUMBERS, _unpack(place, plan, held), strict=True):
        dense[prefix + name] = value
    return dense


def _plans_of(module: nn.Module) -> Iterator[tuple[str, PatchPlan]]:
    """Plan of each table in a module, with the prefix of its names in a state dict."""
    for name, each in module.named_modules():
        plan = getattr(each, "plan", None)
        if isinstance(plan, PatchPlan):
            yield f"{name}." if name else "", plan


def _pack(plan: PatchPlan, numbers: list[object]) -> dict[str, Tensor] | None:
    """Sparse form of tables, or None if they must stay dense."""
    tensors = [each for each in numbers if isinstance(each, Tensor) and not each.is_meta]
    if plan.entries > MOST_ENTRIES or len(tensors) < len(numbers):
        return None
    weight, drift, path = tensors
    # An entry has learned if any bit of its sums is set.
    bits = drift.view(torch.int32) | path.view(torch.int32)
    learned = bits.nonzero()[:, 0]
    # Beyond a quarter the numbers of the entries cost more than they save.
    if 4 * len(learned) > plan.entries:
        return None
    images = images_of(plan, learned)
    # The first entry that no image of a learned one reaches has the weight of all others.
    # If there is none it is any entry, as nothing takes its weight then.
    untouched = torch.ones_like(weight, dtype=torch.uint8)
    for each in images:
        untouched[each] = 0
    # An index by a list copies: a view would bring the whole table into the file.
    other = weight[untouched.argmax()[None]]
    found = weight[learned]
    restored = spread(plan, images, found, other)
    # As integers, since −0 equals 0 as a float and has other bits.
    restored_bits = restored.view(torch.int32)
    if not torch.equal(restored_bits, weight.view(torch.int32)):
        return None
    return {"learned": learned.int(), "other": other, "weight": found, "drift": drift[learned], "path": path[learned]}


def _unpack(where: str, plan: PatchPlan, held: Mapping[str, object]) -> list[Tensor]:
    """Weight, drift and path of all entries."""
    learned = arguments.tensor(where, "learned", held["learned"], torch.int32, (None,))
    count = len(learned)
    most = plan.entries
    # While images are looked for, each entry takes many times its room in the file.
    if 4 * count > most:
        raise ValueError(f"{where}: learned names {count:,} entries, more than a quarter of {most:,}")
    steps = learned.diff()
    rises = (steps > 0).all()
    if count and not bool(rises & (learned[0] >= 0) & (learned[-1] < most)):
        raise ValueError(f"{where}: learned must rise, from 0 or more to below {most:,}, not {shown(learned)}")
    learned = learned.long()
    other = arguments.tensor(where, "other", held["other"], torch.float32, (1,))
    weight = arguments.tensor(where, "weight", held["weight"], torch.float32, (count,))
    drift = arguments.tensor(where, "drift", held["drift"], torch.float32, (count,))
    path = arguments.tensor(where, "path", held["path"], torch.float32, (count,))
    dense = [spread(plan, images_of(plan, learned), weight, other)]
    for each in (drift, path):
        values = each.new_zeros(plan.entries)
        values[learned] = each
        dense.append(values)
    return dense


def spread(plan: PatchPlan, images: list[Tensor], weight: Tensor, other: Tensor) -> Tensor:
    """All weights (E,) of tables, from those of some images.

    Args:
        plan: Patches of the tables.
        images: Indices as `images_of` gives them.
        weight: Weights of these images, (M,).
        other: Weight of all other entries, (1,).
    """
    weights = other.expand(plan.entries).clone()
    parts = weight.split([each.shape[1] for each in images])
    for each, part in zip(images, parts, strict=True):
        weights[each] = part
    return weights


def images_of(plan: PatchPlan, entries: Tensor) -> list[Tensor]:
    """Indices (J, M) equivalent to `entries` when turned or mirrored, for each table.

    `entries` are int64 and rise.
    """
    offsets = [each.offset for each in plan.tables]
    ends = [*offsets, plan.entries]
    edges = torch.tensor(ends, device=entries.device, dtype=torch.int64)
    # Entries rise, so that those of a table are a slice of them; all slices are read back at once.
    bounds = torch.searchsorted(entries, edges).tolist()
    images = []
    for table, offset in enumerate(offsets):
        mine = entries[bounds[table] : bounds[table + 1]]
        images.append(plan.images(table, mine - offset))
    return images
