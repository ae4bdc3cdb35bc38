"""Threads of torch's operators and of the C++ kernels."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch

from torchrl_gpu.system.cores import usable_cores
from torchrl_gpu.system.tracing import is_traced

_LOG = logging.getLogger(__name__)
_Method = TypeVar("_Method", bound=Callable[..., Any])
_local = threading.local()


def kernel_threads() -> int:
    """Threads for a C++ kernel: those of torch, and no more than usable cores."""
    wanted: int | None = getattr(_local, "kernel_threads", None)
    return wanted or min(torch.get_num_threads(), usable_cores())


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
    _local.kernel_threads = kernel_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _local.kernel_threads = None


def runs_single_threaded(method: _Method) -> _Method:
    """Decorate a method of an environment to use one thread for few environments.

    That is on a CPU, up to `few_envs` of them; see `single_threaded`.
    """

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_traced() or self.device.type != "cpu" or self.num_envs > self.few_envs:
            return method(self, *args, **kwargs)
        with single_threaded():
            return method(self, *args, **kwargs)

    return cast(_Method, run)


def keep_to_usable_cores() -> None:
    """Give torch no more threads than usable cores.

    Torch does not see the quota of a container.
    """
    cores = usable_cores()
    threads = torch.get_num_threads()
    if threads > cores:
        torch.set_num_threads(cores)
        _LOG.warning("torch runs %d threads in place of %d: this process may use %d cores", cores, threads, cores)
