"""Workers that are actors of a Ray cluster, on this machine or on others."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any, cast

from torchrl_gpu.envs.workers.failures import WorkerDied, WorkerFailed
from torchrl_gpu.envs.workers.shard import Recipe, Shard, Tensors, told

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers

try:
    import ray
    from ray import exceptions
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "EnvWorkers: want Ray for transport='ray', which an extra brings, pip install 'torchrl_gpu[ray]';"
        f" got an install without it ({missing})",
        name=missing.name,
    ) from missing


class Actor:
    """What runs in the cluster."""

    def make(self, recipe: Recipe) -> str:
        """Makes the environment; where that is."""
        self._shard = Shard(recipe)
        return f"process {os.getpid()} on {socket.gethostname()}"

    def call(self, command: str, values: tuple[Any, ...], tensors: tuple[Tensors, ...]) -> Tensors | str:
        """Does what is asked; an error as text, as it may be of a class that only the worker knows."""
        try:
            return getattr(self._shard, command)(*values, *tensors)
        except Exception as error:
            return told(error)


class RayWorker:
    """An actor that plays some of the environments, and takes one CPU of the cluster. As in `ProcessWorker`.

    Tensors are sent with each command. An actor that dies is not started again by Ray, but by who asks it, who knows in
    which state.
    """

    shares_memory = False

    @staticmethod
    def prepare(num_workers: int) -> None:
        """Connects to the cluster that `RAY_ADDRESS` names, or starts one on this machine; nothing where one is."""
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
        """Returns once the environment is made."""
        try:
            self.name = ray.get(self._pending)
        except exceptions.RayTaskError as error:
            raise WorkerFailed(told(error.cause)) from None
        except exceptions.RayActorError as error:
            raise WorkerDied(_end(error)) from error

    def send(self, command: str, values: tuple[Any, ...] = ()) -> None:
        """Asks for something."""
        self._command = command
        tensors = ({key: value.clone() for key, value in self._given.get(command, {}).items()},)
        self._pending = self._actor.call.remote(command, values, tensors if command in self._given else ())

    def finish(self) -> None:
        """Waits until it is done, and lays down what it has made."""
        try:
            answer = ray.get(self._pending)
        except exceptions.RayActorError as error:
            raise WorkerDied(_end(error)) from error
        if isinstance(answer, str):
            raise WorkerFailed(answer)
        for key, place in self._made.get(self._command, {}).items():
            place.copy_(answer[key])

    def close(self) -> None:
        """Ends it."""
        if ray.is_initialized():
            ray.kill(self._actor)


def _end(error: Exception) -> str:
    """What Ray says of a death, in short."""
    lines = [line.strip() for line in str(error).splitlines() if "exit" in line.lower() or "died" in line.lower()]
    return f"is gone ({(lines or [type(error).__name__])[-1][:200]})"
