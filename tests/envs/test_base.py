"""The base of all environments: seeds, state, and restarts without host reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, SerialEnv, TransformedEnv
from torchrl.envs.utils import check_env_specs

from tests.envs.adapters.kinds import KINDS, env_of
from tests.records import with_values
from torchrl_gpu.envs import Advanced, DishwashingEnv, MarineNavEnv
from torchrl_gpu.envs.base import DONE_KEYS, BatchedEnv, where_rows


class Countdown(BatchedEnv):
    """Row i of episode e counts down from 1 + (seed + i + e) mod 5.

    An action takes away 1, and 0 ends the episode.
    """

    def __init__(self, num_envs: int = 3, **arguments: object) -> None:
        super().__init__(num_envs, **arguments)
        self.episode = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self.left = self.episode.clone()
        shape = (num_envs, 1)
        self.observation_spec = Composite(left=Unbounded(shape, self.device, torch.int64), shape=(num_envs,))
        self.action_spec = Categorical(2, shape=(num_envs,), device=self.device)
        self.reward_spec = Unbounded(shape, self.device)
        done = Binary(1, shape, device=self.device, dtype=torch.bool)
        self.done_spec = Composite({key: done.clone() for key in DONE_KEYS}, shape=(num_envs,))

    def _observe_reset(self, mask: Tensor) -> dict[str, Tensor]:
        start = 1 + (self.seed + torch.arange(self.num_envs, device=self.device) + self.episode) % 5
        self.left = where_rows(mask, start, self.left)
        self.episode = self.episode + mask
        return {"left": self.left[:, None]}

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.left = self.left - tensordict["action"]
        done = (self.left <= 0)[:, None]
        out = {"left": self.left[:, None], "reward": done.float(), "done": done, "terminated": done.clone()}
        return TensorDict(out | {"truncated": torch.zeros_like(done)}, batch_size=self.batch_size)

    def env_state(self) -> dict[str, Tensor]:
        return {"episode": self.episode, "left": self.left}

    def set_env_state(self, state: dict[str, Tensor]) -> None:
        self.episode, self.left = state["episode"], state["left"]

    def restart_episodes(self) -> None:
        self.episode = torch.zeros_like(self.episode)

    def like(self, num_envs: int, **changes: object) -> Countdown:
        return Countdown(num_envs, **{"device": self.device, "seed": self.seed} | changes)


@pytest.fixture
def env() -> Countdown:
    """Rows that start at 1, 2 and 3."""
    return Countdown(device="cpu", seed=0)


def down(env: Countdown, current: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
    return env.step_and_maybe_reset(current.set("action", torch.ones(env.num_envs, dtype=torch.int64)))


def test_it_is_an_environment(env: Countdown) -> None:
    check_env_specs(env)


def test_rows_restart_one_by_one_and_the_end_stays_in_next(env: Countdown) -> None:
    # Row i begins its episodes at 1 + i, 2 + i, 3 + i, …, and after 5 comes 1.
    current = env.reset()
    seen = []
    following = []
    for _ in range(4):
        step, current = down(env, current)
        seen.append(step["next", "left"].flatten().tolist())
        following.append(current["left"].flatten().tolist())
    assert seen == [[0, 1, 2], [1, 0, 1], [0, 2, 0], [2, 1, 3]]
    assert following == [[2, 1, 2], [1, 3, 1], [3, 2, 4], [2, 1, 3]]
    assert env.episode.tolist() == [3, 2, 2]


class CutOff(Countdown):
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        out = super()._step(tensordict)
        return out.set("terminated", out["truncated"]).set("truncated", out["done"].clone())


def test_rows_that_are_cut_off_restart() -> None:
    env = CutOff(device="cpu", seed=0)
    step, current = down(env, env.reset())
    assert step["next", "terminated"].flatten().tolist() == [False, False, False]
    assert step["next", "truncated"].flatten().tolist() == [True, False, False]
    assert current["left"].flatten().tolist() == [2, 1, 2]
    assert env.episode.tolist() == [2, 1, 1]


def test_what_restarts_is_no_longer_done(env: Countdown) -> None:
    step, current = down(env, env.reset())
    assert step["next", "done"].flatten().tolist() == [True, False, False]
    for key in DONE_KEYS:
        assert not current[key].any()
        assert current[key].shape == (3, 1)
    assert "reward" not in list(current.keys())


def test_seeds(env: Countdown) -> None:
    env.reset()
    env.set_seed(2)
    assert env.seed == 2
    assert env.reset()["left"].flatten().tolist() == [3, 4, 5]
    # This changes nothing.
    env.set_seed(None)
    assert env.reset()["left"].flatten().tolist() == [4, 5, 1]


def test_state_goes_round(env: Countdown) -> None:
    down(env, env.reset())
    saved = env.state_dict()
    assert {name: value.tolist() for name, value in saved.items()} == {
        "seed": 0,
        "episode": [2, 1, 1],
        "left": [2, 1, 2],
    }
    other = Countdown(device="cpu", seed=7)
    other.load_state_dict(saved)
    assert other.seed == 0
    assert other.left.tolist() == [2, 1, 2]
    assert other.left is not saved["left"]


def test_a_lenient_load_takes_what_is_there(env: Countdown) -> None:
    env.reset()
    env.load_state_dict({"left": torch.tensor([5, 5, 5]), "unknown": torch.zeros(1)}, strict=False)
    assert env.left.tolist() == [5, 5, 5]
    assert (env.seed, env.episode.tolist()) == (0, [1, 1, 1])
    with pytest.raises(ValueError, match=r"^Countdown.load_state_dict: left .*\(3,\).*\(2,\)$"):
        env.load_state_dict({"left": torch.zeros(2, dtype=torch.int64)}, strict=False)


# -- among TorchRL's own wrappers --------------------------------------------------------------------------------------


def sea() -> BatchedEnv:
    """Return vessels that collide one by one, while others of their world go on."""
    return MarineNavEnv(
        6, version="v3", robots=3, cores=0, obstacles=2, min_distance=10.0, pool=16, max_steps=40, device="cpu", seed=0
    )


class Shifts(DishwashingEnv):
    def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
        return with_values(super().advance(state, action), terminated=self.uniform() < 0.2)


def shifts() -> BatchedEnv:
    return Shifts(3, max_steps=9, device="cpu", seed=0)


def drawn(env: EnvBase) -> Callable[[TensorDictBase], TensorDictBase]:
    """Return actions that are the same whatever the environment is wrapped in."""
    (key,), generator = env.action_keys, torch.Generator().manual_seed(1)
    shape = env.full_action_spec[key].shape
    return lambda tensordict: tensordict.set(key, torch.rand(shape, generator=generator))


def test_rows_that_go_on_keep_ends_and_outcomes_under_every_wrapper() -> None:
    for make, steps in ((sea, 50), (shifts, 20)):
        alone = make()
        expected = alone.rollout(steps, drawn(alone), break_when_any_done=False)
        assert expected[("robots", "done") if make is sea else "profit"].any()
        for wrapped in (TransformedEnv(make()), SerialEnv(1, make)):
            came = wrapped.rollout(steps, drawn(wrapped), break_when_any_done=False)
            came = came[0] if isinstance(wrapped, SerialEnv) else came
            for key in expected.keys(True, True):
                assert torch.equal(came[key], expected[key]), key


# TorchRL's own warning.
@pytest.mark.filterwarnings("ignore:Creating .* which inherits from WeightUpdaterBase:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_collectors_can_limit_the_frames_of_a_trajectory(kind: str) -> None:
    from torchrl.collectors import Collector

    env = env_of(kind, num_envs=2)
    limits = {"frames_per_batch": 8, "total_frames": 8, "max_frames_per_traj": 3}
    collector = Collector(env, None, auto_register_policy_transforms=False, **limits)
    (batch,) = list(collector)
    collector.shutdown()
    assert batch["next", "step_count"].max() <= 3
    assert batch["next", "done"][batch["next", "step_count"] == 3].all()


# -- torch's default dtype, and inference mode -------------------------------------------------------------------------


def played(env: BatchedEnv, steps: int = 12) -> TensorDictBase:
    """A rollout with actions that do not depend on torch's default dtype."""
    (key,), generator = env.action_keys, torch.Generator().manual_seed(1)
    spec = env.full_action_spec[key]
    mask_key = (*key[:-1], "action_mask") if isinstance(key, tuple) else "action_mask"

    def act(tensordict: TensorDictBase) -> TensorDictBase:
        mask = tensordict.get(mask_key, None)
        shape = spec.shape if mask is None else mask.shape
        number = torch.rand(shape, generator=generator, dtype=torch.float32)
        return tensordict.set(key, number if mask is None else (number * mask).argmax(-1))

    return env.rollout(steps, act, break_when_any_done=False)


@pytest.mark.parametrize("kind", [*KINDS, "video"])
def test_the_default_dtype_changes_neither_specs_nor_numbers(kind: str) -> None:
    expected = played(env_of(kind))
    for dtype in (torch.float64, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            came = played(env_of(kind))
            check_env_specs(env_of(kind))
        finally:
            torch.set_default_dtype(torch.float32)
        for key in expected.keys(True, True):
            assert came[key].dtype == expected[key].dtype, key
            assert torch.equal(came[key], expected[key]), key


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_made_or_loaded_under_inference_mode_goes_on_outside(kind: str) -> None:
    with torch.inference_mode():
        made = env_of(kind)
    loaded = env_of(kind)
    with torch.inference_mode():
        loaded.load_state_dict(loaded.state_dict())
    assigned = env_of(kind)
    with torch.inference_mode():
        assigned.state = assigned.state
        other = assigned.like(assigned.num_envs)
    for env in (made, loaded, assigned, other):
        state = env.state if isinstance(env.state, dict) else vars(env.state)
        assert not any(value.is_inference() for value in state.values())
        env.set_frames(10)
        played(env, 4)
