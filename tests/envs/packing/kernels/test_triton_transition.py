"""Parity of an action and a restart in Triton with their torch forms.

Whole rollouts are compared with the eager backend.

They run where those of `test_triton_parity.py` do.
"""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.envs.packing.kernels import hostile, parity, test_transition
from tests.envs.packing.kernels.test_transition import (
    ITSELF,
    KINDS,
    assert_same_move,
    assert_same_state,
    copy_of,
    every_other,
    following_of,
    on_cpu,
    restarted,
    some_actions,
    state_of,
)
from tests.envs.packing.kernels.test_triton_parity import INTERPRETED
from tests.envs.packing.scenes import CELL, Scene, bin_of, scene, scene_in
from tests.envs.packing.settings import assert_same, legal_action, packing, small_solids
from tests.records import with_values
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.kernels import reference, transition
from torchrl_gpu.envs.packing.kernels.triton import kernels as triton_kernels
from torchrl_gpu.envs.packing.types import Catalogue, Moved, PackingState, height_rules

# The interpreter wraps integers.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
SEEDS = range(4 if INTERPRETED else 40)


@pytest.fixture(params=["cpu"] if INTERPRETED else [pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


assert_advance_agrees = partial(test_transition.assert_advance_agrees, triton_kernels)
assert_restart_agrees = partial(test_transition.assert_restart_agrees, triton_kernels)


def some_step(s: Scene, rng: np.random.Generator) -> tuple[PackingState, Tensor, Tensor]:
    """A state, an action and the following item of each environment."""
    state = state_of(s, rng)
    return state, some_actions(state, rng), following_of(s, rng)


def repeated(s: Scene, times: int) -> Scene:
    return with_values(s, heightmap=s.heightmap.repeat(times, 1, 1), item_id=s.item_id.repeat(times, 1))


# -- one action, one restart -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_advance_agrees(kind: str, device: torch.device) -> None:
    legal = total = 0
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        s = scene(seed, kind, num_envs=6)
        moved = assert_advance_agrees(s, *some_step(s, rng), device)
        legal, total = legal + int(moved.legal.sum()), total + len(moved.legal)
    assert 0.3 * total < legal < 0.9 * total


@pytest.mark.parametrize("stability", height_rules())
@pytest.mark.parametrize("kind", KINDS)
def test_restart_agrees(kind: str, stability: str, device: torch.device) -> None:
    for seed in SEEDS[::3]:
        rng = np.random.default_rng(seed)
        s = scene(seed, kind, num_envs=3, stability=stability)
        for mask in [*itertools.product([False, True], repeat=3)][:: 3 if INTERPRETED else 1]:
            rows = torch.tensor(mask)
            assert_restart_agrees(s, *_begun_again(s, rows, rng), device)


# But for 1, it matters which terms of the limit are rounded.
@pytest.mark.parametrize("high", [0.2, 0.9, 1.0, 1.1])
def test_heights_at_the_very_limit_agree(high: float, device: torch.device) -> None:
    bin_ = replace(bin_of((3, 4)), size=(3 * CELL, 4 * CELL, high))
    limit = np.float32(bin_.size[2] + bin_.tolerance)
    heights = [np.nextafter(limit, np.float32(0)), limit, np.nextafter(limit, np.float32(np.inf))]
    sizes = torch.tensor([[[2, 1, float(height)]] for height in heights], dtype=torch.float64)
    s = Scene(torch.zeros(2, 3, 4), torch.arange(3).repeat(2, 1), Catalogue.of_boxes(sizes, torch.ones(3)), bin_)
    again = _begun_again(s, torch.tensor([True, False]), np.random.default_rng(0))
    assert_restart_agrees(s, *again[:-1], s.item_id, device)


def _begun_again(s: Scene, mask: Tensor, rng: np.random.Generator) -> tuple[PackingState, Tensor, Tensor, Tensor]:
    state, key, item_id = restarted(s, mask, rng)
    return state, mask, key, item_id


# (1, 1): a thousand bins to a program; (40, 33): two programs to a bin, and more to its maps
@pytest.mark.parametrize(("cells", "times"), [((1, 1), 5), ((7, 9), 9), ((10, 10), 3), ((40, 33), 1)])
@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_bins_share_programs_and_programs_share_bins(
    kind: str, cells: tuple[int, int], times: int, device: torch.device
) -> None:
    rng = np.random.default_rng(cells[0])
    s = repeated(scene_in(bin_of(cells), rng, kind, num_envs=3, most_items=3, most_visible=2), times)
    state, action, following = some_step(s, rng)
    assert_advance_agrees(s, state, action, following, device)
    mask = torch.from_numpy(rng.random(len(action)) < 0.5)
    assert_restart_agrees(s, state, mask, state.key + 7, s.item_id.flip(0), device)


# Some placements are flush with the wall.
@pytest.mark.parametrize(("kind", "step"), [("boxes", 3), ("solids", 2)])
def test_every_action_of_a_bin_agrees(kind: str, step: int, device: torch.device) -> None:
    rng, bin_ = np.random.default_rng(step), bin_of((5, 7), step=step)
    s = scene_in(bin_, rng, kind, num_envs=1, most_items=4, most_orientations=2)
    s = with_values(s, item_id=torch.arange(s.catalogue.num_items)[None])
    num_actions = s.item_id.numel() * s.catalogue.num_orientations * bin_.grid[0] * bin_.grid[1]
    s = repeated(s, num_actions)
    moved = assert_advance_agrees(s, state_of(s, rng), torch.arange(num_actions), following_of(s, rng), device)
    assert moved.legal.sum() > 5


def test_strides_do_not_matter(device: torch.device) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        s = scene(seed, KINDS[seed % 3], num_envs=5)
        state, action, following = some_step(s, rng)
        apart = {f.name: every_other(getattr(state, f.name)) for f in fields(state) if f.name not in ITSELF}
        spread = {name: _as_spread(each, device) for name, each in apart.items()}
        ours, there = replace(copy_of(state, device), **spread), s.to(device)
        given = [_as_spread(every_other(each), device) for each in (action, following)]
        came = triton_kernels.advance(ours, *given, there.catalogue, s.bin_)
        expected = transition.advance(copy_of(state), action, following, s.catalogue, s.bin_, reference.place)
        assert_same_move(on_cpu(came), expected)
        mask = torch.from_numpy(rng.random(5) < 0.5)
        given = [_as_spread(every_other(each), device) for each in (mask, state.key + 7, state.item_id)]
        begun = triton_kernels.restart(ours, *given, there.catalogue, s.bin_)
        expected_state = transition.restart(state, mask, state.key + 7, state.item_id, s.catalogue, s.bin_)
        for field in fields(PackingState):
            # `advance` has written the others.
            if field.name not in ITSELF:
                assert torch.equal(getattr(begun, field.name).cpu(), getattr(expected_state, field.name)), field.name


def _as_spread(tensor: Tensor, device: torch.device) -> Tensor:
    there = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return there.copy_(tensor)


# -- more elements than 32 bits count ----------------------------------------------------------------------------------


def test_maps_of_more_than_2_to_the_31_placements_are_looked_up_right(device: torch.device, tmp_path: Path) -> None:
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < 17 << 30:
        pytest.skip("needs 17 GiB of GPU memory")
    num_envs = 3
    num_orientations = 2**14
    cells = 256
    sizes = torch.tensor([[1, 2, CELL]], dtype=torch.float64).expand(num_orientations, 3)
    catalogue = Catalogue.of_boxes(sizes[None], torch.full((1,), 2 * CELL**3))
    item_id = torch.zeros(num_envs, 1, dtype=torch.int64)
    s = Scene(torch.zeros(num_envs, cells, cells), item_id, catalogue, bin_of((cells, cells)))
    shape = (num_envs, 1, num_orientations, cells, cells)
    maps = {
        name: vast(shape, dtype, tmp_path / name) for name, dtype in (("z_map", torch.float32), ("legal", torch.bool))
    }
    assert maps["legal"].numel() > 2**31
    # The last is of the last row but one, which is flush with no wall.
    action = torch.tensor([0, 1, maps["legal"][0].numel() - 300])
    for env, at in enumerate(action.tolist()):
        maps["z_map"][env].view(-1)[at] = CELL * (env + 1)
        maps["legal"][env].view(-1)[at] = True
    count = torch.zeros(num_envs, dtype=torch.int64)
    counts = dict.fromkeys(("position", "key", "episode", "num_packed", "step_count"), count)
    rows = {"placements": torch.zeros(num_envs, 2, 4, dtype=torch.int32), "placement_z": torch.zeros(num_envs, 2)}
    maps["bears"] = torch.ones(num_envs, 0, 0, dtype=torch.bool)
    state = PackingState(s.heightmap, item_id, **counts, volume=count.float(), stable=count > 0, **rows, **maps)
    there = s.to(device)
    ours = replace(state, **{f.name: getattr(state, f.name).to(device) for f in fields(state)})
    moved = triton_kernels.advance(ours, action.to(device), count.to(device), there.catalogue, s.bin_)
    assert moved.legal.all()
    assert moved.state.placements[:, 0].tolist() == [[0, 0, 0, 0], [0, 0, 0, 1], [0, num_orientations - 1, 254, 212]]
    assert moved.state.placement_z[:, 0].tolist() == [CELL, 2 * CELL, 3 * CELL]
    assert moved.state.heightmap.flatten(1).sum(1).tolist() == [4 * CELL, 6 * CELL, 8 * CELL]


def vast(shape: tuple[int, ...], dtype: torch.dtype, path: Path) -> Tensor:
    return torch.from_file(str(path), shared=True, size=int(np.prod(shape)), dtype=dtype).view(shape)


# -- whole rollouts ----------------------------------------------------------------------------------------------------

# Cells of 1/64 m, so that sums are exact; few, for the interpreter's sake.
_FEW_CELLS = {"bin_size": (0.125, 0.125, 0.125), "resolution": 8, "items": small_solids()}
_FEW_CELLS |= {"num_envs": 2, "num_items": 5}
ROLLOUTS: dict[str, dict[str, object]] = {
    "bpp10": {},
    "coarse grid": {"num_items": 5},
    "three visible": {},
    "oblong": {"visible_items": 2},
    "irregular": {**_FEW_CELLS, "grid_step": 3, "orientations": "yaw"},
    "irregular, on its corners": {**_FEW_CELLS, "orientations": "fixed"},
    "irregular, passing over": {**_FEW_CELLS, "orientations": "fixed", "num_items": 8},
}


@pytest.mark.parametrize("setting", ROLLOUTS)
def test_a_rollout_goes_the_way_of_the_eager_backend(setting: str, device: torch.device) -> None:
    changes = {"device": device, "num_envs": 3} | ROLLOUTS[setting]
    env = packing(setting, backend="triton", **changes)
    twin = packing(setting, backend="eager", **changes)
    assert env.kernels.advance.__wrapped__ is triton_kernels.advance
    assert assert_one_way(env, twin, steps=12 if changes.get("num_items") == 5 and INTERPRETED else 20) >= 3


def assert_one_way(env: PackingEnv, twin: PackingEnv, steps: int) -> int:
    """Check that two environments show and hold the same under the same actions.

    Some of these are illegal. Returns the number of episodes that ended.
    """
    generator = torch.Generator(env.device).manual_seed(3)
    ours = env.reset()
    theirs = twin.reset()
    ended = 0
    for turn in range(steps):
        assert_same(ours, theirs)
        action = legal_action(ours["action_mask"], generator)
        if turn % 7 == 6:
            action[turn % env.num_envs] = -1
        seen, ours = env.step_and_maybe_reset(ours.set("action", action))
        expected, theirs = twin.step_and_maybe_reset(theirs.set("action", action))
        assert_same(seen, expected)
        ended += int(seen["next", "done"].sum())
    mine, other = env.state_dict(), twin.state_dict()
    assert all(torch.equal(mine[name], other[name]) for name in mine)
    return ended


# -- on a CUDA device alone --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="interpreted kernels run on no CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_transition_follows_its_inputs(kind: str) -> None:
    rng = np.random.default_rng(5)
    s = scene(5, kind, num_envs=4)
    there = s.to("cuda")
    state = copy_of(state_of(s, rng), "cuda")
    action = torch.zeros(4, dtype=torch.int64).cuda()

    def step() -> tuple[Moved, PackingState]:
        moved = triton_kernels.advance(state, action, action, there.catalogue, s.bin_)
        item_id = moved.state.item_id
        return moved, triton_kernels.restart(moved.state, ~moved.legal, action, item_id, there.catalogue, s.bin_)

    graph, (moved, begun) = parity.captured(step)
    for _ in range(4):
        now = state_of(s, rng)
        chosen = some_actions(now, rng)
        for field in fields(PackingState):
            getattr(state, field.name).copy_(getattr(now, field.name))
        action.copy_(chosen)
        graph.replay()
        expected = transition.advance(now, chosen, chosen, s.catalogue, s.bin_, reference.place)
        assert_same_move(on_cpu(moved), expected)
        again = ~expected.legal, chosen, expected.state.item_id
        assert_same_state(copy_of(begun), transition.restart(expected.state, *again, s.catalogue, s.bin_))


# -- numbers out of every range --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["boxes", "solids"])
def test_hostile_states_and_actions_do_the_same(kind: str, device: torch.device) -> None:
    hostile.assert_steps_agree(triton_kernels, kind, SEEDS, device)
