"""Weights of encoders from files: read without running code in them, and looked at before they are taken."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import Tensor, nn

_NAMED = 3  # weights that a message names


def read_weights(path: Path) -> dict[str, Any]:
    """The dict that `torch.save` wrote, on the CPU.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds code or something else, or is cut off.
    """
    where = f"weights {path}"
    if not path.is_file():
        raise FileNotFoundError(f"{where}: want an existing file; got none there")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{where}: want tensors only; got a file that is refused, {_reason(error)}") from error
    except (RuntimeError, EOFError, KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{where}: want a whole file as torch.save writes it; got {_reason(error)}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{where}: want a state dict; got a {type(found).__name__}")
    return dict(found)


def kinetics_weights() -> dict[str, Tensor]:
    """Weights of torchvision's `r3d_18` after Kinetics-400, from torch's cache or, the first time, the network.

    Raises:
        RuntimeError: They are not in the cache and cannot be fetched; it says where the file belongs.
    """
    from torchvision.models.video import R3D_18_Weights

    url = R3D_18_Weights.KINETICS400_V1.url
    try:
        found: dict[str, Tensor] = torch.hub.load_state_dict_from_url(
            url, map_location="cpu", progress=False, check_hash=True, weights_only=True
        )
    except (OSError, RuntimeError) as error:  # of the first kind are all errors of urllib
        place = Path(torch.hub.get_dir()) / "checkpoints" / os.path.basename(urlparse(url).path)
        raise RuntimeError(
            f"R3D18: want its Kinetics weights from torch's cache or the network; got {_reason(error)}."
            f" Fetch {url} elsewhere and place it at {place}, or name its path: pretrained: PATH"
        ) from error
    return found


def check_weights(where: str, state: Mapping[str, Any], module: nn.Module) -> None:
    """Returns if a state dict holds all weights of the module and no others, of their shapes and types, and finite.

    Raises:
        ValueError: It does not; the message begins with `where` and names the weights.
    """
    wanted = module.state_dict()
    problems = {
        "none for": [name for name in wanted if name not in state],
        "others too": [name for name in state if name not in wanted],
        "no tensors": [name for name in wanted if not isinstance(state.get(name, wanted[name]), Tensor)],
    }
    for problem, names in problems.items():
        if names:
            raise ValueError(
                f"{where}: want the weights of this {type(module).__name__}; got {problem} {_listed(names)}"
            )
    for name, weight in wanted.items():
        found = state[name]
        if found.shape != weight.shape or found.dtype != weight.dtype:
            came = f"{found.dtype} {tuple(found.shape)}"
            raise ValueError(f"{where}: want {name} as {weight.dtype} {tuple(weight.shape)}; got {came}")
    broken = [name for name in wanted if not state[name].isfinite().all()]
    if broken:
        raise ValueError(f"{where}: want finite weights; got others in {_listed(broken)}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(str, names[:_NAMED])) + more


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
