"""Heuristics, baselines and the hierarchical packer decide on the device as on the CPU, without a wait."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.envs.packing.settings import packing
from tests.policies.packing.packer_scenes import narrow, solids_env
from tests.pretend_cuda import waits
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.packing import HierarchicalPacker, baselines
from torchrl_gpu.policies.packing.irregular_baselines import irregular_baselines

SCENES = {"bpp10": {}, "three visible": {}, "irregular": {"resolution": 10, "grid_step": 3}}
STEPS = 4


def actions(env: PackingEnv, policy: Any) -> list[torch.Tensor]:
    current, found = env.reset(), []
    for _ in range(STEPS):
        step, current = env.step_and_maybe_reset(policy(current))
        found.append(step["action"])
    return found


def assert_decides_alike(there: PackingEnv, here: PackingEnv, policies: Any, drawn: tuple[str, ...]) -> None:
    on_cpu = policies(here)
    for name, policy in policies(there).items():
        there._restart_episodes()
        here._restart_episodes()
        with waits() as counted, torch.no_grad():
            found = actions(there, policy)
        assert counted.total == 0, f"{name}: {counted.report()}"
        with torch.no_grad():
            wanted = actions(here, on_cpu[name])
        if name not in drawn:
            assert [each.tolist() for each in found] == [each.tolist() for each in wanted], name


@pytest.mark.parametrize("setting", SCENES)
def test_baselines(setting: str) -> None:
    there, here = (packing(setting, device=each, backend="eager", **SCENES[setting]) for each in ("cuda", "cpu"))
    assert_decides_alike(there, here, baselines, ("random legal",))


def irregular_policies(env: PackingEnv) -> Any:
    packer = HierarchicalPacker(env, narrow()).to(env.device).eval()
    return irregular_baselines(env, packer)


def test_the_hierarchical_packer_and_what_it_is_compared_with() -> None:
    there, here = (solids_env(2, device=each, backend="eager") for each in ("cuda", "cpu"))
    assert_decides_alike(there, here, irregular_policies, ("random",))
