"""Checkpoints, looked at before they are trusted: what is wrong is said in one line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrl_gpu.archives import read_archive
from torchrl_gpu.policies.packing.packed_tables import unpack_tables

if TYPE_CHECKING:
    from torch import nn


def check_checkpoint(path: str | Path, module: nn.Module | None = None) -> None:
    """Returns if a checkpoint can be loaded, into `module` if one is given; tensors stay on disk.

    Args:
        path: File that `Trainer.save_checkpoint` wrote.
        module: The module that is to take the weights; its `strict_loading`, if False, allows other keys.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is truncated, no checkpoint, holds code, or holds the weights of another architecture.
    """
    state = read_archive(Path(path), "checkpoint", every_byte=True).get("state_dict")
    if not isinstance(state, Mapping):
        raise ValueError(f"checkpoint {path}: want a checkpoint of a training run; got no state_dict in it")
    if module is not None:
        _compare(path, unpack_tables(f"checkpoint {path}", module, state), module)


def _compare(path: str | Path, state: Mapping[str, Any], module: nn.Module) -> None:
    wanted = module.state_dict()
    strict = getattr(module, "strict_loading", True)
    where = f"checkpoint {path}: want the weights of this {type(module).__name__}"
    missing = [key for key in wanted if key not in state]
    if strict and missing:
        raise ValueError(f"{where}; got none for {_named(missing)}")
    unexpected = [key for key in state if key not in wanted]
    if strict and unexpected:
        raise ValueError(f"{where}; got others too, {_named(unexpected)}")
    for key, tensor in wanted.items():
        found = _shape(state.get(key, tensor))
        if found != _shape(tensor):
            raise ValueError(f"{where}, {key} of shape {_shape(tensor)}; got shape {found}")


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if hasattr(value, "shape") else None


def _named(keys: list[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]} and {len(keys) - 1} more"
