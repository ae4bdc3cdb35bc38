"""Settings of modules as buffers, and validation of weights from outside before a module loads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchrl_gpu.system import arguments

Module = TypeVar("Module", bound=nn.Module)


@runtime_checkable
class UnpacksState(Protocol):
    """A module whose state is saved in another form than it has, and which undoes that."""

    def unpack_state(self, where: str, prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
        """State dict with the module's own entries, whose names begin with `prefix`, in its own form.

        `where` names the file in errors. ValueError where the entries are not what was saved.
        """
        ...


def unpacked_state(where: str, module: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """State dict of a file in the form that a module loads, see `UnpacksState`."""
    unpacked = dict(state)
    for name, each in module.named_modules():
        if isinstance(each, UnpacksState):
            prefix = f"{name}." if name else ""
            unpacked = each.unpack_state(where, prefix, unpacked)
    return unpacked


_NAMED = 3  # weights that a message names
_MOST_OPERATORS = 10_000
_MOST_BYTES_AT_ONCE = 2**30  # of a tensor of a trial pass


def float32(numbers: Any) -> Tensor:
    """A new tensor on torch's default device, where new modules are."""
    return torch.tensor(numbers, dtype=torch.float32, device=torch.get_default_device())


def float32_zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float32, device=torch.get_default_device())


def named_weights(where: str, names: Sequence[str], weights: Sequence[float]) -> Tensor:
    """Weights of a linear function as a tensor; ValueError unless there is one finite number for each name."""
    if len(weights) != len(names):
        raise ValueError(f"{where}: want {len(names)} weights; got {len(weights)}")
    return float32([arguments.number(where, name, weight) for name, weight in zip(names, weights, strict=True)])


def register_settings(module: nn.Module, **settings: Any) -> None:
    """Makes tensors or numbers, the latter as float32, buffers that move with a module and that no checkpoint holds."""
    for name, value in settings.items():
        module.register_buffer(name, value if isinstance(value, Tensor) else float32(value), persistent=False)


def settings_in(module: nn.Module) -> set[str]:
    """Names of buffers that hold settings: they are set and not learned, so that no checkpoint overrides them."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, each in module.named_modules()
        for name in (*each._non_persistent_buffers_set, *getattr(each, "set_names", ()))
    }


def without_settings(state: Mapping[str, Any], module: nn.Module) -> dict[str, Any]:
    """A state dict without the settings of a module, which checkpoints of older versions hold."""
    settings = settings_in(module)
    return {name: value for name, value in state.items() if name not in settings}


def drop_settings(module: nn.Module, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
    for name in settings_in(module):
        state_dict.pop(prefix + name, None)


def check_weights(where: str, state: Mapping[str, Any], module: nn.Module, *, strict: bool = True) -> None:
    """ValueError unless a state dict has just the weights of the module, of their shapes and types, and finite.

    Settings that are there too, as in checkpoints of older versions, are passed over, and, unless `strict`, missing
    and other weights. The message begins with `where` and names the weights.
    """
    wanted, state = module.state_dict(), without_settings(state, module)
    weights = {name: value for name, value in wanted.items() if isinstance(value, Tensor) and name in state}
    problems = {"no tensors": [name for name in weights if not is_dense(state[name])]}
    if strict:
        missing = [name for name in wanted if name not in state]
        others = [name for name in state if name not in wanted]
        problems = {"none for": missing, "others too": others, **problems}
    for problem, names in problems.items():
        if names:
            raise ValueError(
                f"{where}: want the weights of this {type(module).__name__}; got {problem} {_listed(names)}"
            )
    for name, weight in weights.items():
        found = state[name]
        if found.shape != weight.shape or found.dtype != weight.dtype:
            came = f"{found.dtype} {tuple(found.shape)}"
            raise ValueError(f"{where}: want {name} as {weight.dtype} {tuple(weight.shape)}; got {came}")
    broken = [name for name in weights if not state[name].isfinite().all()]
    if broken:
        raise ValueError(f"{where}: want finite weights; got others in {_listed(broken)}")


def is_dense(value: Any) -> bool:
    """True for a dense tensor whose numbers are all in memory, one by one."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and not value.is_quantized
        and (not value.is_meta and value.numel() * value.element_size() <= value.untyped_storage().nbytes())
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(str, names[:_NAMED])) + more


def without_memory(make: Callable[[], Module], where: str, most_bytes: int) -> Module:
    """The module that a function makes, on torch's device `meta`: shapes and types without numbers.

    ValueError where weights and buffers together have more than `most_bytes`, a trial pass would take more than any
    network of this package at its usual sizes, or there would be more layers than memory for their names.
    """
    with torch.device("meta"), _SizeLimit(where, most_bytes):
        return make()


class _SizeLimit(TorchDispatchMode):
    """Counter of operators, and of bytes of their outputs: new tensors in all, those out of others one by one."""

    def __init__(self, where: str, most_bytes: int) -> None:
        super().__init__()
        self._where, self._most_bytes = where, most_bytes
        self._bytes = self._operators = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.is_set_to.default:  # of which `meta` knows nothing; TorchRL asks it of its targets
            return False
        out = func(*args, **(kwargs or {}))
        self._operators += 1
        if not any(each.alias_info is not None for each in func._schema.returns):  # no view, nothing in place
            made = [each.numel() * each.element_size() for each in tree_leaves(out) if isinstance(each, Tensor)]
            if not any(isinstance(each, Tensor) for each in tree_leaves(args)):
                self._bytes += sum(made)
            if max(made, default=0) > _MOST_BYTES_AT_ONCE:
                self._refuse(f"tensors of at most {_MOST_BYTES_AT_ONCE:,} bytes")
        if self._bytes > self._most_bytes:
            self._refuse(f"networks of at most {self._most_bytes:,} bytes")
        if self._operators > _MOST_OPERATORS:
            self._refuse(f"networks of at most {_MOST_OPERATORS:,} operators")
        return out

    def _refuse(self, wanted: str) -> NoReturn:
        raise ValueError(f"{self._where}: want {wanted}; got settings of larger ones")


def read_tensors(path: Path, where: str, most_bytes: int) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Text and tensors of an existing safetensors file by name; ValueError if larger, cut off or something else."""
    from safetensors import SafetensorError, safe_open

    if path.stat().st_size > most_bytes:
        raise ValueError(f"{where}: want a file of at most {most_bytes >> 20} MiB; got {path.stat().st_size:,} bytes")
    try:
        with safe_open(str(path), "pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{where}: want a safetensors file; got one that cannot be read: {error}") from error


def read_json(where: str, text: Mapping[str, str], *names: str) -> list[Any]:
    """Values of entries that are JSON, None for missing ones; ValueError where one is not."""
    try:
        return [json.loads(text.get(name, "null")) for name in names]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: want JSON beside the weights; got {error}") from error
