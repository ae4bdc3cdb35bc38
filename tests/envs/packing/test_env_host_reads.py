"""A step and its resets never make the host wait for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from tests.envs.packing.settings import SETTINGS, legal_action, packing
from tests.native.compilers import need_compiler
from tests.no_host_reads import HostRead, NoHostReads
from torchrl_gpu import native
from torchrl_gpu.envs import PackingEnv

x = torch.arange(4.0)
READS: dict[str, Callable[[], object]] = {
    "item": lambda: x[0].item(),
    "if": lambda: bool(x[0] > 0),
    "tolist": x.tolist,
    "numpy": x.numpy,
    "asarray": x.__array__,
    "cpu": x.cpu,
    "tensor": lambda: torch.tensor(3.0),
    "equal": lambda: torch.equal(x, x),
    "allclose": lambda: torch.allclose(x, x),
    "nonzero": x.nonzero,
    "argwhere": lambda: x.argwhere(),
    "where of one": lambda: torch.where(x > 1),
    "unique": x.unique,
    "unique consecutive": lambda: torch.unique_consecutive(x),
    "masked select": lambda: x.masked_select(x > 1),
    "boolean index": lambda: x[x > 1],
    "boolean index put": lambda: x.clone().index_put_((x > 1,), x[:2]),
    "repeat": lambda: torch.repeat_interleave(x, x.long()),
    "bincount": lambda: x.long().bincount(),
    "copy between devices": lambda: x.to("meta"),
}
QUIET: dict[str, Callable[[], object]] = {
    "where": lambda: torch.where(x > 1, x, 0.0),
    "masked fill": lambda: x.masked_fill(x > 1, 0.0),
    "integer index": lambda: x[x.long()],
    "integer index put": lambda: x.clone().index_put_((x.long(),), x),
    "gather": lambda: x.gather(0, x.long()),
    "to the same device": lambda: x.to("cpu").to(torch.float64),
    "full": lambda: torch.full_like(x, 3.0),
    "repeat of known length": lambda: torch.repeat_interleave(x, x.long(), output_size=6),
}


@pytest.mark.parametrize("kind", READS)
def test_the_mode_fails_on_every_kind_of_read(kind: str) -> None:
    with NoHostReads(), pytest.raises(HostRead):
        READS[kind]()


@pytest.mark.parametrize("kind", QUIET)
def test_the_mode_lets_everything_else_pass(kind: str) -> None:
    with NoHostReads():
        QUIET[kind]()


def test_under_the_mode_small_operators_are_those_of_a_gpu() -> None:
    need_compiler()
    with NoHostReads():
        assert not native.runs_on(x)
    with NoHostReads(compiled_operators=True):
        assert native.runs_on(x)
    with pytest.raises(HostRead), NoHostReads():
        x[0].item()
    assert native.runs_on(x)  # as before, after an error too


def stepped(env: PackingEnv, current: TensorDictBase, steps: int = 20) -> Iterator[torch.Tensor]:
    """Legal actions at random, one in ten of them any action; yields which rows were done."""
    for turn in range(steps):
        action = legal_action(current["action_mask"])
        if turn % 10 == 9:
            action = torch.randint(-1, env.num_actions + 1, (env.num_envs,), device=env.device)
        step, current = env.step_and_maybe_reset(current.set("action", action))
        yield step["next", "done"]


def small(setting: str, backend: str) -> PackingEnv:
    """Four environments; those of the largest setting are made coarser."""
    coarser = {"resolution": 10, "grid_step": 3} if setting == "irregular" else {}
    return packing(setting, num_envs=4, backend=backend, **coarser)


@pytest.mark.parametrize("setting", SETTINGS)
def test_steps_with_resets_read_nothing(setting: str) -> None:
    env = small(setting, "eager")
    first = env.reset()
    with NoHostReads():
        done = list(stepped(env, first))
    assert torch.cat(done).sum() >= 4


@pytest.mark.parametrize("setting", SETTINGS)
def test_nor_does_the_compiled_path_of_a_cpu(setting: str) -> None:
    need_compiler()
    env = small(setting, "compiled")
    first = env.reset()
    with NoHostReads(compiled_operators=True):
        done = list(stepped(env, first))
    assert torch.cat(done).sum() >= 4


class StockEnv(PackingEnv):
    """With TorchRL's own way of restarting what is done."""

    _step_and_maybe_reset = EnvBase._step_and_maybe_reset
    maybe_reset = EnvBase.maybe_reset


def test_torchrls_own_path_reads_the_device() -> None:
    env = StockEnv(4, backend="eager", device="cpu", seed=0)
    first = env.reset()
    with NoHostReads(), pytest.raises(HostRead, match="_local_scalar_dense"):
        list(stepped(env, first))


def test_a_step_alone_is_quiet_even_there() -> None:
    # What reads is the restart, not the step; so the test above fails for the reason that it names.
    env = StockEnv(4, backend="eager", device="cpu", seed=0)
    first = env.reset()
    with NoHostReads():
        env.step(first.set("action", legal_action(first["action_mask"])))


@pytest.mark.gpu
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_gpu_never_waits(setting: str) -> None:
    env = packing(setting, num_envs=64, device="cuda")
    list(stepped(env, env.reset()))  # first calls load what they need
    first = env.reset()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        done = list(stepped(env, first, steps=100))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cat(done).sum() > 64
