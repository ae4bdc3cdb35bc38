"""Operators that make tensors of nothing, under the dispatcher's CUDA key.

It also pins memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.types import Device

from tests.pretend.harness import graphs, launches
from tests.pretend.harness.tensors import CudaTensor, check_index, execute, facts_of

# What they override lasts as long as they do.
_LIBRARIES: list[torch.library.Library] = []


def install() -> None:
    """Override all factories of the CUDA key, and those of pinned memory."""
    library = torch.library.Library("aten", "IMPL")
    _LIBRARIES.append(library)
    with warnings.catch_warnings():
        # It says that a kernel of CUDA is overridden.
        warnings.simplefilter("ignore")
        for func in _factories():
            library.impl(launches.schema_of(func).name.removeprefix("aten::") + _suffix(func), _on_cpu(func), "CUDA")
        library.impl("is_pinned", _is_pinned, "CPU")
        library.impl("_pin_memory", _pin_memory, "CPU")
    for name in ("empty", "zeros", "ones", "full", "empty_strided", "rand", "randn"):
        setattr(torch, name, _pinning(getattr(torch, name)))


def _suffix(func: OpOverload) -> str:
    overload = launches.schema_of(func).overload_name
    return f".{overload}" if overload else ""


def _factories() -> list[OpOverload]:
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::") or torch._C._dispatch_has_kernel_for_dispatch_key(
            name, "CompositeImplicitAutograd"
        ):
            continue
        base, _, overload = name.removeprefix("aten::").partition(".")
        func = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if func is None:
            continue
        arguments = launches.schema_of(func).arguments
        if any(each.name == "device" for each in arguments) and not any(
            "Tensor" in str(each.type) for each in arguments
        ):
            found.append(func)
    return found


def _on_cpu(func: OpOverload) -> Callable[..., CudaTensor]:
    facts = facts_of(func)

    def make(*args: object, **kwargs: object) -> CudaTensor:
        check_index(torch.device(kwargs.get("device") or "cuda"))
        kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"} | {"device": torch.device("cpu")}
        real = execute(func, facts, args, kwargs)
        if graphs.recording is None:
            launches.note(func)
        else:
            graphs.recording.add(lambda a, k: execute(func, facts, a, k), func, args, kwargs, real)
        return CudaTensor(real)

    return make


def _is_pinned(tensor: Tensor, device: Device = None) -> bool:
    return getattr(tensor.untyped_storage(), "pinned", False)


def _pin_memory(tensor: Tensor, device: Device = None) -> Tensor:
    return _pinned(tensor.detach().clone())


def _pinned(tensor: Tensor) -> Tensor:
    tensor.untyped_storage().pinned = True  # type: ignore[attr-defined]
    return tensor


def _pinning(made: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def make(*args: object, pin_memory: bool = False, **kwargs: object) -> Tensor:
        out = made(*args, **kwargs)
        return _pinned(out) if pin_memory else out

    return make
