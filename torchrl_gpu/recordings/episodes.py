"""An episode as it is played, into an MCAP file."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.envs.viewable import Spatial, Viewable
from torchrl_gpu.recordings.mcap import McapWriter
from torchrl_gpu.system import arguments

_VALUES = ("state_value", "chosen_action_value", "action_value")  # the first that a policy writes
_COUNTS = ("step", "episode")


class EpisodeRecorder:
    """Writes one row of a batched environment as an episode: what it looks like, what was done, what came of it.

    Step t, counted from 0, is at `begin_ns + t / fps` seconds: `/camera` (video), `/scene` (what is where, of an
    environment that has `shapes`) and `/episode/NAME` (its metrics, the return among them) as they stand before it,
    then `/action` and `/value` of the decision; `/reward` of step t is at the time of step t + 1, with what it led to.
    Leaving a `with` block closes the file; by an exception, nothing is left.

    Args:
        path: Of the file; see `McapWriter`.
        view: The environment, as `viewable` gives it.
        row: Which of its environments.
        size: Height and width of the pictures.
        fps: Steps per second.
        begin_ns: Time of the first step, nanoseconds since 1970; None for now.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        view: Viewable,
        row: int = 0,
        *,
        size: Sequence[int] = (480, 640),
        fps: float = 10.0,
        begin_ns: int | None = None,
    ) -> None:
        self.height, self.width, fps = check_pictures(size, fps)
        self.writer = McapWriter(path, fps)
        self.view, self.row, self.num_steps = view, row, 0
        self.begin_ns = time.time_ns() if begin_ns is None else begin_ns

    @property
    def time_ns(self) -> int:
        """Of what is written now."""
        return self.begin_ns + round(self.num_steps * 1e9 / self.writer.fps)

    def look(self) -> None:
        """Writes the environment as it stands; reads the device."""
        writer, at = self.writer, self.time_ns
        picture: Any = self.view.pictures([self.row], self.width, self.height)[0]
        writer.write_video("/camera", picture, at)
        if isinstance(self.view, Spatial):
            writer.write_scene("/scene", self.view.shapes(self.row), at)
        for name, values in self.view.metrics().items():
            if name not in _COUNTS:
                writer.write_scalar(f"/episode/{name}", values[self.row].item(), at)

    def decide(self, decided: TensorDictBase, actions: Sequence[Any]) -> None:
        """Writes what the policy wrote for the row: the actions of these keys, and a value where it gives one, of the
        state or of the action that it chose."""
        for key in actions:
            name = "action" if isinstance(key, str) or len(actions) == 1 else "/".join(key)
            self.writer.write_vector(f"/{name}", _array(decided.get(key)[self.row]), self.time_ns)
        found = {key if isinstance(key, str) else key[-1]: key for key in decided.keys(True, True)}
        given = next((each for each in _VALUES if each in found), None)
        if given is not None:
            values = decided.get(found[given])[self.row]
            if given == "action_value":
                values = values.gather(-1, decided.get(found["action"])[self.row].unsqueeze(-1))
            self.writer.write_vector("/value", _array(values), self.time_ns)

    def advance(self, reward: float) -> None:
        """Goes on to the next step, which this reward led to."""
        self.num_steps += 1
        self.writer.write_scalar("/reward", reward, self.time_ns)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Adds what is known of the episode as the metadata `episode`."""
        self.writer.describe("episode", facts)

    def __enter__(self) -> EpisodeRecorder:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.writer.__exit__(*raised)


def check_pictures(size: Sequence[int], fps: float) -> tuple[int, int, float]:
    """Height, width and steps per second that a file can have.

    Raises:
        ValueError: They are others.
    """
    sides = arguments.listed("EpisodeRecorder", "size", "height and width", size)
    if len(sides) != 2:
        arguments.refuse("EpisodeRecorder", "size", "height and width", size)
    height, width = (arguments.whole("EpisodeRecorder", "size", side, 16, 8192) for side in sides)
    return height, width, arguments.number("EpisodeRecorder", "fps", fps, 0.1, 1000.0)


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()
