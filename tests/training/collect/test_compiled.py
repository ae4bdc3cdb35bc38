"""Compiled steps are those of the plain loop, call after call.

What cannot compile runs plainly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.envs.driving import made
from tests.native.compilers import need_torch_compile
from tests.tolerances import assert_near
from tests.training.resuming import differences, everything, last
from tests.training.tiny import fit, module, packing_env, trainer
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.training.collect.compiled import CompiledSteps
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.collect.steps import play_steps

compiler = torch.compile
STEPS = 4
warned = "operators are launched one by one instead"
"""Line about steps that do not compile."""


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Run recorded operators as they are, without a compiler.

    The fixture lists the functions that were recorded.
    """
    functions: list[Any] = []

    def keep(function: Any, **options: Any) -> Any:
        functions.append(function)
        return function

    monkeypatch.setattr(torch, "compile", keep)
    return functions


class Drawing(nn.Module):
    """Random actions that also depend on a weight, legal ones where there is a mask."""

    def __init__(self, env: BatchedEnv) -> None:
        super().__init__()
        self.key = env.action_keys[0]
        space = env.full_action_spec[self.key].space
        self.bounds = (space.low, space.high - space.low) if hasattr(space, "low") else None
        self.mask_key = (*self.key[:-1], "action_mask") if isinstance(self.key, tuple) else "action_mask"
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        mask = tensordict.get(self.mask_key, None)
        if self.bounds is not None:
            drawn = self.bounds[0] + torch.rand(self.bounds[0].shape) * self.bounds[1] / self.weight
        else:
            drawn = torch.where(mask, torch.rand(mask.shape) * self.weight, -1.0).argmax(-1)
        return tensordict.set(self.key, drawn)


def kept_of(env: BatchedEnv) -> tuple[list[Any], list[Any]]:
    return list(env.stored_keys), [env.action_keys[0]]


def play_both(env: BatchedEnv, twin: BatchedEnv, turns: int, exact: bool = True, between: Any = None) -> None:
    """Play compiled steps of one environment and plain ones of the other.

    Each has a policy of its own.
    """
    policies = [Drawing(each) for each in (env, twin)]
    keys = kept_of(env)
    steps = CompiledSteps(env, policies[0], *keys)
    ours = env.reset()
    theirs = twin.reset()
    same = _equal if exact else _near
    with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
        for turn in range(turns):
            torch.manual_seed(turn)
            wanted, theirs = play_steps(twin, policies[1], theirs, STEPS, *keys)
            state = torch.get_rng_state()
            torch.manual_seed(turn)
            played, ours = steps(ours, STEPS)
            assert torch.equal(torch.get_rng_state(), state)
            assert {key: value.shape for key, value in played.items(True)} == {
                key: value.shape for key, value in wanted.items(True)
            }
            for key, value in wanted.items(True, True):
                same(played[key], value)
            for name, value in twin.state_dict().items():
                same(env.state_dict()[name], value)
            for each in policies:
                for weight in each.parameters():
                    # Weights change, as in an update.
                    weight.mul_(1.1)
            if between is not None:
                ours, theirs = between()


def _equal(ours: Tensor, theirs: Tensor) -> None:
    assert torch.equal(ours.nan_to_num() if ours.is_floating_point() else ours, theirs.nan_to_num())


def _near(ours: Tensor, theirs: Tensor) -> None:
    if ours.is_floating_point():
        assert_near(ours.nan_to_num(), theirs.nan_to_num())
    else:
        assert torch.equal(ours, theirs)


SLOW = [pytest.param(name, marks=pytest.mark.soak) for name in ("packing/three visible", "marine/v2, curriculum")]


@pytest.mark.parametrize("name", ["marine/v3", "dishes/state", *SLOW])
def test_steps_are_those_of_the_plain_loop(name: str, recorded: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    changes = {"backend": "eager"} if name.startswith("packing") else {}
    env = made(name, 4, **changes)
    twin = made(name, 4, **changes)
    play_both(env, twin, 4)
    assert warned not in caplog.text
    assert len(recorded) == 1


@pytest.mark.usefixtures("recorded")
def test_compiled_steps_see_changes_of_the_environment_by_others() -> None:
    env = made("dishes/state", 4)
    twin = made("dishes/state", 4)

    def reseed() -> list[TensorDictBase]:
        for each in (env, twin):
            each.set_seed(7)
        return [env.reset(), twin.reset()]

    play_both(env, twin, 2, between=reseed)


class Counting:
    """Policy that counts its calls in Python, where no recorded operator looks."""

    def __init__(self, env: BatchedEnv) -> None:
        self.env, self.calls = env, 0

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.calls += 1
        action = self.env.full_action_spec["action"]
        return tensordict.set("action", torch.full(action.shape, 0.1 * (self.calls % 7)))


def slips(values: list[Tensor]) -> list[Tensor]:
    return [value + 1 if value.is_floating_point() else value for value in values]


def fails(values: list[Tensor]) -> list[Tensor]:
    raise RuntimeError("no\ncompiler")


@pytest.mark.parametrize(("change", "said"), [(slips, "compiled steps play otherwise"), (fails, "no compiler")])
def test_compiled_steps_that_differ_or_fail_are_left_with_a_line(
    change: Any, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "compile", lambda module, **options: lambda *given: change(module(*given)))
    play_both(*(made("dishes/state", 4) for _ in range(2)), 3)
    matching = [record.getMessage() for record in caplog.records if warned in record.getMessage()]
    (line,) = matching
    assert line.startswith(f"CompiledSteps: {said}")


def test_compiled_steps_that_fail_later_run_plainly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def tired(values: list[Tensor]) -> list[Tensor]:
        calls.append(values)
        return values if len(calls) < 6 else fails(values)

    monkeypatch.setattr(torch, "compile", lambda module, **options: lambda *given: tired(module(*given)))
    env = made("dishes/state", 4)
    played, _ = CompiledSteps(env, Drawing(env), *kept_of(env))(env.reset(), STEPS)
    # Three calls are of the trial, two are steps, and one fails.
    assert len(calls) == 6
    assert played.shape == (4, STEPS)
    steps = [value for name, value in env.state.items() if "step" in name]
    # The failed call leaves no trace: it is as if nothing had been played before it.
    assert [int(value.max()) for value in steps] == [STEPS]
    assert caplog.text.count(warned) == 1


@pytest.mark.usefixtures("recorded")
def test_a_policy_that_keeps_numbers_of_python_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    env = made("dishes/state", 4)
    CompiledSteps(env, Counting(env), *kept_of(env))(env.reset(), STEPS)
    assert warned in caplog.text


@pytest.mark.usefixtures("recorded")
def test_native_steps_stay_native() -> None:
    for backend, wanted in (("eager", True), ("auto", packing_env().kernels.backend != "compiled")):
        env = packing_env(4, backend=backend)
        assert Rollout(env, env.stored_keys, 1, 0.9, compiled=True).compiled is wanted


@pytest.mark.soak
@pytest.mark.usefixtures("recorded")
def test_a_run_resumes_to_the_last_bit(tmp_path: Path) -> None:
    def saved(folder: str, updates: int, **changes: Any) -> Path:
        run = module(env={"backend": "eager"}, torch_compile=True)
        fit(run, tmp_path / folder, updates, EpisodeCheckpoint(every_n_updates=2), **changes)
        return last(tmp_path / folder)

    whole = saved("whole", 8)
    halves = saved("halves", 4)
    saved("halves", 8, ckpt_path=halves, seed=9)
    assert differences(everything(whole), everything(halves)) == []


# This takes minutes.
@pytest.mark.soak
@pytest.mark.parametrize("name", ["marine/v3", "dishes/state"])
def test_the_compiler_of_this_machine_gives_the_same(name: str, caplog: pytest.LogCaptureFixture) -> None:
    need_torch_compile()
    torch.compiler.reset()
    play_both(*(made(name, 4) for _ in range(2)), 3, exact=False)
    assert warned not in caplog.text


def test_many_updates_are_worth_a_compilation(tmp_path: Path) -> None:
    for way, most, yes in (("auto", 4, False), ("auto", 5000, True), (True, 4, True), (False, 5000, False)):
        run = module(torch_compile=way)
        run.trainer = trainer(tmp_path, most)
        assert run.compiles is yes
