"""Weights of encoders from files, read without running code in them."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import Tensor

from torchrl_gpu.system.archives import refused


def read_weights(path: Path) -> dict[str, Any]:
    """The dict that `torch.save` wrote, on the CPU; ValueError where a file holds code or something else."""
    where = f"weights {path}"
    if not path.is_file():
        raise FileNotFoundError(f"{where}: want an existing file; got none there")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{where}: want tensors only; got {refused(error)}") from error
    except (RuntimeError, EOFError, KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{where}: want a whole file as torch.save writes it; got {_reason(error)}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{where}: want a state dict; got a {type(found).__name__}")
    return dict(found)


def kinetics_weights() -> dict[str, Tensor]:
    """Weights of torchvision's `r3d_18` after Kinetics-400, from torch's cache or, the first time, the network."""
    from torchvision.models.video import R3D_18_Weights

    url = R3D_18_Weights.KINETICS400_V1.url
    try:
        found: dict[str, Tensor] = torch.hub.load_state_dict_from_url(
            url, map_location="cpu", progress=False, check_hash=True, weights_only=True
        )
    except (OSError, RuntimeError) as error:  # of the first kind are all errors of urllib
        place = Path(torch.hub.get_dir()) / "checkpoints" / os.path.basename(urlparse(url).path)
        raise ValueError(
            f"R3D18: want its Kinetics weights from torch's cache or the network; got {_reason(error)}."
            f" Fetch {url} elsewhere and place it at {place}, or name its path: pretrained: PATH"
        ) from error
    return found


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
