"""`WorkerPool`: plays the rollouts of an environment in workers, and survives the death of any of them."""

from __future__ import annotations

import atexit
import logging
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from tensordict import NestedKey, TensorDictBase

from torchrl_gpu.envs import clips
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.workers.self_test import SelfTest
from torchrl_gpu.envs.workers.shard import Recipe, SplitTensors, Tensors, WorkerDied, WorkerFailed, axes, shares

if TYPE_CHECKING:
    from torchrl_gpu.envs.workers.actors import RayWorker
    from torchrl_gpu.envs.workers.processes import ProcessWorker

_LOG = logging.getLogger(__name__)

Transport = Literal["processes", "ray"]


class WorkerPool:
    """Worker pool that plays the steps of an environment in several processes, to the same bits as it would itself.

    The environment keeps the state: each rollout begins with the one that it has, and leaves in it where the workers
    ended. So checkpoints, viewers and curricula know nothing of workers. The policy acts in this process, for all
    environments at once. A worker that dies is started again from the state in which the rollout began, and plays the
    steps since then once more.

    At construction a few steps are played in both ways and compared. `transport` is "processes" of this machine, or
    "ray", actors of a cluster, where `ray.init` is called if it was not; each worker has so many `threads` of torch.

    Raises:
        ValueError: The environment cannot be split exactly, or its arguments cannot be sent to a process.
        WorkerFailed: A worker could not be started.
    """

    most_deaths = 3
    """Deaths of a worker, without a whole rollout in between, after which the run ends."""

    def __init__(self, env: BatchedEnv, num_workers: int, transport: Transport = "processes", threads: int = 1) -> None:
        self.env = env
        self._frames: int | None = None
        self._shares = shares(env.num_envs, num_workers)
        self._recipes = [
            Recipe(type(env), env.shard_arguments(count, env.first_env + first), threads)
            for first, count in self._shares
        ]
        self._deaths = [0] * num_workers
        self._journal: list[tuple[str, tuple[Any, ...], Tensors]] = []
        self._workers: list[ProcessWorker | RayWorker | None] = [None] * num_workers
        self._check_sendable()
        self._transport = _transport(transport)
        self._transport.prepare(num_workers)
        self_test = SelfTest(env)
        self._make_places(self_test)
        atexit.register(self.close)  # before the standard library waits for children
        try:
            self._start_all()
            self_test.compare(self)
        except BaseException:
            self.close()
            raise

    def _check_sendable(self) -> None:
        try:
            with open(os.devnull, "wb") as nowhere:
                pickle.dump(self._recipes[0], nowhere)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            name = type(self.env).__name__
            raise ValueError(
                f"EnvWorkers: want a {name} whose class and arguments can be pickled, which lambdas and classes inside"
                f" functions cannot; got {error}"
            ) from error

    def _start_all(self) -> None:
        try:
            self._start(range(len(self._workers)))
        except WorkerDied as error:
            raise WorkerFailed(
                f"EnvWorkers: want workers that start; got one that {error}: see what it printed above, and in a script"
                " of your own begin training under if __name__ == '__main__':"
            ) from error

    def _make_places(self, self_test: SelfTest) -> None:
        state, axis = dict(self_test.state), {}
        if len(self._shares) > 1:
            sample = self._recipes[0].make()
            axis = axes(state, dict(sample._env_state()), self.env.num_envs, sample.num_envs)
        shared: bool = self._transport.shares_memory

        def place(like: Tensors, where: dict[NestedKey, int] | None = None) -> SplitTensors:
            return SplitTensors(like, where or {}, self._shares, shared)

        self._given = {"begin": place(state, axis), "step": place(self_test.actions)}
        self._made = {"restart": place(self_test.shown), "step": place(self_test.stepped), "end": place(state, axis)}
        self._shapes = self_test.next, self_test.current

    # -- rollouts ---------------------------------------------------------------------------------------------------

    @property
    def outcomes(self) -> Sequence[NestedKey]:
        """Outcomes of the environment."""
        return self.env.outcomes

    def set_frames(self, frames: int) -> None:
        """Sets the progress of training in the workers' environments, too, when the next rollout begins."""
        self._frames = frames

    @contextmanager
    def rollout(self) -> Iterator[None]:
        """Context manager of a rollout: steps are played within it, and the environment goes on where they end.

        WorkerFailed where an environment raises, or a worker dies again and again.
        """
        try:
            self.begin()
            yield
            self.end()
        except BaseException:
            self.close()  # an answer may still be on its way
            raise

    def begin(self) -> None:
        """Sends the environment's state to the workers."""
        if None in self._workers:
            raise WorkerFailed("EnvWorkers: want workers that run; got a pool that is closed")
        self._journal = []
        self._given["begin"].put(dict(self.env._env_state()))
        self._ask("begin", (self.env.seed, self._frames))

    def end(self) -> None:
        """Sets the environment's state to that of the workers."""
        self._ask("end")
        self.env._set_env_state({str(key): value for key, value in self._made["end"].copy(self.env.device).items()})
        self._deaths = [0] * len(self._deaths)

    def restart(self) -> Tensors:
        """Begins the next episode everywhere; returns the first observations."""
        self._ask("restart")
        return self._numbered(self._made["restart"].copy(self.env.device))

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """As `BatchedEnv.step_and_maybe_reset`, played by the workers."""
        places = self._given["step"].whole
        self._given["step"].put({key: tensordict.get(key).reshape(place.shape) for key, place in places.items()})
        self._ask("step", tensors=self._given["step"].copy(torch.device("cpu")))
        parts = (parts.empty(recurse=True) for parts in self._shapes)
        following = dict(zip(("next", "current"), parts, strict=True))
        for (part, *key), value in self._numbered(self._made["step"].copy(self.env.device)).items():
            following[part].set(tuple(key), value)
        tensordict.set("next", following["next"])
        return tensordict, self.env._step_mdp(tensordict).update(following["current"])

    @staticmethod
    def _numbered(shown: Tensors) -> Tensors:
        """Renumbers frames of clips by their rows in the whole batch, instead of in that of a worker; in place."""
        for key, value in shown.items():
            if (key[-1] if isinstance(key, tuple) else key) == clips.ROW_KEY:
                value[:, 0] = torch.arange(len(value), device=value.device, dtype=torch.int64)
        return shown

    # -- workers ----------------------------------------------------------------------------------------------------

    def _ask(self, command: str, values: tuple[Any, ...] = (), tensors: Tensors | None = None) -> None:
        """Runs a command on all workers and waits for it; those that die in between are replaced and catch up."""
        self._journal.append((command, values, tensors or {}))
        dead = {}
        for number in range(len(self._workers)):
            try:
                self._worker(number).send(command, values)
            except WorkerDied as error:
                dead[number] = error
        for number in range(len(self._workers)):
            try:
                if number not in dead:
                    self._wait(number, "finish")
            except WorkerDied as error:
                dead[number] = error
        for number, how in dead.items():
            self._replace(number, how)

    def _worker(self, number: int) -> ProcessWorker | RayWorker:
        worker = self._workers[number]
        assert worker is not None
        return worker

    def _wait(self, number: int, until: Literal["wait_ready", "finish"]) -> None:
        """Waits for a worker; an error of its environment is raised with the worker's name."""
        try:
            getattr(self._worker(number), until)()
        except WorkerFailed as error:
            raise WorkerFailed(
                f"EnvWorkers: want environments that raise nothing; got from {self._called(number)} {error}"
            ) from None

    def _replace(self, number: int, how: WorkerDied) -> None:
        while True:
            self._deaths[number] += 1
            if self._deaths[number] >= self.most_deaths:
                raise WorkerFailed(
                    f"EnvWorkers: want a worker that lives for a rollout; got {self._called(number)}, which {how},"
                    f" {self._deaths[number]} times in a row: is there memory enough?"
                )
            _LOG.warning(
                "EnvWorkers: %s %s; another one goes on from where this rollout began", self._called(number), how
            )
            try:
                self._start([number])
                return self._catch_up(number)
            except WorkerDied as error:
                how = error

    def _catch_up(self, number: int) -> None:
        first, count = self._shares[number]
        # Of tensors the journal has actions alone: the state in which the rollout began still lies in those of "begin".
        for command, values, tensors in self._journal:
            for key, value in tensors.items():
                self._given[command].parts[number][key].copy_(value.narrow(0, first, count))
            self._worker(number).send(command, values)
            self._wait(number, "finish")

    def _start(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if (old := self._workers[number]) is not None:
                self._workers[number] = None
                old.close()
            places = self._given, self._made
            given, made = ({name: place.parts[number] for name, place in each.items()} for each in places)
            self._workers[number] = self._transport(self._recipes[number], given, made)
        for number in numbers:
            self._wait(number, "wait_ready")

    def _called(self, number: int) -> str:
        worker, (first, count) = self._workers[number], self._shares[number]
        first += self.env.first_env
        process = "" if worker is None else f", {worker.name}"
        return f"worker {number} (environments {first} to {first + count - 1}{process})"

    @property
    def names(self) -> list[str]:
        """Names of the workers in messages."""
        return [self._called(number) for number in range(len(self._workers))]

    def close(self) -> None:
        """Ends the workers; may be called more than once."""
        atexit.unregister(self.close)
        workers, self._workers = self._workers, [None] * len(self._workers)
        for worker in workers:
            if worker is not None:
                worker.close()


def _transport(name: str) -> Any:
    if name == "processes":
        from torchrl_gpu.envs.workers.processes import ProcessWorker

        return ProcessWorker
    from torchrl_gpu.envs.workers.actors import RayWorker

    return RayWorker
