"""The environment among TorchRL's own tools: rollouts, collectors, transforms, batches of environments, compilation."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch.torch_version import TorchVersion
from torchrl.envs import (
    ActionMask,
    Compose,
    EnvBase,
    EnvCreator,
    InitTracker,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)
from torchrl.envs.utils import check_env_specs

from tests.envs.packing.settings import assert_same, legal_action, packing
from tests.native.compilers import need_torch_compile
from tests.tolerances import assert_near
from torchrl_gpu.envs.packing.items import RandomBoxes

policy = TensorDictModule(lambda mask: mask.int().argmax(-1), ["action_mask"], ["action"])  # the first legal one


def test_rollout_restarts_what_is_done() -> None:
    env = packing(num_envs=4)
    data = env.rollout(40, policy, break_when_any_done=False)
    assert data.batch_size == (4, 40)
    assert data["next", "done"].sum() > 4
    started = data["next", "done"][:, :-1, 0]
    assert (data["num_packed"][:, 1:, 0][started] == 0).all()
    assert torch.equal(data["num_packed"][:, 1:, 0][~started], data["next", "num_packed"][:, :-1, 0][~started])


def test_rollout_until_the_first_and_the_last_is_done() -> None:
    first = packing(num_envs=4).rollout(100, policy)
    assert first["next", "done"][:, -1].any()
    assert not first["next", "done"][:, :-1].any()
    last = packing(num_envs=4).rollout(100, policy, break_when_any_done=False, break_when_all_done=True)
    assert last["next", "done"][:, -1].all()
    assert last.shape[1] > first.shape[1]


@pytest.mark.filterwarnings("ignore:Creating .* which inherits from WeightUpdaterBase:DeprecationWarning")  # its own
def test_collector() -> None:
    from torchrl.collectors import Collector

    collector = Collector(
        packing(num_envs=4), policy, frames_per_batch=40, total_frames=80, auto_register_policy_transforms=False
    )
    batches = list(collector)
    collector.shutdown()
    assert [batch.batch_size for batch in batches] == [(4, 10), (4, 10)]
    data = torch.cat(batches, 1)
    expected = packing(num_envs=4).rollout(20, policy, break_when_any_done=False)
    assert_same(data.select(*expected.keys(True, True)), expected)


def test_transforms() -> None:
    transforms = Compose(InitTracker(), RewardSum(), StepCounter(max_steps=30, step_count_key="steps"))
    env = TransformedEnv(packing(num_envs=4), transforms)
    check_env_specs(env, seed=0)
    env.set_seed(0)
    data = env.rollout(40, policy, break_when_any_done=False)
    after = data["next"]
    assert torch.allclose(after["episode_reward"], after["utilization"], atol=1e-6)
    assert torch.equal(after["steps"], after["episode_step"])
    assert torch.equal(data["is_init"], data["episode_step"] == 0)
    assert after["done"].sum() > 4


def test_step_counter_agrees_with_the_environments_own() -> None:
    # TorchRL's default key stands beside ours and means the same.
    env = TransformedEnv(packing(num_envs=4), StepCounter())
    check_env_specs(env, seed=0)
    env.set_seed(0)
    counted = env.rollout(40, policy, break_when_any_done=False)
    plain = packing(num_envs=4).rollout(40, policy, break_when_any_done=False)
    assert torch.equal(counted["next", "step_count"], plain["next", "episode_step"])


@pytest.mark.parametrize("setting", ["three visible", "irregular, on its corners"])
def test_serial(setting: str) -> None:
    env = SerialEnv(2, functools.partial(packing, setting, 2))
    check_env_specs(env, seed=0)
    alone = [packing(setting, 2, seed=seed) for seed in (3, 4)]
    env.set_seed(3, static_seed=False)
    for single, seed in zip(alone, batch_seeds(3, 2), strict=True):
        single.set_seed(seed)
    together = env.rollout(6, policy, break_when_any_done=False)
    assert together.batch_size == (2, 2, 6)
    for row, single in zip(together, alone, strict=True):
        expected = single.rollout(6, policy, break_when_any_done=False)
        assert_same(row.select(*expected.keys(True, True)), expected)


def batch_seeds(seed: int, count: int) -> list[int]:
    seeds = []
    env = packing()
    for _ in range(count):
        seeds.append(seed)
        seed = env.set_seed(seed)
    return seeds


def test_creator_keeps_each_environments_own_state() -> None:
    # It builds a first environment and hands what of its state is no tensor, which is nothing, to every other one.
    creator = EnvCreator(lambda: packing(seed=None))
    first, second = creator(), creator()
    assert first.seed != second.seed
    assert not torch.equal(first.reset()["item_id"], second.reset()["item_id"])


# -- compilation ------------------------------------------------------------------------------------------------------


def twenty_steps(env: EnvBase) -> list[TensorDictBase]:
    generator = torch.Generator().manual_seed(0)
    current, seen = env.reset(), []
    for _ in range(20):
        current = current.set("action", legal_action(current["action_mask"], generator))
        step, current = env.step_and_maybe_reset(current)
        seen += [step.clone(), current.clone()]
    return seen


def assert_compiles(setting: str, backend: str, **changes: Any) -> None:
    """Twenty steps of an environment, all but the first two of them one compiled graph, are those of its twin."""
    expected = twenty_steps(packing(setting, **changes))
    assert any(step["next", "done"].any() for step in expected[4::2])
    env = packing(setting, **changes)
    torch.compiler.reset()
    counters.clear()
    env.compile(warmup=2, fullgraph=True, backend=backend)  # the first steps settle the order of the keys
    came = twenty_steps(env)
    assert counters["stats"]["unique_graphs"] == 1
    torch.compiler.reset()
    for first, second in zip(expected, came, strict=True):
        assert set(first.keys(True, True)) == set(second.keys(True, True))
        for key in first.keys(True, True):
            if first[key].is_floating_point():
                assert_near(second[key], first[key])
            else:
                assert torch.equal(second[key], first[key]), key


SMALL = {"bin_size": (4.0, 4.0, 4.0), "resolution": 4, "items": RandomBoxes(1, 2), "orientations": "fixed"}


@pytest.mark.soak  # its C++ compiler takes a minute
def test_a_compiled_step_is_the_same_step() -> None:
    need_torch_compile()
    with inductor_config.patch({"cpp.simdlen": 0}):  # scalar code compiles in half the time
        assert_compiles("bpp10", "inductor", include=(), **SMALL)


@pytest.mark.skipif(torch.__version__ < TorchVersion("2.15"), reason="torch 2.11 cannot trace TorchRL's cache of keys")
def test_a_step_is_one_graph() -> None:
    # Other rules and kinds of items are in `test_env_compile`; what is TorchRL's own here is the same for all.
    assert_compiles("bpp10", "eager", include=(), **SMALL)


def test_a_rollout_without_a_policy_wants_an_action_mask() -> None:
    # As the docs say: most actions are not legal, and ActionMask draws from those that are.
    bare, masked = packing(num_envs=16), TransformedEnv(packing(num_envs=16), ActionMask())
    assert bare.rollout(20).shape == (16, 1)
    data = masked.rollout(20, break_when_any_done=False)
    assert data["next", "num_packed"].max() > 5
    assert masked.rollout(20).shape[1] > 1
