"""A mode in which nondeterministic operators of CUDA are errors, on a CPU.

torch raises for them under `torch.use_deterministic_algorithms(True)`, but only on CUDA.
"""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchrl_gpu import native

# What torch 2.15 refuses on CUDA; backward passes are operators of their own.
_REFUSED = {
    "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward",
    "_ctc_loss_backward",
    "_upsample_bicubic2d_aa_backward",
    "_upsample_bilinear2d_aa_backward",
    "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward",
    "avg_pool3d_backward",
    "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward",
    "grid_sampler_2d_backward",
    "grid_sampler_3d_backward",
    "histc",
    "index_reduce",
    "index_reduce_",
    "max_unpool2d",
    "max_unpool3d",
    "nll_loss2d_forward",
    "put_",
    "reflection_pad1d_backward",
    "reflection_pad2d_backward",
    "reflection_pad3d_backward",
    "upsample_bicubic2d_backward",
    "upsample_bilinear2d_backward",
    "upsample_linear1d_backward",
    "upsample_trilinear3d_backward",
}


class NotDeterministic(AssertionError):
    """An operator ran that CUDA refuses where algorithms must be deterministic."""


class Deterministic(TorchDispatchMode):
    """Raise `NotDeterministic` at any operator that torch refuses on CUDA.

    torch refuses it where algorithms must be deterministic.

    Small operators are torch's under this mode, as they are on a GPU; give an environment the backend "eager".
    """

    def __enter__(self) -> Deterministic:
        self._open = contextlib.ExitStack()
        self._open.enter_context(mock.patch.object(native, "runs_on", return_value=False))
        self._open.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._open.__exit__(*exc)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().partition(".")[0].removeprefix("aten::")
        refused = name in _REFUSED or (name in ("median", "nanmedian") and len(args) > 1)
        refused |= name == "bincount" and (len(args) > 1 or kwargs.get("weights") is not None)
        refused |= name.startswith("scatter_reduce") and "prod" in args
        if refused:
            raise NotDeterministic(f"{func} has no deterministic implementation on CUDA")
        return func(*args, **kwargs)
