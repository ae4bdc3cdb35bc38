"""Tensors that say `cuda:0` and hold a CPU tensor.

This module says what may be mixed, what waits, and what comes out.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.types import Device

from tests.pretend.harness import graphs, launches, waits

CUDA = torch.device("cuda", 0)
# Operators whose CUDA kernels copy something to the host and wait for it.
_READS = {
    "_local_scalar_dense",
    "_unique",
    "_unique2",
    "allclose",
    "bincount",
    "equal",
    "histc",
    "is_nonzero",
    "masked_select",
    "multinomial",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
    "unique_dim_consecutive",
    "_linalg_check_errors",
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_TAKES_HOST_SCALARS = {"fill_", "fill", "masked_fill", "masked_fill_", "copy_", "copy", "_to_copy", *_INDEXING}


class CudaTensor(Tensor):
    """A tensor on `cuda:0` whose numbers are those of `inside`, a CPU tensor."""

    inside: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    def __new__(cls, real: Tensor) -> CudaTensor:
        """Wrap a CPU tensor, which is not copied."""
        self: CudaTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, real.shape, real.stride(), real.storage_offset(), dtype=real.dtype, layout=real.layout, device=CUDA
        )
        self.inside = real
        return self

    @classmethod
    def __torch_dispatch__(cls, func: OpOverload, types: object, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    # What torch's C++ does without the dispatcher.

    def __getitem__(self, index: Any) -> Any:
        return Tensor.__getitem__(self, _uploaded_index(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        Tensor.__setitem__(self, _uploaded_index(index), value)

    def to(self, *args: object, **kwargs: object) -> Tensor:
        """`cuda` is `cuda:0`, so that this is no copy."""
        if "device" in kwargs:
            kwargs["device"] = with_index(kwargs["device"])
        elif args and isinstance(args[0], str | torch.device):
            args = (with_index(args[0]), *args[1:])
        return Tensor.to(self, *args, **kwargs)

    def cuda(self, *args: object, **kwargs: object) -> Tensor:
        return self

    def tolist(self) -> Any:
        """Numbers, for which the host waits."""
        waits.note("tolist")
        return self.inside.tolist()

    def __array__(self, *args: object) -> object:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy it first.")

    def data_ptr(self) -> int:
        return self.inside.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """The storage of the numbers, which views share."""
        return self.inside.untyped_storage()

    def is_pinned(self, device: Device = None) -> bool:
        return False

    def record_stream(self, stream: object) -> None: ...

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inside"], None

    def __repr__(self, **kwargs: object) -> str:
        waits.note("repr")
        return f"{self.inside!r} on {CUDA}"

    def __deepcopy__(self, memo: dict[int, Any]) -> CudaTensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user support the deepcopy protocol")
        out = memo[id(self)] = CudaTensor(copy.deepcopy(self.inside, memo))
        rest = {key: value for key, value in self.__dict__.items() if key != "inside"}
        out.__dict__.update(copy.deepcopy(rest, memo))
        if self.grad is not None:
            out.grad = copy.deepcopy(self.grad, memo)
        return out.requires_grad_(self.requires_grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if getattr(self, "_is_param", False):
            return torch._utils._rebuild_parameter, (self.detach(), self.requires_grad, {})
        self.inside.untyped_storage().on_cuda = True  # type: ignore[attr-defined]  # read by `files`
        rebuild, args = self.inside.__reduce_ex__(protocol)
        return rebuild, (*args[:4], self.requires_grad, *args[5:])


class _Facts(NamedTuple):
    name: str
    mutable: bool
    pointwise: bool
    random: bool
    takes_generator: bool


@cache
def facts_of(func: OpOverload) -> _Facts:
    schema = launches.schema_of(func)
    tags = set(func.tags)
    return _Facts(
        schema.name.rpartition("::")[2],
        schema.is_mutable,
        torch.Tag.pointwise in tags,
        torch.Tag.nondeterministic_seeded in tags,
        any(argument.name == "generator" for argument in schema.arguments),
    )


def run(func: OpOverload, args: Any, kwargs: Any) -> Any:
    """Run an operator on the CPU tensors inside its arguments.

    At least one argument is a CudaTensor.
    """
    facts = facts_of(func)
    cuda: list[CudaTensor] = []
    host: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        for leaf in value if isinstance(value, list | tuple) else (value,):
            if isinstance(leaf, CudaTensor):
                cuda.append(leaf)
            elif isinstance(leaf, Tensor):
                host.append(leaf)
    if host:
        _check_mixed(func, facts, args, host)
    _note_waits(facts, args, kwargs, host)
    target = kwargs.get("device")
    to_host = target is not None and torch.device(target).type == "cpu"
    kwargs = {key: _real(value) for key, value in kwargs.items() if key != "pin_memory"}
    if target is not None:
        check_index(torch.device(target))
        kwargs["device"] = torch.device("cpu")
    args = tuple(_real(value) for value in args)
    if facts.mutable and graphs.recording is not None:
        graphs.recording.writes((args, kwargs))
    out = execute(func, facts, args, kwargs)
    if graphs.recording is None:
        launches.note(func)
    else:
        graphs.recording.add(lambda a, k: execute(func, facts, a, k), func, args, kwargs, out)
    owners = {id(each.inside): each for each in cuda} | {id(each): each for each in host}
    if facts.mutable:
        for each in cuda:
            _follow(each)
    return _wrapped(out, owners, to_host)


def execute(func: OpOverload, facts: _Facts, args: Any, kwargs: Any) -> Any:
    """Run an operator on CPU tensors.

    Random operators draw from the device's generator.
    """
    if not facts.random:
        return func(*args, **kwargs)
    if facts.takes_generator:
        given = kwargs.get("generator")
        if given is not None and given._cdata not in generators:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        return func(*args, **(kwargs | {"generator": default_generator() if given is None else given}))
    with _default_generator_swapped():
        return func(*args, **kwargs)


generators: set[int] = set()
"""Addresses of the generators that say they are on the device: operators see another Python object of theirs."""


def default_generator() -> torch.Generator:
    return torch.cuda.default_generators[0]


@contextmanager
def _default_generator_swapped() -> Iterator[None]:
    host, device = torch.default_generator, default_generator()
    before = host.get_state()
    host.set_state(device.get_state())
    try:
        yield
    finally:
        device.set_state(host.get_state())
        host.set_state(before)


def _check_mixed(func: OpOverload, facts: _Facts, args: Any, host: list[Tensor]) -> None:
    """Raise for mixed devices as CUDA does.

    A 0-dimensional CPU tensor may stand for a number, and CPU indices are copied.
    """
    first = args[0] if args else None
    if facts.name in ("copy_", "_to_copy", "record_stream"):
        return
    if facts.name in _INDEXING and isinstance(first, CudaTensor):
        others = [value for value in args[2:3] if isinstance(value, Tensor) and not isinstance(value, CudaTensor)]
        wrong = [value for value in others if value.ndim]
    else:
        allowed = facts.pointwise or facts.name in _TAKES_HOST_SCALARS
        written = facts.mutable and isinstance(first, Tensor) and not isinstance(first, CudaTensor)
        wrong = [value for value in host if value.ndim or not allowed or written or "_foreach" in facts.name]
    if wrong:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! ({func},"
            f" a CPU tensor of shape {tuple(wrong[0].shape)})"
        )


def _note_waits(facts: _Facts, args: Any, kwargs: Any, host: list[Tensor]) -> None:
    name = facts.name
    if name in _READS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        waits.note(name)
    elif name in _INDEXING:
        indices = [index for index in args[1] if index is not None]
        masks = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        # Only such a put is a masked_fill.
        if masks and not (name.endswith("put_") and args[2].numel() == 1 and len(indices) == 1):
            waits.note(f"{name} by a mask")
        if host:
            waits.note(f"{name} by host tensors")
    elif name == "copy_" and host:
        source = args[1]
        quick = (len(args) > 2 and args[2]) or kwargs.get("non_blocking", False)
        on_host = args[0] if isinstance(source, CudaTensor) else source
        if not (quick and on_host.is_pinned()):
            pinned = "pinned" if on_host.is_pinned() else "pageable"
            way = "device to host" if isinstance(source, CudaTensor) else "host to device"
            waits.note(f"copy from {way}, {pinned}{', non_blocking' if quick else ''}")
    elif name == "_to_copy" and str(kwargs.get("device")) == "cpu" and not kwargs.get("non_blocking", False):
        waits.note("copy from device to host")


def _real(value: Any) -> Any:
    if isinstance(value, CudaTensor):
        return value.inside
    if isinstance(value, list | tuple):
        return type(value)(_real(each) for each in value) if type(value) in (list, tuple) else value
    return value


def _wrapped(out: Any, owners: dict[int, Tensor], to_host: bool) -> Any:
    if isinstance(out, Tensor):
        if id(out) in owners:
            return owners[id(out)]
        return out if to_host else CudaTensor(out)
    if type(out) in (list, tuple):
        return type(out)(_wrapped(each, owners, to_host) for each in out)
    return out


def _follow(tensor: CudaTensor) -> None:
    """Take shape and strides from the numbers, which an operator may have resized."""
    real = tensor.inside
    if (
        tensor.shape != real.shape
        or tensor.stride() != real.stride()
        or tensor.storage_offset() != real.storage_offset()
    ):
        with torch.no_grad():
            _DATA.__set__(tensor, CudaTensor(real))


def with_index(device: Device) -> Any:
    return CUDA if device is not None and torch.device(device) == torch.device("cuda") else device


def check_index(device: torch.device) -> None:
    if device.type == "cuda" and device.index not in (None, 0):
        raise RuntimeError("CUDA error: invalid device ordinal")


def _uploaded_index(index: Any) -> Any:
    """Return lists and arrays of an index as tensors.

    torch would make them where nothing sees it.
    """
    if isinstance(index, tuple):
        return tuple(_uploaded_index(each) for each in index)
    if isinstance(index, list) or type(index).__module__ == "numpy":
        return torch.as_tensor(index)
    return index


def upload(real: Tensor, requires_grad: bool = False) -> CudaTensor:
    """Result of `torch.tensor(…, device="cuda")`."""
    waits.note("copy from host to device, pageable")
    return CudaTensor(real).requires_grad_(requires_grad)


_DATA: Any = torch._C.TensorBase.data


def _get_data(self: Tensor) -> Tensor:
    return _DATA.__get__(self)


def _set_data(self: Tensor, value: Tensor) -> None:
    """Between devices the object changes its class, too."""
    if isinstance(self, CudaTensor) is not isinstance(value, CudaTensor):
        new = nn.Parameter(value.detach(), self.requires_grad) if isinstance(self, nn.Parameter) else value.detach()
        torch.utils.swap_tensors(self, new)
        return
    _DATA.__set__(self, value)
    if isinstance(self, CudaTensor):
        self.inside = value.inside  # type: ignore[attr-defined]


def _on_cuda(made: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.tensor` and its like, which copy to the device without the dispatcher."""

    def make(data: Any, *args: object, device: Device = None, requires_grad: bool = False, **kwargs: object) -> Tensor:
        here = isinstance(data, CudaTensor)
        target = CUDA if here else None
        if device is not None:
            target = torch.device(device)
        if target is None or (target.type != "cuda" and not here):
            given = {} if device is None else {"device": device}
            flags = {"requires_grad": True} if requires_grad else {}
            return made(data, *args, **kwargs, **given, **flags)
        check_index(target)
        kwargs.pop("pin_memory", None)
        if isinstance(data, Tensor):
            dtype = kwargs.get("dtype") or (args[0] if args else None)
            copied = made is not as_tensor_of_torch
            return data.detach().to(target, dtype, copy=copied).requires_grad_(requires_grad)
        return upload(made(data, *args, **kwargs), requires_grad)

    return make


as_tensor_of_torch = torch.as_tensor


def _new_tensor(
    self: Tensor, data: Any, *, dtype: Any = None, device: Device = None, requires_grad: bool = False
) -> Tensor:
    return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, requires_grad=requires_grad)


def _swapping(apply: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Let `Module.to` and its like exchange the tensors inside parameters.

    Loading a state still copies.
    """

    def swapping(self: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(self, fn, recurse)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    return swapping


def install() -> None:
    """Mend what does not pass the dispatcher."""
    Tensor.data = property(_get_data, _set_data)  # type: ignore[assignment, misc]
    Tensor.new_tensor = _new_tensor  # type: ignore[assignment, method-assign]
    torch.tensor, torch.as_tensor = _on_cuda(torch.tensor), _on_cuda(as_tensor_of_torch)  # type: ignore[assignment]
    torch.asarray = torch.as_tensor  # type: ignore[assignment]
    nn.Module._apply = _swapping(nn.Module._apply)  # type: ignore[method-assign, assignment]
    for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
        sys.modules[name]._foreach_supported_types.append(CudaTensor)
