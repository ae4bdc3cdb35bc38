"""Files and folders that get their name once all of them is written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from torchrl_gpu.system import locks


class Part:
    """A file or folder while one program writes it, under a name of its own.

    `part`, whose name ends in ".part", is locked until the end. What a program that was killed has left there is
    removed. What another program writes there is left alone: each would delete the other's rows.

    Args:
        path: Its final name; parent folders are made.
        where: Name of the writer, in errors.
        is_folder: Whether it is a folder.

    Raises:
        FileExistsError: Another program, or another part of this one, is writing it.
    """

    def __init__(self, path: Path, where: str, *, is_folder: bool = False) -> None:
        self.path, self._is_folder = path, is_folder
        self.part = path.with_name(path.name + ".part")
        self.part.parent.mkdir(parents=True, exist_ok=True)
        if is_folder:
            self.part.mkdir(exist_ok=True)
        else:
            self.part.touch()
        try:
            self._lock = locks.lock(self.part)
        except BlockingIOError as error:
            holder = locks.holder_of(self.part)
            raise FileExistsError(
                f"{where}: {path} is being written by {holder}; wait, or write to another place"
            ) from error
        if is_folder:
            _empty(self.part)

    def publish(self) -> None:
        """Give it its final name."""
        os.replace(self.part, self.path)
        self._free()

    def discard(self) -> None:
        """Delete what was written."""
        if self._is_folder:
            shutil.rmtree(self.part, ignore_errors=True)
        else:
            self.part.unlink(missing_ok=True)
        self._free()

    def _free(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _empty(folder: Path) -> None:
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()
