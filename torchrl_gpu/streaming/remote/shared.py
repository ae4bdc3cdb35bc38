"""Memory that two processes share: frames, of which the newest counts, and a board of numbers."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from pathlib import Path

import numpy as np

from torchrl_gpu.streaming.broadcast.streams import MOST_STREAMS

_NUM_SLOTS = 3
_HEAD = 64  # bytes before the pixels of a slot; its first eight are the version


class SharedMemory:
    """A piece of memory behind a file, which both processes map.

    Args:
        path: The file; None to make one, readable by this user alone, in memory where there is room.
        size: Bytes of a new one.
    """

    def __init__(self, path: str | None = None, size: int = 0) -> None:
        descriptor, self.path = _make(size) if path is None else (os.open(path, os.O_RDWR), path)
        try:
            self._map = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        self.bytes = np.frombuffer(self._map, np.uint8)

    def unlink(self) -> None:
        """Removes the file; the memory lives on while it is mapped."""
        Path(self.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Lets go of the memory."""
        del self.bytes
        with contextlib.suppress(BufferError):  # somebody still looks at it: it goes with the last of them
            self._map.close()


class SharedFrames:
    """Places for frames, filled in turn: the writer never waits, and a reader that is overtaken knows.

    Args:
        memory: As many bytes as `bytes_for` says.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory
        self.capacity = memory.bytes.size // _NUM_SLOTS - _HEAD
        self._version = 0

    @staticmethod
    def bytes_for(size: int) -> int:
        """Bytes of memory for frames of at most `size` bytes."""
        return _NUM_SLOTS * (_HEAD + size + -size % 8)

    def pixels(self, version: int, shape: tuple[int, ...]) -> np.ndarray:
        """The pixels of a version's place, in a shape, uint8."""
        begin = self._begin(version) + _HEAD
        return self.memory.bytes[begin : begin + math.prod(shape)].reshape(shape)

    def begin(self) -> int:
        """A new version, whose place may be written from now on; what lay there is lost."""
        self._version += 1
        self._mark(self._version)[0] = 0
        return self._version

    def commit(self, version: int) -> None:
        """Says that the pixels of a version are complete."""
        self._mark(version)[0] = version

    def holds(self, version: int) -> bool:
        """Whether the pixels are those of a version: to be asked after they have been copied."""
        return int(self._mark(version)[0]) == version

    def _mark(self, version: int) -> np.ndarray:
        begin = self._begin(version)
        return self.memory.bytes[begin : begin + 8].view(np.uint64)

    def _begin(self, version: int) -> int:
        return version % _NUM_SLOTS * (_HEAD + self.capacity)


class Board:
    """Numbers of each stream: what its viewers want, written by the server, and what was published, by the program.

    Args:
        memory: As many bytes as `SIZE`.
    """

    FIELDS = ("demand_at", "interval", "watchers", "published", "height", "width")
    # The second half is of streams that viewers asked for, which the server numbers; of one the program may just be
    # taking the name, so that it has two places.
    PLACES = 2 * MOST_STREAMS + 1
    SIZE = PLACES * len(FIELDS) * 8

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory
        # A memoryview reads and writes single numbers several times faster than an array does.
        self._numbers = memoryview(memory.bytes.data).cast("d")

    def get(self, stream: int, field: int) -> float:
        """A number; `field` is a place in `FIELDS`."""
        number: float = self._numbers[stream * 6 + field]
        return number

    def set(self, stream: int, field: int, value: float) -> None:
        """Writes a number; each has one writer."""
        self._numbers[stream * 6 + field] = value

    def forget_demand(self) -> None:
        """Nobody wants anything."""
        for stream in range(self.PLACES):
            self.set(stream, DEMAND_AT, math.inf)
            self.set(stream, WATCHERS, 0)

    def close(self) -> None:
        """Lets go of the memory."""
        self._numbers.release()
        self.memory.close()


DEMAND_AT, INTERVAL, WATCHERS, PUBLISHED, HEIGHT, WIDTH = range(6)


def _make(size: int) -> tuple[int, str]:
    """A new file of a size, with its bytes set aside: writing to a full disk through a map would end the process."""
    for folder in filter(os.path.isdir, ("/dev/shm", tempfile.gettempdir())):
        descriptor, path = tempfile.mkstemp(prefix="torchrl_gpu_", dir=folder)
        try:
            _set_aside(descriptor, size)
        except OSError:
            os.close(descriptor)
            os.unlink(path)
        else:
            return descriptor, path
    raise OSError(f"StreamServer: want {size} bytes of shared memory; got none in /dev/shm or the temporary folder")


def _set_aside(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)
