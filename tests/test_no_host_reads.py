"""The mode that makes reads of the device errors sees them all, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torchrl.envs import EnvBase

from tests.envs.packing.settings import legal_action
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
    "tensor": lambda: torch.tensor([3.0]),
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
    # This holds as before, after an error too.
    assert native.runs_on(x)


class StockEnv(PackingEnv):
    """With TorchRL's own way of restarting what is done."""

    _step_and_maybe_reset = EnvBase._step_and_maybe_reset
    maybe_reset = EnvBase.maybe_reset


def test_torchrls_own_path_reads_the_device() -> None:
    env = StockEnv(4, backend="eager", device="cpu", seed=0)
    first = env.reset()
    with NoHostReads():
        # The restart reads, not the step.
        env.step(first.set("action", legal_action(first["action_mask"])))
    with NoHostReads(), pytest.raises(HostRead, match="_local_scalar_dense"):
        env.step_and_maybe_reset(first.set("action", legal_action(first["action_mask"])))
