"""Threads of torch's operators and of the C++ kernels."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch

from torchrl_gpu.system.cores import usable_cores
from torchrl_gpu.system.tracing import is_traced

_LOG = logging.getLogger(__name__)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Env = TypeVar("_Env", bound="_Batched")


class _Batched(Protocol):
    """What decides of an environment whether threads are worth their while."""

    num_envs: int
    few_envs: int

    @property
    def device(self) -> torch.device: ...


class _Local(threading.local):
    """Settings of each thread that calls kernels.

    Attributes:
        kernel_threads: Threads for a kernel; 0 for as many as torch has. It has a default here, since to find that a
            thread has none of its own takes as long as a small kernel.
    """

    kernel_threads: int = 0


_local = _Local()


def kernel_threads() -> int:
    """Threads for a C++ kernel: those of torch, and no more than usable cores."""
    if _local.kernel_threads:
        return _local.kernel_threads
    threads = torch.get_num_threads()
    return threads if threads == 1 else min(threads, usable_cores())


@contextmanager
def single_threaded(active: bool = True) -> Iterator[None]:
    """Run torch's operators, but not C++ kernels, on the calling thread alone.

    An operator that torch splits among threads ends when the last of them has had a core. Beside a busy process that
    takes milliseconds, for an operator of some microseconds.

    Args:
        active: False changes nothing.
    """
    before = torch.get_num_threads()
    if not active or before == 1:
        yield
        return
    # From here on torch says one thread, and kernels would go by that.
    _local.kernel_threads = kernel_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _local.kernel_threads = 0


def runs_single_threaded(
    method: Callable[Concatenate[_Env, _Given], _Result],
) -> Callable[Concatenate[_Env, _Given], _Result]:
    """Decorate a method of an environment to use one thread for few environments.

    That is on a CPU, up to `few_envs` of them; see `single_threaded`.
    """

    @functools.wraps(method)
    def run(self: _Env, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        # Ahead of the context, which takes as long as an operator even where it changes nothing.
        if is_traced() or torch.get_num_threads() == 1:
            return method(self, *args, **kwargs)
        if self.device.type != "cpu" or self.num_envs > self.few_envs:
            return method(self, *args, **kwargs)
        with single_threaded():
            return method(self, *args, **kwargs)

    return run


def keep_to_usable_cores() -> None:
    """Give torch no more threads than usable cores.

    Torch does not see the quota of a container.
    """
    cores = usable_cores()
    threads = torch.get_num_threads()
    if threads > cores:
        torch.set_num_threads(cores)
        _LOG.warning("torch runs %d threads in place of %d: this process may use %d cores", cores, threads, cores)
