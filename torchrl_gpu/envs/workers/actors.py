"""Ray workers: actors of a cluster, on this machine or on others."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any, cast

from torchrl_gpu.envs.workers.shard import Recipe, Shard, Tensors, WorkerDied, WorkerFailed, one_line
from torchrl_gpu.system.extras import how_to_install

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray reports usage to its makers

try:
    import ray
    from ray import exceptions
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"EnvWorkers: want Ray for transport='ray', which an extra brings; got an install without it ({missing});"
        f" to bring it: {how_to_install('ray')}",
        name=missing.name,
    ) from missing


class Actor:
    """Ray actor that holds a `Shard`."""

    def make(self, recipe: Recipe) -> str:
        """Makes the environment; returns its process and host."""
        self._shard = Shard(recipe)
        return f"process {os.getpid()} on {socket.gethostname()}"

    def call(self, command: str, values: tuple[Any, ...], tensors: tuple[Tensors, ...]) -> Tensors | str:
        """Runs a command; returns an error as text, as it may be of a class that only the worker knows."""
        try:
            return getattr(self._shard, command)(*values, *tensors)
        except Exception as error:
            return one_line(error)


class RayWorker:
    """Worker in a Ray actor, which takes one CPU of the cluster; arguments as for `ProcessWorker`.

    Tensors are sent with each command. An actor that dies is not restarted by Ray, but by the worker pool, which knows
    in which state.
    """

    shares_memory = False

    @staticmethod
    def prepare(num_workers: int) -> None:
        """Connects to the cluster that `RAY_ADDRESS` names, or starts one here; nothing where Ray is initialised."""
        if ray.is_initialized():
            return
        here: dict[str, Any] = (
            {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": num_workers, "include_dashboard": False}
        )
        ray.init(log_to_driver=True, logging_level=logging.WARNING, **here)

    def __init__(self, recipe: Recipe, given: dict[str, Tensors], made: dict[str, Tensors]) -> None:
        self._given, self._made = given, made
        self._actor = cast("Any", ray.remote(num_cpus=1, max_restarts=0)(Actor).remote())
        self._pending = self._actor.make.remote(recipe)
        self._command = ""
        self.name = "an actor of Ray"

    def wait_ready(self) -> None:
        try:
            self.name = ray.get(self._pending)
        except exceptions.RayTaskError as error:
            raise WorkerFailed(one_line(error.cause)) from None
        except exceptions.RayActorError as error:
            raise WorkerDied(_end(error)) from error

    def send(self, command: str, values: tuple[Any, ...] = ()) -> None:
        self._command = command
        given = [self._given[command]] if command in self._given else []
        tensors = tuple({key: value.clone() for key, value in each.items()} for each in given)
        self._pending = self._actor.call.remote(command, values, tensors)

    def finish(self) -> None:
        try:
            answer = ray.get(self._pending)
        except exceptions.RayActorError as error:
            raise WorkerDied(_end(error)) from error
        if isinstance(answer, str):
            raise WorkerFailed(answer)
        for key, place in self._made.get(self._command, {}).items():
            place.copy_(answer[key])

    def close(self) -> None:
        if ray.is_initialized():
            ray.kill(self._actor)


def _end(error: Exception) -> str:
    """Short reason for the death of an actor, out of Ray's error."""
    lines = [line.strip() for line in str(error).splitlines() if "exit" in line.lower() or "died" in line.lower()]
    return f"is gone ({(lines or [type(error).__name__])[-1][:200]})"
