"""Validated reading of safetensors files: tensors and text, of which nothing runs."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor


def read_tensors(path: Path, where: str, most_bytes: int) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The text and the tensors of a safetensors file, by name.

    Args:
        path: The file, which is there.
        where: Of messages.
        most_bytes: Of the file.

    Raises:
        ValueError: The file is larger, something else, or cut off.
    """
    from safetensors import SafetensorError, safe_open

    if path.stat().st_size > most_bytes:
        raise ValueError(f"{where}: want a file of at most {most_bytes >> 20} MiB; got {path.stat().st_size:,} bytes")
    try:
        with safe_open(str(path), "pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{where}: want a safetensors file; got one that cannot be read: {error}") from error
