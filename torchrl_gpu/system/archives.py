"""Reader of `torch.save` archives that runs no code in them."""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path

ENTRY = "torchrl_gpu"
"""Entry of a checkpoint with what Lightning does not know of: what the run was."""

# Plain values are unpickled in memory, tensors are not.
_MOST_PICKLE_BYTES = 2**26
_LONGEST_REASON = 200

_NO_ARCHIVE = "not a complete archive as torch.save writes it"

# Arguments of module and data module in a checkpoint of Lightning's, and the function that makes an object of them:
# versions before 2.6.6 import and call whatever a file names there.
_ARGUMENTS = ("hyper_parameters", "datamodule_hyper_parameters")
_MAKER = "_instantiator"
_LIGHTNINGS_MAKER = "lightning.pytorch.cli.instantiate_module"


def read_archive(path: Path, what: str, *, every_byte: bool = False, mapped: bool = True) -> dict[str, object]:
    """Read a `torch.save` archive of a dict of tensors and plain values.

    Args:
        path: The file.
        what: Its name in errors, such as "checkpoint".
        every_byte: Compare the whole file with its checksums.
        mapped: Leave tensors on the disk until they are used. Memory is then bounded by the plain values, else by the
            size of the file, whatever it declares.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is truncated, no such archive, or holds code.
    """
    import torch

    where = f"{what} {path}"
    _check_archive(path, where, every_byte)
    # A broken file makes torch's reader raise many kinds of errors.
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{where}: not tensors and plain values alone: {describe_refusal(error)}") from error
    except Exception as error:
        raise ValueError(f"{where}: {_NO_ARCHIVE}: {_first_line(error)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{where}: holds a {type(content).__name__}, not a dict")
    # `weights_only` runs no code, but a later reader may: Lightning makes objects of these entries.
    for name in _ARGUMENTS:
        given = content.get(name)
        maker = given.get(_MAKER) if isinstance(given, dict) else None
        if maker not in (None, _LIGHTNINGS_MAKER):
            raise ValueError(f"{where}: names code to run, {_MAKER} {str(maker)[:80]!r}; it is not read")
    return content


def _check_archive(path: Path, where: str, every_byte: bool) -> None:
    """Raise unless a file is an uncompressed archive that lies within its size."""
    if not path.exists():
        raise FileNotFoundError(f"{where}: there is no such file")
    if path.is_dir():
        raise ValueError(f"{where}: {_NO_ARCHIVE}: a folder")
    if not path.is_file():
        raise ValueError(f"{where}: {_NO_ARCHIVE}: no regular file")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{where}: {_NO_ARCHIVE}: {path.stat().st_size} bytes of something else")
    # A broken directory of the archive makes the reader raise many kinds of errors.
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            declares_more = _declares_more(entries, path.stat().st_size)
            torn = archive.testzip() if every_byte and not declares_more else None
    except Exception as error:
        raise ValueError(f"{where}: {_NO_ARCHIVE}: {_first_line(error)}") from error
    if declares_more:
        raise ValueError(f"{where}: {_NO_ARCHIVE}: it declares more than its bytes")
    if torn is not None:
        raise ValueError(f"{where}: checksum mismatch in {torn}: copy the file again")
    pickled = max((entry.file_size for entry in entries if entry.filename.endswith(".pkl")), default=0)
    if pickled > _MOST_PICKLE_BYTES:
        raise ValueError(f"{where}: {pickled:,} bytes of plain values, more than {_MOST_PICKLE_BYTES:,}")


def _declares_more(entries: list[zipfile.ZipInfo], num_bytes: int) -> bool:
    """Whether an archive is compressed, or declares more than its file has bytes."""
    for entry in entries:
        if entry.compress_type or entry.file_size != entry.compress_size:
            return True
    return sum(entry.file_size for entry in entries) > num_bytes


def describe_refusal(error: Exception) -> str:
    """Reason why `weights_only` refused a file, without torch's advice on it."""
    text = str(error)
    called = re.search(r"GLOBAL ([\w.]+)", text) or re.search(r"global ([\w.]+)", text)
    if called is not None:
        return f"a pickle that calls {called[1]}"
    reason = re.search(r"WeightsUnpickler error:\s*(\S.*)", text)
    words = "it holds something else" if reason is None else _first_line(reason[1])
    return f"a pickle that is refused ({words})"


def _first_line(error: Exception | str) -> str:
    """First line of an error's message, without what a terminal would obey."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    text = "".join(each if each.isprintable() else "?" for each in lines[0])
    if len(text) <= _LONGEST_REASON:
        return text
    return text[: _LONGEST_REASON - 1] + "…"
