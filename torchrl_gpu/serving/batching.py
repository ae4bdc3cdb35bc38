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

_TURNS = 6  # of the loop, until what lies in a socket, by HTTP too, is a request that waits
# A pass as short as this delays all else less than a thread does, with which it shares the interpreter.
_SHORT_S = 0.002


class Busy(Exception):
    """More waits than can be decided soon."""


Watch = Callable[[Observations, np.ndarray, float, float], None]
"""Gets observations and actions of a request, milliseconds of its pass, and seconds that it had waited before."""


class _Request(NamedTuple):
    observations: Observations
    rows: int
    came: float
    decided: asyncio.Future[np.ndarray]


@contextmanager
def released(thread: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """A thread that is given up at the end, with what waits for it: a server's stop does not wait for a long pass."""
    try:
        yield thread
    finally:
        thread.shutdown(wait=False, cancel_futures=True)


class Batching:
    """Dynamic batching: each pass decides as many waiting requests as it may, at most `max_rows` rows.

    A pass begins when as many requests wait as there were in the last one, or `wait_s` after the first of them came, so
    that one client alone waits for nothing. Short passes are made on the loop: so all that came meanwhile is in the
    next one. Longer ones have a thread, and the loop goes on beside them. `watch` is called after each pass, for the
    last request that has its actions, once all are answered.
    """

    def __init__(self, policy: InferencePolicy, max_rows: int, wait_s: float, max_waiting: int) -> None:
        self.watch: Watch | None = None
        self.passes = self.requests = 0
        self._policy, self._max_rows, self._wait_s, self._max_waiting = policy, max_rows, wait_s, max_waiting
        self._waiting: deque[_Request] = deque()
        self._rows = 0
        self._expected = 1
        self._arrived = asyncio.Event()

    async def act(self, observations: Observations) -> np.ndarray:
        """Actions (B, …) of observations (B, …); Busy, or BadAction where the policy gives no usable one."""
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
        with released(ThreadPoolExecutor(1, "torchrl_gpu policy")) as thread:
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
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            await self._gather()
            batch = self._take()
            self._expected = len(batch)
            if not batch:
                continue
            self.passes, self.requests = self.passes + 1, self.requests + len(batch)
            began = time.perf_counter()
            if took <= _SHORT_S:
                decided = self._decided(batch)
            else:
                decided = await loop.run_in_executor(thread, self._decided, batch)
            took = time.perf_counter() - began
            watched = None
            for request, action in zip(batch, decided, strict=True):
                if isinstance(action, Exception):
                    if not request.decided.done():
                        request.decided.set_exception(action)
                    continue
                if not request.decided.done():  # whoever has left is waited for by nobody
                    request.decided.set_result(action)
                watched = request, action
            if self.watch is not None and watched is not None:
                request, action = watched
                loop.call_soon(self.watch, request.observations, action, 1000 * took, began - request.came)

    async def _gather(self) -> None:
        """Waits for as many requests as there were last time, within bounds."""
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
        batch: list[_Request] = []
        left = self._max_rows
        while self._waiting and self._waiting[0].rows <= left:
            request = self._waiting.popleft()
            self._rows -= request.rows
            if not request.decided.done():
                batch.append(request)
                left -= request.rows
        return batch

    def _decided(self, batch: list[_Request]) -> list[np.ndarray | Exception]:
        """Actions of each request or its error: one that makes the policy fail costs the others another pass."""
        try:
            return self._together(batch)
        except Exception as error:  # of the policy
            if len(batch) == 1:
                return [error]
            return [self._decided([request])[0] for request in batch]

    @torch.inference_mode()
    def _together(self, batch: list[_Request]) -> list[np.ndarray | Exception]:
        names = self._policy.in_keys
        if len(batch) == 1:
            whole = batch[0].observations
        else:
            whole = {name: np.concatenate([each.observations[name] for each in batch]) for name in names}
        device = self._policy.device
        found = answers(self._policy, {name: torch.from_numpy(whole[name]).to(device) for name in names})
        actions = found.actions if self._policy.space.num_actions is not None else found.actions.astype(np.float32)
        decided: list[np.ndarray | Exception] = []
        start = 0
        for request in batch:
            end = start + request.rows
            try:
                found.check(start, end)
            except BadAction as error:
                decided.append(error)
            else:
                decided.append(actions[start:end])
            start = end
        return decided
