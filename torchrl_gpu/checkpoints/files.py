"""A checkpoint as files in a folder: one `.ckpt`, and a part for each process, bound together by one id.

The parts are written first, under names that hold the id; renaming the `.ckpt` into its place commits them all. An
interrupted save leaves the previous checkpoint intact, and parts that belong to none.
"""

from __future__ import annotations

import errno
import re
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchrl_gpu.system.archives import ENTRY, read_archive
from torchrl_gpu.system.arguments import whole
from torchrl_gpu.system.files import publish

BEST, LAST = "best.ckpt", "last.ckpt"
Order = tuple[int, int, int]
"""Generation, updates and frames of a checkpoint, see `order_of`."""

_ID = re.compile(r"[0-9a-f]{12}")
_MOST_STEPS = 2**62
_PART = re.compile(r"[A-Za-z0-9._-]{1,80}-[0-9a-f]{12}\.rank\d{1,5}\.pt")


def new_id() -> str:
    """A random id of twelve hexadecimal digits; takes no number from the generators that decide a run."""
    return uuid.uuid4().hex[:12]


def part_path(checkpoint: Path, checkpoint_id: str, rank: int) -> Path:
    """The file beside a checkpoint that holds what one process adds to it."""
    return checkpoint.with_name(f"{checkpoint.stem}-{checkpoint_id}.rank{rank}.pt")


def checkpoint_entry(
    run: str, checkpoint_id: str, parts: list[Path], world_size: int, generation: int = 0
) -> dict[str, Any]:
    """Manifest of a checkpoint: what binds its files together, as plain data.

    `generation` counts how often the run has gone on from a checkpoint although it had saved later ones. Parts that
    other machines keep for themselves are listed without their size.
    """
    sizes = {part.name: part.stat().st_size if part.exists() else None for part in parts}
    entry = {"run": run, "id": checkpoint_id, "world_size": world_size, "parts": sizes, "generation": generation}
    return {**entry, "saved_s": time.time()}  # a label: clocks order nothing


def read_entry(checkpoint: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """Manifest of a checkpoint; None for a checkpoint that was saved without one.

    ValueError for anything else: part names are names of files beside the checkpoint and nothing more.
    """
    entry = checkpoint.get(ENTRY)
    if entry is None or (isinstance(entry, dict) and "id" not in entry and "versions" in entry):
        return None  # saved by another callback: it tells what the run was, and no more
    wanted = {"run": str, "id": str, "saved_s": float, "world_size": int, "parts": dict}
    good = isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in wanted.items())
    if not good or entry["world_size"] < 1 or not all(_ID.fullmatch(entry[name]) for name in ("run", "id")):
        raise ValueError(f"{where}: want an entry {ENTRY} as EpisodeCheckpoint writes it; got {str(entry)[:80]}")
    whole(where, "generation", entry.get("generation", 0), 0, _MOST_STEPS)
    for name, size in entry["parts"].items():
        if not isinstance(name, str) or not _PART.fullmatch(name) or not isinstance(size, int | None):
            raise ValueError(f"{where}: want parts beside the checkpoint; got {str(name)[:80]!r}")
    return entry


def order_of(checkpoint: Mapping[str, Any], where: str) -> Order:
    """Position of a checkpoint in its run: generation, updates, frames. Later ones compare larger; no clock counts."""
    generation = (read_entry(checkpoint, where) or {}).get("generation", 0)
    steps, frames = (whole(where, name, checkpoint.get(name, 0), 0, _MOST_STEPS) for name in ("global_step", "frames"))
    return generation, steps, frames


def read_part(path: Path, entry: Mapping[str, Any], rank: int) -> dict[str, Any] | None:
    """Part that a process added to the checkpoint at `path`; None where there is no such part."""
    for name in entry["parts"]:
        part = path.with_name(name)
        if name.endswith(f".rank{rank}.pt") and part.exists():
            content = read_archive(part, "checkpoint part", every_byte=True)
            if content.get("id") != entry["id"] or content.get("rank") != rank:
                raise ValueError(
                    f"checkpoint part {part}: want the one of checkpoint {entry['id']} and process {rank};"
                    f" got {content.get('id')} and {content.get('rank')}"
                )
            return content
    return None


def write_whole(content: Mapping[str, Any], path: Path) -> None:
    """Writes tensors and plain values with `torch.save`: beside the place, to the disk, and then into it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    try:
        write_file(content, fresh)
        publish(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def write_file(content: Mapping[str, Any], path: Path) -> None:
    """Write tensors and plain values with `torch.save`; OSError, with a part of the file, where that fails."""
    try:
        torch.save(dict(content), path)
    except RuntimeError as error:
        # torch's writer says that it stopped, and not why
        raise OSError(errno.EIO, f"torch could not write it all ({str(error).splitlines()[0]})", str(path)) from error


def bytes_of(content: Any) -> int:
    """About how many bytes a tree of tensors and plain values takes as a file."""
    if isinstance(content, torch.Tensor):
        return content.numel() * content.element_size()
    values = content.values() if isinstance(content, Mapping) else content if isinstance(content, list | tuple) else ()
    return sum(map(bytes_of, values))


def parts_of(checkpoint: Path) -> list[Path]:
    """Parts beside a checkpoint, of whatever id."""
    ours = re.compile(re.escape(checkpoint.stem) + r"-[0-9a-f]{12}\.rank\d+\.pt(\.new)?")
    return [path for path in checkpoint.parent.glob("*.rank*.pt*") if ours.fullmatch(path.name)]


def remove_checkpoint(checkpoint: Path) -> None:
    """Removes a checkpoint, then its parts."""
    checkpoint.unlink(missing_ok=True)
    for part in parts_of(checkpoint):
        part.unlink(missing_ok=True)


def find_checkpoints(folder: Path) -> Iterator[tuple[Path, dict[str, Any] | str]]:
    """Every `.ckpt` of a folder with its content, tensors still on disk, or with a line that says what is torn."""
    for path in sorted(folder.glob("*.ckpt")):
        try:
            content = read_archive(path, "checkpoint")
            entry = read_entry(content, f"checkpoint {path}")
            order_of(content, f"checkpoint {path}")
            torn = _torn_part(path, entry) if entry else None
        except (ValueError, OSError) as error:
            yield path, str(error)
        else:
            yield path, content if torn is None else f"checkpoint {path}: {torn}"


def newest_checkpoint(folder: Path, run: str | None = None) -> tuple[Path | None, list[str]]:
    """The whole checkpoint of a folder that is furthest in its run, and a line for each that is torn.

    With `run`, the id of one, checkpoints of other runs do not count.

    Later is what `order_of` says; of equals `last.ckpt`. `best.ckpt`, which trails the run, does not count. Every byte
    of the one that is found has been held against its checksums.
    """
    found: list[tuple[Order, bool, Path]] = []
    torn = []
    for path, content in find_checkpoints(folder):
        if isinstance(content, str):
            torn.append(content)
        elif path.name != BEST and (run is None or content.get(ENTRY, {}).get("run") == run):
            found.append((order_of(content, f"checkpoint {path}"), path.name == LAST, path))
    for *_, path in sorted(found, reverse=True):
        try:
            check_bytes(path)
        except ValueError as error:
            torn.append(str(error))
        else:
            return path, torn
    return None, torn


def check_bytes(path: Path) -> None:
    """ValueError where bytes of a checkpoint, or of its parts that are there, are not those that were written."""
    content = read_archive(path, "checkpoint", every_byte=True)
    entry = read_entry(content, f"checkpoint {path}") or {"parts": {}}
    for name in entry["parts"]:
        if (part := path.with_name(name)).exists():
            read_archive(part, "checkpoint part", every_byte=True)


def _torn_part(path: Path, entry: Mapping[str, Any]) -> str | None:
    for name, size in entry["parts"].items():
        part = path.with_name(name)
        found = part.stat().st_size if part.exists() else None
        if size is not None and found != size:
            return f"want its part {name} of {size} bytes; got {'none' if found is None else f'{found} bytes'}"
    return None


# -- the folder of a run ----------------------------------------------------------------------------------------------


def check_writable(folder: Path) -> None:
    """Makes a folder; OSError, which names it, where nothing can be written there: a run would lose all at its end."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error


class FolderContent(NamedTuple):
    """Checkpoints of a folder, as one run sees them.

    Attributes:
        own: Order of each checkpoint of the run, by file name, without its best one.
        best: Content of the run's best checkpoint; None for none.
        others: Checkpoints of other runs, and torn ones.
    """

    own: dict[str, Order]
    best: Mapping[str, Any] | None
    others: list[Path]


def checkpoints_of(folder: Path, run: str) -> FolderContent:
    """Sort the checkpoints of a folder by whether a run saved them."""
    own = dict[str, Order]()
    best: Mapping[str, Any] | None = None
    others = list[Path]()
    for path, content in find_checkpoints(folder):
        entry = None if isinstance(content, str) else content.get(ENTRY)
        if isinstance(content, str) or entry is None or entry.get("run") != run:
            others.append(path)
        elif path.name == BEST:
            best = content
        else:
            own[path.name] = order_of(content, f"checkpoint {path}")
    return FolderContent(own, best, others)


def set_aside(checkpoints: list[Path], folder: Path) -> Path:
    """Move checkpoints with their parts to a new folder `earlier-N` in `folder`; return that folder."""
    number = next(n for n in range(1, 1_000_000) if not (folder / f"earlier-{n}").exists())
    aside = folder / f"earlier-{number}"
    aside.mkdir()
    for checkpoint in checkpoints:
        parts = parts_of(checkpoint)
        for path in (checkpoint, *parts):
            path.replace(aside / path.name)
    return aside


def found_aside(folder: Path) -> list[Path]:
    """Checkpoints that were set aside in a folder."""
    return sorted(folder.glob("earlier-*/*.ckpt"))
