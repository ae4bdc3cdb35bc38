"""The baselines: by hand, against a naive twin, and the laws of every policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tests.no_host_reads import NoHostReads
from tests.policies.packing import naive
from tests.policies.packing.packer_scenes import random_states
from torchrl_gpu import native
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ProceduralSolids, RandomBoxes
from torchrl_gpu.policies.packing import (
    BASELINES,
    BoundaryRule,
    DeepestBottomLeft,
    FirstFit,
    HeightmapMinimization,
    LeastSurfaceArea,
    MaximalAccessibleSpace,
    OnlineBinPacking,
    RandomLegal,
    VolumeSorted,
    baselines,
)
from torchrl_gpu.policies.packing.maximal_spaces import accessible_space, maximal_spaces
from torchrl_gpu.policies.packing.placements import PlacementHeuristic, first_best

Size = tuple[int, int, int]

TWINS: dict[type[PlacementHeuristic], naive.Score] = {
    DeepestBottomLeft: naive.deepest,
    HeightmapMinimization: naive.flattest,
    LeastSurfaceArea: naive.smallest_surface,
    MaximalAccessibleSpace: naive.most_space,
    FirstFit: naive.first_found,
    OnlineBinPacking: naive.first_space,
    BoundaryRule: naive.roomiest_space,
}
NAMES = [name for name, _ in BASELINES.values()]


def small_env(cells: int = 3, max_side: int = 2, visible_items: int = 1) -> PackingEnv:
    size = {"bin_size": (cells, cells, cells), "resolution": cells, "items": RandomBoxes(1, max_side)}
    rules = {"visible_items": visible_items, "orientations": "fixed", "device": "cpu", "seed": 0}
    return PackingEnv(1, **size, **rules)  # type: ignore[arg-type]


def boxes_env(step: int, visible_items: int, **changes: Any) -> PackingEnv:
    size = {"bin_size": (8, 7, 6), "resolution": (8, 7), "grid_step": step, "items": RandomBoxes(1, 4)}
    rules = {"orientations": "axis", "stability": "support" if step == 1 else "none", "visible_items": visible_items}
    return PackingEnv(4, **{**size, **rules, "device": "cpu", "seed": 3, **changes})  # type: ignore[arg-type]


def solids_env(step: int, visible_items: int) -> PackingEnv:
    items = ProceduralSolids(10, min_size=0.02, max_size=0.07)
    size = {"bin_size": (0.14, 0.10, 0.10), "resolution": (14, 10), "stability": "none"}
    return boxes_env(step, visible_items, **size, items=items, orientations="yaw")


def scene(env: PackingEnv, heights: list[list[float]], *sizes: Size) -> TensorDict:
    """One bin of these heights with boxes of these sizes to see."""
    heightmap = torch.tensor([heights], dtype=torch.float32)
    of_size = {
        (*env.catalogue.extent[m, 0].tolist(), int(env.catalogue.height[m, 0])): m
        for m in range(env.catalogue.num_items)
    }
    item_id = torch.tensor([[of_size[size] for size in sizes]])
    z_map, legal = env.kernels.drop_map(heightmap, item_id, env.catalogue, env.bin)
    fields = {"box_heightmap": heightmap, "item_id": item_id, "z_map": z_map, "legal_mask": legal}
    return TensorDict(fields, batch_size=[1])


def action_of(policy: torch.nn.Module, tensordict: TensorDictBase) -> int:
    return int(policy(tensordict)["action"])


def rough_states(env: PackingEnv) -> TensorDictBase:
    """The items of a reset over piles of random whole cells.

    Hardly anything rests on the floor, and nothing lies flat.
    """
    state = env.reset()
    heightmap = torch.randint(1, 4, env.batch_size + env.bin.cells).float() * env.bin.cell[0]
    z_map, legal = env.kernels.drop_map(heightmap, state["item_id"], env.catalogue, env.bin)
    return state.update({"box_heightmap": heightmap, "z_map": z_map, "legal_mask": legal})


# -- by hand: bins of n×n×n cells, one box, no rotation; action = gx·n + gy --------------------------------------------


BY_HAND: list[tuple[type[PlacementHeuristic], list[list[float]], Size, int]] = [
    # z = 0 at (0, 2) and (2, 0) alone, both with x + y = 2: the lower action is 0·3 + 2.
    (DeepestBottomLeft, [[1, 1, 0], [1, 1, 1], [0, 1, 1]], (1, 1, 1), 2),
    # The 2×2 box rests at z = 1 on (0, 0), (0, 1) and (1, 0), at z = 0 on (1, 1): 1·3 + 1.
    (DeepestBottomLeft, [[1, 0, 1], [0, 0, 0], [1, 0, 0]], (2, 2, 1), 4),
    # A 1×1×1 box raises the sum by 1 wherever it stands; x + y = 0 decides, though the floor is free at (0, 2).
    (HeightmapMinimization, [[1, 1, 0], [1, 1, 1], [0, 1, 1]], (1, 1, 1), 0),
    # 2×2×1 at (0, 0): four cells rise to 2 from 1, 0, 0, 0: + 7. At (0, 1) four cells rise from 0 to 1: + 4.
    (HeightmapMinimization, [[1, 0, 0], [0, 0, 0], [0, 0, 0]], (2, 2, 1), 1),
    # 2×2×1 on a 2×2×1. Beside it: X, Y, top = 2, 4, 1: 8 + 2 + 4 = 14. On it: 2, 2, 2: 4 + 4 + 4 = 12.
    (LeastSurfaceArea, [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], (2, 2, 1), 0),
    # 2×2×1 by a 2×2×2. On it: 2, 2, 3: 4 + 6 + 6 = 16. Beside it, at (0, 2) or (2, 0): 2, 4, 1: 8 + 2 + 4 = 14.
    (LeastSurfaceArea, [[2, 2, 0, 0], [2, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], (2, 2, 1), 2),
    # Two levels high, a 1×1×1 box fits everywhere but on the full column at (0, 0).
    (FirstFit, [[3, 0, 0], [0, 0, 0], [0, 0, 0]], (1, 1, 1), 1),
    # Column (0, 0) is 1 high. Spaces on the floor begin at (0, 1), 3×2 cells, and at (1, 0), 2×3: of equal bases the
    # one with the lesser y goes first, 1·3.
    (OnlineBinPacking, [[1, 0, 0], [0, 0, 0], [0, 0, 0]], (2, 2, 1), 3),
    # Row 0 is full up to 2: beside it 2×3 cells are free over 3 levels, 18, above it all over one level, 9.
    (BoundaryRule, [[2, 2, 2], [0, 0, 0], [0, 0, 0]], (1, 1, 1), 3),
    # On the rows: 3×3 over 2 levels, 18 + 8 sizes + 10. In row 2: 1×3 over 3, 9 + 2 sizes of 1×q×h… less: 0.
    (BoundaryRule, [[1, 1, 1], [1, 1, 1], [0, 0, 0]], (1, 1, 1), 0),
]


@pytest.mark.parametrize(("rule", "heights", "size", "action"), BY_HAND)
def test_heuristics_by_hand(
    rule: type[PlacementHeuristic], heights: list[list[float]], size: Size, action: int
) -> None:
    env = small_env(len(heights))
    assert action_of(rule(env), scene(env, heights, size)) == action


def test_maximal_spaces_are_those_that_no_wall_can_leave() -> None:
    heights = torch.randint(0, 4, (6, 5, 4), generator=torch.Generator().manual_seed(0))
    level, maximal = maximal_spaces(heights.double(), 3)
    for row, base, there in zip(heights, level, maximal, strict=True):
        found = {(x0, x1 + 1, y0, y1 + 1, int(base[x0, x1, y0, y1])) for x0, x1, y0, y1 in there.nonzero().tolist()}
        assert found == set(naive.maximal_spaces(row.numpy(), 3))


@pytest.mark.parametrize("rule", [OnlineBinPacking, BoundaryRule])
def test_without_a_space_the_deepest_placement_is_made(rule: type[PlacementHeuristic]) -> None:
    env = small_env()
    state = scene(env, [[1, 0, 0], [0, 0, 0], [0, 0, 0]], (2, 2, 1))
    # The spaces that hold the item begin here.
    for corner in (0, 1, 3):
        state["legal_mask"].view(-1)[corner] = False
    assert action_of(rule(env), state) == action_of(DeepestBottomLeft(env), state) == 4


@pytest.mark.parametrize("rule", [OnlineBinPacking, BoundaryRule])
def test_bins_of_too_many_cells_are_refused(rule: type[PlacementHeuristic]) -> None:
    env = PackingEnv(1, bin_size=(33.0, 32.0, 9.0), resolution=(33, 32), include=(), device="cpu", seed=0)
    with pytest.raises(ValueError, match=r"1,056 cells .*1,024"):
        rule(env)


@pytest.mark.parametrize(
    ("heights", "ceiling", "space"),
    [
        # 4 cells over 5 levels.
        ([[0, 0], [0, 0]], 5, 20),
        # Level 0: 2 of the L, and level 1: 4.
        ([[1, 0], [0, 0]], 2, 6),
        # Level 0: 1, and level 1: 4.
        ([[0, 1], [1, 0]], 2, 5),
        # 3 along a side over 3 levels.
        ([[0, 0, 0], [0, 3, 0], [0, 0, 0]], 3, 9),
        # Level 0: 1, and level 1: 2.
        ([[2, 1, 0]], 2, 3),
        ([[7]], 7, 0),
    ],
)
def test_accessible_space_by_hand(heights: list[list[float]], ceiling: float, space: float) -> None:
    assert accessible_space(torch.tensor([heights], dtype=torch.float32), ceiling).tolist() == [space]


def test_maximal_accessible_space_keeps_the_largest_rectangle() -> None:
    env = small_env(3, max_side=3)
    # Two full columns at (2, 0) and (2, 2). A 1×1×3 box at (2, 1) leaves rows 0 and 1: 6 cells on each of 3 levels. At
    # (0, 0), the deepest-bottom-left place, it leaves 2×2 cells.
    state = scene(env, [[0, 0, 0], [0, 0, 0], [3, 0, 3]], (1, 1, 3))
    policy = MaximalAccessibleSpace(env)
    assert action_of(policy, state) == 7
    policy.num_candidates = 1
    assert action_of(policy, state) == 0


@pytest.mark.parametrize("compiled", [True, False])
def test_first_best_breaks_ties_by_the_next_score_and_then_by_index(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(native, "runs_on", lambda tensor: False)
    legal = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0]], dtype=torch.bool)
    first, second = torch.tensor([2.0, 1.0, 1.0, 1.0]).expand(3, 4), torch.tensor([0, 5, 3, 3]).expand(3, 4)
    # Elements 1, 2, 3 tie at 1, then 2 and 3 at 3: 2. The last row has no legal element.
    assert first_best([first, second], legal).tolist() == [2, 2, 0]


# -- against the naive twin --------------------------------------------------------------------------------------------


SETTINGS = [(boxes_env, 1, 3), (boxes_env, 3, 1), (solids_env, 1, 1), (solids_env, 3, 3)]


@cache
def scenes(make: Callable[[int, int], PackingEnv], step: int, visible_items: int) -> Any:
    env = make(step, visible_items)
    states = random_states(env, 4), rough_states(env)
    found = []
    for state in states:
        candidates = [list(naive.candidates(env, row)) for row in state]
        found.append((state, candidates))
    return env, found


@pytest.mark.parametrize("heuristic", TWINS)
@pytest.mark.parametrize(("make", "step", "visible_items"), SETTINGS)
def test_agrees_with_the_naive_twin(
    make: Callable[[int, int], PackingEnv], step: int, visible_items: int, heuristic: type[PlacementHeuristic]
) -> None:
    env, states = scenes(make, step, visible_items)
    policy, twin = heuristic(env), TWINS[heuristic]
    most = policy.num_candidates if isinstance(policy, MaximalAccessibleSpace) else None
    for state, placements in states:
        assert state["legal_mask"].any()
        assert policy(state)["action"].tolist() == [naive.choose(env, found, twin, most) for found in placements]


@pytest.mark.parametrize("make", [boxes_env, solids_env])
def test_volume_sorted_agrees_with_the_naive_twin(make: Callable[[int, int], PackingEnv]) -> None:
    env = make(1, 3)
    policy = VolumeSorted(env, DeepestBottomLeft(env))
    for steps in (0, 5):
        state = random_states(env, steps)
        wanted = []
        for row in state:
            slot = naive.largest_item(env, row)
            alone = row.clone()
            alone["legal_mask"] &= (torch.arange(3) == (-1 if slot is None else slot)).view(3, 1, 1, 1)
            wanted.append(naive.choose(env, list(naive.candidates(env, alone)), naive.deepest))
        assert policy(state)["action"].tolist() == wanted


# -- laws of every baseline --------------------------------------------------------------------------------------------


@pytest.fixture(params=[SETTINGS[0], SETTINGS[2]], scope="module")
def env(request: pytest.FixtureRequest) -> PackingEnv:
    make, step, visible_items = request.param
    return make(step, visible_items)


def test_baselines_have_their_names(env: PackingEnv) -> None:
    policies = baselines(env)
    assert list(policies) == [NAMES[0], *NAMES[4:]]
    assert all(isinstance(policy, VolumeSorted) == (env.visible_items > 1) for policy in policies.values())


@pytest.mark.parametrize("name", NAMES)
def test_actions_are_legal(env: PackingEnv, name: str) -> None:
    policy, tensordict = baselines(env, BASELINES)[name], env.reset()
    for _ in range(12):
        action = policy(tensordict)["action"]
        assert action.dtype == torch.int64
        assert action.shape == env.batch_size
        assert tensordict["action_mask"].gather(1, action[:, None]).all()
        _, tensordict = env.step_and_maybe_reset(tensordict)


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_decided_by_themselves_and_nothing_is_read_back(env: PackingEnv, name: str) -> None:
    policy, state = baselines(env, BASELINES)[name], random_states(env, 1)
    before = state["legal_mask"].clone()
    state["legal_mask"] = before & torch.tensor([True, False, True, False]).view(4, 1, 1, 1, 1)
    with NoHostReads():
        action = policy(state)["action"]
    assert action[[1, 3]].tolist() == [0, 0]
    assert before.flatten(1).gather(1, action[:, None])[[0, 2]].all()
    if name == NAMES[0]:
        # A random rule draws anew.
        return
    states = torch.stack([random_states(env, steps) for steps in (1, 2, 3)])  # (3, 4)
    wanted = torch.stack([policy(row.clone())["action"] for row in states])
    assert policy(states.clone())["action"].equal(wanted)
    assert policy(states[2, 1].clone())["action"].equal(wanted[2, 1])
    # The map is made again where it is left out.
    assert policy(states.exclude("z_map"))["action"].equal(wanted)


def test_in_keys_are_what_the_environment_shows() -> None:
    without = PackingEnv(2, include=(), device="cpu", seed=0, visible_items=2)
    for policy in baselines(without, BASELINES).values():
        assert "z_map" not in policy.in_keys
        rolled = without.rollout(3, policy, break_when_any_done=False)
        assert rolled["next", "num_packed"][:, -1].min() > 0


def test_chunks_do_not_change_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    env = boxes_env(1, 3)
    state = random_states(env, 4)
    wanted = MaximalAccessibleSpace(env)(state.clone())["action"]
    monkeypatch.setattr("torchrl_gpu.policies.packing.maximal_spaces._ELEMENTS_AT_ONCE", 1)
    assert MaximalAccessibleSpace(env)(state)["action"].equal(wanted)


def test_random_legal_is_uniform_and_repeats_with_the_seed() -> None:
    legal = torch.zeros(2, 1, 1, 3, 3, dtype=torch.bool)
    legal[0].view(-1)[[1, 4, 8]] = True
    legal[1].view(-1)[5] = True
    rows = TensorDict({"legal_mask": legal.repeat_interleave(3000, 0)}, batch_size=[6000])
    policy = RandomLegal(small_env())
    torch.manual_seed(0)
    action = policy(rows.clone())["action"]
    drawn = action[:3000].bincount(minlength=9)
    assert drawn[[0, 2, 3, 5, 6, 7]].sum() == 0
    # Each of three is drawn 1000 times, standard deviation √(3000·(1/3)·(2/3)) = 26: four of them are 104.
    assert (drawn[[1, 4, 8]] - 1000).abs().max() < 104
    assert (action[3000:] == 5).all()
    torch.manual_seed(0)
    assert policy(rows.clone())["action"].equal(action)
    assert not policy(rows.clone())["action"].equal(action)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_same_actions_on_the_gpu_without_a_sync(name: str) -> None:
    env = boxes_env(1, 3)
    state = random_states(env, 3)
    device_env = boxes_env(1, 3, device="cuda")
    policy, on_device = baselines(device_env, BASELINES)[name], state.to("cuda")
    # The first call loads kernels.
    policy(on_device.clone())
    torch.cuda.set_sync_debug_mode("error")
    try:
        action = policy(on_device)["action"]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    if name != "random legal":
        assert action.tolist() == baselines(env, BASELINES)[name](state)["action"].tolist()
