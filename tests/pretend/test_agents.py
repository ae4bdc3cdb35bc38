"""All agents act, learn and follow without a wait, at every level of risk."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.envs.packing.settings import packing
from tests.policies.navigation_spaces import AGENTS, grouped, make, seen_by, transitions
from tests.policies.packing.packer_scenes import narrow, solids_env
from tests.pretend_cuda import waits
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies import Agent, PeriodicTargets, PolicyWrapper
from torchrl_gpu.policies.packing import HierarchicalPacker, baselines
from torchrl_gpu.policies.packing.heuristics import irregular_baselines
from torchrl_gpu.training.updates.optimizers import clip_gradients, set_capturable

CASES: list[tuple[str, dict[str, object]]] = [(name, {}) for name in AGENTS]
for _name in ("IQN", "ACIQN"):
    CASES += [(_name, {"cvar": 0.25}), (_name, {"cvar": "adaptive"})]
CASES += [("IQN", {"double": False}), ("DQN", {"targets": PeriodicTargets(2)}), ("SAC", {"target_entropy": -2.0})]
each_case = pytest.mark.parametrize(("name", "changes"), CASES, ids=str)


def updated(agent: Agent, batch: Any, updates: int) -> Agent:
    optimizer = torch.optim.Adam([{"params": group} for group in agent.parameter_groups.values()], lr=1e-3)
    if batch.device is not None and batch.device.type == "cuda":
        set_capturable(optimizer)
    for number in range(1, updates + 1):
        optimizer.zero_grad()
        agent.anneal(100 * number)
        with set_exploration_type(ExplorationType.RANDOM):
            torch.stack(list(agent.losses(batch).values())).sum().backward()
        for group in optimizer.param_groups:
            clip_gradients(group["params"], 1.0)
        optimizer.step()
        agent.update_targets(number)
    return agent


@each_case
def test_updates_wait_for_nothing(name: str, changes: dict[str, object]) -> None:
    agent, batch = make(name, **changes).to("cuda"), transitions(name, 16).to("cuda")
    before = copy.deepcopy(agent)
    # The optimizer makes its state.
    updated(agent, batch.clone(), 1)
    with waits() as counted:
        updated(agent, batch, 3)
    assert counted.total == 0, counted.report()
    assert batch["td_error"].is_cuda
    for weight, was in zip(agent.parameters_to_train, before.parameters_to_train, strict=True):
        assert weight.is_cuda
        assert not torch.equal(weight, was)


# They draw nothing in an update.
@pytest.mark.parametrize("name", ["DQN", "DDPG"])
def test_they_learn_what_the_cpu_learns(name: str) -> None:
    there = updated(make(name).to("cuda"), transitions(name, 16).to("cuda"), 3)
    here = updated(make(name), transitions(name, 16), 3)
    for cuda, cpu in zip(there.state_dict().values(), here.state_dict().values(), strict=True):
        torch.testing.assert_close(cuda.cpu(), cpu, rtol=1e-4, atol=1e-6)


@each_case
@pytest.mark.parametrize("explores", [True, False])
def test_acting_waits_for_nothing(name: str, changes: dict[str, object], explores: bool) -> None:
    agent = make(name, **changes).to("cuda")
    policy, seen = PolicyWrapper(agent).train(explores), grouped(seen_by(name, 4, 3)).to("cuda")
    mode = ExplorationType.RANDOM if explores else ExplorationType.DETERMINISTIC
    with waits() as counted, set_exploration_type(mode), torch.no_grad():
        out = policy(seen)
    assert counted.total == 0, counted.report()
    assert all(value.is_cuda for value in out.values(True, True))


@torch.no_grad()
@pytest.mark.parametrize("cvar", [0.25, 1.0, "adaptive"])
def test_a_wrapper_at_a_level_of_its_own_is_where_its_agent_is(cvar: Any) -> None:
    agent, seen = make("IQN"), grouped(seen_by("IQN", 4, 3))
    here = PolicyWrapper(agent, cvar=cvar).eval()(seen.clone())
    there = PolicyWrapper(agent.to("cuda"), cvar=cvar).eval()(seen.to("cuda"))
    assert torch.equal(there["robots", "action"].cpu(), here["robots", "action"])
    (alternative,) = agent.alternatives().values()
    assert alternative(seen.to("cuda"))["robots", "action"].is_cuda


SCENES = {"bpp10": {}, "three visible": {}, "irregular": {"resolution": 10, "grid_step": 3}}
STEPS = 2


def actions(env: PackingEnv, policy: Any) -> list[torch.Tensor]:
    current, found = env.reset(), []
    for _ in range(STEPS):
        step, current = env.step_and_maybe_reset(policy(current))
        found.append(step["action"])
    return found


def assert_decides_alike(there: PackingEnv, here: PackingEnv, policies: Any, drawn: tuple[str, ...]) -> None:
    on_cpu = policies(here)
    for name, policy in policies(there).items():
        there.restart_episodes()
        here.restart_episodes()
        with waits() as counted, torch.no_grad():
            found = actions(there, policy)
        assert counted.total == 0, f"{name}: {counted.report()}"
        with torch.no_grad():
            wanted = actions(here, on_cpu[name])
        if name not in drawn:
            assert [each.tolist() for each in found] == [each.tolist() for each in wanted], name


@pytest.mark.parametrize("setting", SCENES)
def test_baselines(setting: str) -> None:
    there = packing(setting, device="cuda", backend="eager", **SCENES[setting])
    here = packing(setting, device="cpu", backend="eager", **SCENES[setting])
    assert_decides_alike(there, here, baselines, ("random legal",))


def irregular_policies(env: PackingEnv) -> Any:
    packer = HierarchicalPacker(env, narrow()).to(env.device).eval()
    return irregular_baselines(env, packer)


def test_the_hierarchical_packer_and_what_it_is_compared_with() -> None:
    there = solids_env(2, device="cuda", backend="eager")
    here = solids_env(2, device="cpu", backend="eager")
    assert_decides_alike(there, here, irregular_policies, ("random",))
