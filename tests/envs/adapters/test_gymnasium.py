"""Environments under Gymnasium's contract of vector environments.

Its own checker looks at one row of each.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from typing import Any

import numpy as np
import pytest
import torch

from tests.envs.adapters.kinds import KINDS, each_kind, env_of
from tests.envs.marine.settings import marine
from tests.no_host_reads import NoHostReads
from torchrl_gpu import native

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env, data_equivalence  # noqa: E402
from gymnasium.vector import AutoresetMode, VectorEnv  # noqa: E402
from gymnasium.wrappers.vector import RecordEpisodeStatistics  # noqa: E402

from torchrl_gpu.envs import GymnasiumVectorEnv  # noqa: E402

# of one row: the number of actions or size of one, and whether what it does is masked
ACTIONS = {"packing": (50, True), "v2": (9, True), "v3": (2, False), "dishes": (2, False)}


class OneRow(gymnasium.Env[Any, Any]):
    """The only row of a vector environment.

    Its last observation is kept until it is reset.
    """

    metadata = GymnasiumVectorEnv.metadata
    render_mode = "rgb_array"

    def __init__(self, kind: str) -> None:
        changes = {"curriculum": [[0, 1, 1, 0, 5.0]]} if kind in ("v2", "v3") else {}
        self.rows = GymnasiumVectorEnv(
            env_of(kind, num_envs=1, **changes), render_mode="rgb_array", render_size=(64, 48)
        )
        self.observation_space = self.rows.single_observation_space
        self.action_space = self.rows.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        seen, infos = self.rows.reset(seed=seed, options=options)
        return {name: value[0] for name, value in seen.items()}, {name: value[0] for name, value in infos.items()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, infos = self.rows.step(np.asarray(action)[None])
        ended = infos.get("final_obs", [None])[0]
        row = {name: value[0] for name, value in seen.items()} if ended is None else ended
        return row, float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> Any:
        pictures = self.rows.render()
        assert pictures is not None
        return pictures[0]

    def close(self) -> None:
        self.rows.close()


@pytest.mark.filterwarnings("ignore:.*Box observation space (minimum|maximum) value is:UserWarning")
@pytest.mark.filterwarnings("ignore:.*we recommend (using a symmetric and )?normalized? space:UserWarning")
@pytest.mark.filterwarnings("ignore:.*not having a spec:UserWarning")
@each_kind
def test_its_checker_passes(kind: str) -> None:
    check_env(OneRow(kind))


@pytest.mark.parametrize("kind", [*KINDS, "video"])
def test_what_it_gives_is_what_its_spaces_say(kind: str) -> None:
    env = GymnasiumVectorEnv(env_of(kind))
    assert isinstance(env, VectorEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    env.action_space.seed(3)
    seen, _ = env.reset(seed=3)
    assert env.observation_space.contains(seen)
    ends = 0
    for _ in range(20):
        seen, reward, terminated, truncated, infos = env.step(env.action_space.sample())
        assert env.observation_space.contains(seen)
        assert (reward.shape, reward.dtype) == ((env.num_envs,), np.float32)
        assert terminated.dtype == truncated.dtype == bool
        assert not (terminated & truncated).any()
        done = terminated | truncated
        assert ("final_obs" in infos) is bool(done.any())
        for row in range(env.num_envs) if done.any() else ():
            final = infos["final_obs"][row]
            assert env.single_observation_space.contains(final) if done[row] else final is None
        ends += int(done.sum())
    assert ends > 3


@each_kind
def test_rows_are_those_of_the_environment(kind: str) -> None:
    """Compare with the environment itself, driven by the same actions.

    Rewards, ends, last and first observations.
    """
    adapter, env = GymnasiumVectorEnv(env_of(kind)), env_of(kind)
    key = env.action_keys[0]
    group = key[:-1] if isinstance(key, tuple) else ()
    current = env.reset()
    seen, infos = adapter.reset()
    generator, ends = np.random.default_rng(0), 0

    def rows(tensordict: Any, name: str) -> np.ndarray:
        value = (tensordict[group] if group else tensordict)[name]
        return value.flatten(0, 1).numpy() if group else value.numpy()

    for _ in range(40):
        for name, value in seen.items():
            assert np.array_equal(value, rows(current, name).reshape(value.shape), equal_nan=True), name
        if ACTIONS[kind][1]:
            assert np.array_equal(infos["action_mask"], rows(current, "action_mask"))
            action = (generator.random(infos["action_mask"].shape) * infos["action_mask"]).argmax(-1)
        else:
            low, high = adapter.action_space.low, adapter.action_space.high
            action = (low + (high - low) * generator.random(low.shape)).astype(np.float32)
        active = rows(current, "active")[:, 0] if group else np.full(env.num_envs, True)
        if group:
            assert np.array_equal(infos["active"], active)
        spec = env.full_action_spec[key]
        stepped, current = env.step_and_maybe_reset(current.set(key, torch.from_numpy(action).view(spec.shape)))
        after = stepped["next"]
        seen, reward, terminated, truncated, infos = adapter.step(action)
        over = np.repeat(after["done"].numpy()[:, 0], adapter.num_envs // env.num_envs)
        done = active & (rows(after, "done")[:, 0] | over)
        assert np.array_equal(reward, np.where(active, rows(after, "reward")[:, 0], 0))
        assert np.array_equal(terminated, active & rows(after, "terminated")[:, 0])
        assert np.array_equal(truncated, done & ~terminated)
        ends += int(done.sum())
        for row in done.nonzero()[0]:
            assert infos["_final_obs"][row]
            for name, value in infos["final_obs"][row].items():
                assert np.array_equal(value, rows(after, name)[row], equal_nan=True)
            for name, value in env.episode_outcomes(after).items():
                assert infos["final_info"][f"_{name}"][row] == over[row]
                told = infos["final_info"][name][row]
                assert told == value.numpy()[row // (adapter.num_envs // env.num_envs), 0]
    assert ends > 4


def test_a_robot_that_waits_earns_nothing_and_ends_no_more() -> None:
    env = marine("v3, curriculum", num_envs=12)
    env.assign_levels([i % 6 for i in range(12)])
    adapter = GymnasiumVectorEnv(env, "observation")
    adapter.action_space.seed(0)
    _, infos = adapter.reset()
    waited = alone = 0
    for _ in range(60):
        waits = ~infos["active"]
        _, reward, terminated, truncated, infos = adapter.step(adapter.action_space.sample())
        ends = terminated | truncated
        assert not reward[waits].any()
        assert not ends[waits].any()
        waited += int(waits.sum())
        if ends.any():
            over = np.repeat((waits | ends).reshape(12, -1).all(1), adapter.num_envs // 12)
            for name in env.outcome_names:
                assert np.array_equal(infos["final_info"][f"_{name}"], ends & over), "of a whole episode"
            alone += int((ends & ~over).sum())
    assert waited > 20
    assert alone > 0


@each_kind
def test_a_seed_begins_the_same_episodes(kind: str) -> None:
    adapter = GymnasiumVectorEnv(env_of(kind))

    def played(seed: int) -> list[object]:
        adapter.action_space.seed(0)
        found = [adapter.reset(seed=seed)[0]]
        found += [adapter.step(adapter.action_space.sample())[:4] for _ in range(5)]
        return found

    first = played(5)
    other = played(6)
    assert data_equivalence(first, played(5), exact=True)
    assert not data_equivalence(first, other, exact=True)
    begun, _ = adapter.reset()
    # The next episodes.
    assert not data_equivalence(begun, adapter.reset()[0], exact=True)


@each_kind
def test_tensors_are_read_back_nowhere_and_stay(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # C++ rounds in another way.
    monkeypatch.setattr(native, "runs_on", lambda tensor: False)
    env = env_of(kind, **({"backend": "eager"} if kind == "packing" else {}))
    arrays, tensors = GymnasiumVectorEnv(env_of(kind)), GymnasiumVectorEnv(env, output="torch")
    seen, infos = tensors.reset(seed=1)
    wanted, _ = arrays.reset(seed=1)
    arrays.action_space.seed(0)
    kept = []
    for _ in range(8):
        kept.append((seen, {name: value.clone() for name, value in seen.items()}))
        action = arrays.action_space.sample()
        given = torch.from_numpy(action)
        with NoHostReads():
            seen, reward, terminated, truncated, infos = tensors.step(given)
        wanted, *others, told = arrays.step(action)
        for value, other in zip((reward, terminated, truncated), others, strict=True):
            assert np.array_equal(value.numpy(), other)
        assert all(np.array_equal(seen[name].numpy(), wanted[name], equal_nan=True) for name in wanted)
        for row in told.get("_final_obs", np.zeros(0)).nonzero()[0]:
            final = told["final_obs"][row]
            assert all(
                np.array_equal(infos["final_obs"][name][row].numpy(), final[name], equal_nan=True) for name in final
            )
    assert "final_obs" in infos
    for before, copy in kept:
        assert all(torch.equal(before[name].nan_to_num(), copy[name].nan_to_num()) for name in copy)


def test_arrays_are_the_callers_own() -> None:
    first = GymnasiumVectorEnv(env_of("packing"))
    second = GymnasiumVectorEnv(env_of("packing"))
    seen, infos = first.reset()
    second.reset()
    for value in (*seen.values(), *infos.values()):
        value[...] = 1
    action = np.zeros(first.num_envs, np.int64)
    assert data_equivalence(first.step(action), second.step(action), exact=True)


@pytest.mark.parametrize(
    ("kind", "name", "shape"), [("packing", "box_heightmap", (5, 5)), ("dishes", "observation", (6,))]
)
def test_one_observation_has_no_name(kind: str, name: str, shape: tuple[int, ...]) -> None:
    adapter = GymnasiumVectorEnv(env_of(kind), name)
    seen, infos = adapter.reset()
    assert adapter.single_observation_space == gymnasium.spaces.Box(
        adapter.single_observation_space.low, adapter.single_observation_space.high, shape, np.float32
    )
    assert seen.shape == (8, *shape)
    assert ("action_mask" in infos) is (kind == "packing")
    some = GymnasiumVectorEnv(env_of(kind), [name])
    assert list(some.single_observation_space) == [name]


def test_its_wrapper_counts_episodes() -> None:
    env = RecordEpisodeStatistics(GymnasiumVectorEnv(env_of("dishes")))
    env.reset(seed=0)
    total, infos = np.zeros(8), {}
    for _ in range(6):
        _, reward, _, truncated, infos = env.step(env.action_space.sample())
        total += reward
    assert truncated.all()
    assert (infos["episode"]["l"] == 6).all()
    assert np.allclose(infos["episode"]["r"], total)
    assert np.allclose(infos["final_info"]["profit"], total, atol=1e-4)


@each_kind
def test_pictures_are_those_of_the_environment(kind: str) -> None:
    adapter = GymnasiumVectorEnv(env_of(kind), render_mode="rgb_array", render_size=(64, 48))
    adapter.reset()
    pictures = adapter.render()
    assert pictures is not None
    assert len(pictures) == adapter.num_envs
    assert all(each.shape == (48, 64, 3) and each.dtype == np.uint8 and each.std() > 1 for each in pictures)
    assert GymnasiumVectorEnv(env_of(kind)).render() is None


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ValueError, match=r"GymnasiumVectorEnv: observations .*observation, not horizon"):
        GymnasiumVectorEnv(env_of("dishes"), ["horizon"])
    with pytest.raises(ValueError, match=r"observations .*none"):
        GymnasiumVectorEnv(env_of("dishes"), [])
    with pytest.raises(ValueError, match="output"):
        GymnasiumVectorEnv(env_of("dishes"), output="jax")  # type: ignore[arg-type]
    adapter = GymnasiumVectorEnv(env_of("dishes"))
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"GymnasiumVectorEnv.step: .*reset"):
        adapter.step(adapter.action_space.sample())
    adapter.reset()
    with pytest.raises(ValueError, match=r"actions .*\(8, 2\).*\(2,\)"):
        adapter.step(np.zeros(2, np.float32))
    adapter.close()
    assert adapter.closed
    assert adapter.env.is_closed


def test_without_gymnasium_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> Any:
        if name.partition(".")[0] == "gymnasium":
            raise ModuleNotFoundError("No module named 'gymnasium'", name="gymnasium")
        return fetch(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "torchrl_gpu.envs.adapters.gymnasium")
    with pytest.raises(ModuleNotFoundError, match=r"\[gymnasium\]"):
        importlib.import_module("torchrl_gpu.envs.adapters.gymnasium")


def played(kind: str, masked_at: int | None, steps: int = 12) -> tuple[list[object], np.ndarray]:
    """Observations of a vector environment, with a reset before one of the steps.

    It resets every other environment.
    """
    env = GymnasiumVectorEnv(env_of(kind))
    generator = np.random.default_rng(0)
    seen, infos = env.reset(seed=4)
    each = np.arange(env.env.num_envs) % 2 == 0
    mask = np.repeat(each, env.num_envs // env.env.num_envs)
    shown: list[object] = []
    for step in range(steps):
        if step == masked_at:
            seen, infos = env.reset(options={"reset_mask": mask})
        shown.append((seen, infos.get("action_mask")))
        if env.masked:
            action = (generator.random(infos["action_mask"].shape) * infos["action_mask"]).argmax(-1)
        else:
            low, high = env.action_space.low, env.action_space.high
            action = (low + (high - low) * generator.random(low.shape)).astype(np.float32)
        seen, reward, terminated, truncated, infos = env.step(action)
        shown.append((seen, reward, terminated, truncated))
    return shown, mask


def rows_of(value: Any, rows: np.ndarray) -> Any:
    if isinstance(value, dict):
        return {name: rows_of(each, rows) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(rows_of(each, rows) for each in value)
    return None if value is None else np.asarray(value)[rows]


@each_kind
def test_a_mask_restarts_its_rows_and_leaves_the_others_as_they_are(kind: str) -> None:
    (masked, mask), (plain, _) = played(kind, 5), played(kind, None)
    for ours, theirs in zip(masked, plain, strict=True):
        assert data_equivalence(rows_of(ours, ~mask), rows_of(theirs, ~mask))
    # They begin anew.
    assert not data_equivalence(rows_of(masked[10], mask), rows_of(plain[10], mask))
    assert data_equivalence(masked[:10], plain[:10])


def test_a_mask_of_all_rows_is_a_reset() -> None:
    ours, theirs = GymnasiumVectorEnv(env_of("packing")), GymnasiumVectorEnv(env_of("packing"))
    everyone = np.ones(ours.num_envs, dtype=bool)
    assert data_equivalence(ours.reset(seed=3, options={"reset_mask": everyone}), theirs.reset(seed=3))
    assert data_equivalence(ours.reset(options={"reset_mask": everyone}), theirs.reset())


@pytest.mark.parametrize(
    ("kind", "mask", "seed", "told"),
    [
        ("packing", np.zeros(8, dtype=bool), None, "reset_mask must be"),
        ("packing", np.ones(8), None, "reset_mask must be .*; got float64"),
        ("packing", np.ones(3, dtype=bool), None, r"reset_mask must be .*\(8,\)"),
        ("packing", np.arange(8) < 2, 7, "reset_mask .*seed 7"),
        ("v2", None, None, "reset_mask .*robots"),
    ],
)
def test_masks_that_cannot_be_are_refused(kind: str, mask: Any, seed: int | None, told: str) -> None:
    env = GymnasiumVectorEnv(env_of(kind))
    env.reset()
    mask = np.arange(env.num_envs) < 1 if mask is None else mask
    with pytest.raises(ValueError, match=told):
        env.reset(seed=seed, options={"reset_mask": mask})


def test_a_mask_wants_a_reset_before_it() -> None:
    env = GymnasiumVectorEnv(env_of("packing"))
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset_mask"):
        env.reset(options={"reset_mask": np.arange(env.num_envs) < 1})
