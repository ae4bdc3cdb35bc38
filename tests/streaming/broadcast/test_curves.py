"""Curves keep a whole run in bounded memory.

Each viewer is sent what it has not read.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streaming.viewers import address, session, viewer
from torchrl_gpu.streaming.broadcast import curves as curves_module
from torchrl_gpu.streaming.broadcast.curves import MAX_CURVES, MAX_POINTS, MAX_STEP, Curves
from torchrl_gpu.streaming.server import StreamServer


class Reader:
    """A viewer, as the page and the documentation have it."""

    def __init__(self) -> None:
        self.read = 0
        self.points: dict[str, dict[int, float]] = {}

    def update(self, curves: Curves) -> None:
        newest = curves.serial
        for portion in curves.since(self.read):
            self.take(json.loads(json.dumps(portion)))
        self.read = newest

    def take(self, portion: list[dict[str, Any]]) -> None:
        for curve in portion:
            there = {} if curve["whole"] else self.points.get(curve["name"], {})
            there = {step: value for step, value in there.items() if step < curve["steps"][0]}
            self.points[curve["name"]] = there | dict(zip(curve["steps"], curve["values"], strict=True))


def all_of(curves: Curves) -> dict[str, dict[int, float]]:
    reader = Reader()
    reader.update(curves)
    return reader.points


def test_a_curve_has_its_points_in_order() -> None:
    curves = Curves()
    curves.log(0, {"a": 1.5, "b": 2})
    curves.log(10, {"a": np.float32(2.5)})
    assert all_of(curves) == {"a": {0: 1.5, 10: 2.5}, "b": {0: 2.0}}


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    curves = Curves()
    for step in range(10 * MAX_POINTS + 7):
        curves.log(step, {"a": float(step)})
        assert step % 997 or len(all_of(curves)["a"]) <= MAX_POINTS
    steps = list(all_of(curves)["a"])
    assert MAX_POINTS / 2 <= len(steps) <= MAX_POINTS
    assert (steps[0], steps[-1]) == (0, 10 * MAX_POINTS + 6)
    gaps = np.diff(steps[:-1])
    assert (gaps == 16).all(), "evenly: the first power of two at which they fit"


@pytest.mark.parametrize("most", [4, MAX_POINTS])
@settings(max_examples=50, deadline=None)
@given(logged=st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=80))
def test_occasional_reader_has_the_curves_of_a_late_joiner(most: int, logged: list[tuple[int, bool]]) -> None:
    """Whatever goes back in time.

    And while a curve is thinned perhaps more.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curves_module, "MAX_POINTS", most)
        curves, reader = Curves(), Reader()
        for i, (step, reads) in enumerate(logged):
            curves.log(step, {"a": float(i)})
            if reads:
                reader.update(curves)
        reader.update(curves)
        late = all_of(curves)
    if logged:
        last = {step: float(i) for i, (step, _) in enumerate(logged)}
        assert all(last[step] == value for step, value in late["a"].items())
        assert late["a"][logged[-1][0]] == len(logged) - 1
        assert len(late["a"]) <= most
        assert late["a"].items() <= reader.points["a"].items()
    if not logged or most == MAX_POINTS:
        assert reader.points == late


def test_curves_send_only_news_except_to_viewers_of_an_earlier_server() -> None:
    curves = Curves()
    curves.log(1, {"a": 1.0})
    assert list(curves.since(curves.serial)) == []
    (portion,) = curves.since(999)
    assert [curve["whole"] for curve in portion] == [True]


def test_much_is_sent_in_portions() -> None:
    curves = Curves()
    for step in range(MAX_POINTS):
        curves.log(step, {f"curve {i}": 1.0 for i in range(12)})

    def size(portion: list[dict[str, list[int]]]) -> int:
        return sum(len(curve["steps"]) for curve in portion)

    assert [size(portion) for portion in curves.since(0)] == [5000, 5000, 2000]


def test_curves_leave_out_values_that_are_not_finite() -> None:
    curves = Curves()
    curves.log(1, {"a": math.nan, "b": math.inf, "c": 1.0, "d": 10**400})
    assert all_of(curves) == {"c": {1: 1.0}}


@pytest.mark.parametrize(
    ("step", "scalars", "message"),
    [
        (-1, {"a": 1.0}, "step .*-1"),
        (MAX_STEP, {"a": 1.0}, f"step .*{MAX_STEP}"),
        (1.0, {"a": 1.0}, r"step .*1\.0"),
        (True, {"a": 1.0}, "step .*True"),
        (1, {"": 1.0}, "name .*''"),
        (1, {"a" * 65: 1.0}, "name .*aaa"),
        (1, {7: 1.0}, "name .*7"),
        (1, {"b": 1.0, "a": "1"}, "'a' .*str"),
        (1, {"a": True}, "'a' .*bool"),
        (1, {"a": None}, "'a' .*NoneType"),
        (1, {"a": np.zeros(3)}, "'a' .*ndarray"),
        (1, {str(i): 0.0 for i in range(MAX_CURVES + 1)}, "200 curves.*201"),
    ],
)
def test_curves_refuse_other_values(step: Any, scalars: Any, message: str) -> None:
    curves = Curves()
    with pytest.raises(ValueError, match=rf"StreamServer.log: .*{message}"):
        curves.log(step, scalars)
    assert all_of(curves) == {}, "not even of what stands before it"


async def fetched(stream_server: StreamServer, query: str = "") -> Any:
    async with session() as client, client.get(address(stream_server, "curves", query)) as answer:
        return await answer.json() if answer.status == 200 else answer.status


async def test_viewers_get_all_at_first_and_then_what_is_new(stream_server: StreamServer) -> None:
    early = Reader()
    async with viewer(stream_server) as guest:
        stream_server.log(1, loss=1.0, self=5.0, step=6.0)
        early.take((await guest.text("curves"))["curves"])
        stream_server.log(2, loss=0.5)
        early.take((await guest.text("curves"))["curves"])
        assert early.points["loss"] == {1: 1.0, 2: 0.5}
    stream_server.log(3, loss=0.25)
    async with viewer(stream_server) as guest:
        late = Reader()
        while 3 not in late.points.get("loss", {}):
            late.take((await guest.text("curves"))["curves"])
        assert late.points == {"loss": {1: 1.0, 2: 0.5, 3: 0.25}, "self": {1: 5.0}, "step": {1: 6.0}}


async def test_curves_are_read_by_http(stream_server: StreamServer) -> None:
    stream_server.log(1, loss=1.0)
    first = await fetched(stream_server)
    assert first == {"newest": 1, "curves": [{"name": "loss", "steps": [1], "values": [1.0], "whole": True}]}
    stream_server.log(5, loss=2.0)
    then = await fetched(stream_server, "?since=1")
    assert then == {"newest": 2, "curves": [{"name": "loss", "steps": [5], "values": [2.0], "whole": False}]}
    assert (await fetched(stream_server, "?since=2"))["curves"] == []
    for bad in ("-1", "x", "1" * 17, "1.5", "٣"):
        assert await fetched(stream_server, f"?since={bad}") == 400
