"""The environment by its contract: keys, physics, rewards, resets, seeds, state."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.envs.utils import check_env_specs

from tests.envs.packing.settings import SETTINGS, assert_same, legal_action, packing, play
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences, CutBoxes, ProceduralSolids, RandomBoxes
from torchrl_gpu.envs.packing.kernels import reference

# -- keys and specs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS)
def test_specs_hold(setting: str) -> None:
    check_env_specs(packing(setting), seed=0)


@pytest.mark.parametrize("setting", ["three visible", "oblong", "irregular"])
def test_keys_shapes_and_types_are_those_documented(setting: str, device: torch.device) -> None:
    env = packing(setting, num_envs=4, device=device)
    n, k, o, (gx, gy) = 4, env.visible_items, env.num_orientations, env.grid
    (x, y), (p, q) = env.bin.cells, env.catalogue.footprint
    observed = {
        "box_heightmap": ((n, x, y), torch.float32),
        "item_id": ((n, k), torch.int64),
        "item_size": ((n, k, o, 4), torch.float32),
        "item_top": ((n, k, o, p, q), torch.float32),
        "item_bottom": ((n, k, o, p, q), torch.float32),
        "z_map": ((n, k, o, gx, gy), torch.float32),
        "legal_mask": ((n, k, o, gx, gy), torch.bool),
        "action_mask": ((n, k * o * gx * gy), torch.bool),
        "item_mask": ((n, k), torch.bool),
        "utilization": ((n, 1), torch.float32),
        "num_packed": ((n, 1), torch.int64),
        "episode_step": ((n, 1), torch.int64),
    }
    ended = {name: ((n, 1), torch.bool) for name in ("done", "terminated", "truncated")}
    first = env.reset()
    step = env.step(first.clone().set("action", legal_action(first["action_mask"])))["next"]
    for seen, wanted in ((first, observed | ended), (step, observed | ended | {"reward": ((n, 1), torch.float32)})):
        assert {key: (tuple(value.shape), value.dtype) for key, value in seen.items()} == wanted
        assert all(value.device.type == device.type for value in seen.values())
    assert env.action_spec.shape == (n,)
    assert env.action_spec.dtype == torch.int64
    assert (env.action_shape, env.num_actions) == ((k, o, gx, gy), k * o * gx * gy)
    assert env.batch_size == (n,)


@pytest.mark.parametrize("include", [(), ("z_map",), ("item_top", "item_bottom"), ("item_bottom", "future_items")])
def test_large_observations_can_be_left_out_and_the_mask_cannot(include: tuple[str, ...]) -> None:
    env = packing(include=include)
    keys = set(env.reset().keys())
    assert keys & {"item_top", "item_bottom", "z_map", "future_items"} == set(include)
    assert {"action_mask", "legal_mask", "box_heightmap"} <= keys
    check_env_specs(env)


def test_alone_it_is_bpp10() -> None:
    env = PackingEnv(num_envs=16, device="cpu", seed=0)
    assert env.bin_size == (10.0, 10.0, 10.0)
    assert env.grid == (10, 10)
    assert env.cell == (1.0, 1.0)
    assert env.action_shape == (1, 2, 10, 10)
    sides = env.catalogue.extent[:, 0]
    assert (sides.min(), sides.max()) == (2, 5)
    assert env.catalogue.num_items == 64


def test_the_irregular_reference_setting() -> None:
    size, items = (0.4, 0.4, 0.3), ProceduralSolids(6)
    env = PackingEnv(
        1, bin_size=size, resolution=200, grid_step=4, items=items, num_items=20, visible_items=2,
        orientations="cube", device="cpu", seed=0, include=(),
    )  # fmt: skip
    assert env.action_shape == (2, 24, 50, 50)
    step = env.rand_step(env.reset())
    assert step["next", "box_heightmap"].shape == (1, 200, 200)


def test_constructor_arguments_can_be_read_back() -> None:
    source = RandomBoxes(1, 3)
    arguments: dict[str, Any] = {
        "num_envs": 2,
        "bin_size": (4.0, 6.0, 5.0),
        "resolution": (4, 6),
        "grid_step": 2,
        "items": source,
        "num_items": 7,
        "visible_items": 2,
        "orientations": "axis",
        "stability": "corners",
        "reward": "objective",
        "objective_weights": (0.5, 0.25, 0.0),
        "stability_judge": "com",
        "skip_unplaceable": True,
        "order": "volume",
        "include": ("z_map",),
        "backend": "eager",
        "incremental": False,
        "device": torch.device("cpu"),
        "seed": 5,
        "first_env": 3,
        "copy_observations": True,
    }
    assert set(arguments) == set(inspect.signature(PackingEnv.__init__).parameters) - {"self"}
    env = PackingEnv(**arguments)
    assert {name: getattr(env, name) for name in arguments} == arguments
    assert PackingEnv(1, device="cpu").items.min_side == 2  # a word is read back as the source that it names
    other = env.like(5, seed=6)
    assert {name: getattr(other, name) for name in arguments} == arguments | {"num_envs": 5, "seed": 6}


# -- the first observation --------------------------------------------------------------------------------------------


def test_an_empty_bin_shows_too_tall_and_missing_items(tmp_path: Path) -> None:
    # 2×3×4 cells in a bin 3 cells high: lying only. Two slots for one item: the other is empty.
    np.save(tmp_path / "one.npy", np.array([[[2, 3, 4]]]))
    env = PackingEnv(
        2, items=BoxSequences(str(tmp_path / "one.npy")), bin_size=(5.0, 5.0, 3.0), resolution=5, visible_items=2,
        orientations="axis", device="cpu", seed=0,
    )  # fmt: skip
    first = env.reset()
    assert first["item_id"].tolist() == [[0, -1]] * 2
    standing = env.catalogue.height[0] > 3
    assert standing.any()
    assert (~standing).any()
    legal = first["legal_mask"].flatten(3).any(3)  # (N, K, O)
    assert torch.equal(legal[0, 0], ~standing)
    assert not legal[:, 1].any()
    assert first["item_mask"].tolist() == [[True, False]] * 2
    assert (first["item_size"][:, 1] == 0).all()
    assert (first["item_top"][:, 1] == 0).all()
    assert first["item_bottom"][:, 1].isposinf().all()
    z_map, expected = env.kernels.drop_map(first["box_heightmap"], first["item_id"], env.catalogue, env.bin)
    assert torch.equal(first["z_map"], z_map)
    assert torch.equal(first["legal_mask"], expected)


@pytest.mark.parametrize("setting", ["three visible", "irregular, on its corners"])
def test_maps_of_the_visible_items_are_those_of_the_catalogue(setting: str) -> None:
    env = packing(setting)
    seen, _ = play(env, 5)
    for n, k, o in np.ndindex(*seen[-1]["next", "item_top"].shape[:3]):
        item = seen[-1]["next", "item_id"][n, k]
        top, bottom = env.catalogue.maps(item, torch.tensor(o))
        assert torch.equal(seen[-1]["next", "item_top"][n, k, o], top)
        assert torch.equal(seen[-1]["next", "item_bottom"][n, k, o], bottom)
        size = seen[-1]["next", "item_size"][n, k, o]
        expected = [*(env.catalogue.extent[item, o] * torch.tensor(env.cell)).tolist(), env.catalogue.height[item, o]]
        assert size.tolist() == pytest.approx([*map(float, expected), float(env.catalogue.volume[item])])


# -- a step -----------------------------------------------------------------------------------------------------------


def unit_boxes(**changes: Any) -> PackingEnv:
    """Two bins of 4×4×4 cells and boxes of 2×2×2."""
    arguments = {"bin_size": (4.0, 4.0, 4.0), "resolution": 4, "items": RandomBoxes(2, 2), "orientations": "fixed"}
    return PackingEnv(2, device="cpu", seed=0, **arguments | changes)


def act(env: PackingEnv, current: TensorDict, *action: int) -> TensorDict:
    return env.step(current.select(*env.observation_spec.keys()).set("action", torch.tensor(action)))["next"]


def test_a_step_by_hand() -> None:
    # Action x·4 + y. The first box goes to (0, 0) in bin 0 and to (2, 1) in bin 1, where cell (2, 1) is action 9.
    env = unit_boxes()
    first = env.reset()
    assert first["action_mask"][0].view(4, 4).tolist() == [[True, True, True, False]] * 3 + [[False] * 4]
    step = act(env, first, 0, 9)
    assert step["box_heightmap"].tolist() == [
        [[2, 2, 0, 0], [2, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
        [[0, 0, 0, 0], [0, 0, 0, 0], [0, 2, 2, 0], [0, 2, 2, 0]],
    ]
    assert step["reward"].tolist() == [[0.125], [0.125]]  # 8 of 64 m³
    assert step["utilization"].tolist() == [[0.125], [0.125]]
    assert step["num_packed"].tolist() == step["episode_step"].tolist() == [[1], [1]]
    assert step["z_map"][0, 0, 0].tolist() == [[2, 2, 0, 4], [2, 2, 0, 4], [0, 0, 0, 4], [4, 4, 4, 4]]
    assert not step["done"].any()
    assert env.placements[:, 0].tolist() == [[0, 0, 0, 0], [0, 0, 2, 1]]
    second = act(env, step, 5, 9)  # on the edge of the first box in bin 0, on top of it in bin 1
    assert second["box_heightmap"].amax((1, 2)).tolist() == [4, 4]
    assert env.placement_z[:, :2].tolist() == [[0, 2], [0, 2]]
    assert env.placements[:, 1, 2:].tolist() == [[1, 1], [2, 1]]


def test_a_coarse_placement_reaches_the_wall() -> None:
    # 10 cells in steps of 4 and boxes of 3: the third placement, action (2, 2) = 8, stands at 7, 7.
    env = PackingEnv(1, grid_step=4, items=RandomBoxes(3, 3), orientations="fixed", device="cpu", seed=0)
    step = act(env, env.reset(), 8)
    assert env.placements[0, 0].tolist() == [0, 0, 7, 7]
    assert (step["box_heightmap"][0, 7:, 7:] == 3).all()
    assert step["box_heightmap"].sum() == 27


def test_the_objective_by_hand() -> None:
    # J = 0.75 C + 0.25 P + 0.25 S with boxes of 8 m³ on 16 m².
    #   one box:              C = 8 / (16·2) = 1/4,  P = 8 / (4·2) = 1   → J = 0.1875 + 0.25 + 0.25 = 0.6875
    #   one more beside it:   C = 16 / (16·2) = 1/2, P = 1               → J = 0.875,  gain 0.1875
    #   one more on top:      C = 16 / (16·4) = 1/4, P = 16 / (4·4) = 1  → J = 0.6875, gain 0
    #   one across its edge:  C = 1/4, P = 16 / (3·2 + 4·4) = 16/22      → gain 0.25 · (16/22 − 1)
    env = unit_boxes(reward="objective")
    first = act(env, env.reset(), 0, 0)
    assert first["reward"].flatten().tolist() == [0.6875, 0.6875]
    second = act(env, first, 2, 0)
    assert second["reward"].flatten().tolist() == [0.1875, 0]
    env.reset()
    edge = act(env, act(env, env.reset(), 0, 0), 5, 5)
    assert edge["reward"].flatten().tolist() == pytest.approx([0.25 * (16 / 22 - 1)] * 2)


def test_the_objective_with_other_weights_by_hand() -> None:
    # One box as above: C = 1/4, P = 1, S = 1.
    for weights, gain in (((1, 0, 0), 0.25), ((0, 1, 0), 1), ((0, 0, 1), 1), ((1, 2, 3), 5.25)):
        env = unit_boxes(reward="objective", objective_weights=weights)
        assert act(env, env.reset(), 0, 0)["reward"].flatten().tolist() == [gain, gain]


def illegal_actions(env: PackingEnv, mask: torch.Tensor) -> list[torch.Tensor]:
    outside = [-1, env.num_actions, 10**12, -(10**12)]
    return [torch.full((env.num_envs,), a) for a in outside] + [(~mask).int().argmax(1)]


def test_the_judge_of_the_objective_by_hand() -> None:
    # Boxes of 27 m³ on 36 m². The first stands on the floor at (0, 0). The second, at (2, 2), touches the cell (2, 2)
    # alone, and its centre (3.5, 3.5) is beyond; in the other bin it stands on the floor at (3, 0).
    #   J = 0.75 · 27 / (36·3) + 0.25 · 27 / 27 + 0.25 S = 0.4375 + 0.25     with S = 1
    #   J = 0.75 · 54 / (36·6) + 0.25 · 54 / (8·3 + 9·6)                     with S = 0, by the rule 0.25 more
    gains = {}
    for judge in ("com", "rule"):
        size = {"bin_size": (6.0, 6.0, 6.0), "resolution": 6, "items": RandomBoxes(3, 3)}
        env = unit_boxes(**size, reward="objective", stability_judge=judge)
        first = act(env, env.reset(), 0, 0)
        assert env.state.stable.tolist() == [True, True]
        second = act(env, first, 2 * 6 + 2, 3 * 6)
        assert env.state.stable.tolist() == [judge == "rule", True]
        gains[judge] = [first["reward"][0].item(), second["reward"][0].item()]
    assert gains["rule"] == pytest.approx([0.6875, 0.1875 + 0.25 * 54 / 78 - 0.4375])
    assert gains["com"] == pytest.approx([0.6875, 0.1875 + 0.25 * 54 / 78 - 0.6875])


def test_the_centre_of_mass_alone_decides_what_is_legal_on_the_floor() -> None:
    # Of the solids in 24 orientations some do not stand on the floor; they are not offered, and all others are.
    env = packing("irregular", stability="com")
    first = env.reset()
    offered = first["legal_mask"].flatten(3).any(3)  # (N, K, O)
    for n, k, o in np.ndindex(*offered.shape):
        item = int(first["item_id"][n, k])
        contact = reference.item_maps(env.catalogue, item, o)[1] <= 0.5 * min(env.cell)
        assert offered[n, k, o] == reference.holds(contact, env.catalogue.plumb[item, o].numpy())
    assert offered.any()
    assert not offered.all()


@pytest.mark.parametrize("reward", ["utilization", "objective"])
@pytest.mark.parametrize("setting", ["three visible", "irregular, on its corners", "irregular, judged"])
def test_an_illegal_action_changes_nothing_and_ends_the_episode(setting: str, reward: str) -> None:
    env = packing(setting, reward=reward)
    _, current = play(env, 3)
    saved = env.state_dict()
    for action in illegal_actions(env, current["action_mask"]):
        env.load_state_dict(saved)
        step = env.step(current.clone().set("action", action))["next"]
        assert step["terminated"].all()
        assert step["done"].all()
        assert not step["truncated"].any()
        assert (step["reward"] == 0).all()
        assert torch.equal(step["episode_step"], current["episode_step"] + 1)
        kept = [key for key, _ in env.observation_spec.items() if key != "episode_step"]
        assert_same(step.select(*kept), current.select(*kept))
        after = env.state_dict()
        assert all(torch.equal(after[k], saved[k]) for k in saved if k != "step_count")


def test_the_episode_ends_with_the_last_item() -> None:
    env = packing("three visible", num_envs=4, num_items=4, items=RandomBoxes(1, 2))
    seen, _ = play(env, 4)
    assert [(step["next", "item_id"] >= 0).sum(1).tolist() for step in seen] == [[3] * 4, [2] * 4, [1] * 4, [0] * 4]
    assert [step["next", "done"].all().item() for step in seen] == [False, False, False, True]
    assert (seen[-1]["next", "num_packed"] == 4).all()
    assert not seen[-1]["next", "action_mask"].any()


@pytest.fixture
def slabs(tmp_path: Path) -> Callable[..., PackingEnv]:
    """A bin of 4×4 cells, 2 high, and boxes of 4×4 cells in this order: 1, 2, 2, 1 and 1 high."""
    path = tmp_path / "slabs.npy"
    np.save(path, np.array([[[4, 4, height] for height in (1, 2, 2, 1, 1)]]))

    def make(**changes: Any) -> PackingEnv:
        arguments = {"bin_size": (4.0, 4.0, 2.0), "resolution": 4, "items": str(path), "orientations": "fixed"}
        return PackingEnv(1, device="cpu", seed=0, **arguments | changes)

    return make


def test_passing_over_by_hand(slabs: Callable[..., PackingEnv]) -> None:
    # The first and the fourth fill the bin; the second and the third do not fit between them, nor does the last.
    env = slabs(skip_unplaceable=True)
    current, told = env.reset(), []
    for action in (0, 0, -1, 0, 7):  # what does not fit is passed over by any action
        current = env.step(current.set("action", torch.tensor([action])))["next"]
        told.append([current[name].item() for name in ("num_packed", "episode_step", "reward", "done")])
        current = current.exclude("reward")
    assert told == [[1, 1, 0.5, False], [1, 2, 0, False], [1, 3, 0, False], [2, 4, 0.5, False], [2, 5, 0, True]]
    assert env.placement_z[0, :2].tolist() == [0, 1]
    again = env.step(current.set("action", torch.tensor([-1])))["next"]
    assert again["done"].item()
    assert again["num_packed"].item() == 2


def test_without_passing_over_the_first_that_does_not_fit_ends_it(slabs: Callable[..., PackingEnv]) -> None:
    env = slabs()
    step = env.step(env.reset().set("action", torch.tensor([0])))["next"]
    assert step["done"].item()
    assert step["num_packed"].item() == 1


def test_while_anything_fits_an_illegal_action_ends_the_episode_as_ever(slabs: Callable[..., PackingEnv]) -> None:
    env = slabs(skip_unplaceable=True, visible_items=3)
    first = env.reset()
    step = env.step(first.clone().set("action", torch.tensor([-1])))["next"]
    assert step["done"].item()
    assert torch.equal(step["item_id"], first["item_id"])


def test_one_at_a_time_passed_over_is_the_first_that_fits_of_all() -> None:
    # What no longer fits never will without a stability rule: so all at once, the first that fits, are the same bins.
    setting = {"setting": "irregular, passing over", "num_envs": 5}
    shown = {name: packing(**setting, visible_items=k) for name, k in (("one", 1), ("all", 14))}
    placed = {}
    for name, env in shown.items():
        current = env.reset()
        for _ in range(15):
            first = current["action_mask"].int().argmax(1)  # of the first item that fits, as the slot counts most
            current = env.step(current.set("action", first))["next"].exclude("reward")
        assert current["done"].all()
        placed[name] = env.placements, env.num_packed
    for one, every in zip(*placed.values(), strict=True):
        assert torch.equal(one, every)
    assert (placed["one"][1] < 14).any()


@pytest.mark.parametrize(
    ("order", "changes"),
    [
        ("volume", {"items": CutBoxes(pool=8)}),
        ("volume", {"num_items": 20}),  # of an endless sequence, too
        ("box", {"setting": "irregular", "num_items": 20}),
    ],
)
def test_the_largest_item_comes_first(order: str, changes: dict[str, Any]) -> None:
    plain, ordered = (packing(num_envs=6, order=each, **changes) for each in ("sequence", order))
    length, items = torch.arange(60).expand(6, -1), []
    for env in (plain, ordered):
        env.reset()
        items.append(env.item_sequences.items(env.state.key, length))
    assert torch.equal(items[0].sort(1).values, items[1].sort(1).values)
    size = plain.catalogue.volume if order == "volume" else plain.catalogue.box_volume(plain.bin)
    assert (torch.where(items[1] < 0, 0.0, size[items[1].clamp_min(0)]).diff(dim=1) <= 0).all()
    assert not torch.equal(*items)


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize("setting", ["three visible", "irregular, on its balance"])
def test_the_item_mask_says_what_still_fits(setting: str, backend: str) -> None:
    env = packing(setting, num_envs=6, backend=backend, include=())
    current, seen = env.reset(), []
    for _ in range(15):
        step, following = env.step_and_maybe_reset(current.set("action", legal_action(current["action_mask"])))
        for shown in (step, step["next"], following):
            assert torch.equal(shown["item_mask"], shown["legal_mask"].flatten(2).any(2))
        assert torch.equal(step["next", "done"][:, 0], ~step["next", "item_mask"].any(1))
        seen.append(step["item_mask"].sum(1))
        current = following
    count = torch.cat(seen)
    assert (count == env.visible_items).any()
    assert ((count > 0) & (count < env.visible_items)).any()  # some item fits where another does not


# -- resets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["three visible", "irregular, on its corners", "cut"])
def test_a_partial_reset_leaves_the_other_rows_as_they_are(setting: str) -> None:
    env = packing(setting, num_envs=4, num_items=30)
    _, current = play(env, 3)
    before = env.state_dict()
    mask = torch.tensor([True, False, True, False])
    after = env.reset(current.clone().set("_reset", mask[:, None]))
    state = env.state_dict()
    for name in set(before) - {"seed"}:
        assert torch.equal(state[name][~mask], before[name][~mask]), name
    assert_same(after.select(*env.observation_spec.keys())[~mask], current.select(*env.observation_spec.keys())[~mask])
    assert (before["num_packed"][mask] > 0).any()
    assert (after["box_heightmap"][mask] == 0).all()
    assert (after["num_packed"][mask] == 0).all()
    assert (after["utilization"][mask] == 0).all()
    assert (after["episode_step"][mask] == 0).all()
    assert not after["done"].any()


# -- seeds and state --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["three visible", "cut", "irregular, on its corners"])
def test_the_same_seed_gives_the_same_run_and_another_one_does_not(setting: str) -> None:
    runs = [play(packing(setting, seed=seed), 8)[0] for seed in (4, 4, 5)]
    for first, again in zip(*runs[:2], strict=True):
        assert_same(first, again)
    assert any(not torch.equal(a["item_id"], b["item_id"]) for a, b in zip(runs[0], runs[2], strict=True))


def episodes(env: PackingEnv, count: int) -> torch.Tensor:
    """First items (count, N, 6) of the next episodes of every environment."""
    out = []
    for _ in range(count):
        env.reset()
        out.append(env.item_sequences.items(env.state.key, torch.arange(6).expand(env.num_envs, -1)))
    return torch.stack(out)


@pytest.mark.parametrize("setting", ["bpp10", "cut", "irregular, on its corners"])
def test_what_an_environment_sees_does_not_depend_on_how_many_there_are(setting: str) -> None:
    few, many, shifted = (packing(setting, n, first_env=f) for n, f in ((4, 0), (16, 0), (4, 12)))
    seen = episodes(many, 3)
    assert torch.equal(episodes(few, 3), seen[:, :4])
    assert torch.equal(episodes(shifted, 3), seen[:, 12:])
    assert len(seen.flatten(0, 1).unique(dim=0)) > 4  # and they are not all the same


def test_what_an_environment_sees_does_not_depend_on_the_resets_of_others() -> None:
    env = packing(num_envs=3)
    expected = episodes(packing(num_envs=3), 4)[..., :1]
    env.reset()
    begun = [1, 1, 1]
    for row in (2, 0, 2, 1, 0, 2, 0, 1, 1):
        mask = torch.arange(3) == row
        first = env.reset(TensorDict({"_reset": mask[:, None]}, batch_size=3))["item_id"]
        assert torch.equal(first[row], expected[begun[row], row])
        begun[row] += 1


def test_without_a_seed_torchs_own_decides() -> None:
    seeds = []
    for manual in (0, 0, 1):
        torch.manual_seed(manual)
        seeds.append(packing(seed=None).seed)
    assert seeds[0] == seeds[1] != seeds[2]


def test_a_run_draws_nothing_from_torchs_generator() -> None:
    env = packing()
    before = torch.random.get_rng_state()
    play(env, 30)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("setting", ["three visible", "cut", "irregular, on its support"])
def test_a_restored_environment_goes_on_bit_by_bit(setting: str, device: torch.device) -> None:
    env, other = packing(setting, device=device), packing(setting, device=device, seed=99)
    _, current = play(env, 5)
    saved = env.state_dict()
    start = current.clone()
    expected, _ = play(env, 10, seed=1, start=current)
    play(other, 3)
    other.load_state_dict({name: value.cpu() for name, value in saved.items()})  # as from a file
    came, _ = play(other, 10, seed=1, start=start)
    for first, second in zip(expected, came, strict=True):
        assert_same(first, second)
    assert other.seed == env.seed
    assert any(step["next", "done"].any() for step in came)


def test_a_saved_state_is_not_the_running_one(tmp_path: Path) -> None:
    env = packing()
    play(env, 2)
    saved = env.state_dict()
    copy = {name: value.clone() for name, value in saved.items()}
    play(env, 4)
    assert all(torch.equal(saved[name], copy[name]) for name in saved)
    env.load_state_dict(saved)
    play(env, 4)
    assert all(torch.equal(saved[name], copy[name]) for name in saved)
    torch.save(saved, tmp_path / "state.pt")
    assert set(torch.load(tmp_path / "state.pt", weights_only=True)) == set(saved)


def test_states_of_other_shapes_are_refused() -> None:
    env = packing(num_envs=3)
    with pytest.raises(ValueError, match=r"^PackingEnv.load_state_dict: \w+ must have shape \(3,.*\); got \(4,.*\)$"):
        env.load_state_dict(packing(num_envs=4).state_dict())
    with pytest.raises(ValueError, match=r"must have shape \(3, 10, 10\); got \(3, 5, 5\)$"):
        env.load_state_dict(env.state_dict() | {"heightmap": torch.zeros(3, 5, 5)})
    partial = {name: value for name, value in env.state_dict().items() if name != "key"}
    with pytest.raises(
        ValueError, match=r"^PackingEnv.load_state_dict: want the entries \['episode', .*; got \['episode'"
    ):
        env.load_state_dict(partial)
    with pytest.raises(ValueError, match=r"want the entries .*; got .*'spare'"):
        env.load_state_dict(env.state_dict() | {"spare": torch.zeros(3)})
    env.load_state_dict({"volume": torch.ones(3)}, strict=False)
    assert torch.equal(env.state.volume, torch.ones(3))


@pytest.mark.parametrize("setting", ["three visible", "irregular, on its support"])
def test_replay_makes_again_what_it_does_not_keep(setting: str) -> None:
    env = packing(setting)
    seen, _ = play(env, 4)
    states = torch.cat([step.select(*env.observation_spec.keys()) for step in seen])
    restored = env.restore(states.select(*env.stored_keys))
    for key in ("z_map", "legal_mask", "action_mask", "item_mask", "item_size"):
        assert torch.equal(restored[key], states[key])


def checksum(env: PackingEnv) -> str:
    """Of the action masks of ten steps, each the first legal action."""
    digest, current = hashlib.sha256(), env.reset()
    for _ in range(10):
        current = env.step_and_maybe_reset(current.set("action", current["action_mask"].int().argmax(1)))[1]
        digest.update(np.packbits(current["action_mask"].numpy()).tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize(
    ("changes", "golden"),
    [
        ({}, "384b8a8bb4d76f4e"),
        ({"seed": 1}, "145d8a4d9efc997c"),
        ({"visible_items": 3, "orientations": "axis", "stability": "support"}, "adc8f53797047bb4"),
    ],
)
def test_the_streams_have_not_changed(changes: dict[str, Any], golden: str) -> None:
    # A change here changes every run that anyone has recorded: it needs a line in the changelog.
    assert checksum(packing(num_envs=8, **changes)) == golden


# -- bad input --------------------------------------------------------------------------------------------------------


# Every argument with values of every kind is in tests/envs/test_constructors.py.
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grid_step": 11}, "Bin: grid_step must be from 1 to the bin's 10 cells; got 11"),
        (
            {"objective_weights": (1.0, 1.0)},
            "PackingEnv: objective_weights must be three finite numbers from 0 on; got (1.0, 1.0)",
        ),
        (
            {"include": ("action_mask",)},
            "PackingEnv: include must be one of item_top, item_bottom, z_map, future_items, packed_items;"
            " got 'action_mask'",
        ),
        ({"orientations": 77.0}, "orientation_set: the step must be positive and divide 360 degrees; got 77.0"),
        (
            {"bin_size": (10.0, 10.0, 0.5)},  # lower than a cell
            "box_catalogue: every box must fit the bin of [10.0, 10.0, 0.5] cells in some orientation; got a box of"
            " [2, 2, 2] cells",
        ),
    ],
)
def test_bad_arguments_say_where_what_is_wanted_and_what_came(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        PackingEnv(**{"num_envs": 2, "device": "cpu"} | arguments)
    assert str(error.value) == message
