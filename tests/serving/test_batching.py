from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from torchrl_gpu.policies import AgentSpace, InferencePolicy
from torchrl_gpu.serving.batching import Batching, Busy
from torchrl_gpu.system.policy_messages import BadAction

SPACE = AgentSpace("test", (), {"x": ((1,), "float32")}, low=(-1e9,), high=(1e9,))


class Doubles(TensorDictModuleBase):
    """A policy that doubles the observation.

    It waits when told to, and fails at numbers below 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.in_keys, self.out_keys = ["x"], ["action"]
        self.sizes: list[int] = []
        self.go = threading.Event()
        self.go.set()

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        assert self.go.wait(10)
        self.sizes.append(len(tensordict))
        if bool((tensordict["x"] < 0).any()):
            raise RuntimeError("below 0")
        return tensordict.set("action", 2 * tensordict["x"])


def batching(max_rows: int = 8, wait_s: float = 0.05, max_waiting: int = 64) -> tuple[Doubles, Batching]:
    policy = Doubles()
    return policy, Batching(InferencePolicy(policy, SPACE, "test"), max_rows, wait_s, max_waiting)


def rows(*values: float) -> dict[str, np.ndarray]:
    return {"x": np.array(values, np.float32)[:, None]}


async def begun(policy: Doubles, passes: Batching) -> asyncio.Task[np.ndarray]:
    """A request whose pass waits."""
    policy.go.clear()
    first = asyncio.create_task(passes.act(rows(1)))
    while passes.passes == 0:
        await asyncio.sleep(0)
    return first


async def test_waiting_requests_are_decided_together() -> None:
    policy, passes = batching()
    async with passes.running():
        first = await begun(policy, passes)
        others = [asyncio.create_task(passes.act(rows(*range(n)))) for n in (1, 2, 3)]
        await asyncio.sleep(0)
        policy.go.set()
        assert (await first).tolist() == [[2]]
        for n, other in zip((1, 2, 3), others, strict=True):
            assert (await other)[:, 0].tolist() == [2 * i for i in range(n)]
    assert policy.sizes == [1, 6]


async def test_a_pass_takes_no_more_rows_than_it_may() -> None:
    policy, passes = batching(max_rows=4)
    async with passes.running():
        policy.go.clear()
        tasks = [asyncio.create_task(passes.act(rows(*[float(i)] * 3))) for i in range(4)]
        while passes.passes == 0:
            await asyncio.sleep(0)
        policy.go.set()
        for i, task in enumerate(tasks):
            assert (await task)[:, 0].tolist() == [2.0 * i] * 3
    assert policy.sizes == [3, 3, 3, 3]


async def test_a_request_waits_for_others_that_are_expected_and_no_longer() -> None:
    policy, passes = batching(wait_s=0.2)
    async with passes.running():
        await asyncio.gather(passes.act(rows(1)), passes.act(rows(2)))
        later = asyncio.get_running_loop().call_later(0.01, lambda: tasks.append(task(3)))

        def task(value: float) -> asyncio.Task[np.ndarray]:
            return asyncio.create_task(passes.act(rows(value)))

        tasks = [task(4)]
        await tasks[0]
        assert not later.cancelled()
        assert policy.sizes[-1] == 2, "one waited for the other"
        await tasks[1]
        begun = asyncio.get_running_loop().time()
        await passes.act(rows(5))
        assert asyncio.get_running_loop().time() - begun < 5, "nobody else came"
        begun, before = asyncio.get_running_loop().time(), len(policy.sizes)
        await passes.act(rows(6))
        assert len(policy.sizes) == before + 1
        assert asyncio.get_running_loop().time() - begun < 0.19, "one alone waits for nothing"


async def test_a_poison_request_costs_the_others_in_its_pass_nothing() -> None:
    """True where the policy raises over it, or its result is not finite."""
    watched: list[list[list[float]]] = []
    poisoned = rows(1, 2), rows(3, -1), rows(4, 3e38), rows(5)
    policy, passes = batching()
    async with passes.running():
        first = await begun(policy, passes)
        tasks = [asyncio.create_task(passes.act(each)) for each in poisoned]
        good, failing, huge, last = tasks
        await asyncio.sleep(0)
        policy.go.set()
        await first
        assert (await good).tolist() == [[2], [4]]
        with pytest.raises(RuntimeError, match="below 0"):
            await failing
        with pytest.raises(BadAction, match=r"row 1: action .*\[inf\]"):
            await huge
        assert (await last).tolist() == [[10]]
        passes.watch = lambda observations, *_: watched.append(observations["x"].tolist())
        with pytest.raises(BadAction):
            await passes.act(rows(3e38))
        await passes.act(rows(6))
        await asyncio.sleep(0)
    assert watched == [[[6]]], "what was not decided is not shown"


async def test_requests_that_left_are_not_decided_and_too_many_are_refused() -> None:
    policy, passes = batching(max_waiting=4)
    async with passes.running():
        first = await begun(policy, passes)
        gone = asyncio.create_task(passes.act(rows(1, 1)))
        stays = asyncio.create_task(passes.act(rows(2, 2)))
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await passes.act(rows(9))
        gone.cancel()
        await asyncio.sleep(0)
        policy.go.set()
        await first
        assert (await stays)[:, 0].tolist() == [4, 4]
    assert policy.sizes == [1, 2]


async def test_on_the_host_no_gradient_is_kept() -> None:
    policy, passes = batching()
    weight = torch.nn.Parameter(torch.ones(1))
    policy.forward = lambda tensordict: tensordict.set("action", weight * tensordict["x"])  # type: ignore[method-assign]
    async with passes.running():
        assert (await passes.act(rows(3))).tolist() == [[3]]


async def test_short_passes_are_made_on_the_loop_and_long_ones_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Notes(Doubles):
        """Notes the threads that it decides in."""

        def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
            threads.append(threading.current_thread())
            return super().forward(tensordict)

    async def decided(short_s: float) -> list[bool]:
        monkeypatch.setattr("torchrl_gpu.serving.batching._SHORT_S", short_s)
        threads.clear()
        passes = Batching(InferencePolicy(Notes(), SPACE, "test"), 8, 0.0, 64)
        async with passes.running():
            for i in range(3):
                assert (await passes.act(rows(i))).tolist() == [[2 * i]]
        return [each is threading.current_thread() for each in threads]

    threads: list[threading.Thread] = []
    assert await decided(60.0) == [False, True, True], "the first is not known to be short"
    assert await decided(0.0) == [False, False, False]


async def test_requests_in_a_socket_are_in_the_pass() -> None:
    policy, passes = batching(wait_s=0.0)

    async def on_its_way(value: float) -> np.ndarray:
        # The loop reads the socket, then wakes whoever waits for the message.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return await passes.act(rows(value))

    async with passes.running():
        answers = await asyncio.gather(passes.act(rows(1)), *(on_its_way(i) for i in (2, 3)))
    assert [each.tolist() for each in answers] == [[[2]], [[4]], [[6]]]
    assert policy.sizes == [3]


async def test_page_shows_the_last_request_of_each_pass_once_it_is_answered() -> None:
    _, passes = batching(wait_s=0.0)
    answered: list[float] = []
    watched: list[tuple[list[float], list[float], list[float]]] = []

    def watch(observations: Any, action: np.ndarray, inference_ms: float, age_s: float) -> None:
        watched.append((observations["x"].ravel().tolist(), action.ravel().tolist(), list(answered)))
        assert 0 < inference_ms < 20_000
        assert 0 <= age_s < 20

    async def asked(*values: float) -> None:
        answered.extend((await passes.act(rows(*values))).ravel())

    passes.watch = watch
    async with passes.running():
        await asyncio.gather(asked(1), asked(2, 3))
        await asyncio.sleep(0)
    assert watched == [([2, 3], [4, 6], [2, 4, 6])]
