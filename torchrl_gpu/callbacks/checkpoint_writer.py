"""Writing of a checkpoint by all processes: parts first, then the `.ckpt`.

Renaming the `.ckpt` into its place commits the parts.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_warn

from torchrl_gpu.callbacks.end_signals import any_of_all
from torchrl_gpu.checkpoints.files import (
    Manifest,
    bytes_of,
    checkpoint_entry,
    new_id,
    part_path,
    parts_of,
    write_file,
    write_whole,
)
from torchrl_gpu.checkpoints.loops import settle
from torchrl_gpu.checkpoints.record import run_record
from torchrl_gpu.system.archives import ENTRY
from torchrl_gpu.system.files import publish
from torchrl_gpu.training.divergence import Diverged, not_finite
from torchrl_gpu.training.trainer_fields import callbacks_of


class RunState(NamedTuple):
    """What a checkpoint says of its run, besides what Lightning collects.

    Attributes:
        run: Id of the run.
        generation: As in `Manifest`.
        monitor: The measure of the best checkpoint, such as "max val/utilization".
    """

    run: str
    generation: int
    monitor: str


class CheckpointListener(Callback):
    """Base class of callbacks that are notified of every checkpoint of a run."""

    def fetch(self, folder: Path) -> None:
        """Bring checkpoints from elsewhere into a folder that has none.

        Called before one is looked for there.
        """

    def on_checkpoint(self, entry: Manifest, path: Path, parts: list[Path]) -> None: ...

    def flush(self) -> None:
        """Finish pending work.

        Called once the last checkpoint is written, or the run has failed.
        """


def write_checkpoint(trainer: Trainer, pl_module: LightningModule, path: Path, replay: bool, about: RunState) -> bool:
    """Save a run, and return whether the files could be written.

    Where they could not, there is a warning, and the previous checkpoint stays. All processes must call it at the same
    step. Raises `Diverged` where one would save weights that are not finite.
    """
    broken = not_finite(pl_module)
    if any(any_of_all(trainer, broken is not None)):
        found = broken or "NaN or infinity in another process"
        raise Diverged(f"{found}; EpisodeCheckpoint does not save that as {path}")
    checkpoint_id = trainer.strategy.broadcast(new_id())
    rank = trainer.global_rank
    world = trainer.world_size
    part_state = getattr(pl_module, "part_state", None)
    ranks = range(0 if replay else 1, world) if part_state is not None else ()
    parts = [part_path(path, checkpoint_id, each) for each in ranks]
    problem: Exception | None = None
    entry: Manifest | None = None
    size = 0
    try:
        part = None if part_state is None else part_state(rank, replay)
        size = bytes_of(part)
        if part is not None:
            own = {"id": checkpoint_id, "rank": rank, "world_size": world, **part}
            write_whole(own, part_path(path, checkpoint_id, rank))
    except Exception as error:
        # Whatever it is, the other processes wait for word of this one.
        problem = error
    if _all_wrote(trainer, problem):
        try:
            entry = checkpoint_entry(about.run, checkpoint_id, parts, world, about.generation)
            content = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
            settle(content, trainer)
            record = run_record(getattr(pl_module, "run_config", None), pl_module)
            content[ENTRY] = {**entry, **record, "monitor": about.monitor}
            size += bytes_of(content)
            _write(trainer, path, content)
        except Exception as error:
            problem = error
    if not _all_wrote(trainer, problem):
        part_path(path, checkpoint_id, rank).unlink(missing_ok=True)
        _warn_of_unwritten(path, problem, size)
        return False
    if trainer.is_global_zero:
        for old in set(parts_of(path)) - set(parts):
            old.unlink(missing_ok=True)
        assert entry is not None
        for listener in listeners(trainer):
            listener.on_checkpoint(entry, path, parts)
    return True


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


def listeners(trainer: Trainer) -> list[CheckpointListener]:
    """List the callbacks of a Trainer that are notified of checkpoints."""
    return [each for each in callbacks_of(trainer) if isinstance(each, CheckpointListener)]


def _all_wrote(trainer: Trainer, problem: Exception | None) -> bool:
    """Return whether all processes could write, for each of which the others wait.

    A full disk gives False. Any other failure ends all processes.
    """
    more = problem is not None and not isinstance(problem, OSError)
    failed, ends = any_of_all(trainer, problem is not None, more)
    if problem is not None and more:
        raise problem
    if ends:
        raise RuntimeError("EpisodeCheckpoint: another process failed while it saved, see what it says")
    return not failed


def _write(trainer: Trainer, path: Path, content: dict[str, object]) -> None:
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
        raise OSError(error.errno or errno.EIO, f"{error.strerror or error}", name) from error


# Lightning's own writer fills a buffer in memory, then a file in TMPDIR, and moves that into its place. A full TMPDIR
# would lose the checkpoint where its own disk has room, so that the same file is written beside its place. A strategy
# that saves shards, and a plugin that encrypts or uploads, keep their way.
def _writes_one_file(strategy: Strategy) -> bool:
    """Return whether the first process saves one file, as Lightning does by default."""
    by_default = type(strategy).save_checkpoint is Strategy.save_checkpoint
    return by_default and type(strategy.checkpoint_io) is TorchCheckpointIO


def _disk_written_to(problem: Exception | None, path: Path) -> Path:
    """Return the folder that an error names, or else that of the checkpoint."""
    name = getattr(problem, "filename", None)
    folder = path.parent if name is None else Path(name).parent
    return folder if folder.is_dir() else path.parent
