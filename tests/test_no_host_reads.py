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


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda: x[0].item(), id="item"),
        pytest.param(lambda: bool(x[0] > 0), id="if"),
        pytest.param(x.tolist, id="tolist"),
        pytest.param(x.numpy, id="numpy"),
        pytest.param(x.__array__, id="asarray"),
        pytest.param(x.cpu, id="cpu"),
        pytest.param(lambda: torch.tensor([3.0]), id="tensor"),
        pytest.param(lambda: torch.equal(x, x), id="equal"),
        pytest.param(lambda: torch.allclose(x, x), id="allclose"),
        pytest.param(x.nonzero, id="nonzero"),
        pytest.param(lambda: x.argwhere(), id="argwhere"),
        pytest.param(lambda: torch.where(x > 1), id="where of one"),
        pytest.param(x.unique, id="unique"),
        pytest.param(lambda: torch.unique_consecutive(x), id="unique consecutive"),
        pytest.param(lambda: x.masked_select(x > 1), id="masked select"),
        pytest.param(lambda: x[x > 1], id="boolean index"),
        pytest.param(lambda: x.clone().index_put_((x > 1,), x[:2]), id="boolean index put"),
        pytest.param(lambda: torch.repeat_interleave(x, x.long()), id="repeat"),
        pytest.param(lambda: x.long().bincount(), id="bincount"),
        pytest.param(lambda: x.to("meta"), id="copy between devices"),
    ],
)
def test_the_mode_fails_on_every_kind_of_read(read: Callable[[], object]) -> None:
    with NoHostReads(), pytest.raises(HostRead):
        read()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: torch.where(x > 1, x, 0.0), id="where"),
        pytest.param(lambda: x.masked_fill(x > 1, 0.0), id="masked fill"),
        pytest.param(lambda: x[x.long()], id="integer index"),
        pytest.param(lambda: x.clone().index_put_((x.long(),), x), id="integer index put"),
        pytest.param(lambda: x.gather(0, x.long()), id="gather"),
        pytest.param(lambda: x.to("cpu").to(torch.float64), id="to the same device"),
        pytest.param(lambda: torch.full_like(x, 3.0), id="full"),
        pytest.param(lambda: torch.repeat_interleave(x, x.long(), output_size=6), id="repeat of known length"),
    ],
)
def test_the_mode_lets_everything_else_pass(call: Callable[[], object]) -> None:
    with NoHostReads():
        call()


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
