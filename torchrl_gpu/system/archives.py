"""Reader of `torch.save` archives that runs no code in them; every error is one line."""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

ENTRY = "torchrl_gpu"
"""Entry of a checkpoint that holds what `Trainer.save_checkpoint` does not know of: what the run was."""

_MOST_PICKLE_BYTES = 2**26  # of what is no tensor
_LONGEST = 200  # characters of a reason


# Arguments of module and data module in a checkpoint of Lightning's, and the function that makes an object of them:
# versions before 2.6.6 import and call whatever a file names there.
_ARGUMENTS = ("hyper_parameters", "datamodule_hyper_parameters")
_MAKER, _LIGHTNINGS_MAKER = "_instantiator", "lightning.pytorch.cli.instantiate_module"


def read_archive(path: Path, what: str, *, every_byte: bool = False, mapped: bool = True) -> dict[str, Any]:
    """Dict of tensors and plain values of a `torch.save` archive; `what` names it in errors.

    Memory is bounded by the archive's plain values, whatever the file declares; by its size where not `mapped`: tensors
    then do not stay on disk until they are used. With `every_byte` the whole file is compared with its checksums.
    ValueError where it is truncated, no such archive, or holds code.
    """
    import torch

    where = f"{what} {path}"
    _check_archive(path, where, every_byte)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{where}: want tensors and plain values only; got {refused(error)}") from error
    except Exception as error:  # any error that a broken file causes in the reader
        raise ValueError(f"{where}: want a complete archive; got {_first_line(error)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{where}: want a dict; got a {type(content).__name__}")
    for name in _ARGUMENTS:
        given = content.get(name)
        maker = given.get(_MAKER) if isinstance(given, dict) else None
        if maker not in (None, _LIGHTNINGS_MAKER):
            raise ValueError(f"{where}: want a checkpoint that names no code to run; got {_MAKER} {str(maker)[:80]!r}")
    return content


def _check_archive(path: Path, where: str, every_byte: bool) -> None:
    """Raises unless a file is an archive as `torch.save` writes it: uncompressed, its content within its size."""
    if not path.exists():
        raise FileNotFoundError(f"{where}: want an existing file; got none there")
    if not path.is_file() or not zipfile.is_zipfile(path):
        kind = "a folder" if path.is_dir() else "no regular file"
        found = f"{path.stat().st_size} bytes that are none" if path.is_file() else kind
        raise ValueError(f"{where}: want a complete archive as torch.save writes it; got {found}")
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            packed = any(each.compress_type or each.file_size != each.compress_size for each in entries)
            too_much = packed or sum(each.file_size for each in entries) > path.stat().st_size
            torn = archive.testzip() if every_byte and not too_much else None
    except Exception as error:  # of a directory that is broken: many kinds
        raise ValueError(f"{where}: want a complete archive; got {_first_line(error)}") from error
    if too_much:
        raise ValueError(f"{where}: want an archive as torch.save writes it; got one with more in it than its bytes")
    if torn is not None:
        raise ValueError(f"{where}: want the bytes that were written; got others in {torn}: copy the file again")
    pickled = max((entry.file_size for entry in entries if entry.filename.endswith(".pkl")), default=0)
    if pickled > _MOST_PICKLE_BYTES:
        raise ValueError(f"{where}: want at most {_MOST_PICKLE_BYTES:,} bytes of plain values; got {pickled:,}")


def refused(error: Exception) -> str:
    """Reason why `weights_only` refused a file, extracted from torch's advice to read it without."""
    text = str(error)
    if (called := re.search(r"GLOBAL ([\w.]+)", text) or re.search(r"global ([\w.]+)", text)) is not None:
        return f"a pickle that calls {called[1]}"
    reason = re.search(r"WeightsUnpickler error:\s*(\S.*)", text)
    return f"a pickle that is refused ({'it holds something else' if reason is None else _first_line(reason[1])})"


def _first_line(error: Exception | str) -> str:
    lines = str(error).strip().splitlines()
    text = "".join(each if each.isprintable() else "?" for each in lines[0]) if lines else type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
