"""Requests that come at about the same time, decided together in one forward pass."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NamedTuple

import numpy as np
import torch

from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.serving.messages import Observations
from torchrl_gpu.system.policy_messages import BadAction, answers

# Turns of the loop until what lies in a socket, by HTTP too, has become a request that waits.
_TURNS = 6
# Seconds. A pass as short as this delays all else less than a thread does, with which it shares the interpreter.
_SHORT_S = 0.002


class Busy(Exception):
    """More waits than can be decided soon."""


Watch = Callable[[Observations, np.ndarray, float, float], None]
"""Gets observations and actions of a request, milliseconds of its pass, and seconds that it had waited before."""


class _Request(NamedTuple):
    """Observations that wait for their actions.

    Attributes:
        rows: Number of observations.
        arrived_at: Seconds by `time.perf_counter`.
    """

    observations: Observations
    rows: int
    arrived_at: float
    decided: asyncio.Future[np.ndarray]


class _Decided(NamedTuple):
    """A request with its actions."""

    request: _Request
    actions: np.ndarray


@contextmanager
def release_at_end(thread: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """Give a thread up at the end, with what waits for it.

    A server's stop does not wait for a long pass.
    """
    try:
        yield thread
    finally:
        thread.shutdown(wait=False, cancel_futures=True)


class Batching:
    """Dynamic batching: each pass decides as many waiting requests as it may.

    Deciding each request alone would leave the hardware idle, and waiting a fixed time for others would delay a client
    that is alone. So a pass begins when as many requests wait as there were in the last one, or `wait_s` after the
    first of them came: one client alone waits for nothing. Short passes are made on the loop, so that all that came
    meanwhile is in the next one. Longer ones have a thread, and the loop goes on meanwhile.

    Args:
        policy: Decides.
        max_rows: Of one pass.
        wait_s: Seconds that a request may wait for others.
        max_waiting: Rows that may wait.

    Attributes:
        watch: Called after each pass, for the last request that has its actions, once all are answered.
        passes, requests: Made and decided up to now.
    """

    def __init__(self, policy: InferencePolicy, max_rows: int, wait_s: float, max_waiting: int) -> None:
        self.watch: Watch | None = None
        self.passes = 0
        self.requests = 0
        self._policy = policy
        self._max_rows = max_rows
        self._wait_s = wait_s
        self._max_waiting = max_waiting
        self._waiting: deque[_Request] = deque()
        # Of all that wait.
        self._rows = 0
        # Requests of the last pass.
        self._expected = 1
        self._arrived = asyncio.Event()

    async def act(self, observations: Observations) -> np.ndarray:
        """Return the actions (B, …) of observations (B, …).

        Raises:
            Busy: Too many rows wait.
            BadAction: The policy gives no usable action.
        """
        rows = len(next(iter(observations.values())))
        if self._rows + rows > self._max_waiting:
            raise Busy
        request = _Request(observations, rows, time.perf_counter(), asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._rows += rows
        self._arrived.set()
        return await request.decided

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Decide inside this context."""
        with release_at_end(ThreadPoolExecutor(1, "torchrl_gpu policy")) as thread:
            task = asyncio.create_task(self._run(thread))
            try:
                yield
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                for request in self._waiting:
                    request.decided.cancel()

    async def _run(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        took = math.inf
        while True:
            # A request may have come while the last pass was made.
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            await self._gather()
            batch = self._take()
            self._expected = len(batch)
            if not batch:
                continue
            self.passes += 1
            self.requests += len(batch)
            begin = time.perf_counter()
            # By the time of the pass before; the first one has a thread.
            if took <= _SHORT_S:
                results = self._decide(batch)
            else:
                results = await loop.run_in_executor(thread, self._decide, batch)
            took = time.perf_counter() - begin
            last = self._answer(batch, results)
            if self.watch is not None and last is not None:
                request = last.request
                waited = begin - request.arrived_at
                # Once the clients have their answers.
                loop.call_soon(self.watch, request.observations, last.actions, 1000 * took, waited)

    def _answer(self, batch: list[_Request], results: list[np.ndarray | Exception]) -> _Decided | None:
        """Answer all requests of a pass, and return the last one that has actions."""
        last: _Decided | None = None
        for request, result in zip(batch, results, strict=True):
            # Nobody waits for the answer of a client that has left.
            is_awaited = not request.decided.done()
            if isinstance(result, Exception):
                if is_awaited:
                    request.decided.set_exception(result)
                continue
            if is_awaited:
                request.decided.set_result(result)
            last = _Decided(request, result)
        return last

    async def _gather(self) -> None:
        """Wait for as many requests as there were last time, within bounds."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if len(self._waiting) >= self._expected or not self._wait_s:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                while len(self._waiting) < self._expected and self._rows < self._max_rows:
                    self._arrived.clear()
                    await self._arrived.wait()

    def _take(self) -> list[_Request]:
        """Take the requests of a pass, in the order in which they came."""
        batch: list[_Request] = []
        left = self._max_rows
        # The first that is too large ends the batch: to let smaller ones pass could leave it waiting forever.
        while self._waiting and self._waiting[0].rows <= left:
            request = self._waiting.popleft()
            self._rows -= request.rows
            if not request.decided.done():
                batch.append(request)
                left -= request.rows
        return batch

    def _decide(self, batch: list[_Request]) -> list[np.ndarray | Exception]:
        """Return the actions of each request, or its error.

        A request that makes the policy fail costs the others another pass, each alone.
        """
        try:
            return self._decide_together(batch)
        except Exception as error:
            # A policy may raise anything.
            if len(batch) == 1:
                return [error]
            return [self._decide([request])[0] for request in batch]

    @torch.inference_mode()
    def _decide_together(self, batch: list[_Request]) -> list[np.ndarray | Exception]:
        observations = self._concatenate(batch)
        device = self._policy.device
        tensors = {name: torch.from_numpy(values).to(device) for name, values in observations.items()}
        found = answers(self._policy, tensors)
        actions = found.actions if self._policy.space.num_actions is not None else found.actions.astype(np.float32)
        decided: list[np.ndarray | Exception] = []
        start = 0
        for request in batch:
            end = start + request.rows
            # An action of one request that is no number does not concern the others.
            try:
                found.check(start, end)
            except BadAction as error:
                decided.append(error)
            else:
                decided.append(actions[start:end])
            start = end
        return decided

    def _concatenate(self, batch: list[_Request]) -> Observations:
        """Return the observations of all requests of a pass."""
        names = self._policy.in_keys
        # One request alone is not copied.
        if len(batch) == 1:
            return {name: batch[0].observations[name] for name in names}
        observations: Observations = {}
        for name in names:
            parts = [each.observations[name] for each in batch]
            observations[name] = np.concatenate(parts)
        return observations
