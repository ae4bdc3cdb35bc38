"""`ViewerSession`: an environment that plays while there are viewers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from torchrl_gpu.callbacks.env_streams import EnvStreams
    from torchrl_gpu.evaluation.player import Player
    from torchrl_gpu.serving.ending import Flag
    from torchrl_gpu.streaming import StreamServer

COMMANDS = ("pause", "resume", "step", "reset", "slower", "faster")
# Steps a second.
SLOWEST = 0.1
FASTEST = 1000.0
# Seconds for which the end of an episode stays.
HOLD_S = 1.5
POLL_S = 0.02


class ViewerSession:
    """Steps a player while there are viewers, and publishes its streams.

    Viewers with control send `pause`, `resume`, `step` (one, then pause), `reset` (to the next episode), `slower`,
    `faster`, and `speed` with steps a second as its value. Each episode that ends is a point of the page's curves.
    `meta` are facts that are published with every picture, `now` is a monotonic clock.
    """

    def __init__(
        self,
        player: Player,
        server: StreamServer,
        streams: EnvStreams,
        speed: float = 2.0,
        meta: dict[str, object] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.player = player
        self.server = server
        self.streams = streams
        self.meta = meta or {}
        self.now = now
        self.speed = _within(speed)
        self.paused = False
        self.version = 0
        self.steps = 0
        self.finished = 0
        self._next = 0.0
        server.state(curve_axis="episode")
        self._publish_state()

    def run(self, stop: threading.Event | Flag) -> None:
        """Play until `stop` is set."""
        while not stop.is_set():
            self.turn()
            stop.wait(POLL_S)

    def turn(self) -> None:
        """Handle commands, make a step if one is due, and publish."""
        for command in self.server.commands():
            self.handle(command.name, command.value)
        if self.server.watchers() and not self.paused and self.now() >= self._next:
            self._step()
        self.streams.publish(self.version, None, step=self.steps, **self.meta)

    def handle(self, name: str, value: object = None) -> None:
        """Carry out a viewer's command.

        Unknown commands and bad values are ignored.
        """
        if name in ("pause", "resume"):
            self.paused = name == "pause"
        elif name == "step":
            self.paused = True
            self._step()
        elif name == "reset":
            self.player.skip()
            self._schedule()
        elif name in ("slower", "faster"):
            self.speed = _within(self.speed * (0.5 if name == "slower" else 2.0))
            self._next = self.now()
        elif name == "speed" and isinstance(value, int | float) and value > 0:
            self.speed = _within(value)
            self._next = self.now()
        self._publish_state()

    def _step(self) -> None:
        done = self.player.step()
        self.steps += 1
        self.log_episodes(done)
        self._schedule()
        if bool(done.all()):
            # Else nobody would see how the episode ended.
            self._next += HOLD_S

    def log_episodes(self, done: Tensor) -> None:
        if not done.any():
            return
        shown = {"return", *self.player.env.outcome_names}
        metrics = {name: each for name, each in self.streams.view.metrics().items() if name in shown}
        for index in done.nonzero().flatten().tolist():
            self.finished += 1
            self.server.log(self.finished, **{f"episode/{name}": each[index].item() for name, each in metrics.items()})

    def _schedule(self) -> None:
        self.version += 1
        self._next = self.now() + 1.0 / self.speed

    def _publish_state(self) -> None:
        self.server.state(paused=self.paused, speed=self.speed, commands=list(COMMANDS))


def _within(speed: float) -> float:
    return float(min(max(speed, SLOWEST), FASTEST))
