"""Any input gives a ValueError or the result of the eager backend, never a crash.

Bounded and always the same here; `TORCHRL_GPU_FUZZ` multiplies the examples, as `make soak` does. What would crash a
process unseen, a read past an end, is seen by `make asan`, which runs this with its compiled kernels instrumented.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.envs.packing.kernels.hostile import WILD, wild
from tests.envs.packing.kernels.parity import KINDS
from tests.envs.packing.kernels.test_transition import copy_of, state_of
from tests.envs.packing.scenes import CELL, LAW, RULES, Scene, scene
from tests.native.compilers import need_compiler, threads
from tests.tolerances import assert_near
from torchrl_gpu import native
from torchrl_gpu.envs.packing.kernels import Kernels, get_kernels
from torchrl_gpu.envs.packing.types import PackingState, Placement, StoredMaps

MORE = int(os.environ.get("TORCHRL_GPU_FUZZ", "1"))
FUZZ = settings(LAW, max_examples=60 * MORE, suppress_health_check=[HealthCheck.too_slow])
DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
seeds = st.integers(0, 2**32 - 1)
kinds, rules = st.sampled_from(KINDS), st.sampled_from(RULES)
units, cores = st.sampled_from([None, CELL, CELL / 64]), st.sampled_from([1, 2])
# Every backend makes the same of these.
HEIGHTS = (0.0, CELL, 3 * CELL, CELL / 3, 1e-30, 40.0, 1e6)
# No backend can make sense of these.
NO_HEIGHTS = (np.nan, np.inf, -np.inf, -1.0, -1e-9, 3e38, -3e38)


@pytest.fixture(autouse=True, scope="module")
def compiler() -> None:
    need_compiler()


class Fuzz:
    """Tensors made from one that is right.

    Most of them are of its shape, type and range.

    Args:
        seed: Decides all.
        sane: Whether shapes and types stay, so that the call is not refused.
    """

    def __init__(self, seed: int, sane: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.sane = sane
        self.odd_floats = False

    def __call__(self, right: Tensor, low: int = 0, high: int = 2) -> Tensor:
        made = self._values(right, low, high)
        return self._strides(made if self.sane or self.rng.random() < 0.6 else self._kind(made))

    def _values(self, right: Tensor, low: int, high: int) -> Tensor:
        shape, rng = tuple(right.shape), self.rng
        share = rng.choice([0.0, 0.2, 1.0])
        if right.dtype in INTEGERS:
            return wild(rng, shape, low, high, share).to(right.dtype)
        odd = rng.random(shape) < share
        if right.dtype == torch.bool:
            return torch.from_numpy(np.where(odd, rng.random(shape) < 0.5, right.numpy()))
        none = bool(rng.random() < 0.2)
        self.odd_floats |= none
        values = rng.choice([*HEIGHTS, *(NO_HEIGHTS if none else ())], shape)
        return torch.from_numpy(np.where(odd, values, right.numpy())).float()

    def _kind(self, right: Tensor) -> Any:
        # The order decides which seed makes which change.
        changes: list[Callable[[], object]] = [lambda: right.to(DTYPES[self.rng.integers(len(DTYPES))])]
        changes.append(lambda: right[: self.rng.integers(len(right) + 1)])
        changes.append(lambda: right.flatten()[: self.rng.integers(right.numel() + 1)])
        changes.append(lambda: right[..., : self.rng.integers(right.shape[-1] + 1)])
        changes.append(lambda: right.unsqueeze(int(self.rng.integers(-1, right.ndim + 1))))
        changes.append(lambda: torch.cat([right, right], int(self.rng.integers(right.ndim))))
        changes += [lambda: right.to("meta"), lambda: None, right.numpy]
        return changes[self.rng.integers(len(changes))]()

    def _strides(self, made: Any) -> Any:
        if not isinstance(made, Tensor) or made.device.type != "cpu" or not made.ndim or self.rng.random() < 0.6:
            return made
        return torch.stack([made, made], -1)[..., 0] if self.rng.random() < 0.7 else made[:1].expand_as(made)


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or the text of its ValueError.

    Any other error is one of the test.
    """
    try:
        return call()
    except ValueError as error:
        return str(error)


def tensors_of(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, PackingState):
        return [getattr(result, field.name) for field in fields(PackingState)]
    found: list[Tensor] = []
    for part in result:
        found += tensors_of(part)
    return found


def assert_alike(f: Fuzz, call: Callable[[Kernels], Any], near: bool = False) -> None:
    """Check that the compiled backend refuses what the eager one refuses.

    The words are the same, and so are the results of what both take.
    """
    expected = outcome(partial(call, get_kernels("eager")))
    came = outcome(partial(call, get_kernels("compiled")))
    if isinstance(came, str) and came.startswith("any_legal: legal is on"):
        # The eager backend does not ask for it.
        return
    if isinstance(expected, str) or isinstance(came, str):
        assert came == expected
        assert not f.sane, came
        return
    for ours, theirs in zip(tensors_of(came), tensors_of(expected), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if f.odd_floats:
            # What a maximum makes of what is no number is the backend's own.
            continue
        if near and theirs.is_floating_point():
            assert_near(ours, theirs)
        else:
            assert torch.equal(ours, theirs)


def scene_of(seed: int, kind: str, stability: str, unit: float | None) -> Scene:
    return scene(seed, kind, stability=stability, num_envs=1 + seed % 5).counted(unit)


@FUZZ
@given(seeds, kinds, rules, units, cores, st.booleans())
def test_maps_of_anything(seed: int, kind: str, stability: str, unit: float | None, num: int, sane: bool) -> None:
    s, f = scene_of(seed, kind, stability, unit), Fuzz(seed, sane)
    heightmap, item_id = f(s.heightmap), f(s.item_id, 0, s.catalogue.num_items)
    with threads(num):
        assert_alike(f, lambda k: k.drop_map(heightmap, item_id, s.catalogue, s.bin_))


@FUZZ
@given(seeds, rules, units, cores, st.booleans())
def test_kept_maps_of_anything(seed: int, stability: str, unit: float | None, num: int, sane: bool) -> None:
    s, f = scene_of(seed, "solids", stability, unit), Fuzz(seed, sane)
    z_map, legal = get_kernels("eager").drop_map(*s)
    changed = torch.zeros(len(s.heightmap), 4, dtype=torch.int64)
    most = max(s.bin_.cells) + 1
    stored = StoredMaps(f(z_map), f(legal), f(s.item_id, 0, s.item_id.shape[1]), f(changed, 0, most))
    with threads(num):
        came = outcome(lambda: get_kernels("compiled").drop_map(*s, stored))
    # Maps that were never made for this pile can only be of their kind.
    if f.sane:
        assert [each.shape for each in came] == [z_map.shape] * 2


@FUZZ
@given(seeds, kinds, units, cores, st.booleans())
def test_placements_of_anything(seed: int, kind: str, unit: float | None, num: int, sane: bool) -> None:
    s, f = scene_of(seed, kind, "none", unit), Fuzz(seed, sane)
    count = torch.zeros(len(s.heightmap), dtype=torch.int64)
    ranges = (s.catalogue.num_items, s.catalogue.num_orientations, *s.bin_.cells)
    placement = Placement(*(f(count, 0, most) for most in ranges), f(count.float()))  # type: ignore[call-arg]
    heightmap = f(s.heightmap)
    with threads(num):
        assert_alike(f, lambda k: k.place(heightmap, placement, s.catalogue, s.bin_))


@FUZZ
@given(seeds, kinds, units, cores, st.booleans())
def test_growth_of_anything(seed: int, kind: str, unit: float | None, num: int, sane: bool) -> None:
    s, f = scene_of(seed, kind, "none", unit), Fuzz(seed, sane)
    z_map = get_kernels("eager").drop_map(*s)[0]
    given_ = f(s.heightmap), f(s.item_id, 0, s.catalogue.num_items), f(z_map)
    on_cpu = [each for each in given_[::2] if isinstance(each, Tensor) and each.device.type == "cpu"]
    # Sums of such heights round.
    f.odd_floats |= any(bool((each.abs() > 50).any()) for each in on_cpu)
    with threads(num):
        assert_alike(f, lambda k: k.pile_growth(*given_, s.catalogue, s.bin_), near=True)


@FUZZ
@given(seeds, kinds, rules, cores, st.booleans())
def test_actions_of_anything(seed: int, kind: str, stability: str, num: int, sane: bool) -> None:
    s, f = scene_of(seed, kind, stability, CELL), Fuzz(seed, sane)
    right = state_of(s, f.rng)
    high = {"item_id": s.catalogue.num_items, "num_packed": right.placements.shape[1]}
    names = [field.name for field in fields(PackingState)]
    odd = [name for name in names if f.rng.random() < 0.3]
    values = {name: getattr(right, name) for name in names}
    state = PackingState(**values | {name: f(values[name], 0, high.get(name, 9)) for name in odd})
    if sane:
        # It is contiguous, since some of it is written in place.
        state = copy_of(state)
    count = torch.zeros(len(s.heightmap), dtype=torch.int64)
    action, following = f(count, 0, right.legal[0].numel()), f(count, -1, s.catalogue.num_items)
    with threads(num):
        assert_alike(f, lambda k: k.advance(_own(state), action, following, s.catalogue, s.bin_))
        again = f(count.bool()), f(count, 0, 9), f(s.item_id, 0, s.catalogue.num_items)
        assert_alike(f, lambda k: k.restart(_own(state), *again, s.catalogue, s.bin_))


def _own(state: PackingState) -> PackingState:
    """The state with memory of its own for what is written in place."""
    written = {n: getattr(state, n) for n in ("placements", "placement_z")}
    values = {field.name: getattr(state, field.name) for field in fields(PackingState)}
    return PackingState(**values | {n: v.clone() if isinstance(v, Tensor) else v for n, v in written.items()})


@FUZZ
@given(seeds, cores, st.booleans())
def test_masks_of_anything(seed: int, num: int, sane: bool) -> None:
    f = Fuzz(seed, sane)
    shape = tuple(f.rng.integers(0, 80, f.rng.integers(2, 4)))
    mask = torch.from_numpy(f.rng.random(shape) < f.rng.choice([0.0, 0.02, 0.5]))
    given_ = f(mask) if mask.numel() else mask
    with threads(num):
        assert_alike(f, lambda k: k.any_legal(given_))
        wildest = np.array([*WILD, np.nan, np.inf, -np.inf, 1e300, 0.5, 0.999], dtype=np.float64)
        draw = f(torch.from_numpy(f.rng.choice(wildest, shape[:-1])).double()) if sane else f(mask)
        came = outcome(lambda: native.pick_true(given_, draw.double() if sane else draw))
        if not isinstance(came, str) and mask.shape[-1] and isinstance(given_, Tensor):
            assert (given_.gather(-1, came[..., None])[..., 0] == given_.any(-1)).all()
        outcome(lambda: native.draw_bits(f(mask), f(mask.long(), -9, 9)))
        outcome(lambda: native.count_at_most(f(mask.float()), given_, [0.0, 0.5]))
