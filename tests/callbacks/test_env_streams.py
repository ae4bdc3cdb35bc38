"""Streams of environments: only what somebody watches is drawn.

Its metrics are those of the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import ClassVar

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from tests.callbacks.fake_server import FakeServer
from torchrl_gpu.callbacks import env_streams
from torchrl_gpu.callbacks.env_streams import EnvStreams, check_names
from torchrl_gpu.envs.viewable import Decision, Overlay

NAMES = ("env2", "worst", "best", "grid")


class Counted:
    """Five environments whose pictures hold their number.

    They count what is asked of them.
    """

    num_envs = 5

    def __init__(self) -> None:
        self.step, self.episode = torch.tensor([9, 4, 6, 1, 5]), torch.tensor([1, 1, 1, 1, 2])
        self.reached = torch.tensor([0.5, 0.2, 0.3, 0.0, 0.9])
        self.asked, self.drawn = 0, []

    def metrics(self) -> dict[str, Tensor]:
        self.asked += 1
        return {"step": self.step, "episode": self.episode, "return": self.reached}

    def pictures(self, index: Sequence[int], width: int, height: int) -> np.ndarray:
        self.drawn.append(list(index))
        return np.stack([np.full((height, width, 3), each % 256, np.uint8) for each in index])


@pytest.fixture
def view() -> Counted:
    return Counted()


@pytest.fixture
def server() -> FakeServer:
    """One that holds a picture of every stream, and wants no more than is watched."""
    made = FakeServer()
    made.kept = set(NAMES)
    return made


def test_unwatched_stream_draws_one_picture_to_keep(view: Counted, server: FakeServer) -> None:
    server.kept.clear()
    streams = EnvStreams(server, view, NAMES, 32, 24)
    assert [streams.publish(), streams.publish()] == [len(NAMES), 0]
    assert (view.asked, len(view.drawn)) == (1, len(NAMES))
    assert {name for name, _, _ in server.published} == set(NAMES)
    assert server.declared == {"env2": "Environment 2", "worst": "The worst", "best": "The best", "grid": "Several"}
    assert server.families == {"env": (5, "Environment")}


def test_only_what_is_watched_and_named_is_drawn(view: Counted, server: FakeServer) -> None:
    server.watched = {"env2", "best"}
    assert EnvStreams(server, view, NAMES, 32, 24).publish(policy_version=70) == 2
    # The mean of the steps is 5: environments 0, 2 and 4 are that far, with returns of 0.5, 0.3 and 0.9.
    (first, one, meta), (second, other, best) = server.published
    assert (first, second) == ("env2", "best")
    assert one.shape == (24, 32, 3)
    assert (one == 2).all()
    assert (other == 4).all()
    assert meta == {"env": 2, "episode_step": 6, "episode": 1, "return": pytest.approx(0.3), "policy_version": 70}
    assert best == {"env": 4, "episode_step": 5, "episode": 2, "return": pytest.approx(0.9), "policy_version": 70}
    assert view.asked == 1
    assert EnvStreams(server, view, NAMES, 32, 24).publish(only=["env2"]) == 1
    assert view.drawn[2:] == [[2]]


def test_a_stream_that_somebody_chooses_waits_for_a_picture(
    view: Counted, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(env_streams.time, "monotonic", lambda: clock[0])
    streams = EnvStreams(server, view, NAMES, 32, 24)
    seen = []

    def watched_by(*names: str) -> None:
        server.watched = set(names)
        seen.append((streams.watched(), streams.chosen()))

    watched_by("env2")
    # It still has no picture.
    watched_by("env2")
    streams.publish(only=["env2"])
    watched_by("env2")
    watched_by("env2", "best")
    watched_by()
    # Its picture is less than a second old.
    watched_by("env2")
    watched_by()
    clock[0] += 1.5
    watched_by("env2")
    watched = [names for names, _ in seen]
    chosen = [names for _, names in seen]
    assert watched == [["env2"], ["env2"], ["env2"], ["env2", "best"], [], ["env2"], [], ["env2"]]
    assert chosen == [["env2"], ["env2"], [], ["best"], [], [], [], ["env2"]]


def test_a_stream_stays_with_an_environment_until_its_episode_ends(view: Counted, server: FakeServer) -> None:
    server.watched = {"worst"}
    streams = EnvStreams(server, view, NAMES, 32, 24)
    streams.publish()
    # It is no longer the worst.
    view.reached[2] = 5.0
    streams.publish()
    assert [meta["env"] for meta in server.metas("worst")] == [2, 2]
    assert server.ended == []
    view.episode[2], view.step[2] = 2, 0
    streams.publish()
    assert server.ended == [("worst", {"env": 2, "episode_step": 6, "episode": 1, "return": 5.0})]
    # The mean of the steps is 3.8 now.
    assert server.metas("worst")[-1]["env"] == 1


def test_warm_up_ends_no_episode(view: Counted, server: FakeServer) -> None:
    server.watched = {"env2"}
    streams, view.episode = EnvStreams(server, view, NAMES, 32, 24), torch.zeros(5)
    streams.warm_up()
    view.episode = torch.ones(5)
    streams.publish()
    assert len(server.metas("env2")) == 2
    assert server.ended == []


def test_a_numbered_stream_marks_the_end_of_episodes(view: Counted, server: FakeServer) -> None:
    server.watched = {"env2"}
    streams = EnvStreams(server, view, NAMES, 32, 24)
    streams.publish()
    # Another episode begins.
    view.episode[4] += 1
    streams.publish()
    assert server.ended == []
    view.episode[2] += 1
    streams.publish()
    assert [(name, meta["episode_step"]) for name, meta in server.ended] == [("env2", 6)]


def test_stream_draws_each_version_once(view: Counted, server: FakeServer) -> None:
    server.watched = {"env2"}
    streams = EnvStreams(server, view, NAMES, 32, 24)
    assert [streams.publish(version=7), streams.publish(version=7)] == [1, 0]
    server.watched = {"env2", "best"}
    assert [streams.publish(version=7), streams.publish(version=8)] == [1, 2]
    assert view.drawn == [[2], [4], [2], [4]]


def test_a_grid_by_hand(view: Counted, server: FakeServer) -> None:
    server.watched = {"grid"}
    EnvStreams(server, view, ("grid",), 33, 24).publish()
    ((_, frames, meta),) = server.published
    # 3 by 3 places, of a third of the size.
    assert frames.shape == (5, 8, 11, 3)
    assert [int(frame.max()) for frame in frames] == [0, 1, 2, 3, 4]
    assert meta == {"env": "0–4", "return": pytest.approx(0.38), "episode": 6}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), r"streams.*\[\]"),
        (("env0", "env0"), "each once.*\\['env0', 'env0'\\]"),
        (("env0", "median"), "streams: 'median'"),
        (("env",), "streams: 'env'"),
        (("env5",), "'env5'.* below 5"),
        (("env5:mask",), "'env5:mask'.* below 5"),
        (("env٣",), "streams: 'env٣'"),
        (("env01",), "streams: 'env01'"),
        (("env" + "9" * 5000,), "streams: 'env9"),
        ((3,), "streams: 3 "),
        (("grid:mask",), "'grid:mask' .*env0, env1, …, worst or best, as env0:mask"),
        (("env0:",), "'env0:' .*overlay of"),
        (("env0:x",), "'env0:x' .*: mask$"),
    ],
)
def test_names_of_streams_that_cannot_work_are_refused(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_names(names, 5, {"mask": Overlay("Legal", "env")})


class Layered(Counted):
    """The same with overlays, whose pictures hold what was decided."""

    overlays: ClassVar = {
        "mask": Overlay("Legal", "env"),
        "action": Overlay("Next", "action"),
        "q": Overlay("Values", "values"),
    }

    def observation(self, index: int) -> TensorDict:
        return TensorDict({"number": torch.tensor([index])}, [1])

    def overlay(self, name: str, index: int, width: int, height: int, decision: Decision | None) -> np.ndarray:
        assert (decision is None) == (name == "mask")
        return np.full((height, width, 3), 100 if decision is None else int(decision.action), np.uint8)


class Policy:
    """A policy that chooses ten times the number of the environment.

    It counts how often it is asked.
    """

    def __init__(self, has_values: bool = True) -> None:
        self.has_values, self.asked = has_values, 0

    def __call__(self, observation: TensorDict) -> Decision:
        self.asked += 1
        return Decision(10 * observation["number"][0], torch.zeros(3) if self.has_values else None)


def test_overlays_are_offered_as_far_as_there_is_a_policy(server: FakeServer) -> None:
    for policy, offered in ((None, ["mask"]), (Policy(False), ["mask", "action"]), (Policy(), ["mask", "action", "q"])):
        server.declared, server.families = {}, {}
        EnvStreams(server, Layered(), NAMES, 32, 24, policy)
        expected = [":".join(pair) for pair in product(("env2", "worst", "best"), offered)]
        assert list(server.declared) == [*NAMES, *expected]
        assert list(server.families) == ["env", *(f"env:{overlay}" for overlay in offered)]
    assert server.declared["worst:q"] == "The worst: Values"
    assert server.families["env:q"] == (5, "Environment: Values")
    with pytest.raises(ValueError, match=r"'env0:q' .*: mask, action$"):
        EnvStreams(server, Layered(), ("env0:q",), 32, 24, Policy(False))
    server.declared, many = {}, Layered()
    many.num_envs = 64
    EnvStreams(server, many, [f"env{i}" for i in range(60)], 32, 24, Policy())
    assert len(server.declared) == 60, "many names leave overlays to be asked for"


def test_any_environment_and_any_overlay_are_drawn_when_asked_for(server: FakeServer) -> None:
    view, policy = Layered(), Policy()
    streams = EnvStreams(server, view, ("env2",), 32, 24, policy)
    server.watched = {"env2", "env0:mask"}
    assert (streams.publish(), policy.asked) == (2, 0), "which none of these needs"
    server.published.clear()
    server.watched = {"env4", "env3:action", "env3:q", "worst:mask", "env5", "env1:x", "main", "env0:q:q"}
    assert streams.publish() == 4
    assert {name: int(picture.max()) for name, picture, _ in server.published} == {
        "env4": 4,
        "env3:action": 30,
        "env3:q": 30,
        "worst:mask": 100,
    }
    assert policy.asked == 1, "both overlays are of one decision"
    assert [meta["env"] for meta in server.metas("env3:q")] == [3]


def test_pictures_tell_what_the_policy_does_where_its_name_is_given(server: FakeServer) -> None:
    policy = Policy()
    streams = EnvStreams(server, Layered(), ("env2",), 32, 24, policy, "DQN")
    server.watched = {"env4", "env4:action", "env3", "grid"}
    assert streams.publish() == 4
    assert policy.asked == 2, "once for each environment"
    for name, number in (("env4", 4), ("env4:action", 4), ("env3", 3)):
        (meta,) = server.metas(name)
        told = {"env": number, "policy": "DQN", "action/0": 10.0 * number}
        assert meta | told == meta
        assert 0 <= meta["inference_ms"] < 1e4
    assert server.metas("env4")[0] == server.metas("env4:action")[0]
    assert "policy" not in server.metas("grid")[0]
    # This policy shows nobody an observation.
    streams = EnvStreams(server, Counted(), ("env2",), 32, 24, Policy(), "DQN")
    server.watched = {"env1"}
    streams.publish()
    assert "policy" not in server.metas("env1")[0]


def test_an_overlay_follows_its_base(server: FakeServer) -> None:
    view = Layered()
    streams = EnvStreams(server, view, NAMES, 32, 24, Policy())
    server.watched = {"worst"}
    streams.publish()
    # It is no longer the worst, but it stays.
    view.reached[2] = 5.0
    server.watched = {"worst", "worst:action"}
    streams.publish()
    assert [meta["env"] for meta in server.metas("worst") + server.metas("worst:action")] == [2, 2, 2]
    view.episode[2] += 1
    streams.publish()
    assert [name for name, _ in server.ended] == ["worst", "worst:action"]
    assert server.metas("worst")[-1]["env"] == server.metas("worst:action")[-1]["env"] != 2


def test_memory_of_streams_is_bounded(server: FakeServer) -> None:
    view = Layered()
    view.num_envs = 3000
    view.step = view.episode = torch.ones(3000, dtype=torch.int64)
    view.reached = torch.zeros(3000)
    streams = EnvStreams(server, view, ("env2",), 16, 16)
    for i in range(0, 3000, 100):
        server.watched = {f"env{j}" for j in range(i, i + 100)}
        streams.publish(version=i)
    assert len(server.published) == 3000
    assert len(streams.shown_worlds) == len(streams.versions) == 256
