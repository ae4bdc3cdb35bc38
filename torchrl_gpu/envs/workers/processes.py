"""Process workers on this machine, with tensors in shared memory."""

from __future__ import annotations

import multiprocessing
import signal
from contextlib import suppress
from multiprocessing.connection import Connection

from torchrl_gpu.envs.workers.shard import Command, Recipe, Shard, Tensors, WorkerDied, WorkerFailed, one_line

# How long a process may take to end before it is killed.
_SECONDS_TO_END = 5.0

# Answer to a command that has succeeded; any other answer is an error in words.
_READY = "ready"


class ProcessWorker:
    """Worker in a process of this machine.

    Commands go through a pipe, tensors lie in shared memory. The process ignores SIGINT and SIGTERM, which a terminal
    or a cluster sends to all processes of a run: the trainer still needs its workers to finish. It ends when the other
    end of its pipe is gone, for whatever reason.

    Args:
        recipe: Of its environment.
        inputs: Tensors that a command reads, by the command's name.
        results: Tensors that a command writes, by the command's name.
    """

    shares_memory = True

    @staticmethod
    def prepare(num_workers: int) -> None:
        """Do nothing, since processes need no preparation."""

    def __init__(self, recipe: Recipe, inputs: dict[str, Tensors], results: dict[str, Tensors]) -> None:
        # A forked process would inherit CUDA, and locks of threads that it does not have.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        # As a daemon it ends with the trainer, even if nobody closes it.
        arguments = (theirs, recipe, inputs, results)
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        try:
            self._process.start()
        finally:
            # The worker must hold the only one, otherwise nobody would notice that it is gone.
            theirs.close()
        self.name = f"process {self._process.pid}"

    def wait_ready(self) -> None:
        """Wait until the environment is made."""
        self.finish()

    def send(self, command: Command) -> None:
        """Send a command, whose inputs are in place.

        Raises:
            WorkerDied: The process is gone.
        """
        try:
            self._pipe.send(command)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise WorkerDied(self._describe_end()) from error

    def finish(self) -> None:
        """Wait for the results of a command, which are then in place.

        Raises:
            WorkerDied: The process is gone.
            WorkerFailed: The environment raised an error.
        """
        try:
            answer = self._pipe.recv()
        except (EOFError, ConnectionResetError) as error:
            raise WorkerDied(self._describe_end()) from error
        if answer != _READY:
            raise WorkerFailed(answer)

    def close(self) -> None:
        """Close the pipe, and kill the process if it does not end."""
        self._pipe.close()
        if self._process.pid is not None:
            self._process.join(_SECONDS_TO_END)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process.close()

    def _describe_end(self) -> str:
        """Say how the process has ended."""
        self._process.join(_SECONDS_TO_END)
        code = self._process.exitcode
        if code is None or code >= 0:
            return "is gone" if code is None else f"ended with exit code {code}"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"


def serve(pipe: Connection, recipe: Recipe, inputs: dict[str, Tensors], results: dict[str, Tensors]) -> None:
    """Run the main loop of a worker process, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    shard: Shard | None = None
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            try:
                if shard is None:
                    shard = Shard(recipe)
                else:
                    command: Command = pipe.recv()
                    # Results go where the trainer looks for them; the pipe only says that they are there.
                    found = shard.run(command, inputs.get(command.name, {}))
                    for key, place in results.get(command.name, {}).items():
                        place.copy_(found[key])
                answer = _READY
            # These are of the pipe, not of the environment.
            except (EOFError, BrokenPipeError, ConnectionResetError):
                raise
            # An environment may raise anything. The trainer ends the run with its words.
            except Exception as error:
                answer = one_line(error)
            pipe.send(answer)
