"""Settings of modules as buffers, and validation of state dicts from outside before a module loads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchrl_gpu.system import arguments

_NAMED = 3  # weights that a message names


def float32(numbers: Any) -> Tensor:
    """A new tensor on torch's default device, where new modules are."""
    return torch.tensor(numbers, dtype=torch.float32, device=torch.get_default_device())


def float32_zeros(*shape: int) -> Tensor:
    """Zeros on torch's default device."""
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
    """As `without_settings`, as a hook of `load_state_dict`."""
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
