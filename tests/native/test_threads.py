"""The kernels' pool of threads.

Results are the same whoever calls, forks, or has the cores.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tests.envs.test_base import Countdown
from tests.native.compilers import loaded_path, need_compiler, threads
from torchrl_gpu import native
from torchrl_gpu.envs import BatchedEnv, MarineNavEnv, PackingEnv
from torchrl_gpu.native import build
from torchrl_gpu.system import threads as system_threads

# The oldest that torch's own wheels run on.
GLIBC_OF_TORCH = (2, 28)


@pytest.fixture(autouse=True)
def several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four threads, also on a machine of fewer cores."""
    need_compiler()
    monkeypatch.setattr(system_threads, "usable_cores", lambda: 4)


def rows_to_pick_from(rows: int = 2048) -> tuple[Tensor, Tensor]:
    """A mask and draws of so many rows that a kernel splits them among threads."""
    generator = torch.Generator().manual_seed(rows)
    mask = torch.rand(rows, 256, generator=generator) < 0.3
    return mask, torch.rand(rows, generator=generator, dtype=torch.float64)


def test_python_threads_share_the_pool_without_waiting_for_each_other() -> None:
    given = rows_to_pick_from()
    with threads(1):
        wanted = native.pick_true(*given)

    def repeat(_: int) -> bool:
        with threads(4):
            return all(native.pick_true(*given).tolist() == wanted.tolist() for _ in range(40))

    with ThreadPoolExecutor(4) as callers:
        assert list(callers.map(repeat, range(4))) == [True] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_process_has_a_pool_of_its_own() -> None:
    # In the child only the kernel runs, since OpenMP's threads, which torch's own operators want, are not forked.
    given = rows_to_pick_from()
    with threads(4):
        wanted = native.pick_true(*given).tolist()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = 0 if native.pick_true(*given).tolist() == wanted else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


def test_kernels_keep_their_threads_where_operators_have_one() -> None:
    with threads(4), system_threads.single_threaded():
        assert torch.get_num_threads() == 1
        assert system_threads.kernel_threads() == 4
        with system_threads.single_threaded():
            assert system_threads.kernel_threads() == 4
    assert system_threads.kernel_threads() == min(4, torch.get_num_threads())


def test_threads_come_back_after_an_error() -> None:
    with threads(3):
        with pytest.raises(KeyError), system_threads.single_threaded():
            raise KeyError
        assert torch.get_num_threads() == 3


def test_quota_limits_torch_and_kernels(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(system_threads, "usable_cores", lambda: 2)
    with threads(4):
        assert system_threads.kernel_threads() == 2
        system_threads.keep_to_usable_cores()
        assert torch.get_num_threads() == 2
    assert "2 threads in place of 4" in caplog.text


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or platform.machine() != "x86_64", reason="for the wheel")
def test_library_loads_wherever_torch_does() -> None:
    if "ziglang" in build.compiler():
        pytest.skip("no wheel is made by ziglang, which links a library of its own")
    library = loaded_path().read_bytes()
    versions = {tuple(map(int, each.split(b"."))) for each in re.findall(rb"GLIBC_(\d+\.\d+)", library)}
    assert max(versions) <= GLIBC_OF_TORCH
    assert b"libgomp" not in library


class Counting(Countdown):
    """Tells how many threads a step has."""

    few_envs = 2

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.threads_of_step = torch.get_num_threads()
        return super()._step(tensordict)

    _step = system_threads.runs_single_threaded(_step)


@pytest.mark.parametrize(("num_envs", "wanted"), [(2, 1), (3, 4)])
def test_few_environments_step_on_one_thread(num_envs: int, wanted: int) -> None:
    env = Counting(num_envs)
    with threads(4):
        env.rollout(2)
        assert env.threads_of_step == wanted
        assert torch.get_num_threads() == 4


@pytest.mark.parametrize(
    ("env", "single"),
    [
        (lambda: PackingEnv(4, device="cpu", seed=0), True),
        (lambda: PackingEnv(1, items="procedural", num_items=2, device="cpu", seed=0), False),
        (lambda: MarineNavEnv(4, device="cpu", seed=0), True),
        (lambda: MarineNavEnv(512, version="v3", device="cpu", seed=0), False),
    ],
)
def test_shipped_environments_know_how_many_are_few(env: Callable[[], BatchedEnv], single: bool) -> None:
    made = env()
    assert (made.num_envs <= made.few_envs) is single
