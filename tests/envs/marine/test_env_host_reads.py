"""A step and its resets never make the host wait for the device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tensordict import TensorDictBase

from tests.envs.marine.settings import SETTINGS, acted, marine
from tests.native.compilers import need_compiler
from tests.no_host_reads import HostRead, NoHostReads
from torchrl_gpu.envs import MarineNavEnv

# Settings that differ from these in numbers alone take the same path.
PATHS = ("v2, one robot", "v2, as released", "v3, discrete", "v3, curriculum", "v3, as released")


def stepped(env: MarineNavEnv, current: TensorDictBase, steps: int = 15) -> Iterator[torch.Tensor]:
    """The same action all the time, made before."""
    shape = (env.num_envs, env.num_robots, *(() if env.num_actions else (2,)))
    action = torch.full(shape, 7 if env.num_actions else 0.5, device=env.device)
    for _ in range(steps):
        step, current = env.step_and_maybe_reset(acted(env, current, action))
        yield step["next", "done"]


@pytest.mark.parametrize("setting", PATHS)
def test_steps_with_resets_read_nothing(setting: str) -> None:
    env = marine(setting, num_envs=4, max_steps=6)
    first = env.reset()
    with NoHostReads():
        done = list(stepped(env, first))
    assert torch.cat(done).sum() > 4


@pytest.mark.parametrize("setting", ["v2", "v3"])
def test_nor_does_the_compiled_path_of_a_cpu(setting: str) -> None:
    need_compiler()
    env = marine(setting, num_envs=4, max_steps=6)
    first = env.reset()
    with NoHostReads(compiled_operators=True):
        done = list(stepped(env, first))
    assert torch.cat(done).sum() > 4


def test_a_change_of_level_reads_nothing_either() -> None:
    env = marine("v2, curriculum", num_envs=4, max_steps=6)
    first = env.reset()
    with NoHostReads():
        env.set_level(2_500_000)
        list(stepped(env, first))
    assert env.state.level.tolist() == [2] * 4


def test_the_mode_would_see_a_read() -> None:
    env = marine("v2", num_envs=4)
    with NoHostReads(), pytest.raises(HostRead):
        env.state.active.any().item()


@pytest.mark.gpu
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_gpu_never_waits(setting: str) -> None:
    env = marine(setting, num_envs=64, max_steps=40, device="cuda")
    list(stepped(env, env.reset()))  # first calls load what they need
    first = env.reset()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        done = list(stepped(env, first, 100))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cat(done).sum() > 64
