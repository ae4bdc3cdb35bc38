"""A mode in which everything that waits for a GPU is an error.

A machine without a GPU can test for waits with it.
"""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import TorchDispatchMode

from torchrl_gpu import native

_SYNCHRONISING = {
    # From item(), bool(), int(), float(), if and while.
    "_local_scalar_dense",
    "_unique",
    "_unique2",
    "allclose",
    "bincount",
    "equal",
    # From torch.tensor(...) of host data, a copy to the device.
    "lift_fresh",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
    "unique_dim_consecutive",
}
_OLD = torch.__version__ < TorchVersion("2.15")
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
# These reach the data of a CPU tensor without passing the dispatcher.
_HOST_METHODS = (Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__array__)


class HostRead(AssertionError):
    """An operator ran that would synchronise."""


class NoHostReads(TorchDispatchMode):
    """Raises `HostRead` at any operator which, on a GPU, would block the host.

    That is: reading a value, an output whose size depends on values, a boolean mask as an index, a tensor made from
    host data, a copy between devices. What is compiled for a CPU passes no dispatcher and would hide the operators that
    a GPU runs in its place: small operators are torch's under this mode, and an environment must be given the backend
    "eager".

    Args:
        compiled_operators: Leave the compiled ones in place, to test a CPU's own path.
    """

    def __init__(self, compiled_operators: bool = False) -> None:
        super().__init__()
        self._compiled_operators = compiled_operators

    def __enter__(self) -> NoHostReads:
        self._open = contextlib.ExitStack()
        if not self._compiled_operators:
            self._open.enter_context(mock.patch.object(native, "runs_on", return_value=False))
        self._open.enter_context(_NoHostMethods())
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._open.__exit__(*exc)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().partition(".")[0].removeprefix("aten::")
        # Up to torch 2.11 `tensor[…] = number` passes here; it fills, and copies nothing.
        assigned = name == "lift_fresh" and args[0].ndim == 0 and _OLD
        if name in _SYNCHRONISING and not assigned:
            raise HostRead(f"{func} reads the device or copies host data to it")
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            raise HostRead(f"{func} reads the length of its output")
        if name in _INDEXING and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
            raise HostRead(f"{func} with a mask as an index reads how many elements it picks")
        out = func(*args, **kwargs)
        if name in ("_to_copy", "copy_") and _crosses(args, out):
            raise HostRead(f"{func} copies between devices")
        return out


class _NoHostMethods(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _HOST_METHODS:
            raise HostRead(f"{func} hands the data of a tensor to the host")
        return func(*args, **(kwargs or {}))


def _crosses(args: tuple[Any, ...], out: Tensor) -> bool:
    return any(isinstance(arg, Tensor) and arg.device.type != out.device.type for arg in args)
