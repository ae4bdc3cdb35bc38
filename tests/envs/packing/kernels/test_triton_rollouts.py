"""Whole rollouts in Triton: the bits of single steps, and checked accesses.

They run in the process that `test_triton.py` starts.
"""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("checks interpreted kernels, in the process of test_triton.py", allow_module_level=True)

from tests.envs.packing.kernels.access_checker import AccessChecker
from torchrl_gpu import native
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import CutBoxes, RandomBoxes
from torchrl_gpu.policies import PackingPolicy, PatchTables
from torchrl_gpu.policies.packing.ntuple import greedy_rollouts, triton_rollouts, values
from torchrl_gpu.policies.packing.ntuple.greedy_rollouts import GREEDY_ROLLOUTS
from torchrl_gpu.policies.packing.ntuple.triton_rollouts import difference
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.training.collect.rollout import Rollout

# By options of the environment: each rule, each kind of sequences, several items, orientations, pools, a coarse grid.
SETTINGS: dict[str, dict[str, object]] = {}
SETTINGS["drawn"] = {"items": RandomBoxes(1, 3)}
SETTINGS["several items"] = {"items": RandomBoxes(1, 3), "visible_items": 3}
SETTINGS["several items"] |= {"stability": "corners", "orientations": "axis"}
SETTINGS["a stack"] = {"items": CutBoxes(1, 3, order="stack", pool=None)}
SETTINGS["a stack"] |= {"stability": "corners", "orientations": "fixed"}
SETTINGS["layers"] = {"items": CutBoxes(2, 3, order="layers", pool=None)}
SETTINGS["layers"] |= {"stability": "support", "visible_items": 2}
SETTINGS["a pool"] = {"items": CutBoxes(1, 3, order="layers", pool=5), "stability": "com", "grid_step": 3}
SETTINGS["few"] = {"items": RandomBoxes(1, 2), "num_items": 2}
SETTINGS["fine cells"] = {"items": RandomBoxes(2, 4), "resolution": 8}

# Settings in which an episode ends within the steps.
ENDS = ("drawn", "layers", "few")


@pytest.fixture(autouse=True)
def in_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single steps are played by the interpreted kernels, too."""
    monkeypatch.setattr(native, "runs_on", lambda tensor: False)
    monkeypatch.setattr(values, "in_triton", lambda name, device: importlib.import_module(name))


def environment(num_envs: int = 2, **options: object) -> PackingEnv:
    size = {"bin_size": (4.0, 4.0, 4.0), "resolution": 4, "seed": 2**31 + 5, "device": "cpu", "backend": "triton"}
    return PackingEnv(num_envs, **size | options)  # type: ignore[arg-type]


def tables_of(env: PackingEnv, shapes: tuple[str, ...] = ("2x2", "1x2:1")) -> PatchTables:
    made = PatchTables(AgentSpace.of(env), shapes, pool=env.bin.cells[0] // 4)
    drawn = torch.randn(made.plan.entries, generator=torch.Generator().manual_seed(1))
    made.weight.copy_(0.1 * drawn[made.plan.first_images])
    return made


@pytest.mark.parametrize("setting", list(SETTINGS))
def test_a_whole_rollout_has_the_bits_of_single_steps(setting: str) -> None:
    env = environment(**SETTINGS[setting])
    assert triton_rollouts.problem(env) == ""
    assert difference(env, tables_of(env), 5) == ""
    assert int(env.state.episode.sum()) > env.num_envs or setting not in ENDS


def test_a_rollout_goes_on_from_what_another_has_left() -> None:
    env = environment(**SETTINGS["a stack"])
    tables = tables_of(env)
    env.reset()
    first = triton_rollouts.copy_state(env.state)
    second = triton_rollouts.copy_state(env.state)
    together = triton_rollouts.play(env, tables, first, 3)
    parts = [triton_rollouts.play(env, tables, second, steps) for steps in (1, 2)]
    for name in ("before", "after", "action", "reward", "utilization", "done"):
        assert torch.equal(torch.cat([part[name] for part in parts], 1), together[name]), name
    assert torch.equal(first.heightmap, second.heightmap)
    assert torch.equal(first.key, second.key)


def test_tables_of_no_numbers_choose_what_argmax_does() -> None:
    env = environment(items=RandomBoxes(1, 2))
    tables = tables_of(env)
    tables.weight[::7] = torch.nan
    state = triton_rollouts.copy_state(env.state)
    value = tables(*(env.reset()[key] for key in tables.in_keys))
    masked = torch.where(env.state.legal.flatten(1), value, torch.finfo(torch.float32).min)
    made = triton_rollouts.play(env, tables, triton_rollouts.copy_state(env.state), 1)
    assert torch.equal(made["action"][:, 0], masked.argmax(1))
    assert masked.isnan().any()
    assert state.heightmap.shape == made["after"][:, 0].shape


@pytest.mark.parametrize("setting", list(SETTINGS))
def test_no_access_of_a_rollout_is_outside_its_tensor_and_none_races(setting: str) -> None:
    env = environment(**SETTINGS[setting])
    env.reset()
    state = triton_rollouts.copy_state(env.state)
    with AccessChecker() as checker:
        made = triton_rollouts.play(env, tables_of(env, ("2x2",)), state, 2)
    assert not checker.faults, checker.describe()
    assert [launch.kernel for launch in checker.launches] == ["rollout_kernel"]
    assert made["before"].shape == (2, 2, *env.bin.cells)


def test_an_odd_state_reaches_no_memory_outside() -> None:
    """Play from an item outside the catalogue and a key outside the pool."""
    env = environment(**SETTINGS["a pool"])
    env.reset()

    def odd(values: Tensor) -> Tensor:
        return torch.full_like(values, 2**40)

    state = triton_rollouts.copy_state(env.state)
    state = replace(state, item_id=odd(state.item_id), key=odd(state.key), num_packed=odd(state.num_packed))
    with AccessChecker() as checker:
        triton_rollouts.play(env, tables_of(env, ("2x2",)), state, 1)
    assert not checker.faults, checker.describe()


def test_rollouts_are_tried_before_they_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rollouts, "PackingEnv", lambda rows, **given: environment(rows, **given))
    right = triton_rollouts.play

    def wrong(*given: object) -> dict[str, Tensor]:
        made = right(*given)
        return made | {"reward": made["reward"] * 1.5}

    monkeypatch.setattr(triton_rollouts, "play", wrong)
    assert re.match("reward .*RandomBoxes, none", triton_rollouts.self_test("cpu"))


def test_bins_that_the_kernel_does_not_cover_are_named() -> None:
    wide = environment(resolution=20, bin_size=(20.0, 20.0, 4.0), items=RandomBoxes(1, 3))
    assert re.search("16 cells along x.*20", triton_rollouts.problem(wide))
    bearing = environment(stability="load_bearing", items=RandomBoxes(1, 3))
    assert "load_bearing" in triton_rollouts.problem(bearing)


def test_a_learner_plays_whole_rollouts_in_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy_rollouts, "in_triton", lambda name, device: importlib.import_module(name))
    made, launched = [], []
    for player in (GREEDY_ROLLOUTS, None):
        env = environment(**SETTINGS["few"], include=["z_map"])
        rollout = Rollout(env, ["box_heightmap"], n_steps=1, gamma=1.0, player=player)
        policy = PackingPolicy(AgentSpace.of(env), tables_of(env))
        # The first step of a player is played both ways.
        rollout.play(policy, 2)
        with AccessChecker() as checker:
            made.append(rollout.play(policy, 2)[1])
        launched.append([launch.kernel for launch in checker.launches])
    assert launched[0].count("rollout_kernel") == 1
    assert "advance_kernel" not in launched[0]
    assert "rollout_kernel" not in launched[1]
    for key, value in made[0].items(True, True):
        assert torch.equal(value, made[1][key]), key
