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

from tests.envs.packing.settings import assert_same, legal_action, packing, play
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences, CutBoxes, RandomBoxes

# -- keys and specs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["three visible", "oblong", "irregular"])
def test_keys_shapes_and_types_are_those_documented(setting: str, device: torch.device) -> None:
    env = packing(setting, num_envs=4, device=device)
    n = 4
    k = env.visible_items
    o = env.num_orientations
    gx, gy = env.grid
    x, y = env.bin.cells
    p, q = env.catalogue.footprint
    observed = {"box_heightmap": ((n, x, y), torch.float32), "item_id": ((n, k), torch.int64)}
    observed["item_size"] = ((n, k, o, 4), torch.float32)
    observed["item_top"] = ((n, k, o, p, q), torch.float32)
    observed["item_bottom"] = ((n, k, o, p, q), torch.float32)
    observed["z_map"] = ((n, k, o, gx, gy), torch.float32)
    observed["legal_mask"] = ((n, k, o, gx, gy), torch.bool)
    observed["action_mask"] = ((n, k * o * gx * gy), torch.bool)
    observed["item_mask"] = ((n, k), torch.bool)
    observed["utilization"] = ((n, 1), torch.float32)
    observed["num_packed"] = ((n, 1), torch.int64)
    observed["episode_step"] = ((n, 1), torch.int64)
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


def test_constructor_arguments_can_be_read_back() -> None:
    source = RandomBoxes(1, 3)
    arguments: dict[str, object] = {"num_envs": 2, "bin_size": (4.0, 6.0, 5.0), "resolution": (4, 6), "grid_step": 2}
    arguments |= {"items": source, "num_items": 7, "visible_items": 2, "orientations": "axis", "order": "volume"}
    arguments |= {"stability": "load_bearing", "margin": 0.5, "max_tilt": 2, "bearing_tilt": 1}
    arguments |= {"fallback": "none", "friction": 0.75}
    arguments |= {"reward": "objective", "objective_weights": (0.5, 0.25, 0.0), "stability_judge": "com"}
    arguments |= {"skip_unplaceable": True, "include": ("z_map",), "backend": "eager", "incremental": False}
    arguments |= {"device": torch.device("cpu"), "seed": 5, "first_env": 3, "copy_observations": True, "walls": False}
    assert set(arguments) == set(inspect.signature(PackingEnv.__init__).parameters) - {"self"}
    env = PackingEnv(**arguments)
    assert {name: getattr(env, name) for name in arguments} == arguments
    # A word is read back as the source that it names.
    assert PackingEnv(1, device="cpu").items.min_side == 2
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


def unit_boxes(**changes: object) -> PackingEnv:
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
    first_bin, second_bin = step["box_heightmap"].tolist()
    assert first_bin == [[2, 2, 0, 0], [2, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert second_bin == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 2, 2, 0], [0, 2, 2, 0]]
    # 8 of 64 m³.
    assert step["reward"].tolist() == [[0.125], [0.125]]
    assert step["utilization"].tolist() == [[0.125], [0.125]]
    assert step["num_packed"].tolist() == step["episode_step"].tolist() == [[1], [1]]
    assert step["z_map"][0, 0, 0].tolist() == [[2, 2, 0, 4], [2, 2, 0, 4], [0, 0, 0, 4], [4, 4, 4, 4]]
    assert not step["done"].any()
    assert env.placements[:, 0].tolist() == [[0, 0, 0, 0], [0, 0, 2, 1]]
    # It is on the edge of the first box in bin 0, and on top of it in bin 1.
    second = act(env, step, 5, 9)
    assert second["box_heightmap"].amax((1, 2)).tolist() == [4, 4]
    assert env.placement_z[:, :2].tolist() == [[0, 2], [0, 2]]
    assert env.placements[:, 1, 2:].tolist() == [[1, 1], [2, 1]]


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


@pytest.mark.parametrize("setting", ["three visible", "irregular, on its corners", "irregular, judged"])
def test_an_illegal_action_changes_nothing_and_ends_the_episode(setting: str) -> None:
    env = packing(setting)
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
    """Build a bin of 4×4 cells, 2 high, and boxes of 4×4 cells.

    They are 1, 2, 2, 1 and 1 high, in this order.
    """
    path = tmp_path / "slabs.npy"
    np.save(path, np.array([[[4, 4, height] for height in (1, 2, 2, 1, 1)]]))

    def make(**changes: object) -> PackingEnv:
        arguments = {"bin_size": (4.0, 4.0, 2.0), "resolution": 4, "items": str(path), "orientations": "fixed"}
        return PackingEnv(1, device="cpu", seed=0, **arguments | changes)

    return make


def test_passing_over_by_hand(slabs: Callable[..., PackingEnv]) -> None:
    # The first and the fourth fill the bin; the second and the third do not fit between them, nor does the last.
    env = slabs(skip_unplaceable=True)
    current, told = env.reset(), []
    # Any action skips what does not fit.
    for action in (0, 0, -1, 0, 7):
        current = env.step(current.set("action", torch.tensor([action])))["next"]
        told.append([current[name].item() for name in ("num_packed", "episode_step", "reward", "done")])
        current = current.exclude("reward")
    assert told == [[1, 1, 0.5, False], [1, 2, 0, False], [1, 3, 0, False], [2, 4, 0.5, False], [2, 5, 0, True]]
    assert env.placement_z[0, :2].tolist() == [0, 1]
    again = env.step(current.set("action", torch.tensor([-1])))["next"]
    assert again["done"].item()
    assert again["num_packed"].item() == 2
    # Without the option, the first item that does not fit ends the episode.
    env = slabs()
    step = env.step(env.reset().set("action", torch.tensor([0])))["next"]
    assert (step["done"].item(), step["num_packed"].item()) == (True, 1)
    # While anything fits, an illegal action still ends the episode.
    env = slabs(skip_unplaceable=True, visible_items=3)
    first = env.reset()
    step = env.step(first.clone().set("action", torch.tensor([-1])))["next"]
    assert step["done"].item()
    assert torch.equal(step["item_id"], first["item_id"])


@pytest.mark.parametrize(
    ("order", "changes"),
    [
        ("volume", {"items": CutBoxes(pool=8)}),
        # The sequence may be endless, too.
        ("volume", {"num_items": 20}),
        ("box", {"setting": "irregular", "num_items": 20}),
    ],
)
def test_the_largest_item_comes_first(order: str, changes: dict[str, object]) -> None:
    plain = packing(num_envs=6, order="sequence", **changes)
    ordered = packing(num_envs=6, order=order, **changes)
    length, items = torch.arange(60).expand(6, -1), []
    for env in (plain, ordered):
        env.reset()
        items.append(env.item_sequences.items(env.state.key, length))
    assert torch.equal(items[0].sort(1).values, items[1].sort(1).values)
    size = plain.catalogue.volume if order == "volume" else plain.catalogue.box_volume(plain.bin)
    assert (torch.where(items[1] < 0, 0.0, size[items[1].clamp_min(0)]).diff(dim=1) <= 0).all()
    assert not torch.equal(*items)


# -- seeds and state --------------------------------------------------------------------------------------------------


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
def test_the_streams_have_not_changed(changes: dict[str, object], golden: str) -> None:
    # A change here changes every run that anyone has recorded: it needs a line in the changelog.
    assert checksum(packing(num_envs=8, **changes)) == golden


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("margin", 0.05, {"stability": "load_bearing"}),
        ("max_tilt", 2.0, {"stability": "load_bearing"}),
        ("bearing_tilt", 2.0, {"stability": "load_bearing"}),
        ("objective_weights", (1.0, 0.0, 0.0), {"reward": "objective"}),
    ],
)
def test_options_that_nothing_reads_are_refused(option: str, value: Any, wanted: dict[str, str]) -> None:
    setting = {"bin_size": (5.0, 5.0, 5.0), "resolution": 5, "items": RandomBoxes(1, 3), "device": "cpu"}
    with pytest.raises(ValueError, match=f"{option} .*without .*got"):
        PackingEnv(2, **{**setting, option: value})
    assert getattr(PackingEnv(2, **{**setting, **wanted, option: value}), option) == value
