"""A policy drives a scene.

What it decides is done, and pictures are drawn only for viewers.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torchrl_gpu.policies import load_policy
from torchrl_gpu.serving import simulator
from torchrl_gpu.serving.ending import Flag, until_told_to_end
from torchrl_gpu.streaming import PolicyView

for module in ("aiohttp", "cv2", "av", "prometheus_client"):
    pytest.importorskip(module)


class Point:
    """A point that goes where it is told."""

    def __init__(self) -> None:
        self.place = torch.tensor([1.0, -2.0])
        self.told: list[object] = []
        self.drawn = 0

    def observe(self) -> Tensor:
        return self.place.clone()

    def step(self, action: Tensor | None) -> None:
        self.told.append(action)
        if action is not None:
            self.place += action

    def render(self) -> Tensor:
        self.drawn += 1
        return torch.zeros(16, 24, 3, dtype=torch.uint8)


class Server:
    """Wants a picture at some steps."""

    def __init__(self, steps: set[int]) -> None:
        self.steps = steps
        self.asked = -1
        self.published: list[object] = []

    def declare(self, name: str) -> None:
        assert name == "camera"

    def wanted(self, stream: str) -> bool:
        self.asked += 1
        return self.asked in self.steps

    def show_policy(self, view: PolicyView, stream: str, meta: dict[str, Any]) -> None:
        self.published.append((view, stream, meta))


def halving(path: Path) -> Path:
    """A policy that goes half of the way back."""
    weights = {"weight": -0.5 * torch.eye(2), "bias": torch.zeros(2)}
    torch.save({"model_state_dict": weights, "obs_dim": 2, "action_dim": 2}, path)
    return path


def test_the_policy_decides(tmp_path: Path) -> None:
    point, server = Point(), Server({0, 3})
    policy = load_policy(halving(tmp_path / "policy.pt"), "cpu")
    driven = simulator.drive(point, server, policy, steps=4, period_s=0.0)  # type: ignore[arg-type]
    assert torch.equal(point.place, torch.tensor([1.0, -2.0]) / 16)
    assert (driven.steps, driven.pictures, point.drawn) == (4, 2, 2)
    assert driven.inference_ms is not None
    assert [meta["step"] for _, _, meta in server.published] == [0, 3]
    facts = [view.facts() for view, _, _ in server.published]
    assert all(each["inference_ms"] > 0 and each["policy"] == policy.name for each in facts)
    assert [[each["action/0"], each["action/1"]] for each in facts] == [[-0.5, 1.0], [-1 / 16, 1 / 8]]


def test_without_a_policy_nobody_decides_and_of_no_steps_nothing_is_done() -> None:
    point, server = Point(), Server(set())
    assert simulator.drive(point, server, steps=3, period_s=0.0) == (3, 0, None)  # type: ignore[arg-type]
    assert point.told == [None] * 3
    assert simulator.drive(point, server, steps=0) == (0, 0, None)  # type: ignore[arg-type]
    for wrong in ({"steps": -1}, {"steps": 1.5}, {"period_s": -0.1}, {"period_s": float("nan")}):
        with pytest.raises(ValueError, match="drive: "):
            simulator.drive(point, server, **wrong)  # type: ignore[arg-type]


def test_steps_keep_their_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that takes longer delays the next ones, and does not make them hurry."""

    class Clock:
        now = 0.0
        slept: list[float] = []  # noqa: RUF012

        def perf_counter(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.slept.append(seconds)
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(simulator, "time", clock)

    class Slow(Point):
        def step(self, action: Tensor | None) -> None:
            clock.now += 0.5 if len(self.told) == 1 else 0.02
            super().step(action)

    simulator.drive(Slow(), Server(set()), steps=4, period_s=0.1)  # type: ignore[arg-type]
    assert clock.slept == pytest.approx([0.08, 0.0, 0.08, 0.08])


def test_the_command_line_makes_the_scene_first_and_the_stream_before_its_address_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    pipeline, declare = simulator.GpuFramePipeline, simulator.StreamServer.declare

    def make(device: str) -> Point:
        done.append(f"scene on {device}")
        return Point()

    def pipe(*args: Any, **kwargs: Any) -> Any:
        done.append("pipeline")
        return pipeline(*args, **kwargs)

    def declared(server: Any, stream: str, title: str | None = None) -> None:
        done.append(stream)
        declare(server, stream, title)

    monkeypatch.setattr(simulator, "GpuFramePipeline", pipe)
    monkeypatch.setattr(simulator.StreamServer, "declare", declared)
    monkeypatch.setattr("builtins.print", lambda *said, **_: done.append(str(said[0])))
    words = ["--policy", str(halving(tmp_path / "p.pt")), "--device", "cpu", "--steps", "2", "--port", "0"]
    monkeypatch.setattr(sys, "argv", ["example.py", *words])
    simulator.main(make, "A point.", fps=1000.0)
    assert done[:4] == ["scene on cpu", "pipeline", "Device: cpu", "camera"]
    assert done[4].startswith("Watch at http://127.0.0.1:")
    assert done[-1].startswith("2 steps, ")


def test_simulator_ends_after_its_steps() -> None:
    """Ctrl-C was a traceback out of the middle of a step."""
    stop = Flag()

    class Told(Point):
        def step(self, action: Tensor | None) -> None:
            super().step(action)
            if len(self.told) == 3:
                signal.raise_signal(signal.SIGINT)

    point = Told()
    with until_told_to_end() as ending:
        driven = simulator.drive(point, Server(set()), period_s=0.0, stop=ending.event)  # type: ignore[arg-type]
    assert (driven.steps, len(point.told), stop.is_set()) == (3, 3, False)
    stop.set()
    assert simulator.drive(point, Server(set()), period_s=0.0, stop=stop).steps == 0  # type: ignore[arg-type]
