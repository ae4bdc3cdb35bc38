"""Process workers on this machine, with tensors in shared memory."""

from __future__ import annotations

import multiprocessing
import signal
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from torchrl_gpu.envs.workers.shard import Recipe, Shard, Tensors, WorkerDied, WorkerFailed, one_line

_SECONDS_TO_END = 5.0
_READY = "ready"


class ProcessWorker:
    """Worker in a process of this machine, made by a `recipe`, with tensors for input and results by command.

    Commands go through a pipe, tensors lie in shared memory. It ignores SIGINT and SIGTERM, which a terminal or a
    cluster sends to all processes of a run, and ends when the other end of its pipe is gone, however that came about.
    """

    shares_memory = True

    @staticmethod
    def prepare(num_workers: int) -> None:
        """Does nothing, as processes need no preparation."""

    def __init__(self, recipe: Recipe, given: dict[str, Tensors], made: dict[str, Tensors]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, recipe, given, made), daemon=True)
        try:
            self._process.start()
        finally:
            theirs.close()  # so that the worker has the only one, and its end is seen
        self.name = f"process {self._process.pid}"

    def wait_ready(self) -> None:
        """Returns once the environment is made."""
        self.finish()

    def send(self, command: str, values: tuple[Any, ...] = ()) -> None:
        """Sends a command, a method of `Shard`; WorkerDied where the process is gone."""
        try:
            self._pipe.send((command, values))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise WorkerDied(self._end()) from error

    def finish(self) -> None:
        """Waits for the results, which are then in place; WorkerDied or WorkerFailed where none come."""
        try:
            answer = self._pipe.recv()
        except (EOFError, ConnectionResetError) as error:
            raise WorkerDied(self._end()) from error
        if answer != _READY:
            raise WorkerFailed(answer)

    def close(self) -> None:
        """Closes the pipe, and kills the process if it does not end."""
        self._pipe.close()
        if self._process.pid is not None:
            self._process.join(_SECONDS_TO_END)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process.close()

    def _end(self) -> str:
        self._process.join(_SECONDS_TO_END)
        code = self._process.exitcode
        if code is None or code >= 0:
            return "is gone" if code is None else f"ended with exit code {code}"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"


def serve(pipe: Connection, recipe: Recipe, given: dict[str, Tensors], made: dict[str, Tensors]) -> None:
    """Main loop of a worker process: runs commands until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    shard: Shard | None = None
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            try:
                if shard is None:
                    shard = Shard(recipe)
                else:
                    command, values = pipe.recv()
                    tensors = (given[command],) if command in given else ()
                    results = getattr(shard, command)(*values, *tensors)
                    for key, place in made.get(command, {}).items():
                        place.copy_(results[key])
                answer = _READY
            except (EOFError, BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:
                answer = one_line(error)
            pipe.send(answer)
