"""Validated reading of safetensors files: tensors and text, of which nothing runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor


def read_tensors(path: Path, where: str, most_bytes: int) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The text and the tensors of a safetensors file, which is there, by name.

    Raises:
        ValueError: The file is larger than `most_bytes`, something else, or cut off.
    """
    from safetensors import SafetensorError, safe_open

    if path.stat().st_size > most_bytes:
        raise ValueError(f"{where}: want a file of at most {most_bytes >> 20} MiB; got {path.stat().st_size:,} bytes")
    try:
        with safe_open(str(path), "pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{where}: want a safetensors file; got one that cannot be read: {error}") from error


def read_json(where: str, text: Mapping[str, str], *names: str) -> list[Any]:
    """Values of entries that are JSON, None for missing ones.

    Raises:
        ValueError: One of them is not.
    """
    try:
        return [json.loads(text.get(name, "null")) for name in names]
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: want JSON beside the weights; got {error}") from error
