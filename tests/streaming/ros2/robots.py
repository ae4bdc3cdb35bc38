"""Policies that do as they are told, and a robot that records what it is sent."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.policies import AgentSpace
from torchrl_gpu.streaming.ros2.messages import FLOATS, IMAGE, JOINTS, Messages
from torchrl_gpu.streaming.ros2.transport import Callback

MESSAGES = Messages()
ACTION = "/policy/action"
CAMERA = "/camera/image_raw"
VECTOR = "/robot/observation"
VECTORS = {"observation": ((3,), "float32")}
IMAGES = {"frame": ((3, 4, 6), "uint8")}
CLIPS = {"clip": ((4, 3, 4, 6), "uint8")}
SAFE = (0.25, -0.25)
# Longest wait of a test, in seconds.
SOON = 20.0


class InProcess:
    """Messages between parts of one program, for tests and simulators.

    They arrive on the thread that publishes.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._subscribed: dict[tuple[str, str], list[Callback]] = defaultdict(list)

    def subscribe(self, topic: str, type_name: str, callback: Callback) -> None:
        with self._lock:
            self._subscribed[topic, type_name].append(callback)

    def publish(self, topic: str, type_name: str, data: bytes) -> None:
        with self._lock:
            for callback in self._subscribed[topic, type_name]:
                callback(data)

    def close(self) -> None:
        with self._lock:
            self._subscribed.clear()


class Told:
    """A policy of two numbers in [-1, 1], or of `num_actions`.

    A function of its observations makes them.

    Attributes:
        seen: What it was asked about, beside zeros.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        decide: Callable[[dict[str, Tensor]], Any] = lambda _: (0.5, 0.75),
        observations: dict[str, Any] = VECTORS,
        num_actions: int | None = None,
        **written: float,
    ) -> None:
        bounds: dict[str, Any] = {"low": (-1.0, -1.0), "high": (1.0, 1.0)}
        bounds = {"num_actions": num_actions} if num_actions else bounds
        self.space = AgentSpace("test", (), observations, **bounds)
        self.in_keys = list(observations)
        self.written = written
        self._decide = decide
        self.seen: list[dict[str, Tensor]] = []
        self.calls = 0

    def policy(self, rows: TensorDictBase) -> TensorDictBase:
        self.calls += 1
        observations = {name: rows.get(name)[0] for name in self.in_keys}
        # The first two calls are the warm-up.
        if self.calls > 2:
            self.seen.append(observations)
        rows.set("action", torch.as_tensor(self._decide(observations))[None])
        for name, value in self.written.items():
            rows.set(name, torch.tensor([value]))
        return rows


class Robot:
    """Sends what it senses, and keeps the actions that it gets.

    Args:
        transport: That of the bridge.
    """

    def __init__(self, transport: InProcess | None = None) -> None:
        self.transport = InProcess() if transport is None else transport
        self.actions: list[dict[str, float]] = []
        self.times: list[float] = []
        self._came = threading.Condition()
        self.transport.subscribe(ACTION, JOINTS, self._take)

    def _take(self, data: bytes) -> None:
        message = MESSAGES.store.deserialize_cdr(data, JOINTS)
        with self._came:
            self.actions.append(dict(zip(message.name, message.position.tolist(), strict=True)))
            self.times.append(time.monotonic())
            self._came.notify_all()

    def see(self, value: int = 0, stamp_ns: int = 0, encoding: str = "rgb8") -> None:
        """Send an image of one colour.

        Its stamp is this moment's by default.
        """
        pixels = np.full((8, 12, 3), value, np.uint8) if encoding != "16UC1" else np.full((8, 12), value, np.uint16)
        stamp_ns = stamp_ns or time.time_ns()
        self.transport.publish(CAMERA, IMAGE, MESSAGES.pixels(pixels, encoding, stamp_ns, "cam"))

    def feel(self, *values: float) -> None:
        self.transport.publish(VECTOR, FLOATS, MESSAGES.floats(values))

    def wait(self, fits: Callable[[dict[str, float]], bool], begin: int = 0) -> dict[str, float]:
        """The next action, from that number on, that fits."""
        with self._came:
            assert self._came.wait_for(lambda: any(map(fits, self.actions[begin:])), SOON), self.actions[-3:]
            return next(filter(fits, self.actions[begin:]))

    def next(self) -> dict[str, float]:
        return self.wait(lambda _: True, len(self.actions))


def decided(action: dict[str, float]) -> bool:
    return action["safe"] == 0


def is_safe(action: dict[str, float]) -> bool:
    values = (action["action_0"], action["action_1"], action["confidence"])
    return action["safe"] == 1 and values == (*SAFE, 0.0)


def until(fits: Callable[[], bool]) -> None:
    ends = time.monotonic() + SOON
    while not fits():
        assert time.monotonic() < ends
        time.sleep(0.002)
