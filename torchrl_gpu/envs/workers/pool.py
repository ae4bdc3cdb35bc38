"""`WorkerPool`: workers that play the rollouts of an environment."""

from __future__ import annotations

import atexit
import logging
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from tensordict import NestedKey, TensorDictBase

from torchrl_gpu.envs import clips
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.workers.self_test import SelfTest
from torchrl_gpu.envs.workers.shard import (
    Command,
    CommandName,
    Recipe,
    SplitTensors,
    Tensors,
    WorkerDied,
    WorkerFailed,
    axes,
    shares,
)

if TYPE_CHECKING:
    from torchrl_gpu.envs.workers.actors import RayWorker
    from torchrl_gpu.envs.workers.processes import ProcessWorker

_LOG = logging.getLogger(__name__)

Transport = Literal["processes", "ray"]


class _Sent(NamedTuple):
    """A command that was sent in this rollout.

    Attributes:
        command: To all workers.
        tensors: Copies of its inputs, which the next command of that name overwrites.
    """

    command: Command
    tensors: Tensors


class WorkerPool:
    """Workers that play the steps of an environment.

    Results are those of the environment itself, to the bit. The environment keeps the state: each rollout begins with
    the state of the environment, and at its end the workers' state is put back. So checkpoints, viewers and curricula
    know nothing of workers. The policy acts in this process, for all environments at once. A worker that dies is
    started again from the state in which the rollout began, and plays the steps since then once more. At construction a
    few steps are played in both ways and compared.

    Args:
        env: The environment.
        num_workers: Among which its rows are divided.
        transport: "processes" of this machine, or "ray", actors of a cluster. `ray.init` is called if it was not.
        threads: Threads of torch in each worker.

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
        self._recipes: list[Recipe] = []
        for first, count in self._shares:
            shard_arguments = env.shard_arguments(count, env.first_env + first)
            recipe = Recipe(type(env), shard_arguments, threads)
            self._recipes.append(recipe)
        self.deaths = [0] * num_workers
        # What a worker that is started anew must do to catch up.
        self._journal: list[_Sent] = []
        self._workers: list[ProcessWorker | RayWorker | None] = [None] * num_workers
        # All that can be refused is refused before a process starts.
        self._check_sendable()
        self._transport = _transport(transport)
        self._transport.prepare(num_workers)
        self_test = SelfTest(env)
        self._make_places(self_test)
        # Exit handlers run in reverse order: this one before that of the standard library, which waits for children.
        atexit.register(self.close)
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
                f"EnvWorkers: {name} or its arguments cannot be pickled, as with lambdas and classes inside functions:"
                f" {error}"
            ) from error

    def _start_all(self) -> None:
        try:
            self._start(range(len(self._workers)))
        except WorkerDied as error:
            raise WorkerFailed(
                f"EnvWorkers: a worker could not start: it {error}. See what it printed above, and in a script of your"
                " own begin training under if __name__ == '__main__':"
            ) from error

    def _make_places(self, self_test: SelfTest) -> None:
        """Make the tensors by which workers are given inputs and return results."""
        state = dict(self_test.state)
        axis: dict[NestedKey, int] = {}
        if len(self._shares) > 1:
            sample = self._recipes[0].make()
            sample_state = dict(sample.env_state())
            axis = axes(state, sample_state, self.env.num_envs, sample.num_envs)
        self._inputs: dict[CommandName, SplitTensors] = {
            "begin": self._place(state, axis),
            "step": self._place(self_test.actions),
        }
        self._results: dict[CommandName, SplitTensors] = {
            "restart": self._place(self_test.observed),
            "step": self._place(self_test.stepped),
            "end": self._place(state, axis),
        }
        self._empty_next = self_test.next
        self._empty_current = self_test.current

    def _place(self, like: Tensors, axis: Mapping[NestedKey, int] | None = None) -> SplitTensors:
        return SplitTensors(like, axis or {}, self._shares, shared=self._transport.shares_memory)

    # -- rollouts ---------------------------------------------------------------------------------------------------

    @property
    def outcomes(self) -> Sequence[NestedKey]:
        """Outcomes of the environment."""
        return self.env.outcomes

    def set_frames(self, frames: int) -> None:
        """Pass the progress of training on to the workers, when the next rollout begins."""
        self._frames = frames

    @contextmanager
    def rollout(self) -> Iterator[None]:
        """Play steps inside this context, and take over their final state at its end.

        Raises:
            WorkerFailed: An environment raises, or a worker dies again and again.
        """
        try:
            self.begin()
            yield
            self.end()
        except BaseException:
            # An answer may still be on its way, which the next rollout would take for its own.
            self.close()
            raise

    def begin(self) -> None:
        """Send the environment's state to the workers."""
        if None in self._workers:
            raise WorkerFailed("EnvWorkers: the workers are closed")
        self._journal = []
        self._inputs["begin"].put(dict(self.env.env_state()))
        self._run(Command("begin", self.env.seed, self._frames))

    def end(self) -> None:
        """Set the environment's state to that of the workers."""
        self._run(Command("end"))
        state = self._results["end"].copy(self.env.device)
        self.env.set_env_state({str(key): value for key, value in state.items()})
        self.deaths = [0] * len(self.deaths)

    def restart(self) -> Tensors:
        """Begin the next episode everywhere, and return the first observations."""
        self._run(Command("restart"))
        return self._renumber_frames(self._results["restart"].copy(self.env.device))

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Play a step as `BatchedEnv.step_and_maybe_reset` does."""
        inputs = self._inputs["step"]
        inputs.put({key: tensordict.get(key).reshape(place.shape) for key, place in inputs.whole.items()})
        self._run(Command("step"), inputs.copy(torch.device("cpu")))
        following = self._empty_next.empty(recurse=True)
        current = self._empty_current.empty(recurse=True)
        results = self._renumber_frames(self._results["step"].copy(self.env.device))
        for (part, *key), value in results.items():
            target = following if part == "next" else current
            target.set(tuple(key), value)
        tensordict.set("next", following)
        return tensordict, self.env._step_mdp(tensordict).update(current)

    @staticmethod
    def _renumber_frames(tensors: Tensors) -> Tensors:
        """Number frames of clips by their rows in the whole batch, in place.

        Each worker numbers them by the rows of its own part.
        """
        for key, value in tensors.items():
            if (key[-1] if isinstance(key, tuple) else key) == clips.ROW_KEY:
                rows = torch.arange(len(value), device=value.device, dtype=torch.int64)
                value[:, 0] = rows
        return tensors

    # -- workers ----------------------------------------------------------------------------------------------------

    def _run(self, command: Command, tensors: Tensors | None = None) -> None:
        """Run a command on all workers, and wait for it.

        Workers that die meanwhile are replaced, and catch up.
        """
        self._journal.append(_Sent(command, tensors or {}))
        # The dead are replaced at the end, so that the living need not wait for them.
        dead = {}
        for number in range(len(self._workers)):
            try:
                self._worker(number).send(command)
            except WorkerDied as error:
                dead[number] = error
        # All have the command before the first is waited for, so that they work at the same time.
        for number in range(len(self._workers)):
            if number in dead:
                continue
            try:
                self._finish(number)
            except WorkerDied as error:
                dead[number] = error
        for number, death in dead.items():
            self._replace(number, death)

    def _worker(self, number: int) -> ProcessWorker | RayWorker:
        worker = self._workers[number]
        assert worker is not None
        return worker

    def _finish(self, number: int) -> None:
        with self._name_failures(number):
            self._worker(number).finish()

    @contextmanager
    def _name_failures(self, number: int) -> Iterator[None]:
        """Add the worker's name to an error of its environment."""
        try:
            yield
        except WorkerFailed as error:
            raise WorkerFailed(f"EnvWorkers: {self._name(number)} raised {error}") from None

    def _replace(self, number: int, death: WorkerDied) -> None:
        """Start a worker anew that has died, until it has caught up."""
        while True:
            # An environment that does not fit into memory would die for ever.
            self.deaths[number] += 1
            if self.deaths[number] >= self.most_deaths:
                raise WorkerFailed(
                    f"EnvWorkers: {self._name(number)} {death}, {self.deaths[number]} times in a row: is there enough"
                    " memory?"
                )
            _LOG.warning(
                "EnvWorkers: %s %s; another one continues from where this rollout began", self._name(number), death
            )
            try:
                self._start([number])
                self._catch_up(number)
            except WorkerDied as error:
                death = error
            else:
                return

    def _catch_up(self, number: int) -> None:
        """Let a new worker do what the others have done since the rollout began."""
        first, count = self._shares[number]
        # The journal only has the tensors of steps. The state in which the rollout began is still in the inputs of
        # "begin".
        for command, tensors in self._journal:
            for key, value in tensors.items():
                self._inputs[command.name].parts[number][key].copy_(value.narrow(0, first, count))
            self._worker(number).send(command)
            self._finish(number)

    def _start(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            old = self._workers[number]
            if old is not None:
                self._workers[number] = None
                old.close()
            inputs = {str(name): place.parts[number] for name, place in self._inputs.items()}
            results = {str(name): place.parts[number] for name, place in self._results.items()}
            recipe = self._recipes[number]
            self._workers[number] = self._transport(recipe, inputs, results)
        # In a second loop, so that all of them make their environments at the same time.
        for number in numbers:
            with self._name_failures(number):
                self._worker(number).wait_ready()

    def _name(self, number: int) -> str:
        worker = self._workers[number]
        first, count = self._shares[number]
        first += self.env.first_env
        process = "" if worker is None else f", {worker.name}"
        last = first + count - 1
        return f"worker {number} (environments {first} to {last}{process})"

    @property
    def names(self) -> list[str]:
        """Names of the workers in messages."""
        return [self._name(number) for number in range(len(self._workers))]

    def close(self) -> None:
        """End the workers, unless they have ended already."""
        atexit.unregister(self.close)
        workers = self._workers
        self._workers = [None] * len(workers)
        for worker in workers:
            if worker is not None:
                worker.close()


def _transport(name: Transport) -> type[ProcessWorker] | type[RayWorker]:
    if name == "processes":
        from torchrl_gpu.envs.workers.processes import ProcessWorker

        return ProcessWorker
    from torchrl_gpu.envs.workers.actors import RayWorker

    return RayWorker
