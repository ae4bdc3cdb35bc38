"""The border of the kernels: what it refuses and what it casts.

Every backend treats alike what it lets through.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.envs.packing.kernels import hostile
from tests.envs.packing.kernels.hostile import (
    hostile_items,
    hostile_placement,
)
from tests.envs.packing.kernels.parity import KINDS, one_item
from tests.envs.packing.kernels.test_transition import assert_same_move, assert_same_state, copy_of, state_of
from tests.envs.packing.scenes import CELL, RULES, Scene, bin_of, scene
from tests.envs.packing.settings import assert_same, packing
from tests.native.compilers import need_compiler, threads
from tests.records import values_by_name, with_values
from tests.tolerances import assert_near
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.kernels import Kernels, get_kernels, judge_placements, reference
from torchrl_gpu.envs.packing.types import PackingState, Placement, StoredMaps

BACKENDS = ("compiled", "eager", "reference")


beside_the_reference = pytest.mark.parametrize("kernels", BACKENDS[:2], indirect=True)


@pytest.fixture(params=BACKENDS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "compiled":
        need_compiler()
    return get_kernels(request.param)


def scene_of(seed: int, kind: str = "solids", stability: str = "none") -> Scene:
    s = scene(seed, kind, stability=stability, num_envs=4).counted(CELL)
    return hostile_items(s, np.random.default_rng(seed))


# -- what is refused ---------------------------------------------------------------------------------------------------

S = scene(3, "solids", num_envs=4)
STATE = state_of(S, np.random.default_rng(0))
N, (X, Y) = len(S.heightmap), S.bin_.cells
Change = Callable[[Tensor], Any]
CHANGES: dict[str, Change] = {}
CHANGES |= {
    "float16": lambda t: t.half(),
    "float64": lambda t: t.double(),
    "int64": lambda t: t.long(),
    "uint8": lambda t: t.byte(),
}
CHANGES |= {
    "bool": lambda t: t.bool(),
    "complex64": lambda t: t.to(torch.complex64),
}
CHANGES |= {
    "one row less": lambda t: t[:-1],
    "an axis more": lambda t: t[..., None],
    "flat": lambda t: t.flatten()[:-1],
}
CHANGES |= {"an array": lambda t: t.numpy(), "a list": lambda t: t.tolist(), "nothing": lambda t: None}
CHANGES["on another device"] = lambda t: t.to("meta")
INTEGERS = ("int64", "uint8")


def refused(changes: dict[str, Change], dtype: torch.dtype) -> list[str]:
    """List changes that are not allowed of a tensor of a type.

    Other widths of integers are allowed, and so is no change.
    """
    fine = {torch.int64: INTEGERS, torch.bool: ("bool",)}.get(dtype, ())
    return [name for name in changes if name not in fine]


COUNTS = torch.zeros(N, dtype=torch.int64)
STORED = StoredMaps(*reference.drop_map(*S), torch.zeros_like(S.item_id), torch.zeros(N, 4, dtype=torch.int64))
GIVEN: dict[str, Tensor] = {"heightmap": S.heightmap, "item_id": S.item_id, "z_map": STORED.z_map}
GIVEN |= {"action": COUNTS, "following": COUNTS, "mask": COUNTS.bool(), "key": COUNTS, "fresh": S.item_id}
GIVEN |= {
    f"placement.{name}": each for name, each in values_by_name(hostile_placement(S, np.random.default_rng(1))).items()
}
GIVEN |= {f"stored.{name}": each for name, each in values_by_name(STORED).items()}
GIVEN |= {f"state.{field.name}": getattr(STATE, field.name) for field in fields(PackingState)}
BEARING = bin_of((X, Y), stability="load_bearing")
BOXES = one_item((1, 1), "boxes")
GIVEN |= {"bears": STATE.heightmap >= 0, "legal": torch.ones(N, S.item_id.shape[1], 1, X, Y, dtype=torch.bool)}
GIVEN["rest"] = GIVEN["legal"].float()
# By job, the beginnings of the names that it reads.
READS = {
    "drop_map": ("heightmap", "item_id", "stored."),
    "place": ("heightmap", "placement."),
    "judge_placements": ("heightmap", "placement."),
    "pile_growth": ("heightmap", "item_id", "z_map"),
    "advance": ("state.", "action", "following"),
    "upheld": ("heightmap", "bears", "rest", "legal", "item_id"),
    "bear": ("heightmap", "bears", "placement."),
    "restart": ("state.", "mask", "key", "fresh"),
}


def call(kernels: Kernels, job: str, given: dict[str, Any]) -> object:
    def part(kind: type) -> Any:
        prefix = {Placement: "placement.", StoredMaps: "stored.", PackingState: "state."}[kind]
        return kind(**{name.removeprefix(prefix): each for name, each in given.items() if name.startswith(prefix)})

    s, where = part(PackingState), (S.catalogue, S.bin_)
    if job == "advance":
        return kernels.advance(s, given["action"], given["following"], *where)
    if job == "restart":
        return kernels.restart(s, given["mask"], given["key"], given["fresh"], *where)
    if job == "drop_map":
        return kernels.drop_map(given["heightmap"], given["item_id"], *where, part(StoredMaps))
    if job == "pile_growth":
        return kernels.pile_growth(given["heightmap"], given["item_id"], given["z_map"], *where)
    if job == "upheld":
        maps = (given[name] for name in READS["upheld"])
        return kernels.upheld(*maps, BOXES, BEARING)
    if job == "bear":
        return kernels.bear(given["heightmap"], given["bears"], part(Placement), BOXES, BEARING)
    place = kernels.place if job == "place" else judge_placements
    return place(given["heightmap"], part(Placement), *where)


@pytest.mark.parametrize("job", READS)
def test_what_cannot_be_read_is_refused(kernels: Kernels, job: str) -> None:
    for name in (name for name in GIVEN if name.startswith(READS[job]) and name != "state.bears"):
        for change in refused(CHANGES, GIVEN[name].dtype):
            with pytest.raises(ValueError, match=rf"^{job}: [\w.]+ must .*; got "):
                call(kernels, job, GIVEN | {name: CHANGES[change](GIVEN[name])})


def test_a_refusal_has_three_parts(kernels: Kernels) -> None:
    with pytest.raises(ValueError) as error:
        call(kernels, "drop_map", GIVEN | {"heightmap": torch.zeros(N, 4, 4, dtype=torch.float64)})
    assert str(error.value) == "drop_map: heightmap must be of dtype float32; got float64"


@pytest.mark.parametrize("name", ["placements", "placement_z"])
def test_what_is_written_in_place_must_lie_together(kernels: Kernels, name: str) -> None:
    strided = torch.stack([getattr(STATE, name)] * 2, -1)[..., 0]
    with pytest.raises(ValueError, match=f"^advance: {name} .*contiguous.* strides "):
        call(kernels, "advance", GIVEN | {f"state.{name}": strided})


def test_any_legal_refuses_what_is_no_mask(kernels: Kernels) -> None:
    legal = STORED.legal
    for wrong in (legal.byte(), legal.float(), legal.numpy(), torch.ones(3, dtype=torch.bool)):
        with pytest.raises(ValueError, match=r"^any_legal: legal .*bool"):
            kernels.any_legal(wrong)


def test_a_bin_shows_at_least_one_slot(kernels: Kernels) -> None:
    with pytest.raises(ValueError, match=r"^drop_map: item_id .*\(4, 1\).*\(4, 0\)$"):
        kernels.drop_map(S.heightmap, S.item_id[:, :0], S.catalogue, S.bin_)


def test_the_compiled_kernels_read_no_other_device() -> None:
    need_compiler()
    kernels, there = get_kernels("compiled"), S.to("meta")
    with pytest.raises(ValueError, match=r"^drop_map: .*catalogue .*on meta"):
        kernels.drop_map(*there)
    with pytest.raises(ValueError, match=r"^any_legal: legal .*on meta"):
        kernels.any_legal(torch.ones(2, 3, dtype=torch.bool, device="meta"))


# -- what is cast ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32])
def test_any_width_of_integers_will_do(kernels: Kernels, dtype: torch.dtype) -> None:
    s = with_values(S, item_id=S.item_id.clamp_min(0))
    for came, wanted in zip(
        kernels.drop_map(*with_values(s, item_id=s.item_id.to(dtype))), reference.drop_map(*s), strict=True
    ):
        assert torch.equal(came, wanted)
    action = torch.arange(N) % state_of(s, np.random.default_rng(0)).legal[0].numel()
    following = torch.zeros(N, dtype=torch.int64)
    state = replace(state_of(s, np.random.default_rng(0)), position=torch.arange(N), num_packed=torch.arange(N))
    narrow = replace(state, **{n: getattr(state, n).to(dtype) for n in ("position", "num_packed", "item_id")})
    wanted = kernels.advance(copy_of(state), action, following, s.catalogue, s.bin_)
    came = kernels.advance(copy_of(narrow), action.to(dtype), following.to(dtype), s.catalogue, s.bin_)
    assert_same_move(came, wanted)


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8])
def test_an_environment_takes_actions_of_any_width(kernels: Kernels, dtype: torch.dtype) -> None:
    changes = {"bin_size": (5.0, 5.0, 5.0), "resolution": 5}
    env = packing(num_envs=8, backend=kernels.backend, **changes)
    twin = packing(num_envs=8, backend=kernels.backend, **changes)
    ours, theirs = env.reset(), twin.reset()
    for _ in range(3):
        action = theirs["action_mask"].long().argmax(1)
        ours = env.step(ours.set("action", action.to(dtype)))["next"]
        theirs = twin.step(theirs.set("action", action))["next"]
        assert int(theirs["num_packed"].sum()) > 0
        assert_same(ours, theirs)


# -- what is settled where it is read: alike in every backend --------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_row_of_the_catalogue_is_an_empty_slot(kernels: Kernels, kind: str) -> None:
    for seed in range(8):
        s = scene_of(seed, kind, RULES[seed % len(RULES)])
        there = (s.item_id >= 0) & (s.item_id < s.catalogue.num_items)
        emptied = with_values(s, item_id=torch.where(there, s.item_id, -1))
        wanted = reference.drop_map(*emptied)
        for came, expected in zip(kernels.drop_map(*s), wanted, strict=True):
            assert torch.equal(came, expected)
        assert (wanted[0][~there] == s.bin_.size[2]).all()
        assert not wanted[1][~there].any()
        growth = kernels.pile_growth(s.heightmap, s.item_id, wanted[0], s.catalogue, s.bin_)
        assert_near(growth, reference.pile_growth(s.heightmap, emptied.item_id, wanted[0], s.catalogue, s.bin_))
        assert not growth[~there].any()


@beside_the_reference
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_inside_the_bin_is_not_placed(kernels: Kernels, kind: str) -> None:
    hostile.assert_nothing_outside_is_placed(kernels, kind, range(20))
    for seed in range(20):
        s = scene_of(seed, kind)
        placement = hostile_placement(s, np.random.default_rng(seed))
        judged = judge_placements(s.heightmap, placement, s.catalogue, s.bin_)
        assert torch.equal(judged, reference.judge_placements(s.heightmap, placement, s.catalogue, s.bin_))


@beside_the_reference
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_states_and_actions_do_the_same(kernels: Kernels, kind: str) -> None:
    hostile.assert_steps_agree(kernels, kind, range(10))


def test_an_action_over_an_empty_slot_is_not_legal(kernels: Kernels) -> None:
    state = copy_of(STATE)
    state.item_id[:], state.legal[:] = torch.tensor([-1, -7, 10**12, S.catalogue.num_items])[:, None], True
    counts = torch.zeros(N, dtype=torch.int64)
    moved = kernels.advance(copy_of(state), counts, counts, S.catalogue, S.bin_)
    assert not moved.legal.any()
    assert_same_state(moved.state, replace(state, step_count=state.step_count + 1))


@pytest.mark.parametrize(("count", "row"), [(-50, 0), (-(2**63), 0), (2**40, -1), (2**63 - 1, -1)])
def test_placements_are_written_within_their_rows(kernels: Kernels, count: int, row: int) -> None:
    state = state_of(S, np.random.default_rng(0))
    legal = state.legal.flatten(1)
    assert legal.any(1).sum() > 1
    before = copy_of(replace(state, num_packed=torch.full((N,), count)))
    after, counts = copy_of(before), torch.zeros(N, dtype=torch.int64)
    kernels.advance(after, legal.long().argmax(1), counts, S.catalogue, S.bin_)
    expected = copy_of(before)
    expected.placements[:, row], expected.placement_z[:, row] = after.placements[:, row], after.placement_z[:, row]
    assert_same_state(after, expected)
    assert not torch.equal(after.placement_z, before.placement_z)


@beside_the_reference
def test_kept_maps_of_no_slot_are_not_kept(kernels: Kernels) -> None:
    for seed in range(12):
        with threads(1 + seed // 4 % 2):
            s = scene_of(seed, "solids", RULES[seed % len(RULES)])
            hostile.assert_no_slot_is_kept(kernels, s, np.random.default_rng(seed))


# NumPy says so of such sums.
@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_heights_that_are_none_crash_nothing(kernels: Kernels, kind: str) -> None:
    for seed, height in enumerate((float("nan"), float("inf"), -float("inf"), 3e38, -3e38, -1.0)):
        s = scene_of(seed, kind, RULES[seed % len(RULES)])
        s.heightmap[::2] = height
        s.heightmap[1, 0, 0] = height
        z_map, legal = kernels.drop_map(*s)
        fine = with_values(s, heightmap=s.heightmap[3:], item_id=s.item_id[3:])
        for came, expected in zip((z_map[3:], legal[3:]), reference.drop_map(*fine), strict=True):
            # A bin among others is as it would be alone.
            assert torch.equal(came, expected)
        assert kernels.pile_growth(s.heightmap, s.item_id, z_map, s.catalogue, s.bin_).shape == z_map.shape


# -- where environments let tensors in -------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["three visible", "irregular"])
def test_restore_takes_any_number_for_an_item(kernels: Kernels, setting: str) -> None:
    env = packing(setting, 1, backend=kernels.backend)
    start = env.reset()
    state = start.select("box_heightmap", "item_id")
    wrong, emptied = state.clone(), state.clone()
    for number in (-7, env.catalogue.num_items) if kernels.backend == "reference" else (-7, 10**9, -(2**40)):
        wrong["item_id"][:, 0], emptied["item_id"][:, 0] = number, -1
        came, expected = env.restore(wrong.clone()), env.restore(emptied.clone())
        assert_same(came.exclude("item_id"), expected.exclude("item_id"))
        assert not came["item_mask"][:, 0].any()


def test_restore_refuses_maps_of_another_bin(kernels: Kernels) -> None:
    env = packing(backend=kernels.backend)
    state = env.reset().select("box_heightmap", "item_id")
    for wrong in (state["box_heightmap"].double(), state["box_heightmap"].half(), torch.zeros(3, 4, 4)):
        with pytest.raises(ValueError, match=r"^PackingEnv.restore: box_heightmap must "):
            env.restore(state.clone().set("box_heightmap", wrong))


def test_kernels_survive_a_copy(kernels: Kernels) -> None:
    for again in (pickle.loads(pickle.dumps(kernels)), copy.deepcopy(kernels)):
        assert again == kernels
    env: PackingEnv = copy.deepcopy(packing(backend=kernels.backend))
    assert env.kernels == kernels
