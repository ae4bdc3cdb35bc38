"""A step under `torch.compile`: one graph with nothing left out, and the same bits as without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch._dynamo.testing import CompileCounterWithBackend

from tests.envs.packing.settings import SETTINGS, assert_same, legal_action, packing
from tests.native.compilers import need_torch_compile
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import CutBoxes

Step = Callable[[TensorDictBase], tuple[TensorDictBase, TensorDictBase]]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(env: PackingEnv, **how: Any) -> Step:
    """A step with the restart of finished rows, in one graph or not at all."""
    return torch.compile(env.step_and_maybe_reset, fullgraph=True, dynamic=False, **how)


def started(env: PackingEnv) -> TensorDictBase:
    """After one step: what a reset gives has its keys in another order, which would be compiled for itself."""
    return play(env, env.step_and_maybe_reset, env.reset(), turn=0)[1]


def play(env: PackingEnv, step: Step, current: TensorDictBase, turn: int) -> tuple[TensorDictBase, TensorDictBase]:
    action = legal_action(current["action_mask"], torch.Generator(env.device).manual_seed(turn))
    if turn % 7 == 6:
        action = torch.full_like(action, -1)
    with torch.no_grad():
        return step(current.set("action", action))


def play_both(env: PackingEnv, twin: PackingEnv, step: Step, turns: int = 20) -> None:
    """The compiled step of one environment beside the plain step of the other."""
    ours, theirs, ends = started(env), started(twin), 0
    for turn in range(turns):
        seen, ours = play(env, step, ours, turn)
        wanted, theirs = play(twin, twin.step_and_maybe_reset, theirs, turn)
        assert_same(seen, wanted)
        assert_same(ours, theirs)
        ends += int(wanted["next", "done"].sum())
    assert ends > 3
    mine, other = env.state_dict(), twin.state_dict()
    assert all(torch.equal(mine[name], other[name]) for name in mine)


# What a step is made of, a few things at a time: tracing one takes seconds.
TRACED: dict[str, dict[str, Any]] = {
    "boxes in order": {
        "setting": "coarse grid",
        "items": CutBoxes(pool=8),
        "reward": "objective",
        "order": "volume",
        "skip_unplaceable": True,
        "num_items": 14,
    },
    "solids": {
        "setting": "irregular, passing over",
        "stability": "com",
        "stability_judge": "com",
        "resolution": 6,  # maps of few cells: torch's kernels take them one at a time
        "grid_step": 2,
    },
}


def test_a_compiled_step_is_the_step() -> None:
    # aot_eager traces all that inductor would be given, and runs it without generating code.
    env, twin = (packing(backend="eager") for _ in range(2))
    counter = CompileCounterWithBackend("aot_eager")
    play_both(env, twin, compiled(env, backend=counter))
    assert counter.frame_count == 1  # once, and never again


@pytest.mark.parametrize("case", TRACED)
def test_every_rule_and_kind_of_item_is_one_graph(case: str) -> None:
    env, twin = (packing(**TRACED[case], backend="eager") for _ in range(2))
    play_both(env, twin, compiled(env, backend="eager"))


def test_a_simulation_on_the_host_is_refused_by_its_name() -> None:
    pytest.importorskip("mujoco")
    env = packing("objective", stability_judge="physics", backend="eager")
    with pytest.raises(torch._dynamo.exc.TorchDynamoException, match="stability_judge='physics' reads the device back"):
        play(env, compiled(env, backend="eager"), env.reset(), 0)


class Reading(PackingEnv):
    """Asks the host in each step."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        assert tensordict["action"].sum().item() > -100
        return super()._step(tensordict)


def test_one_graph_fails_where_something_is_read() -> None:
    env = Reading(2, device="cpu", seed=0, backend="eager")
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        play(env, compiled(env, backend="eager"), env.reset(), 0)


@pytest.mark.soak  # its C++ compiler takes a minute
def test_inductor_on_a_cpu_gives_the_same_bits() -> None:
    need_torch_compile()
    env, twin = (packing(backend="eager") for _ in range(2))
    play_both(env, twin, compiled(env, backend="inductor"))


@pytest.mark.gpu
@pytest.mark.parametrize("setting", ["bpp10", "corners", "coarse grid"])
def test_inductor_on_a_gpu_gives_the_same_bits(setting: str) -> None:
    env, twin = (packing(setting, 16, device="cuda", backend="eager") for _ in range(2))
    play_both(env, twin, compiled(env, backend="inductor"))


@pytest.mark.gpu
@pytest.mark.parametrize("setting", SETTINGS)
def test_reduced_overhead_gives_the_same_bits(setting: str) -> None:
    # With the kernels that "auto" takes there. Outputs of one replay are overwritten by the next: what lives on is
    # copied, the state of the environment, too.
    env, twin = (packing(setting, 16, device="cuda") for _ in range(2))
    step = torch.compile(env.step_and_maybe_reset, dynamic=False, mode="reduce-overhead")

    def replayed(current: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        torch.compiler.cudagraph_mark_step_begin()
        seen, after = (each.clone() for each in step(current))
        env._set_env_state({name: value.clone() for name, value in env._env_state().items()})
        return seen, after

    play_both(env, twin, replayed)
