"""The folder in which a run saves, from its lock to its files.

`EpisodeCheckpoint` says when to save. Everything that happens to files then is here, from top to bottom: `open` before
training, `write` for each checkpoint, `close` at the end.
"""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from torchrl_gpu.checkpoints.files import (
    BEST,
    Manifest,
    Order,
    bytes_of,
    check_writable,
    checkpoint_entry,
    checkpoints_of,
    list_set_aside,
    new_id,
    newest_checkpoint,
    part_path,
    parts_of,
    remove_checkpoint,
    set_aside,
    write_file,
    write_whole,
)
from torchrl_gpu.checkpoints.loops import settle
from torchrl_gpu.checkpoints.processes import any_of_all
from torchrl_gpu.checkpoints.record import run_record
from torchrl_gpu.system import locks
from torchrl_gpu.system.archives import ENTRY
from torchrl_gpu.system.files import publish


class Written(NamedTuple):
    """A checkpoint that has been committed.

    Attributes:
        entry: Its manifest.
        path: Its `.ckpt`.
        parts: Files beside it, one for each process that had something to add.
    """

    entry: Manifest
    path: Path
    parts: list[Path]


class _Contents(NamedTuple):
    """What a run finds of its own in its folder.

    Attributes:
        numbered: Names of its checkpoints by a period, oldest first.
        best: Value of its best checkpoint; None for none.
        generation: That its next checkpoints will have.
    """

    numbered: list[str]
    best: float | None
    generation: int


class RunFolder:
    """The folder in which a run saves its checkpoints.

    To make one touches nothing. `find` and `newest` look into it at any time; the rest is for the time from `open` to
    `close`, when no other run can save there. All processes of a run must call `open` and `write` at the same step;
    the first one alone changes files that belong to all.

    Args:
        path: The folder, which need not exist.
        run: Id of the run; None for one that `open` is to make.
        prefixes: How names of checkpoints by a period begin, before their number.
        measure: What the best checkpoint is chosen by, such as "max val/utilization".
        state_key: Name under which a checkpoint holds the state of the callback, which knows the best value.

    Attributes:
        generation: How often the run has gone on from a checkpoint although it had saved later ones.
        best: Value of the run's best checkpoint; None for none.
    """

    def __init__(self, path: Path, run: str | None, *, prefixes: tuple[str, ...], measure: str, state_key: str) -> None:
        self.path = path
        self.run = run
        self.generation = 0
        self.best: float | None = None
        self._prefixes = prefixes
        self._measure = measure
        self._state_key = state_key
        self._is_first = True
        self._numbered: list[str] = []
        # In the first process: the lock on the folder, and checkpoints of other runs in it.
        self._lock: int | None = None
        self._others: list[Path] = []

    # -- find ----------------------------------------------------------------------------------------------------------

    def find(self, word: str = "last") -> Path:
        """Find the checkpoint to go on from: for "last" or "latest" the newest whole one.

        For "best" it is `best.ckpt`. What is torn is passed over, with a line that says so. ValueError where
        there is none.
        """
        found: Path | None
        if word == "best":
            best = self.path / BEST
            found = best if best.is_file() else None
            torn = list[str]()
        else:
            found, torn = newest_checkpoint(self.path)
        for line in torn:
            rank_zero_info(f"EpisodeCheckpoint: passed over {line}")
        if found is None:
            raise ValueError(self._absent(word))
        return found

    def _absent(self, word: str) -> str:
        """Return the message that there is no such checkpoint, and where others are."""
        never = ""
        if word == "best":
            never = f" ({BEST} is saved by validation, where `monitor` names what it logs; 'last' is the newest)"
        aside = ", ".join(str(path) for path in list_set_aside(self.path))
        elsewhere = f"; earlier runs left {aside}, which --ckpt_path takes by its path" if aside else ""
        return f"EpisodeCheckpoint: ckpt_path is {word!r}, but {self.path} holds no whole checkpoint{never}{elsewhere}"

    def newest(self) -> Path | None:
        """Find the newest whole checkpoint that this run has saved, or comes from."""
        return newest_checkpoint(self.path, self.run)[0]

    # -- open and close ------------------------------------------------------------------------------------------------

    def open(self, trainer: Trainer, resumed: Path | None, came_from: Order) -> None:
        """Make the folder, lock it, and read what the run has saved there.

        Args:
            trainer: Of the run.
            resumed: The checkpoint that the run goes on from; None where it begins.
            came_from: Its position in the run.

        Raises:
            OSError: Nothing can be written there.
            ValueError: Another run saves there now.
        """
        self._is_first = trainer.is_global_zero
        self.run = trainer.strategy.broadcast(self.run or new_id())
        free = self._take_lock() if self._is_first else True
        if not trainer.strategy.broadcast(free):
            raise ValueError(
                f"EpisodeCheckpoint: another run saves to {self.path} now. Wait for its end, or give this one"
                " a folder of its own with --trainer.default_root_dir"
            )
        contents = _Contents([], None, 0)
        if self._is_first:
            contents = self._read(resumed, came_from)
        # Other processes may be on machines that do not see this folder.
        contents = trainer.strategy.broadcast(contents)
        self._numbered = contents.numbered
        self.best = contents.best
        self.generation = contents.generation

    def _take_lock(self) -> bool:
        """Lock the folder, and return whether no other run had."""
        check_writable(self.path)
        try:
            self._lock = locks.lock(self.path)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Free the lock.

        It may be called again.
        """
        lock = self._lock
        self._lock = None
        if lock is not None:
            os.close(lock)

    # A run may go back to a checkpoint although it has saved later ones, and saves those steps a second time then.
    # Steps alone would take an old checkpoint that got further for the newest. The time of saving depends on clocks,
    # which differ between machines and run back. So a run that finds later checkpoints of its own takes the next
    # generation, and generations come before steps.
    def _read(self, resumed: Path | None, came_from: Order) -> _Contents:
        """Read what this run has saved, and note the checkpoints of other runs."""
        assert self.run is not None
        orders, best, self._others = checkpoints_of(self.path, self.run)
        # What a run goes on from stays where it is, though its id may be another run's.
        others = {path.resolve() for path in self._others}
        if resumed is not None and resumed.resolve() in others:
            self._others = []
        begun_at = (0, 0, 0) if resumed is None else came_from
        later = [order[0] for order in orders.values() if order > begun_at]
        generation = 1 + max(later) if later else begun_at[0]
        # A copy that somebody made of one has another name, and is never removed.
        prefixes = "|".join(map(re.escape, self._prefixes))
        numbered = re.compile(rf"({prefixes})\d{{1,20}}")
        in_order = sorted(orders, key=orders.__getitem__)
        saved = [name for name in in_order if numbered.fullmatch(Path(name).stem)]
        return _Contents(saved, self._best_value(best or {}), generation)

    def _best_value(self, content: Mapping[str, object]) -> float | None:
        """Return the value of a best checkpoint, if it is one of the present measure."""
        states = content.get("callbacks")
        state = states.get(self._state_key) if isinstance(states, dict) else None
        best = state.get("best") if isinstance(state, dict) else None
        if not isinstance(best, float) or not math.isfinite(best):
            return None
        entry = content[ENTRY]
        assert isinstance(entry, Mapping), "`checkpoints_of` has read the id of the run in it"
        # The best value of another measure says nothing about this one.
        same_measure = entry.get("monitor", self._measure) == self._measure
        return best if same_measure else None

    def set_others_aside(self) -> None:
        """Move checkpoints of other runs away, in the first process.

        A run that fails before its first update, or is over by then, must leave the folder as it found it.
        """
        others = self._others
        self._others = []
        if others:
            names = ", ".join(path.name for path in others)
            aside = set_aside(others, self.path)
            rank_zero_info(f"EpisodeCheckpoint: {len(others)} checkpoints of another run moved to {aside}: {names}")

    # -- write ---------------------------------------------------------------------------------------------------------

    # A checkpoint is several files, since each process adds its environments and its replay, which may not fit into the
    # memory of one. No file system renames several files at once. So the parts come first, under names that hold an id
    # which nothing refers to yet, and the rename of the `.ckpt`, which lists them, commits them all: killed at any
    # moment, the folder holds either the checkpoint before or this one, and at most parts of none, which the next save
    # under this name removes.
    def write(self, trainer: Trainer, module: LightningModule, name: str, *, replay: bool) -> Written | None:
        """Save a run, and return what was written.

        None where a file could not be: there is a warning then, and the previous checkpoint stays.

        Args:
            trainer: Of the run.
            module: May have a `part_state(rank, replay)`: what a process adds in a file of its own, or None.
            name: Of the `.ckpt`.
            replay: Whether the replay is saved.
        """
        path = self.path / name
        checkpoint_id = trainer.strategy.broadcast(new_id())
        parts = _parts_to_write(trainer, module, path, checkpoint_id, replay=replay)
        own_part = part_path(path, checkpoint_id, trainer.global_rank)
        entry: Manifest | None = None
        problem: Exception | None = None
        size = 0
        try:
            part = _own_state(trainer, module, checkpoint_id, replay=replay)
            size = bytes_of(part)
            if part is not None:
                write_whole(part, own_part)
        except Exception as error:
            # Whatever it is, the other processes wait for word of this one.
            problem = error
        if _all_wrote(trainer, problem):
            try:
                assert self.run is not None, "`open` has made an id"
                entry = checkpoint_entry(self.run, checkpoint_id, parts, trainer.world_size, self.generation)
                content = self._content(trainer, module, entry)
                size += bytes_of(content)
                _write_by_strategy(trainer, path, content)
            except Exception as error:
                problem = error
        if not _all_wrote(trainer, problem):
            own_part.unlink(missing_ok=True)
            _warn_of_unwritten(path, problem, size)
            return None
        assert entry is not None
        if self._is_first:
            for old in set(parts_of(path)) - set(parts):
                old.unlink(missing_ok=True)
        return Written(entry, path, parts)

    def _content(self, trainer: Trainer, module: LightningModule, entry: Manifest) -> dict[str, object]:
        """Collect what Lightning saves of a run, and the record of the run."""
        content = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        settle(content, trainer)
        record = run_record(getattr(module, "run_config", None), module)
        content[ENTRY] = {**entry, **record, "monitor": self._measure}
        return content

    def keep_newest(self, name: str, keep: int) -> None:
        """Note a checkpoint by a period, and remove those before the newest `keep`."""
        others = [each for each in self._numbered if each != name]
        saved = [*others, name]
        dropped = saved[:-keep]
        self._numbered = saved[-keep:]
        if self._is_first:
            for old in dropped:
                remove_checkpoint(self.path / old)


def _parts_to_write(
    trainer: Trainer, module: LightningModule, path: Path, checkpoint_id: str, *, replay: bool
) -> list[Path]:
    """List the parts of all processes.

    The state of the first one is in the `.ckpt`, so that it has a part for its replay alone.
    """
    if not hasattr(module, "part_state"):
        return []
    ranks = range(0 if replay else 1, trainer.world_size)
    return [part_path(path, checkpoint_id, rank) for rank in ranks]


def _own_state(
    trainer: Trainer, module: LightningModule, checkpoint_id: str, *, replay: bool
) -> dict[str, object] | None:
    """Collect what this process adds in a file of its own, if anything."""
    part_state = getattr(module, "part_state", None)
    part = None if part_state is None else part_state(trainer.global_rank, replay)
    if part is None:
        return None
    return {"id": checkpoint_id, "rank": trainer.global_rank, "world_size": trainer.world_size, **part}


def _all_wrote(trainer: Trainer, problem: Exception | None) -> bool:
    """Return whether every process wrote its file (a barrier).

    A full disk gives False. Any other failure ends all processes.
    """
    more = problem is not None and not isinstance(problem, OSError)
    failed, ends = any_of_all(trainer, problem is not None, more)
    if problem is not None and more:
        raise problem
    if ends:
        raise RuntimeError("EpisodeCheckpoint: another process failed while it saved, see what it says")
    return not failed


def _write_by_strategy(trainer: Trainer, path: Path, content: dict[str, object]) -> None:
    """Write the content of a checkpoint the way the Trainer's strategy does.

    An OSError leaves nothing of it.
    """
    fresh = path.with_suffix(".ckpt-new")
    beside = _writes_one_file(trainer.strategy)
    try:
        if not beside:
            trainer.strategy.save_checkpoint(content, fresh)
        elif trainer.is_global_zero:
            write_file(content, fresh)
        if trainer.is_global_zero:
            publish(fresh, path)
    except OSError as error:
        if trainer.is_global_zero:
            fresh.unlink(missing_ok=True)
        name = error.filename
        has_room = shutil.disk_usage(path.parent).free > bytes_of(content)
        if not beside and name is None and error.errno == errno.ENOSPC and has_room:
            # The writers of Lightning fill this other disk first.
            name = str(Path(tempfile.gettempdir(), path.name))
        reason = f"{error.strerror or error}"
        raise OSError(error.errno or errno.EIO, reason, name) from error


# Lightning's own writer fills a buffer in memory, then a file in TMPDIR, and moves that into its place. A full TMPDIR
# would lose the checkpoint where its own disk has room, so that the same file is written beside its place. A strategy
# that saves shards, and a plugin that encrypts or uploads, keep their way.
def _writes_one_file(strategy: Strategy) -> bool:
    """Return whether the first process saves one file, as Lightning does by default."""
    by_default = type(strategy).save_checkpoint is Strategy.save_checkpoint
    return by_default and type(strategy.checkpoint_io) is TorchCheckpointIO


def _warn_of_unwritten(path: Path, problem: Exception | None, size: int) -> None:
    """Warn that a checkpoint of about `size` bytes is not saved, and why."""
    disk = _disk_written_to(problem, path)
    free = shutil.disk_usage(disk).free
    where = "that disk" if disk == path.parent else f"the disk of {disk}, where the strategy writes first"
    if free < size:
        why = "no space left"
    elif problem is None:
        why = "another process could not write"
    else:
        why = str(getattr(problem, "strerror", None) or problem)
    rank_zero_warn(
        f"EpisodeCheckpoint: {path} is not saved ({why}): it takes {size / 2**20:,.3f} MiB, and"
        f" {free / 2**20:,.1f} MiB are free on {where}. What was saved before stays, and the run goes on."
        " Make room, or keep less there"
        " (--trainer.callbacks.keep 1, save_replay false, another dirpath)"
    )


def _disk_written_to(problem: Exception | None, path: Path) -> Path:
    """Return the folder that an error names, or else that of the checkpoint."""
    name = getattr(problem, "filename", None)
    folder = path.parent if name is None else Path(name).parent
    return folder if folder.is_dir() else path.parent
