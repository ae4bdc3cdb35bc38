"""A step under `torch.compile`: one graph with nothing left out, and the same numbers as without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch._dynamo.testing import CompileCounterWithBackend

from tests.envs.marine.settings import acted, assert_same, marine, random_action
from tests.native.compilers import need_torch_compile
from tests.tolerances import assert_near
from torchrl_gpu.envs import MarineNavEnv

Step = Callable[[TensorDictBase], tuple[TensorDictBase, TensorDictBase]]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """What one test has compiled is nothing to the next."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(env: MarineNavEnv, **how: Any) -> Step:
    """A step with the restart of finished rows, in one graph or not at all."""
    return torch.compile(env.step_and_maybe_reset, fullgraph=True, dynamic=False, **how)


def started(env: MarineNavEnv) -> TensorDictBase:
    """After one step: what a reset gives has its keys in another order, which would be compiled for itself."""
    action = random_action(env, torch.Generator().manual_seed(99)).to(env.device)
    return env.step_and_maybe_reset(acted(env, env.reset(), action))[1]


def play_both(
    env: MarineNavEnv, twin: MarineNavEnv, step: Step, compare: Callable[[Any, Any], None], turns: int = 30
) -> None:
    """The compiled step of one environment beside the plain step of the other."""
    generator, ends = torch.Generator().manual_seed(0), 0
    ours, theirs = started(env), started(twin)
    compare(ours, theirs)  # tensordict remembers the types that it has seen, and a graph looks at how many
    for _ in range(turns):
        action = random_action(env, generator).to(env.device)
        with torch.no_grad():
            seen, ours = step(acted(env, ours, action))
            wanted, theirs = twin.step_and_maybe_reset(acted(twin, theirs, action))
        compare(seen, wanted)
        compare(ours, theirs)
        ends += int(wanted["next", "done"].sum())
    assert ends >= 3


def assert_close(first: TensorDictBase, second: TensorDictBase) -> None:
    """The same keys, flags and counts; numbers within the tolerance of sums in another order."""
    assert set(first.keys(True, True)) == set(second.keys(True, True))
    for key in first.keys(True, True):
        if first[key].is_floating_point():
            assert_near(first[key], second[key])
        else:
            assert torch.equal(first[key], second[key]), key


def test_a_compiled_step_is_the_step() -> None:
    # aot_eager traces all that inductor would be given, and runs it without generating code.
    env, twin = (marine("v2", max_steps=8) for _ in range(2))
    counter = CompileCounterWithBackend("aot_eager")
    play_both(env, twin, compiled(env, backend=counter), assert_same)
    assert counter.frame_count == 1  # once, and never again


# Every option once, a few at a time: tracing a step takes seconds.
TRACED: dict[str, dict[str, Any]] = {
    "v2, one robot": {},
    "v3, discrete": {"curriculum": "paper", "sensor_noise": False},
    "v3, as released": {},
}


@pytest.mark.parametrize("setting", TRACED)
def test_every_kind_of_setting_is_one_graph(setting: str) -> None:
    env, twin = (marine(setting, max_steps=8, **TRACED[setting]) for _ in range(2))
    play_both(env, twin, compiled(env, backend="eager"), assert_same)


class Reading(MarineNavEnv):
    """Asks the host in each step."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        assert tensordict["robots", "action"].sum().item() > -100
        return super()._step(tensordict)


def test_one_graph_fails_where_something_is_read() -> None:
    env = Reading(2, device="cpu", seed=0, pool=4)
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        compiled(env, backend="eager")(acted(env, env.reset(), random_action(env, torch.Generator())))


@pytest.mark.soak  # its C++ compiler takes a minute
def test_inductor_on_a_cpu_gives_the_same_numbers() -> None:
    need_torch_compile()
    # In float64, and not for long: where a current bends a path, a last digit grows.
    env, twin = (marine("v2", max_steps=8, dtype="float64", robots=2, cores=2, obstacles=2) for _ in range(2))
    play_both(env, twin, compiled(env, backend="inductor"), assert_close)


@pytest.mark.gpu
@pytest.mark.parametrize("setting", ["v2", "v3"])
def test_inductor_on_a_gpu_gives_the_same_numbers(setting: str) -> None:
    env, twin = (marine(setting, 16, max_steps=8, dtype="float64", device="cuda") for _ in range(2))
    play_both(env, twin, compiled(env, backend="inductor"), assert_close)
