from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from benchmarks import policy_server as benchmark
from benchmarks.policy_server import Client, Load
from torchrl_gpu.policies import load_policy
from torchrl_gpu.serving.server import policy_server


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    policy = load_policy(benchmark._checkpoint(tmp_path_factory.mktemp("policy")), "cpu")
    with policy_server(policy, port=0) as server:
        yield "127.0.0.1", server.port
    gc.enable()


@pytest.mark.parametrize("is_random", [False, True])
@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_each_client_asks_once_in_every_period(address: tuple[str, int], transport: str, is_random: bool) -> None:
    load = Load(address, transport, 4, 10.0, is_random, 0.3, time.monotonic() + 0.1)
    took, late = benchmark.ask(load, range(4))
    assert len(took) == len(late) == 12
    assert took.min() > 0
    assert late.min() >= 0


def test_moments_are_in_turn_or_at_random_within_periods(address: tuple[str, int]) -> None:
    def due(number: int, is_random: bool) -> list[float]:
        with closing(Client(Load(address, "http", 4, 10.0, is_random, 1.0), number)) as client:
            found = []
            for _ in range(3):
                found.append(client.due)
                client.plan()
        return found

    np.testing.assert_allclose(due(1, False), [0.025, 0.125, 0.225])
    moments = np.array([due(number, True) for number in range(4)])
    assert (np.floor(moments / 0.1) == [0, 1, 2]).all()
    assert len(np.unique(moments % 0.1)) == 12


def test_one_that_is_refused_ends_the_measurement(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "save", lambda _: b"what is no observation" * 10)
    for transport in ("websocket", "http"):
        with pytest.raises(AssertionError, match=r"want|400"):
            benchmark.ask(Load(address, transport, 1, None, False, 1.0, time.monotonic()), range(1))
