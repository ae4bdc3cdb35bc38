"""The server's own process: what the program sends comes in by lines, frames by shared memory."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

from torchrl_gpu.streaming.broadcast.frames import copy_pixels
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.protocol import Command
from torchrl_gpu.streaming.broadcast.streams import MOST_STREAMS, Stream
from torchrl_gpu.streaming.remote.lines import Speaker, hear
from torchrl_gpu.streaming.remote.shared import (
    DEMAND_AT,
    HEIGHT,
    INTERVAL,
    PUBLISHED,
    WATCHERS,
    WIDTH,
    Board,
    SharedFrames,
    SharedMemory,
)
from torchrl_gpu.streaming.web.service import Service
from torchrl_gpu.streaming.web.settings import Settings


class Inlet:
    """Does what the program says, in a thread of its own.

    Args:
        hub: Where streams are.
        board: What both processes see.
        speaker: Tells the program which members of families viewers have asked for.
    """

    def __init__(self, hub: Hub, board: Board, speaker: Speaker) -> None:
        self.error: Exception | None = None
        self._hub = hub
        self._board = board
        self._speaker = speaker
        self._free = list(range(MOST_STREAMS, Board.PLACES))
        self._lock = threading.Lock()
        self._indices: dict[str, int] = {}
        self._frames: dict[str, SharedFrames] = {}
        self._hear: dict[str, Callable[..., None]] = {
            "declare": self._declare,
            "declare_family": self._declare_family,
            "forget": self._forget,
            "frame": self._frame,
            "end_episode": self._end_episode,
            "state": self._state,
            "log": hub.curves.log,
        }
        hub.learn_counts = self._learn_counts
        hub.on_open, hub.on_drop = self._opened, self._dropped

    def listen(self, lines: BinaryIO, at_end: Callable[[], None]) -> None:
        """Listens until the program closes the pipe, or is no more."""
        try:
            for line in lines:
                if not line.endswith(b"\n"):  # the program closed the pipe before all of it had gone through
                    break
                op, fields = hear(line)
                self._hear[op](**fields)
        except Exception as error:
            self.error = error
        finally:
            for frames in self._frames.values():
                frames.memory.unlink()
            self._board.memory.unlink()
            at_end()

    def _declare(self, stream: str, title: str | None, index: int) -> None:
        declared = self._hub.declare(stream, title)
        with self._lock:
            before, self._indices[stream] = self._indices.get(stream), index
            declared.tell_demand = self._tell_demand
        self._hub.call(self._tell_demand, declared)  # viewers may have come already
        if before is not None and before != index:
            self._release(stream, before)

    def _declare_family(self, name: str, count: int, title: str | None) -> None:
        self._hub.declare_family(name, count, title)

    def _forget(self, stream: str) -> None:
        """Lets go of the memory of a member that the program has closed."""
        frames = self._frames.pop(stream, None)
        if frames is not None:
            frames.memory.unlink()
            frames.memory.close()

    def _opened(self, stream: Stream) -> None:
        """Gives the member of a family a place on the board. There is always one: there are as many as streams."""
        with self._lock:
            if stream.name in self._indices:  # the program has declared it meanwhile
                return
            index = self._indices[stream.name] = self._free.pop()
            stream.tell_demand = self._tell_demand
        self._speaker.say("opened", stream=stream.name, index=index)

    def _dropped(self, stream: Stream) -> None:
        self._release(stream.name, self._indices.pop(stream.name))

    def _release(self, stream: str, index: int) -> None:
        self._board.set(index, DEMAND_AT, math.inf)
        self._board.set(index, WATCHERS, 0)
        self._free.append(index)
        self._speaker.say("dropped", stream=stream)

    def _frame(self, stream: str, file: str, version: int, shape: list[int], **about: Any) -> None:
        """Copies a frame out of shared memory, unless newer ones have come over it."""
        frames = self._memory(stream, file)
        if frames is None:
            return
        there = self._hub.find(stream)
        if there is None:
            return
        height, width, channels = shape
        pixels = frames.pixels(version, (height, width, channels))
        pixels = copy_pixels(pixels, (height, width, channels), there.box.buffer())
        if frames.holds(version):
            self._hub.accept(there, pixels, about["meta"], bgr=about["bgr"], captured=about["captured"])

    def _memory(self, stream: str, file: str) -> SharedFrames | None:
        """The memory of a stream; None if another has taken its place already."""
        frames = self._frames.get(stream)
        if frames is None or frames.memory.path != file:
            try:
                memory = SharedMemory(file)
            except FileNotFoundError:
                return None
            if frames is not None:
                frames.memory.close()
            frames = self._frames[stream] = SharedFrames(memory)
        return frames

    def _end_episode(self, stream: str, meta: dict[str, Any], captured: float) -> None:
        self._hub.end_episode(stream, meta, captured)

    def _state(self, values: dict[str, Any]) -> None:
        self._hub.set_state(values)

    def _tell_demand(self, stream: Stream) -> None:
        index = self._indices[stream.name]
        self._board.set(index, INTERVAL, stream.pace.interval)
        self._board.set(index, WATCHERS, len(stream.subscriptions))
        self._board.set(index, DEMAND_AT, stream.demand_at)

    def _learn_counts(self) -> None:
        for name, index in list(self._indices.items()):
            stream = self._hub.streams.get(name)
            if stream is not None:  # it may be about to come
                stream.published = int(self._board.get(index, PUBLISHED))
                stream.layout.shape = int(self._board.get(index, HEIGHT)), int(self._board.get(index, WIDTH)), 3


def main() -> None:
    """Serves until standard input ends, and says on standard output what becomes of it."""
    speaker = Speaker(os.dup(1))
    os.dup2(2, 1)  # what else is printed must not stand between the lines
    _, told = hear(sys.stdin.buffer.readline())
    try:
        error = _serve(told["settings"], told["board"], speaker)
    except Exception as raised:
        error = raised
    kind = None if error is None else type(error).__name__
    message = str(error) if kind == "ValueError" else kind and f"{kind}: {error}"
    speaker.say("ended", kind=kind, message=message)
    speaker.close()


def _serve(settings: dict[str, Any], board: str, speaker: Speaker) -> BaseException | None:
    """Serves; what went wrong with encoding meanwhile, if anything did."""
    settings["allowed_origins"] = tuple(settings["allowed_origins"])
    told = Settings(**settings)
    hub = Hub(told.fps, told.replay_seconds)
    hub.on_command = lambda command: _report(speaker, command)
    service = Service(told, hub)
    inlet = Inlet(hub, Board(SharedMemory(board)), speaker)

    def serves() -> None:
        threading.Thread(target=inlet.listen, args=(sys.stdin.buffer, service.stop), daemon=True).start()
        speaker.say("serves", port=service.port)

    asyncio.run(service.run(serves))
    return service.error or inlet.error


def _report(speaker: Speaker, command: Command) -> None:
    speaker.say("command", **dataclasses.asdict(command))


if __name__ == "__main__":
    main()
