"""The environments under rsl_rl's contract, and its own runner on them."""

from __future__ import annotations

import contextlib
import copy
import io
from typing import Any

import pytest
import torch

from tests.envs.adapters.kinds import each_kind, env_of
from tests.no_host_reads import NoHostReads
from torchrl_gpu.envs import RslRlVecEnv

PERCEPTRON = {"class_name": "MLPModel", "hidden_dims": [16], "activation": "elu"}
CONFIG: dict[str, Any] = {
    "num_steps_per_env": 8,
    "save_interval": 100,
    "check_for_nan": False,
    "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
    "algorithm": {"class_name": "PPO", "num_learning_epochs": 2, "num_mini_batches": 2},
    "actor": PERCEPTRON | {"distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}},
    "critic": PERCEPTRON,
}
SIZES = {"packing": (8, 25 + 4, 50), "v2": (8, 39, 9), "v3": (8, 32, 2), "dishes": (8, 6, 2)}


def adapter_of(kind: str, **changes: object) -> RslRlVecEnv:
    seen = {"packing": ["box_heightmap", "item_size"], "dishes": ["observation"]}.get(kind, ["observation"])
    return RslRlVecEnv(env_of(kind, **changes), seen)


@pytest.mark.parametrize("kind", ["packing", "v3"])
def test_its_runner_trains(kind: str) -> None:
    runners = pytest.importorskip("rsl_rl.runners")
    adapter = adapter_of(kind)
    with contextlib.redirect_stdout(io.StringIO()):
        runner = runners.OnPolicyRunner(adapter, copy.deepcopy(CONFIG), None, "cpu")
        before = [weight.clone() for weight in runner.alg.actor.parameters()]
        runner.learn(2, init_at_random_ep_len=True)
    weights = list(runner.alg.actor.parameters())
    assert all(
        weight.isfinite().all() and not torch.equal(weight, b) for weight, b in zip(weights, before, strict=True)
    )


@each_kind
def test_forms(kind: str) -> None:
    adapter = adapter_of(kind)
    rows, size, num_actions = adapter.num_envs, *SIZES[kind][1:]
    seen = adapter.get_observations()
    assert seen["policy"].dtype == torch.float32
    after, reward, done, extras = adapter.step(torch.randn(rows, adapter.num_actions))
    assert after["policy"].shape == seen["policy"].shape == (rows, adapter.get_observations()["policy"].shape[-1])
    assert (reward.shape, reward.dtype, done.shape, done.dtype) == ((rows,), torch.float32, (rows,), torch.bool)
    assert (extras["time_outs"].shape, extras["time_outs"].dtype) == ((rows,), torch.bool)
    assert all(name.startswith("/") and value.ndim == 0 for name, value in extras["log"].items())
    assert adapter.episode_length_buf.dtype == torch.int64
    if kind in ("v2", "v3"):
        assert seen["policy"].shape[-1] == size
        assert adapter.num_actions == num_actions


@each_kind
def test_a_step_reads_nothing_back(kind: str) -> None:
    adapter = adapter_of(kind, **({"backend": "eager"} if kind == "packing" else {}))
    action = torch.randn(adapter.num_envs, adapter.num_actions)
    with NoHostReads():
        for _ in range(3):
            adapter.step(action)


@each_kind
def test_rows_are_those_of_the_environment(kind: str) -> None:
    adapter, env = adapter_of(kind), env_of(kind)
    current, key = env.reset(), env.action_keys[0]
    group = key[:-1] if isinstance(key, tuple) else ()
    torch.manual_seed(0)
    ends = 0
    for _ in range(40):
        given = torch.randn(adapter.num_envs, adapter.num_actions)
        shown = current[group] if group else current
        active = shown["active"].flatten() if group else torch.ones(adapter.num_envs, dtype=torch.bool)
        shaped = given.view(*shown.shape, adapter.num_actions)
        if kind in ("packing", "v2"):
            action = torch.where(shown["action_mask"], shaped, -torch.inf).argmax(-1)
        else:
            space = env.full_action_spec[key].space
            action = space.low + (shaped.clamp(-1, 1) + 1) * (space.high - space.low) / 2
        stepped, current = env.step_and_maybe_reset(current.set(key, action))
        after = stepped["next"][group] if group else stepped["next"]
        seen, reward, done, extras = adapter.step(given)
        assert torch.equal(reward, torch.where(active, after["reward"].flatten(), 0.0))
        assert torch.equal(done, active & after["done"].flatten())
        assert torch.equal(extras["time_outs"], done & ~after["terminated"].flatten())
        now = current[group] if group else current
        if kind != "packing":
            assert torch.equal(seen["policy"], now["observation"].reshape(adapter.num_envs, -1))
        ends += int(done.sum())
    assert ends > 3


def test_assigned_lengths_cut_episodes_off() -> None:
    adapter = adapter_of("dishes")
    assert adapter.max_episode_length == 6
    adapter.episode_length_buf = torch.tensor([0, 5, 3, 0, 0, 0, 0, 4])
    step = lambda: adapter.step(torch.zeros(8, adapter.num_actions))[2:]  # noqa: E731
    done, extras = step()
    assert done.tolist() == [False, True] + [False] * 6
    assert extras["time_outs"].tolist() == done.tolist()
    assert adapter.episode_length_buf.tolist() == [1, 0, 4, 1, 1, 1, 1, 5]
    assert adapter.env.state_dict()["step_count"].flatten()[:2].tolist() == [1, 0]
    done, _ = step()
    assert done.nonzero().flatten().tolist() == [7]


def test_continuous_actions_are_held_within_the_bounds() -> None:
    adapter = adapter_of("dishes")
    spec = adapter.env.full_action_spec["action"].space
    taken: list[torch.Tensor] = []
    step = adapter.env.step
    adapter.env.step = lambda td: (taken.append(td["action"].clone()), step(td))[1]  # type: ignore[method-assign,func-returns-value]
    for number in (-3.0, -1.0, 0.0, 1.0, 3.0):
        adapter.step(torch.full((8, adapter.num_actions), number))
    middle = (spec.low + spec.high) / 2
    for action, wanted in zip(taken, (spec.low, spec.low, middle, spec.high, spec.high), strict=True):
        assert torch.allclose(action, wanted)


def test_the_log_holds_what_episodes_came_to_last() -> None:
    adapter = adapter_of("packing")
    seen = []
    for _ in range(30):
        *_, done, extras = adapter.step(torch.randn(8, adapter.num_actions))
        seen.append((bool(done.any()), extras["log"]["/utilization"].item()))
    first = next(i for i, (over, _) in enumerate(seen) if over)
    assert all(value == 0 for _, value in seen[:first])
    assert all(0 < value <= 1 for _, value in seen[first:])


def test_what_is_not_there_cannot_be_observed() -> None:
    with pytest.raises(ValueError, match=r"RslRlVecEnv: observations .*horizon"):
        RslRlVecEnv(env_of("dishes"), ["horizon"])
    assert RslRlVecEnv(env_of("dishes")).get_observations()["policy"].shape == (8, 6)
    with pytest.raises(ValueError, match=r"observations .*none"):
        RslRlVecEnv(env_of("packing"), [])
