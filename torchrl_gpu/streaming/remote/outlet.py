"""One stream as the program sees it, where the server runs in another process."""

from __future__ import annotations

import math
import threading
from typing import Any

from torchrl_gpu.streaming.broadcast.frames import Layout, copy_pixels
from torchrl_gpu.streaming.broadcast.rates import Pace
from torchrl_gpu.streaming.broadcast.streams import is_due
from torchrl_gpu.streaming.codecs.images import FrameFormat
from torchrl_gpu.streaming.remote.shared import (
    DEMAND_AT,
    HEIGHT,
    INTERVAL,
    PUBLISHED,
    WIDTH,
    Board,
    SharedFrames,
    SharedMemory,
)


class Outlet:
    """Counts frames, knows from the board whether one is wanted, and lays it where the server finds it.

    Args:
        name: Of the stream.
        index: Its place on the board.
        board: The board.
        is_on_demand: Whether it is there because a viewer asked for it.
    """

    def __init__(self, name: str, index: int, board: Board, is_on_demand: bool = False) -> None:
        self.name = name
        self.index = index
        self.is_on_demand = is_on_demand
        self.pace = Pace()
        self.layout = Layout()
        self._board = board
        self._published = 0
        self._frames: SharedFrames | None = None
        self._lock = threading.Lock()
        self._closed = False
        board.set(index, PUBLISHED, 0)

    def count(self, frame: Any, depth_range: tuple[float, float] | None = None) -> Any:
        """Notes that a frame was published, and gives it as `Layout.see` does.

        Raises:
            ValueError: It is no picture.
        """
        frame = self.layout.see(frame, depth_range)
        self._published += 1
        self._board.set(self.index, PUBLISHED, self._published)
        self._board.set(self.index, HEIGHT, self.layout.shape[0])
        self._board.set(self.index, WIDTH, self.layout.shape[1])
        return frame

    def is_due(self, now: float) -> bool:
        """Whether a frame is wanted at this moment of the monotonic clock: see `is_due`."""
        interval = self._board.get(self.index, INTERVAL)  # of a process that serves strangers
        self.pace.interval = interval if 0 <= interval < math.inf else 0.0
        return is_due(self.pace, self._board.get(self.index, DEMAND_AT), now, self.is_on_demand)

    def lay(
        self, frame: Any, shape: tuple[int, int, int], depth: Any = None, found: FrameFormat | None = None
    ) -> tuple[str, int] | None:
        """Copies a frame of the host into shared memory. Any thread may; they take turns. Arguments of `copy_pixels`.

        Returns:
            The file of the memory, and the version of the frame; None after `close`.
        """
        with self._lock:
            if self._closed:
                return None
            frames = self._room_for(math.prod(shape))
            version = frames.begin()
            copy_pixels(frame, shape, frames.pixels(version, shape), depth, found)
            frames.commit(version)
            return frames.memory.path, version

    def close(self) -> None:
        """Removes the memory."""
        with self._lock:
            self._closed = True
            self._release()

    def _room_for(self, size: int) -> SharedFrames:
        """The memory, made anew where frames have grown."""
        if self._frames is None or self._frames.capacity < size:
            self._release()
            self._frames = SharedFrames(SharedMemory(size=SharedFrames.bytes_for(size)))
        return self._frames

    def _release(self) -> None:
        if self._frames is not None:
            self._frames.memory.unlink()
            self._frames.memory.close()
            self._frames = None
