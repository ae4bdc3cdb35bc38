"""Checkpoints, looked at before they are trusted: no code in them runs, and what is wrong is said in one line."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    state = read_archive(Path(path), "checkpoint").get("state_dict")
    if not isinstance(state, Mapping):
        raise ValueError(f"checkpoint {path}: want a checkpoint of a training run; got no state_dict in it")
    if module is not None:
        _compare(path, state, module)


def read_archive(path: Path, what: str) -> dict[str, Any]:
    """A dict of tensors and plain values that `torch.save` wrote; tensors stay on disk until they are used.

    Args:
        path: The file.
        what: Names it in errors.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is truncated, no such archive, or holds code.
    """
    import torch

    where = f"{what} {path}"
    if not path.exists():
        raise FileNotFoundError(f"{where}: want an existing file; got none there")
    if not path.is_file() or not zipfile.is_zipfile(path):
        found = f"{path.stat().st_size} bytes that are none" if path.is_file() else "a folder"
        raise ValueError(f"{where}: want a complete archive as torch.save writes it; got {found}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{where}: want tensors and plain values only; got {_refused(error)}") from error
    except (RuntimeError, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"{where}: want a complete archive; got {_first_line(error)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{where}: want a dict; got a {type(content).__name__}")
    return content


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


def _refused(error: Exception) -> str:
    """What `weights_only` refused, from the middle of torch's long advice."""
    match = re.search(r"GLOBAL ([\w.]+)", str(error)) or re.search(r"global ([\w.]+)", str(error))
    return f"a pickle that calls {match[1]}" if match else f"a pickle that is refused: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{lines[0] if lines else type(error).__name__}"
