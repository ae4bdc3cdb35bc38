"""The server's own process: what the program sends comes in by lines, frames by shared memory."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

from torchrl_gpu.streaming.frames import copy_pixels
from torchrl_gpu.streaming.hub import Hub
from torchrl_gpu.streaming.lines import Speaker, hear
from torchrl_gpu.streaming.protocol import Command
from torchrl_gpu.streaming.service import Service
from torchrl_gpu.streaming.settings import Settings
from torchrl_gpu.streaming.shared import (
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
from torchrl_gpu.streaming.streams import Stream


class Inlet:
    """Does what the program says, in a thread of its own.

    Args:
        hub: Where streams are.
        board: What both processes see.
    """

    def __init__(self, hub: Hub, board: Board) -> None:
        self.error: Exception | None = None
        self._hub = hub
        self._board = board
        self._indices: dict[str, int] = {}
        self._frames: dict[str, SharedFrames] = {}
        self._hear: dict[str, Callable[..., None]] = {
            "declare": self._declare,
            "frame": self._frame,
            "end_episode": self._end_episode,
            "state": self._state,
            "log": hub.curves.log,
        }
        hub.learn_counts = self._learn_counts

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
        self._indices[stream] = index
        self._hub.stream(stream, title).tell_demand = self._tell_demand

    def _frame(self, stream: str, file: str, version: int, shape: list[int], **about: Any) -> None:
        """Copies a frame out of shared memory, unless newer ones have come over it."""
        frames = self._memory(stream, file)
        if frames is None:
            return
        there = self._hub.stream(stream)
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
            stream = self._hub.streams[name]
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
    inlet = Inlet(hub, Board(SharedMemory(board)))

    def serves() -> None:
        threading.Thread(target=inlet.listen, args=(sys.stdin.buffer, service.stop), daemon=True).start()
        speaker.say("serves", port=service.port)

    asyncio.run(service.run(serves))
    return service.error or inlet.error


def _report(speaker: Speaker, command: Command) -> None:
    speaker.say("command", **dataclasses.asdict(command))


if __name__ == "__main__":
    main()
