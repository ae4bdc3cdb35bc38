"""Settings of modules as buffers, and checks of weights from outside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Protocol, TypeGuard, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torchrl_gpu.system import arguments

Module = TypeVar("Module", bound=nn.Module)

# Weights that a message names.
_NAMED = 3
_MOST_OPERATORS = 10_000
# Bytes of one tensor of a trial pass.
_MOST_BYTES_AT_ONCE = 2**30


@runtime_checkable
class UnpacksState(Protocol):
    """Module whose saved state has another form than its own, and which undoes that."""

    def unpack_state(self, where: str, prefix: str, state: Mapping[str, object]) -> dict[str, object]:
        """Return the state dict with the module's own entries in the form that it loads.

        Args:
            where: Name of the file in errors.
            prefix: What the names of the module's entries begin with.
            state: State dict of the file.

        Raises:
            ValueError: The entries are not what was saved.
        """
        ...


def unpacked_state(where: str, module: nn.Module, state: Mapping[str, object]) -> dict[str, object]:
    """State dict of a file in the form that a module loads, see `UnpacksState`."""
    # Modules undo their own form one after the other, each on its own names.
    unpacked = dict(state)
    for name, each in module.named_modules():
        if isinstance(each, UnpacksState):
            prefix = f"{name}." if name else ""
            unpacked = each.unpack_state(where, prefix, unpacked)
    return unpacked


def float32(numbers: float | Sequence[float]) -> Tensor:
    """A new tensor on torch's default device, where new modules are."""
    return torch.tensor(numbers, dtype=torch.float32, device=torch.get_default_device())


def float32_zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float32, device=torch.get_default_device())


def named_weights(where: str, names: Sequence[str], weights: Sequence[float]) -> Tensor:
    """Weights of a linear function as a tensor.

    ValueError unless there is one finite number for each name.
    """
    if len(weights) != len(names):
        raise ValueError(f"{where}: weights must be {len(names)} numbers, not {len(weights)}")
    pairs = zip(names, weights, strict=True)
    numbers = [arguments.number(where, name, weight) for name, weight in pairs]
    return float32(numbers)


def register_settings(module: nn.Module, **settings: Tensor | float | Sequence[float]) -> None:
    """Register settings as buffers that move with a module but stay unsaved.

    Numbers become float32 tensors.
    """
    for name, value in settings.items():
        tensor = value if isinstance(value, Tensor) else float32(value)
        module.register_buffer(name, tensor, persistent=False)


def settings_in(module: nn.Module) -> set[str]:
    """Names of buffers that hold settings.

    They are set and not learned, so no checkpoint overrides them.
    """
    found = set()
    for prefix, each in module.named_modules():
        for name in (*each._non_persistent_buffers_set, *getattr(each, "set_names", ())):
            found.add(f"{prefix}.{name}" if prefix else name)
    return found


def without_settings(state: Mapping[str, object], module: nn.Module) -> dict[str, object]:
    """State dict without a module's settings, which old checkpoints hold."""
    settings = settings_in(module)
    return {name: value for name, value in state.items() if name not in settings}


def drop_settings(module: nn.Module, state_dict: dict[str, object], prefix: str, *args: object) -> None:
    for name in settings_in(module):
        state_dict.pop(prefix + name, None)


def check_weights(where: str, state: Mapping[str, object], module: nn.Module, *, strict: bool = True) -> None:
    """Raise ValueError unless a state dict holds just a module's weights.

    They must have their shapes and types, and be finite. Settings that are there too, as in checkpoints of older
    versions, are ignored; unless `strict`, so are missing and other weights. The message begins with `where` and names
    the weights.
    """
    # Missing and other names come first, then kinds, forms and values: each check may rely on the ones before.
    wanted = module.state_dict()
    state = without_settings(state, module)
    name_of_module = type(module).__name__
    if strict:
        missing = [name for name in wanted if name not in state]
        if missing:
            raise ValueError(f"{where}: no weights for {_listed(missing)} of {name_of_module}")
        others = [name for name in state if name not in wanted]
        if others:
            raise ValueError(f"{where}: {_listed(others)} is none of the weights of {name_of_module}")
    tensors = {name: value for name, value in wanted.items() if isinstance(value, Tensor)}
    weights = {name: value for name, value in tensors.items() if name in state}
    found = _dense(state, weights)
    not_dense = [name for name in weights if name not in found]
    if not_dense:
        raise ValueError(f"{where}: {_listed(not_dense)} of {name_of_module} must be dense tensors")
    for name, weight in weights.items():
        each = found[name]
        if each.shape != weight.shape or each.dtype != weight.dtype:
            form = f"{weight.dtype} {tuple(weight.shape)}"
            raise ValueError(f"{where}: {name} must be {form}, not {each.dtype} {tuple(each.shape)}")
    broken = [name for name in weights if not found[name].isfinite().all()]
    if broken:
        raise ValueError(f"{where}: {_listed(broken)} must be finite")


def _dense(state: Mapping[str, object], names: Iterable[str]) -> dict[str, Tensor]:
    """Those entries of a state dict that are dense tensors."""
    found = {}
    for name in names:
        value = state[name]
        if is_dense(value):
            found[name] = value
    return found


def is_dense(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a dense tensor whose numbers are all in memory, one by one."""
    """True for a dense tensor whose numbers are all in memory, one by one."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return False
    if value.is_quantized or value.is_meta:
        return False
    num_bytes = value.numel() * value.element_size()
    return num_bytes <= value.untyped_storage().nbytes()


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(str, names[:_NAMED])) + more


def without_memory(make: Callable[[], Module], where: str, most_bytes: int) -> Module:
    """Make a module on torch's device `meta`: shapes and types without numbers.

    ValueError if weights and buffers together have more than `most_bytes`, a trial pass would take more than any
    network of this package at its usual sizes, or there would be more layers than memory for their names.
    """
    # The device `meta` makes tensors without memory, but counts them as if they had some.
    with torch.device("meta"), _SizeLimit(where, most_bytes):
        return make()


class _SizeLimit(TorchDispatchMode):
    """Limit of what a file's settings may build.

    It counts operators and the bytes of their outputs: of new tensors the sum, of results of other tensors each one, as
    those are freed again.
    """

    def __init__(self, where: str, most_bytes: int) -> None:
        super().__init__()
        self._where = where
        self._most_bytes = most_bytes
        self._bytes = self._operators = 0

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        # TorchRL asks this of its targets, and `meta` does not know the answer.
        if func is torch.ops.aten.is_set_to.default:
            return False
        # The operator runs first, as only its result tells how large it is: on `meta` that costs nothing.
        out = func(*args, **(kwargs or {}))
        self._operators += 1
        is_view_or_in_place = any(each.alias_info is not None for each in func._schema.returns)
        if not is_view_or_in_place:
            self._count_bytes(out, args)
        if self._bytes > self._most_bytes:
            self._refuse(f"networks of more than {self._most_bytes:,} bytes")
        if self._operators > _MOST_OPERATORS:
            self._refuse(f"networks of more than {_MOST_OPERATORS:,} operators")
        return out

    def _count_bytes(self, out: object, args: tuple[object, ...]) -> None:
        tensors = [each for each in tree_leaves(out) if isinstance(each, Tensor)]
        sizes = [each.numel() * each.element_size() for each in tensors]
        is_new = not any(isinstance(each, Tensor) for each in tree_leaves(args))
        if is_new:
            self._bytes += sum(sizes)
        if max(sizes, default=0) > _MOST_BYTES_AT_ONCE:
            self._refuse(f"tensors of more than {_MOST_BYTES_AT_ONCE:,} bytes")

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(f"{self._where}: too large, as they make {what}")


def read_tensors(path: Path, where: str, most_bytes: int) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read text and tensors of an existing safetensors file, by name.

    ValueError if the file is larger than `most_bytes`, cut off or something else.
    """
    from safetensors import SafetensorError, safe_open

    size = path.stat().st_size
    if size > most_bytes:
        raise ValueError(f"{where}: {size:,} bytes, more than the {most_bytes >> 20} MiB that such a file may have")
    try:
        with safe_open(str(path), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return file.metadata() or {}, tensors
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{where} cannot be read as a safetensors file: {error}") from error


def read_json(where: str, text: Mapping[str, str], *names: str) -> list[object]:
    """Values of entries that are JSON, None for missing ones.

    ValueError if one is not JSON.
    """
    values: list[object] = []
    for name in names:
        try:
            values.append(json.loads(text.get(name, "null")))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: invalid JSON in {name}: {error}") from error
    return values
