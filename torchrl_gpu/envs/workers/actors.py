"""Ray workers: actors of a cluster, on this machine or on others."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any, cast

from torchrl_gpu.envs.workers.shard import Command, Recipe, Shard, Tensors, WorkerDied, WorkerFailed, one_line
from torchrl_gpu.system.extras import how_to_install

# Otherwise Ray reports usage to its makers.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

try:
    import ray
    from ray import exceptions
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"EnvWorkers: transport 'ray' needs Ray, which is not installed ({missing}): {how_to_install('ray')}",
        name=missing.name,
    ) from missing


class Actor:
    """Ray actor that holds a `Shard`."""

    def make(self, recipe: Recipe) -> str:
        """Make the environment, and return its process and host."""
        self._shard = Shard(recipe)
        return f"process {os.getpid()} on {socket.gethostname()}"

    def call(self, command: Command, tensors: Tensors) -> Tensors | str:
        """Run a command.

        An error is returned as text, since it may be of a class that only the worker knows.
        """
        try:
            return self._shard.run(command, tensors)
        except Exception as error:
            return one_line(error)


class RayWorker:
    """Worker in a Ray actor, which takes one CPU of the cluster.

    Tensors are sent with each command. An actor that dies is not restarted by Ray, but by the worker pool, which knows
    in which state. Arguments are those of `ProcessWorker`.
    """

    shares_memory = False

    @staticmethod
    def prepare(num_workers: int) -> None:
        """Connect to the cluster that `RAY_ADDRESS` names, or start one here.

        If Ray is initialised already, it is left alone.
        """
        if ray.is_initialized():
            return
        if os.environ.get("RAY_ADDRESS"):
            ray.init(log_to_driver=True, logging_level=logging.WARNING)
        else:
            ray.init(log_to_driver=True, logging_level=logging.WARNING, num_cpus=num_workers, include_dashboard=False)

    def __init__(self, recipe: Recipe, inputs: dict[str, Tensors], results: dict[str, Tensors]) -> None:
        self._inputs = inputs
        self._results = results
        # A handle of Ray has methods that no type checker knows.
        self._actor = cast("Any", ray.remote(num_cpus=1, max_restarts=0)(Actor).remote())
        # All actors make their environments at the same time. `wait_ready` waits.
        self._pending = self._actor.make.remote(recipe)
        self._command = ""
        self.name = "an actor of Ray"

    def wait_ready(self) -> None:
        try:
            self.name = ray.get(self._pending)
        except exceptions.RayTaskError as error:
            raise WorkerFailed(one_line(error.cause)) from None
        except exceptions.RayActorError as error:
            raise WorkerDied(_reason(error)) from error

    def send(self, command: Command) -> None:
        self._command = command.name
        # Copies, since Ray may read its arguments after this has returned.
        tensors = {key: value.clone() for key, value in self._inputs.get(command.name, {}).items()}
        self._pending = self._actor.call.remote(command, tensors)

    def finish(self) -> None:
        try:
            answer = ray.get(self._pending)
        except exceptions.RayActorError as error:
            raise WorkerDied(_reason(error)) from error
        if isinstance(answer, str):
            raise WorkerFailed(answer)
        for key, place in self._results.get(self._command, {}).items():
            place.copy_(answer[key])

    def close(self) -> None:
        if ray.is_initialized():
            ray.kill(self._actor)


def _reason(error: Exception) -> str:
    """Return a short reason for the death of an actor, from Ray's error of many lines."""
    reason = type(error).__name__
    for line in str(error).splitlines():
        if "exit" in line.lower() or "died" in line.lower():
            reason = line.strip()
    return f"is gone ({reason[:200]})"
