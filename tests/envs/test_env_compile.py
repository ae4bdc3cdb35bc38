"""A step under `torch.compile`: one graph, and the same numbers as without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch.torch_version import TorchVersion

from tests.envs.driving import PACKING, at_random, made
from tests.envs.packing.settings import assert_same
from tests.native.compilers import need_torch_compile
from tests.tolerances import assert_near
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.packing.items import CutBoxes, RandomBoxes

CUT: dict[str, Any] = {"items": CutBoxes(pool=8), "order": "volume"}
Step = Callable[[TensorDictBase], tuple[TensorDictBase, TensorDictBase]]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(env: BatchedEnv, **how: object) -> Step:
    """A step with the restart of finished rows, in one graph or not at all."""
    return torch.compile(env.step_and_maybe_reset, fullgraph=True, dynamic=False, **how)


def play_both(env: BatchedEnv, twin: BatchedEnv, step: Step, *, exact: bool = True, turns: int = 12) -> None:
    """The compiled step of one environment beside the plain step of the other."""
    compare = assert_same if exact else assert_close
    act = at_random(twin)
    (key,) = twin.action_keys
    ends = 0
    # After a plain step: what a reset gives has its keys in another order, which would be compiled for itself.
    _, ours = env.step_and_maybe_reset(at_random(env)(env.reset()))
    _, theirs = twin.step_and_maybe_reset(at_random(twin)(twin.reset()))
    # tensordict remembers the types that it has seen, and a graph checks how many there are.
    compare(ours, theirs)
    for turn in range(turns):
        action = act(theirs)[key].clone()
        if turn % 7 == 6 and not action.is_floating_point():
            action.fill_(-1)
        with torch.no_grad():
            seen, ours = step(ours.set(key, action))
            wanted, theirs = twin.step_and_maybe_reset(theirs.set(key, action))
        compare(seen, wanted)
        compare(ours, theirs)
        ends += int(wanted["next", "done"].sum())
    assert ends >= 3
    if exact:
        state = env.state_dict()
        assert all(torch.equal(state[name], value) for name, value in twin.state_dict().items())


def assert_close(first: TensorDictBase, second: TensorDictBase) -> None:
    """The same keys, flags and counts.

    Numbers agree within the tolerance of sums in another order.
    """
    assert set(first.keys(True, True)) == set(second.keys(True, True))
    for key in first.keys(True, True):
        if first[key].is_floating_point():
            assert_near(first[key], second[key])
        else:
            assert torch.equal(first[key], second[key]), key


# aot_eager traces all that inductor would be given, and runs it without generating code; eager traces alone. What a
# step is made of, a few things at a time: tracing one takes seconds.
COARSE = {**CUT, "reward": "objective", "num_items": 14, "skip_unplaceable": True}
# Maps of few cells, since torch's kernels take them one at a time.
SMALL = {"stability": "com", "stability_judge": "com", "resolution": 4, "grid_step": 2, "num_items": 6}
TRACED: dict[str, tuple[str, dict[str, object]]] = {
    "packing/coarse grid": ("eager", COARSE),
    "packing/irregular, passing over": ("eager", SMALL),
    "marine/v3, discrete": ("eager", {"curriculum": "paper", "sensor_noise": False}),
}
MORE_TRACED: dict[str, tuple[str, dict[str, object]]] = {
    "packing/coarse grid": ("aot_eager", COARSE),
    "packing/bpp10": ("aot_eager", {}),
    "marine/v2": ("aot_eager", {}),
    "marine/v2, one robot": ("eager", {}),
    "marine/v3, as released": ("aot_eager", {}),
}


@pytest.mark.parametrize(
    ("name", "backend", "changes"),
    [
        *((name, *how) for name, how in TRACED.items()),
        *(pytest.param(name, *how, marks=pytest.mark.soak) for name, how in MORE_TRACED.items()),
    ],
)
def test_a_compiled_step_is_the_step(name: str, backend: str, changes: dict[str, object]) -> None:
    eager = {"backend": "eager"} if name in PACKING else {}
    env = made(name, **eager | changes)
    twin = made(name, **eager | changes)
    counter = CompileCounterWithBackend(backend)
    play_both(env, twin, compiled(env, backend=counter))
    # Once, and never again.
    assert counter.frame_count == 1


class Reading(PackingEnv):
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        assert tensordict["action"].sum().item() > -100
        return super()._step(tensordict)


def test_one_graph_fails_where_something_is_read() -> None:
    env = Reading(2, device="cpu", seed=0, backend="eager")
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        compiled(env, backend="eager")(at_random(env)(env.reset()))


def twenty_steps(env: BatchedEnv) -> list[TensorDictBase]:
    act = at_random(env)
    current = env.reset()
    seen = []
    for _ in range(20):
        step, current = env.step_and_maybe_reset(act(current))
        seen += [step.clone(), current.clone()]
    return seen


traceable = pytest.mark.skipif(
    torch.__version__ < TorchVersion("2.15"),
    reason="torch 2.11 cannot trace TorchRL's cache of keys, and Inductor's cannot view bool as bytes",
)


@traceable
# Inductor takes a minute of C++.
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.soak)])
def test_torchrls_own_compilation(backend: str) -> None:
    if backend == "inductor":
        need_torch_compile()
    items = RandomBoxes(1, 2)
    small = {"bin_size": (4.0, 4.0, 4.0), "resolution": 4, "items": items, "orientations": "fixed", "include": ()}
    expected, env = twenty_steps(made("packing/bpp10", **small)), made("packing/bpp10", **small)
    assert any(step["next", "done"].any() for step in expected[4::2])
    counters.clear()
    # The first steps settle the order of the keys.
    env.compile(warmup=2, fullgraph=True, backend=backend)
    # Scalar code compiles in half the time.
    with inductor_config.patch({"cpp.simdlen": 0}):
        came = twenty_steps(env)
    assert counters["stats"]["unique_graphs"] == 1
    for first, second in zip(expected, came, strict=True):
        assert_close(second, first)


# Its C++ compiler takes a minute.
@pytest.mark.soak
def test_inductor_on_a_cpu_gives_the_same_numbers() -> None:
    need_torch_compile()
    env = made("packing/bpp10", backend="eager")
    twin = made("packing/bpp10", backend="eager")
    play_both(env, twin, compiled(env, backend="inductor"))
    # In float64, and not for long: where a current bends a path, a last digit grows.
    few: dict[str, object] = {"dtype": "float64", "robots": 2, "cores": 2, "obstacles": 2}
    env = made("marine/v2", **few)
    twin = made("marine/v2", **few)
    play_both(env, twin, compiled(env, backend="inductor"), exact=False)


@pytest.mark.gpu
@traceable
@pytest.mark.parametrize("name", ["packing/bpp10", "packing/corners", "packing/coarse grid", "marine/v2", "marine/v3"])
def test_inductor_on_a_gpu_gives_the_same_numbers(name: str) -> None:
    changes = {"backend": "eager"} if name in PACKING else {"dtype": "float64"}
    env = made(name, 16, device="cuda", **changes)
    twin = made(name, 16, device="cuda", **changes)
    play_both(env, twin, compiled(env, backend="inductor"), exact=name in PACKING)


@pytest.mark.gpu
@traceable
@pytest.mark.parametrize("name", PACKING)
def test_reduced_overhead_gives_the_same_bits(name: str) -> None:
    # With the kernels that "auto" takes there. Outputs of one replay are overwritten by the next: what lives on is
    # copied, the state of the environment, too.
    env = made(name, 16, device="cuda")
    twin = made(name, 16, device="cuda")
    step = torch.compile(env.step_and_maybe_reset, dynamic=False, mode="reduce-overhead")

    def replayed(current: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        torch.compiler.cudagraph_mark_step_begin()
        seen, after = step(current)
        seen = seen.clone()
        after = after.clone()
        env.set_env_state({name: value.clone() for name, value in env.env_state().items()})
        return seen, after

    play_both(env, twin, replayed)
