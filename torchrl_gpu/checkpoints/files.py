"""Files of a checkpoint: one `.ckpt` and a part for each process.

One id binds them together.

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
from typing import NamedTuple, NotRequired, TypedDict, TypeGuard

import torch

from torchrl_gpu.system.archives import ENTRY, read_archive
from torchrl_gpu.system.arguments import whole
from torchrl_gpu.system.files import publish

BEST, LAST = "best.ckpt", "last.ckpt"
Order = tuple[int, int, int]
"""Generation, updates and frames of a checkpoint, see `order_of`."""

_ID = re.compile(r"[0-9a-f]{12}")
_MOST_STEPS = 2**62
# A name and no path: what a manifest lists is read and removed.
_PART = re.compile(r"[A-Za-z0-9._-]{1,80}-[0-9a-f]{12}\.rank\d{1,5}\.pt")


class Manifest(TypedDict):
    """What a checkpoint says of itself and of the files beside it.

    Attributes:
        run: Id of the run that saved it.
        id: Its own id, which the names of its parts hold.
        saved_s: Time of saving by a clock, seconds, for people: nothing is ordered by it.
        world_size: Number of processes that saved it.
        parts: Bytes of each part by its file name; None for one that another machine keeps for itself.
        generation: How often the run has gone on from a checkpoint although it had saved later ones.
    """

    run: str
    id: str
    saved_s: float
    world_size: int
    parts: dict[str, int | None]
    generation: NotRequired[int]


def new_id() -> str:
    """Return a random id of twelve hexadecimal digits.

    It draws no number from the generators that decide a run.
    """
    return uuid.uuid4().hex[:12]


def part_path(checkpoint: Path, checkpoint_id: str, rank: int) -> Path:
    """Return the path of the file that holds what one process adds to a checkpoint."""
    return checkpoint.with_name(f"{checkpoint.stem}-{checkpoint_id}.rank{rank}.pt")


def checkpoint_entry(run: str, checkpoint_id: str, parts: list[Path], world_size: int, generation: int = 0) -> Manifest:
    """Build the manifest of a checkpoint, plain data that binds its files together."""
    sizes = {part.name: _size_of(part) for part in parts}
    return {
        "run": run,
        "id": checkpoint_id,
        "world_size": world_size,
        "parts": sizes,
        "generation": generation,
        "saved_s": time.time(),
    }


def _size_of(part: Path) -> int | None:
    """Return the bytes of a part, None if it is not there."""
    return part.stat().st_size if part.exists() else None


def read_entry(checkpoint: Mapping[str, object], where: str) -> Manifest | None:
    """Return the manifest of a checkpoint, or None where it was saved without one.

    ValueError for anything else: part names are names of files beside the checkpoint and nothing more.
    """
    entry = checkpoint.get(ENTRY)
    # Another callback saved it: its entry is the record of the run alone.
    is_record_alone = isinstance(entry, dict) and "id" not in entry and "versions" in entry
    if entry is None or is_record_alone:
        return None
    if not _is_manifest(entry):
        raise ValueError(
            f"{where}: its entry {ENTRY} is not as EpisodeCheckpoint writes it: {str(entry)[:80]}. Take"
            " another checkpoint"
        )
    whole(where, "generation", entry.get("generation", 0), 0, _MOST_STEPS)
    for name, size in entry["parts"].items():
        if not isinstance(name, str) or not _PART.fullmatch(name) or not isinstance(size, int | None):
            raise ValueError(
                f"{where}: its part {str(name)[:80]!r} is not the name of a file beside it. Take another one"
            )
    return entry


def _is_manifest(entry: object) -> TypeGuard[Manifest]:
    """Return whether an entry has the fields of a manifest.

    `read_entry` looks at the names of parts and at the generation.
    """
    kinds = {"run": str, "id": str, "saved_s": float, "world_size": int, "parts": dict}
    if not isinstance(entry, dict):
        return False
    if not all(isinstance(entry.get(name), kind) for name, kind in kinds.items()):
        return False
    return entry["world_size"] >= 1 and all(_ID.fullmatch(entry[name]) for name in ("run", "id"))


def run_of(checkpoint: Mapping[str, object]) -> object:
    """Return the id of the run that saved a checkpoint, or None if unknown."""
    entry = checkpoint.get(ENTRY)
    return entry.get("run") if isinstance(entry, dict) else None


# The time of a file would be simpler. But clocks of machines differ, copies get new times, and a run that went back to
# an older checkpoint has later files with fewer steps.
def order_of(checkpoint: Mapping[str, object], where: str) -> Order:
    """Return the position of a checkpoint in its run: generation, updates, frames.

    Later checkpoints compare larger. No clock counts.
    """
    entry = read_entry(checkpoint, where)
    generation = 0 if entry is None else entry.get("generation", 0)
    steps = whole(where, "global_step", checkpoint.get("global_step", 0), 0, _MOST_STEPS)
    frames = whole(where, "frames", checkpoint.get("frames", 0), 0, _MOST_STEPS)
    return generation, steps, frames


def read_part(path: Path, entry: Manifest, rank: int) -> dict[str, object] | None:
    """Return the part that one process added to a checkpoint, or None without one."""
    for name in entry["parts"]:
        part = path.with_name(name)
        if name.endswith(f".rank{rank}.pt") and part.exists():
            content = read_archive(part, "checkpoint part", every_byte=True)
            # A part that was renamed by hand, or copied from elsewhere, has the name and not the content.
            has_id = content.get("id") == entry["id"]
            has_rank = content.get("rank") == rank
            if not has_id or not has_rank:
                raise ValueError(
                    f"checkpoint part {part} belongs to checkpoint {content.get('id')} and process"
                    f" {content.get('rank')}, not to checkpoint {entry['id']} and process {rank}. Put"
                    " back the files as they were saved, or delete the part to go on without what it holds"
                )
            return content
    return None


def write_whole(content: Mapping[str, object], path: Path) -> None:
    """Write tensors and plain values so that their file is whole or absent.

    The content goes to a file beside the place, then to the disk, and is renamed at last.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    try:
        write_file(content, fresh)
        publish(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def write_file(content: Mapping[str, object], path: Path) -> None:
    """Write tensors and plain values with `torch.save`.

    OSError where that fails, after a part of the file was written.
    """
    try:
        torch.save(dict(content), path)
    except RuntimeError as error:
        # The writer of torch says that it stopped, not why.
        raise OSError(errno.EIO, f"torch could not write it all ({str(error).splitlines()[0]})", str(path)) from error


def bytes_of(content: object) -> int:
    """Estimate how many bytes a tree of tensors and plain values takes as a file."""
    if isinstance(content, torch.Tensor):
        return content.numel() * content.element_size()
    if isinstance(content, Mapping):
        return sum(map(bytes_of, content.values()))
    if isinstance(content, list | tuple):
        return sum(map(bytes_of, content))
    return 0


def parts_of(checkpoint: Path) -> list[Path]:
    """List the parts beside a checkpoint, whatever their id."""
    ours = re.compile(re.escape(checkpoint.stem) + r"-[0-9a-f]{12}\.rank\d+\.pt(\.new)?")
    return [path for path in checkpoint.parent.glob("*.rank*.pt*") if ours.fullmatch(path.name)]


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint, then its parts."""
    # In this order, so that a run that is killed in between leaves parts of none, and no checkpoint without parts.
    checkpoint.unlink(missing_ok=True)
    for part in parts_of(checkpoint):
        part.unlink(missing_ok=True)


def find_checkpoints(folder: Path) -> Iterator[tuple[Path, dict[str, object] | str]]:
    """Yield every `.ckpt` of a folder with its content, or a line on what is torn.

    The tensors of the content stay on the disk.
    """
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
    """Find the whole checkpoint of a folder that is furthest in its run.

    Also returns a line for each checkpoint that is torn. With `run`, the id of one, checkpoints of other runs do not
    count. `order_of` decides which is later, and `last.ckpt` wins among equals. `best.ckpt`, which trails the run, does
    not count. Every byte of the checkpoint that is returned has been compared with its checksums.
    """
    found: list[tuple[Order, bool, Path]] = []
    torn = []
    for path, content in find_checkpoints(folder):
        if isinstance(content, str):
            torn.append(content)
            continue
        is_of_run = run is None or run_of(content) == run
        if path.name != BEST and is_of_run:
            order = order_of(content, f"checkpoint {path}")
            found.append((order, path.name == LAST, path))
    # Sizes tell that a file is cut short, and not that a disk has lost bits. To compare every byte of every file would
    # read the whole folder, so that only the checkpoint that is wanted is compared, and the one before it where that
    # fails.
    for *_, path in sorted(found, reverse=True):
        try:
            check_bytes(path)
        except ValueError as error:
            torn.append(str(error))
        else:
            return path, torn
    return None, torn


def check_bytes(path: Path) -> None:
    """Compare every byte of a checkpoint and its parts with their checksums.

    Parts that are missing are passed over. ValueError where bytes differ.
    """
    content = read_archive(path, "checkpoint", every_byte=True)
    entry = read_entry(content, f"checkpoint {path}")
    for name in entry["parts"] if entry else ():
        part = path.with_name(name)
        if part.exists():
            read_archive(part, "checkpoint part", every_byte=True)


def _torn_part(path: Path, entry: Manifest) -> str | None:
    for name, size in entry["parts"].items():
        part = path.with_name(name)
        found = _size_of(part)
        if size is not None and found != size:
            if found is None:
                return f"its part {name} of {size} bytes is missing"
            return f"its part {name} has {found} bytes, but {size} were saved"
    return None


def check_writable(folder: Path) -> None:
    """Make a folder and try to write there.

    OSError, which names it, where nothing can be written: otherwise a run would lose all its work at its end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error


class FolderContent(NamedTuple):
    """Checkpoints of a folder from the view of one run.

    Attributes:
        own: Order of each checkpoint of the run, by file name, without its best one.
        best: Content of the run's best checkpoint; None for none.
        others: Checkpoints of other runs, and torn ones.
    """

    own: dict[str, Order]
    best: Mapping[str, object] | None
    others: list[Path]


def checkpoints_of(folder: Path, run: str) -> FolderContent:
    """Sort the checkpoints of a folder by whether a run saved them."""
    own = dict[str, Order]()
    best: Mapping[str, object] | None = None
    others = list[Path]()
    for path, content in find_checkpoints(folder):
        if isinstance(content, str) or run_of(content) != run:
            others.append(path)
        elif path.name == BEST:
            best = content
        else:
            own[path.name] = order_of(content, f"checkpoint {path}")
    return FolderContent(own, best, others)


# They are moved and not removed: who begins anew in an old folder by mistake loses nothing. A folder for each time
# keeps their names, which `--ckpt_path` then takes.
def set_aside(checkpoints: list[Path], folder: Path) -> Path:
    """Move checkpoints and their parts to a new folder `earlier-N`, and return it."""
    number = next(n for n in range(1, 1_000_000) if not (folder / f"earlier-{n}").exists())
    aside = folder / f"earlier-{number}"
    aside.mkdir()
    for checkpoint in checkpoints:
        parts = parts_of(checkpoint)
        for path in (checkpoint, *parts):
            path.replace(aside / path.name)
    return aside


def list_set_aside(folder: Path) -> list[Path]:
    """List the checkpoints that were set aside in a folder."""
    return sorted(folder.glob("earlier-*/*.ckpt"))
