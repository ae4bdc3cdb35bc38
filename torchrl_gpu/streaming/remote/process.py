"""A server in a process of its own, as the program sees it: frames go out through shared memory, commands come in."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchrl_gpu.streaming.broadcast.curves import check_scalars
from torchrl_gpu.streaming.broadcast.families import Families
from torchrl_gpu.streaming.broadcast.frames import check_state, clean_meta
from torchrl_gpu.streaming.broadcast.hub import MOST_COMMANDS
from torchrl_gpu.streaming.broadcast.protocol import Command, read_command
from torchrl_gpu.streaming.broadcast.streams import MOST_STREAMS, check_name
from torchrl_gpu.streaming.remote.ferry import Ferry
from torchrl_gpu.streaming.remote.lines import Speaker, hear
from torchrl_gpu.streaming.remote.outlet import Outlet
from torchrl_gpu.streaming.remote.shared import WATCHERS, Board, SharedMemory
from torchrl_gpu.streaming.web.settings import Settings

_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 10.0
_LONGEST_LINE = 65_536  # bytes that the process may say at once
_ROOT = Path(__file__).parents[3]


class ProcessLink:
    """Starts a server in a process of its own, a fresh interpreter that loads neither torch nor the program.

    Args:
        settings: What the server was told. It goes through a pipe, where no list of processes shows the tokens.

    Raises:
        ValueError: As `Service` raises it.
        RuntimeError: The process ends before it serves.
    """

    def __init__(self, settings: Settings) -> None:
        self.port = 0
        self._board = Board(SharedMemory(size=Board.SIZE))
        self._board.forget_demand()
        self._outlets: dict[str, Outlet] = {}
        self._curves: set[str] = set()
        self._members: dict[str, Outlet] = {}  # of families, as the server's process says
        self._families = Families()
        self._commands: deque[Command] = deque(maxlen=MOST_COMMANDS)
        self._lock = threading.Lock()
        self._problem: str | None = None
        self._kind: str | None = None
        self._has_ended = False
        self._max_clients = settings.max_clients
        self._told = threading.Event()
        self._ended = False
        self._process = _spawn()
        assert self._process.stdin is not None
        self._speaker = Speaker(os.dup(self._process.stdin.fileno()))
        self._process.stdin.close()
        self._ferry = Ferry(self._speaker)
        self._speaker.say("begin", settings=dataclasses.asdict(settings), board=self._board.memory.path)
        self._reader = threading.Thread(target=self._listen, name="torchrl_gpu stream commands", daemon=True)
        self._reader.start()
        self._await_start()

    def publish(
        self,
        frame: Any,
        stream: str,
        meta: Mapping[str, Any] | None,
        *,
        bgr: bool,
        depth_range: tuple[float, float] | None,
    ) -> None:
        """As `StreamServer.publish`."""
        outlet, clean = self._find(stream), clean_meta(meta)
        if outlet is None:
            return
        frame = outlet.count(frame, depth_range)
        now = time.monotonic()
        if self._is_due(outlet, now):
            outlet.pace.advance(now)
            self._ferry.carry(outlet, frame, clean, bgr=bgr, depth_range=depth_range)

    def wanted(self, stream: str) -> bool:
        """As `StreamServer.wanted`."""
        outlet = self._find(stream)
        return outlet is not None and self._is_due(outlet, time.monotonic())

    def wanted_streams(self) -> list[str]:
        """As `StreamServer.wanted_streams`."""
        now = time.monotonic()
        return [each.name for each in self._all() if self._is_due(each, now)]

    def watchers(self, stream: str | None) -> int:
        """As `StreamServer.watchers`."""
        outlets = [each for each in self._all() if stream in (None, each.name)]
        numbers = (self._board.get(each.index, WATCHERS) for each in outlets)
        return sum(int(number) for number in numbers if 0 <= number <= self._max_clients)

    def declare(self, stream: str, title: str | None) -> None:
        """As `StreamServer.declare`."""
        self._declare(stream, title)

    def declare_family(self, name: str, count: int, title: str | None) -> None:
        """As `StreamServer.declare_family`."""
        if name in self._outlets:
            raise ValueError(f"StreamServer.declare_family: want a name that no stream has; got {name!r}")
        self._families.declare(name, count, title)
        self._speaker.say("declare_family", name=name, count=count, title=title)

    def end_episode(self, stream: str, meta: Mapping[str, Any] | None) -> None:
        """As `StreamServer.end_episode`."""
        clean = clean_meta(meta)
        if self._find(stream) is not None:
            self._speaker.say("end_episode", stream=stream, meta=clean, captured=time.time())

    def commands(self) -> list[Command]:
        """As `StreamServer.commands`."""
        commands = []
        while self._commands:
            commands.append(self._commands.popleft())
        return commands

    def state(self, values: Mapping[str, Any]) -> None:
        """As `StreamServer.state`."""
        self._speaker.say("state", values=check_state(values))

    def log(self, step: int, scalars: Mapping[str, Any]) -> None:
        """As `StreamServer.log`."""
        with self._lock:
            finite = check_scalars(step, scalars, self._curves)
            self._curves |= finite.keys()
        self._speaker.say("log", step=int(step), scalars=finite)

    def stop(self) -> RuntimeError | None:
        """Ends the process; what went wrong in it, if anything did."""
        self._ferry.stop()
        self._speaker.close()
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._problem = self._problem or f"its process does not end within {_STOP_TIMEOUT:g} s"
            self._process.kill()
            self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        for outlet in self._all():
            outlet.close()
        self._board.memory.unlink()
        return None if self._problem is None else RuntimeError(self._problem)

    def _is_due(self, outlet: Outlet, now: float) -> bool:
        return not self._ended and outlet.is_due(now)

    def _find(self, name: str) -> Outlet | None:
        """As `Hub.find`."""
        found = self._outlets.get(name) or self._members.get(name)
        return found or (None if self._families.of(name) else self._declare(name, None))

    def _all(self) -> list[Outlet]:
        return [*self._outlets.values(), *list(self._members.values())]

    def _declare(self, name: str, title: str | None) -> Outlet:
        with self._lock:
            outlet = self._outlets.get(name)
            if outlet is None:
                check_name(name, len(self._outlets))
                if name in self._families.by_name:
                    raise ValueError(f"StreamServer: want a stream whose name no family has; got {name!r}")
                outlet = Outlet(name, len(self._outlets), self._board)
                self._outlets[name] = outlet
            self._speaker.say("declare", stream=name, title=title, index=outlet.index)
        return outlet

    def _await_start(self) -> None:
        if not self._told.wait(_START_TIMEOUT):
            self._problem = f"its process does not serve within {_START_TIMEOUT:g} s"
        if self._problem is not None:
            self.stop()
            if self._kind == "ValueError":
                raise ValueError(self._problem)
            raise RuntimeError(f"StreamServer: it does not start: {self._problem}")

    def _listen(self) -> None:
        """Hears the process until it ends. It serves strangers, so that what it says is checked as theirs is."""
        assert self._process.stdout is not None
        try:
            while line := self._process.stdout.readline(_LONGEST_LINE):
                self._hear(*hear(line))
        except Exception as error:
            self._problem = f"its process says what is no message: {type(error).__name__}: {str(error)[:200]}"
            self._process.kill()
        if not self._has_ended:
            self._problem = self._problem or "its process died"
        self._ended = True
        with contextlib.suppress(ValueError):
            self._board.forget_demand()
        self._told.set()

    def _hear(self, op: str, fields: dict[str, Any]) -> None:
        if op == "serves":
            self.port = int(fields["port"])
            self._told.set()
        elif op == "command":
            self._commands.append(read_command({"type": op, **fields}, str(fields["stream"])))
        elif op == "opened":
            self._open(fields["stream"], fields["index"])
        elif op == "dropped":
            self._members.pop(fields["stream"]).close()
            self._speaker.say("forget", stream=fields["stream"])
        elif op == "ended":
            self._has_ended = True
            self._kind, self._problem = fields["kind"], fields["message"]

    def _open(self, name: Any, index: Any) -> None:
        """Takes in a member of a family that a viewer asked for; its place is in the second half of the board."""
        known = isinstance(name, str) and self._families.of(name) is not None
        if not known or type(index) is not int or not MOST_STREAMS <= index < Board.PLACES:
            raise ValueError(f"want a member of a family and its place; got {str(name)[:80]!r} and {str(index)[:20]}")
        self._members[name] = Outlet(name, index, self._board, is_on_demand=True)


def _spawn() -> subprocess.Popen[bytes]:
    """A fresh interpreter: what has threads must not fork, and one that runs the program's main module loads torch."""
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "torchrl_gpu.streaming.remote.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C is the program's to answer
    )
