"""Background copies of every committed checkpoint in object storage."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from torchrl_gpu.callbacks.checkpoint import EpisodeCheckpoint
from torchrl_gpu.callbacks.checkpoint_listener import CheckpointListener
from torchrl_gpu.checkpoints.files import Manifest, find_checkpoints
from torchrl_gpu.checkpoints.storage import CheckpointStorage
from torchrl_gpu.system import arguments, locks
from torchrl_gpu.training.trainer_fields import callbacks_of, is_trial

_STAGED = ".mirror"
_log = logging.getLogger(__name__)


class CheckpointMirror(CheckpointListener):
    """Copies every checkpoint of `EpisodeCheckpoint` to a URL, and fetches the newest.

    A thread of the first process uploads; checkpoints that come faster than they are uploaded are left out, and storage
    that fails costs a warning. The end of a run waits up to `wait_s` for the last one. With `--ckpt_path last` or
    `best` and an empty folder, the newest complete checkpoint is fetched first, like `torchrl-gpu fetch URL FOLDER`.

    Args:
        url: A folder of the run's own as fsspec names it, such as "s3://bucket/packing" (extra `cloud`) or
            "file:///mnt/share/packing".
        keep: Checkpoints that are kept there, besides the best one; only those of this run are removed.
        wait_s: Seconds that the end of a run waits for what is not yet uploaded.
    """

    def __init__(self, url: str, keep: int = 2, wait_s: float = 60.0) -> None:
        arguments.whole("CheckpointMirror", "keep", keep, 1)
        arguments.number("CheckpointMirror", "wait_s", wait_s, 0)
        self.storage = CheckpointStorage(url)
        self.keep = keep
        self.wait_s = wait_s
        # Manifest and links to the files, the `.ckpt` last, which stay when the run removes or replaces its own; by
        # whether it is the best one.
        self._pending: dict[bool, tuple[Manifest, list[Path]]] = {}
        self._changed = threading.Condition()
        self._busy = False
        self._forget()
        self._thread: threading.Thread | None = None

    def _forget(self) -> None:
        self._ended = False
        self._warned = False
        self._has_cleared = False

    def fetch(self, folder: Path) -> None:
        """Fetch the newest complete checkpoint, and the best, to a folder without any.

        Where several processes call it, as torchrun starts them, one of each machine fetches and the others wait.
        ValueError where the storage cannot be read: a run that is to go on must not begin anew.
        """
        # The folder may be one that can only be read, so that nothing is made there without need.
        if any(find_checkpoints(folder)):
            return
        (folder / _STAGED).mkdir(parents=True, exist_ok=True)
        held = locks.lock(folder / _STAGED, wait=True)
        try:
            if not any(find_checkpoints(folder)):
                for path in fetch(self.storage, folder):
                    rank_zero_info(f"CheckpointMirror: fetched {path.name} from {self.storage.url}")
        finally:
            if held is not None:
                os.close(held)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        savers = [each for each in callbacks_of(trainer) if isinstance(each, EpisodeCheckpoint)]
        if not savers:
            raise ValueError("CheckpointMirror copies what EpisodeCheckpoint saves: add one to trainer.callbacks")
        if trainer.is_global_zero and not is_trial(trainer):
            self._folder = savers[0].folder(trainer) / _STAGED
            self._forget()
            self._thread = threading.Thread(target=self._upload_all, name="CheckpointMirror", daemon=True)
            self._thread.start()

    def on_checkpoint(self, entry: Manifest, path: Path, parts: list[Path]) -> None:
        """Link the files of a checkpoint for the upload.

        One that still waits gives way to it.
        """
        folder = path.parent / _STAGED / entry["id"]
        if not self._has_cleared:
            # A run that was killed leaves its links.
            shutil.rmtree(folder.parent, ignore_errors=True)
            self._has_cleared = True
        try:
            folder.mkdir(parents=True, exist_ok=True)
            links = [_link(each, folder / each.name) for each in (*parts, path) if each.exists()]
        except OSError as error:
            self._warn(error)
            return
        # The best one waits in a place of its own, from which no numbered one pushes it out.
        is_best = path.stem == "best"
        with self._changed:
            before = self._pending.pop(is_best, None)
            self._pending[is_best] = entry, links
            self._changed.notify_all()
        if before is not None:
            shutil.rmtree(before[1][-1].parent, ignore_errors=True)

    def _upload_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._ended)
                if not self._pending:
                    return
                entry, (*parts, checkpoint) = self._pending.pop(next(iter(self._pending)))
                self._busy = True
            try:
                uploaded = self.storage.put(entry, checkpoint, parts)
                self.storage.remove_old(entry["run"], self.keep, uploaded)
                self._warned = False
            except Exception as error:
                # Whatever a storage fails with must not end the run.
                self._warn(error)
            finally:
                shutil.rmtree(checkpoint.parent, ignore_errors=True)
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            reason = _reason_of(error)
            # Not `warnings`: a warning that is made an error would end the thread.
            _log.warning("CheckpointMirror: %s takes no checkpoint: %s; training goes on", self.storage.url, reason)

    def flush(self) -> None:
        """Wait for pending uploads, and end the thread."""
        thread = self._thread
        self._thread = None
        if thread is None:
            return
        with self._changed:
            done = self._changed.wait_for(lambda: not self._pending and not self._busy, self.wait_s)
            self._ended = True
            self._changed.notify_all()
        if self._has_cleared:
            shutil.rmtree(self._folder, ignore_errors=True)
        if not done:
            self._warn(TimeoutError(f"nothing within {self.wait_s:g} s, so that the last checkpoint is only here"))


def fetch(storage: CheckpointStorage, folder: Path) -> list[Path]:
    """Fetch the newest complete checkpoint, and the best one.

    ValueError for storage that cannot be read.
    """
    try:
        fetched, torn = storage.fetch_newest(folder)
    except Exception as error:
        # Each storage raises errors of its own kinds.
        reason = _reason_of(error)
        raise ValueError(f"CheckpointMirror: {storage.url} cannot be read: {reason}") from error
    for line in torn:
        rank_zero_info(f"CheckpointMirror: passed over {line}")
    return fetched


def _reason_of(error: Exception) -> str:
    line = " ".join(str(error).split())
    return line[:200] or type(error).__name__


# An upload takes longer than the run keeps a file. A copy would be simpler, and would write every replay twice; a
# second name costs nothing, and the bytes stay until both names are gone.
def _link(path: Path, place: Path) -> Path:
    """Give a file a second name, or copy it where the file system has no such names."""
    place.unlink(missing_ok=True)
    try:
        os.link(path, place)
    except OSError:
        shutil.copyfile(path, place)
    return place
