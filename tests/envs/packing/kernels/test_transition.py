"""Actions and restarts: laws of the torch form, and parity of the compiled form.

They are the same to the bit.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.envs.packing.kernels.parity import CPU, KINDS
from tests.envs.packing.scenes import RULES, Scene, bin_of, scene, scene_in
from tests.native.compilers import need_compiler, threads
from tests.records import with_values
from torchrl_gpu.envs.packing.kernels import Kernels, compiled, get_kernels, reference, transition
from torchrl_gpu.envs.packing.types import Moved, PackingState

# They are written in place.
ITSELF = ("placements", "placement_z")


@pytest.fixture(params=["reference", "compiled"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The torch form, with the reference's kernels, and the compiled one."""
    if request.param == "compiled":
        need_compiler()
    return get_kernels(request.param)


def state_of(s: Scene, rng: np.random.Generator, longest: int = 5) -> PackingState:
    """Build some state with the piles and items of a scene.

    Rows of placements are up to full.
    """
    n = len(s.heightmap)
    z_map, legal = reference.drop_map(*s)
    count = rng.integers(0, longest + 1, n)
    numbers = {name: torch.from_numpy(rng.integers(0, 2**40, n)) for name in ("position", "key", "episode")}
    volume = torch.from_numpy(rng.random(n)).float()
    stable = torch.from_numpy(rng.random(n) < 0.5)
    step_count = torch.from_numpy(count + rng.integers(0, 3, n))
    placements = torch.from_numpy(rng.integers(-9, 9, (n, longest, 4))).int()
    placement_z = torch.from_numpy(rng.random((n, longest))).float()
    pile = {"heightmap": s.heightmap.clone(), "bears": torch.ones(n, 0, 0, dtype=torch.bool)}
    return PackingState(
        **pile,
        item_id=s.item_id.clone(),
        **numbers,
        volume=volume,
        stable=stable,
        num_packed=torch.from_numpy(count),
        step_count=step_count,
        placements=placements,
        placement_z=placement_z,
        z_map=z_map,
        legal=legal,
    )


def copy_of(state: PackingState, device: torch.device | str = "cpu") -> PackingState:
    return PackingState(**{f.name: getattr(state, f.name).to(device, copy=True) for f in fields(state)})


def some_actions(state: PackingState, rng: np.random.Generator) -> Tensor:
    actions = state.legal[0].numel()
    chosen = []
    for legal in state.legal.flatten(1).numpy():
        outside = [-1, -actions, actions, actions + 1, 2**62, -(2**62)]
        kind = rng.choice(["legal", "any", "outside"], p=[0.6, 0.25, 0.15])
        some = {"legal": np.flatnonzero(legal), "any": np.arange(actions), "outside": np.array(outside)}[kind]
        chosen.append(int(rng.choice(some)) if len(some) else 0)
    return torch.tensor(chosen)


def following_of(s: Scene, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.integers(-1, s.catalogue.num_items, len(s.heightmap)))


def assert_same_state(came: PackingState, expected: PackingState) -> None:
    for field in fields(PackingState):
        a, b = getattr(came, field.name), getattr(expected, field.name)
        assert a.dtype == b.dtype, field.name
        assert torch.equal(a, b), field.name


def assert_same_move(came: Moved, expected: Moved) -> None:
    assert_same_state(came.state, expected.state)
    for name in ("legal", "slot", "changed"):
        a, b = getattr(came, name), getattr(expected, name)
        assert a.dtype == b.dtype, name
        assert torch.equal(a, b), name


def on_cpu(moved: Moved) -> Moved:
    parts = {name: getattr(moved, name).cpu() for name in ("legal", "slot", "changed")}
    return with_values(moved, state=copy_of(moved.state), **parts)


def assert_advance_agrees(
    kernels: Any, s: Scene, state: PackingState, action: Tensor, following: Tensor, device: torch.device = CPU
) -> Moved:
    """Check an action against the torch form, to the bit.

    Of the inputs only the placements are written.
    """
    there = s.to(device)
    ours = copy_of(state, device)
    theirs = copy_of(state)
    expected = transition.advance(theirs, action, following, s.catalogue, s.bin_, reference.place)
    came = kernels.advance(ours, action.to(device), following.to(device), there.catalogue, s.bin_)
    assert_same_move(on_cpu(came), expected)
    assert_same_state(copy_of(ours), replace(state, **{name: getattr(theirs, name) for name in ITSELF}))
    return expected


def assert_restart_agrees(
    kernels: Any,
    s: Scene,
    state: PackingState,
    mask: Tensor,
    key: Tensor,
    item_id: Tensor,
    device: torch.device = CPU,
) -> None:
    """Check a restart against the torch form, to the bit.

    The inputs stay unchanged.
    """
    there, ours = s.to(device), copy_of(state, device)
    expected = transition.restart(state, mask, key, item_id, s.catalogue, s.bin_)
    given = [each.to(device) for each in (mask, key, item_id)]
    assert_same_state(copy_of(kernels.restart(ours, *given, there.catalogue, s.bin_)), expected)
    assert_same_state(copy_of(ours), state)


# -- an action ---------------------------------------------------------------------------------------------------------


def advanced(s: Scene, seed: int, kernels: Kernels) -> tuple[PackingState, Tensor, Tensor, Moved]:
    """A state, actions and following items, and what the actions did."""
    rng = np.random.default_rng(seed)
    state, following = state_of(s, rng), following_of(s, rng)
    action = some_actions(state, rng)
    moved = kernels.advance(copy_of(state), action, following, s.catalogue, s.bin_)
    return state, action, following, moved


@pytest.mark.parametrize("kind", KINDS)
def test_an_action_places_its_item_where_the_maps_say(kernels: Kernels, kind: str) -> None:
    placed = 0
    for seed in range(20):
        s = scene(seed, kind, num_envs=4)
        state, action, following, moved = advanced(s, seed, kernels)
        for n, chosen in enumerate(action.tolist()):
            shape = tuple(state.legal.shape[1:])
            legal = 0 <= chosen < state.legal[n].numel() and bool(state.legal[n].flatten()[chosen])
            assert bool(moved.legal[n]) is legal
            heights = state.heightmap[n].numpy().copy()
            showing = state.item_id[n].tolist()
            if legal:
                placed += 1
                k, o, gx, gy = map(int, np.unravel_index(chosen, shape))
                top, bottom = reference.item_maps(s.catalogue, showing[k], o)
                x = dict(reference.placements(top.shape[0], s.bin_.cells[0], s.bin_))[gx]
                y = dict(reference.placements(top.shape[1], s.bin_.cells[1], s.bin_))[gy]
                z = state.z_map[n].numpy()[k, o, gx, gy]
                reference.place_item(heights, top, bottom, x, y, z)
                # A full row keeps the last.
                at = min(int(state.num_packed[n]), state.placements.shape[1] - 1)
                assert moved.state.placements[n, at].tolist() == [showing[k], o, x, y]
                assert moved.state.placement_z[n, at] == z
                assert moved.state.volume[n] == state.volume[n] + s.catalogue.volume[showing[k]]
                showing = [*showing[:k], *showing[k + 1 :], int(following[n])]
            assert torch.equal(moved.state.heightmap[n], torch.from_numpy(heights))
            assert moved.state.item_id[n].tolist() == showing
    assert placed > 20


@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_what_moved_tells_is_enough_to_keep_maps(kernels: Kernels, kind: str) -> None:
    for seed in range(20):
        s = scene(seed, kind, num_envs=4)
        state, _, _, moved = advanced(s, seed, kernels)
        held = moved.slot >= 0
        assert torch.equal(moved.state.item_id[held], state.item_id.gather(1, moved.slot.clamp_min(0))[held])
        # Only a legal action shows a new item.
        assert torch.equal(held.sum(1), held.shape[1] - moved.legal.long())
        for n, (x0, y0, x1, y1) in enumerate(moved.changed.tolist()):
            same = moved.state.heightmap[n] == state.heightmap[n]
            same[x0:x1, y0:y1] = True
            assert same.all()
            assert bool(moved.legal[n]) == (x0 < x1 and y0 < y1)


def test_an_illegal_action_leaves_no_trace_but_its_step(kernels: Kernels) -> None:
    for seed in range(10):
        s = scene(seed, "boxes", num_envs=3)
        rng = np.random.default_rng(seed)
        state = state_of(s, rng)
        before = copy_of(state)
        for action in (-1, state.legal[0].numel(), 2**62, -(2**62)):
            actions = torch.full((3,), action)
            moved = kernels.advance(state, actions, following_of(s, rng), s.catalogue, s.bin_)
            assert not moved.legal.any()
            assert not moved.changed.any()
            assert_same_state(moved.state, replace(before, step_count=before.step_count + 1))
            assert_same_state(state, before)


# -- a restart ---------------------------------------------------------------------------------------------------------


def restarted(s: Scene, mask: Tensor, rng: np.random.Generator) -> tuple[PackingState, Tensor, Tensor]:
    key = torch.from_numpy(rng.integers(0, 2**32, len(mask)))
    item_id = torch.from_numpy(rng.integers(-1, s.catalogue.num_items, s.item_id.shape))
    return state_of(s, rng), key, item_id


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_empties_some_bins_and_leaves_the_others(kernels: Kernels, kind: str) -> None:
    mask = torch.tensor([True, False, True, False])
    for seed in range(15):
        s = scene(seed, kind, num_envs=4)
        state, key, item_id = restarted(s, mask, np.random.default_rng(seed))
        after = kernels.restart(state, mask, key, item_id, s.catalogue, s.bin_)
        for field in fields(PackingState):
            # Placements beyond `num_packed` mean nothing.
            left = slice(None) if field.name in ITSELF else ~mask
            assert torch.equal(getattr(after, field.name)[left], getattr(state, field.name)[left]), field.name
        assert torch.equal(after.key[mask], key[mask])
        assert torch.equal(after.item_id[mask], item_id[mask])
        assert torch.equal(after.episode, state.episode + mask)
        assert (after.position[mask] == item_id.shape[1]).all()
        for name in ("heightmap", "volume", "num_packed", "step_count", "stable"):
            assert not getattr(after, name)[mask].any(), name


@pytest.mark.parametrize("stability", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_maps_of_a_restart_are_those_of_an_empty_bin(kernels: Kernels, kind: str, stability: str) -> None:
    for seed in range(5):
        s = scene(seed, kind, num_envs=3, stability=stability)
        mask = torch.ones(3, dtype=torch.bool)
        state, key, item_id = restarted(s, mask, np.random.default_rng(seed))
        after = kernels.restart(state, mask, key, item_id, s.catalogue, s.bin_)
        z_map, legal = reference.drop_map(torch.zeros_like(s.heightmap), item_id, s.catalogue, s.bin_)
        assert torch.equal(after.z_map, z_map)
        assert torch.equal(after.legal, legal)


# -- whether anything is legal ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (5, 1, 2, 3, 1), (40, 3, 2, 7, 9), (3, 1, 1, 130, 70)])
def test_any_legal_finds_the_one_that_is(kernels: Kernels, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for share in (0.0, 0.001, 0.5, 1.0):
        legal = torch.from_numpy(rng.random(shape) < share)
        expected = legal.numpy().any((1, 2, 3, 4)).tolist()
        assert kernels.any_legal(legal).tolist() == expected
        turned = legal.mT.contiguous().mT
        assert kernels.any_legal(turned).tolist() == expected
    # A single one, at either end.
    for at in (0, -1):
        legal = torch.zeros(shape, dtype=torch.bool)
        legal.flatten(1)[:, at] = True
        assert kernels.any_legal(legal).tolist() == [True] * shape[0]


# -- batches and strides ---------------------------------------------------------------------------------------------


def large_scene(kind: str) -> tuple[Scene, PackingState, Tensor, Tensor]:
    """Build a scene whose environments are shared out between threads.

    Its maps do not come from the reference, to save time.
    """
    rng = np.random.default_rng(3)
    s = scene_in(bin_of((11, 10), step=2), rng, kind, num_envs=300)
    some = with_values(s, heightmap=s.heightmap[:4], item_id=s.item_id[:4])
    state = state_of(some, rng)
    state = PackingState(**{f.name: repeated(getattr(state, f.name)) for f in fields(state)})
    return s, state, some_actions(state, rng), following_of(s, rng)


def repeated(rows: Tensor) -> Tensor:
    return rows.repeat(75, *[1] * (rows.ndim - 1))


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_threads_change_nothing(kind: str, cores: int) -> None:
    need_compiler()
    s, state, action, following = large_scene(kind)
    mask = torch.arange(300) % 3 == 0
    with threads(cores):
        assert_advance_agrees(compiled, s, state, action, following)
        assert_restart_agrees(compiled, s, state, mask, state.key + 1, state.item_id)


def test_strides_do_not_matter() -> None:
    need_compiler()
    for seed in range(10):
        rng = np.random.default_rng(seed)
        s = scene(seed, KINDS[seed % 3], num_envs=5)
        state, following = state_of(s, rng), following_of(s, rng)
        action, mask = some_actions(state, rng), torch.from_numpy(rng.random(5) < 0.5)
        apart = {f.name: every_other(getattr(state, f.name)) for f in fields(state) if f.name not in ITSELF}
        spread = replace(copy_of(state), **apart)
        moved = compiled.advance(spread, every_other(action), every_other(following), s.catalogue, s.bin_)
        expected = transition.advance(copy_of(state), action, following, s.catalogue, s.bin_, reference.place)
        assert_same_move(moved, expected)
        key, item_id = every_other(state.key + 7), every_other(state.item_id)
        came = compiled.restart(replace(state, **apart), every_other(mask), key, item_id, s.catalogue, s.bin_)
        assert_same_state(came, transition.restart(state, mask, key, item_id, s.catalogue, s.bin_))


def every_other(rows: Tensor) -> Tensor:
    """Return the same rows as a view of twice as many.

    Axes within are turned about, where there are any.
    """
    turned = rows.mT.contiguous().mT if rows.ndim > 1 else rows
    return torch.stack([turned, torch.zeros_like(turned)], 1).flatten(0, 1)[::2]
