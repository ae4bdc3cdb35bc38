"""The last decision of a policy server, on its page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from torchrl_gpu.envs.pictures import BACKGROUND
from torchrl_gpu.policies.export.manifest import elements_of
from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.serving.messages import Observations
from torchrl_gpu.streaming import PolicyView, StreamServer, observation_picture
from torchrl_gpu.streaming.broadcast.policy_view import short_names
from torchrl_gpu.tasks import load_part, tasks

STREAM = "policy"
# Seconds between two views: a person looks at a few of many requests.
_PERIOD_S = 0.1
# Pixels of a picture. What is smaller is a list of numbers.
_LEAST_SIDE = 8

# Pixels of what is drawn.
_WIDTH = 480
_HEIGHT = 320
# Pixels of a number: its line, its label, and the space around.
_LINE = 14
_LABEL = 96
_MARGIN = 6
# Share of a column, without the label, that the longest bar takes on one side of zero.
_LONGEST_BAR = 0.3
_MAX_COLUMNS = 3
_LABEL_LETTERS = 16
_FONT_SIZE = 11
_BAR = "#f08a24"
_LABEL_COLOR = "#5a6068"
_NUMBER_COLOR = "#1c1e20"

Row = Mapping[str, np.ndarray]
"""A row of observations by name."""

Draw = Callable[[Row, np.ndarray], np.ndarray]
"""Draws the frame of a `PolicyView` from a row of observations and its action."""


class PolicyPage:
    """Shows one of the newest requests of a policy on the page of a server.

    That is its observation and action. The picture is an observation that is an image or a clip, and of a clip its
    newest frame. A task may draw its own decisions, as packing draws the bin from above with the chosen placement.
    Otherwise it is a bar for each number.
    """

    def __init__(self, server: StreamServer, policy: InferencePolicy) -> None:
        self._server = server
        self._policy = policy.name
        self._draw, self._has_seen = _drawing(policy)
        self._is_choice = policy.space.num_actions is not None
        self._names = elements_of(policy, "action")
        self._next_at = 0.0

    def show(self, observations: Observations, action: np.ndarray, inference_ms: float, age_s: float) -> None:
        """Show the last row of a request, unless one was shown just before.

        A `batching.Watch`.
        """
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + _PERIOD_S
        view = PolicyView(
            action=self._name_values(action[-1]), inference_ms=inference_ms, message_age_s=age_s, policy=self._policy
        )
        # Drawing takes longer than the numbers alone, which are shown even if nobody wants a picture.
        if self._server.wanted(STREAM) or (self._has_seen and self._server.wanted(f"{STREAM}:seen")):
            picture = self._draw({name: value[-1] for name, value in observations.items()}, action[-1])
            frame = picture if picture.ndim == 3 else picture[-1]
            seen = picture if self._has_seen else None
            self._server.show_policy(view._replace(frame=frame, seen=seen), STREAM)
        elif not self._has_seen:
            self._server.show_policy(view)

    def _name_values(self, action: np.ndarray) -> np.ndarray | dict[str, float]:
        """Return an action by the names of its values, if they are known."""
        if self._is_choice:
            return action
        values = np.ravel(action).astype(np.float64)
        if self._names is None or len(self._names) != len(values):
            return values
        return dict(zip(self._names, values.tolist(), strict=True))


class _Drawing(NamedTuple):
    """What draws a policy's observations.

    Attributes:
        draw: Draws a row.
        has_seen: Whether the picture is all that the policy saw.
    """

    draw: Draw
    has_seen: bool


def _drawing(policy: InferencePolicy) -> _Drawing:
    for task in tasks():
        if task.drawing:
            draw: Draw | None = load_part(task.drawing)(policy)
            if draw is not None:
                return _Drawing(draw, False)
    name = _picture_entry(policy)
    if name is None:
        labels = {each: elements_of(policy, each) for each in policy.in_keys}
        return _Drawing(partial(_draw_numbers, labels), False)
    shape, dtype = policy.space.observations[name]
    return _Drawing(partial(_draw_picture, name, _channels_axis(tuple(shape), dtype)), True)


def _picture_entry(policy: InferencePolicy) -> str | None:
    """Return the observation that is a picture, None if there is none.

    An image of uint8 comes first, then other images, then maps, which have no channels.
    """
    images: list[str] = []
    maps: list[str] = []
    for name in policy.in_keys:
        shape, dtype = policy.space.observations[name]
        if _channels_axis(tuple(shape), dtype) is not None:
            images.append(name)
        elif len(shape) == 2 and _is_plane(shape, dtype):
            maps.append(name)
    images.sort(key=lambda name: policy.space.observations[name][1] != "uint8")
    return next(iter(images + maps), None)


def _channels_axis(shape: tuple[int, ...], dtype: str) -> int | None:
    """Return the axis of the channels of a picture, C×H×W or H×W×C, or of a clip.

    A clip is T×C×H×W. The axis is None if the shape is no picture's.
    """
    if len(shape) in (3, 4) and shape[-3] in (1, 3) and shape[0] > 0 and _is_plane(shape[-2:], dtype):
        return -3
    if len(shape) == 3 and shape[2] == 3 and dtype == "uint8" and _is_plane(shape[:2], dtype):
        return -1
    return None


def _is_plane(shape: tuple[int, ...], dtype: str) -> bool:
    return min(shape) >= _LEAST_SIDE and dtype in ("uint8", "float32", "float16")


def _draw_picture(name: str, axis: int | None, row: Row, action: np.ndarray) -> np.ndarray:
    """Draw an image, clip or map, whose channels are on an axis, if it has any."""
    seen = row[name]
    # A map has no channels, and gets an axis of one.
    if axis is None:
        return observation_picture(seen[None])
    return observation_picture(np.moveaxis(seen, axis, -3))


# -- numbers -----------------------------------------------------------------------------------------------------------


def _draw_numbers(labels: Mapping[str, Sequence[str] | None], row: Row, action: np.ndarray) -> np.ndarray:
    """Draw a bar from zero for each number of an observation.

    The largest is as long as its column allows.
    """
    numbers = _label_numbers(labels, row)
    names = short_names([label for label, _ in numbers], _LABEL_LETTERS)
    image = Image.new("RGB", (_WIDTH, _HEIGHT), BACKGROUND)
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(_FONT_SIZE)
    rows = _HEIGHT // _LINE - 1
    drawn = min(len(numbers), _MAX_COLUMNS * rows)
    columns = max(1, -(-drawn // rows))
    width = _WIDTH // columns
    room = width - _LABEL - _MARGIN
    largest = max((abs(value) for _, value in numbers), default=0) or 1
    for i, (name, (_, value)) in enumerate(zip(names[: columns * rows], numbers, strict=False)):
        column, line = divmod(i, rows)
        left = column * width + _MARGIN
        top = line * _LINE + _MARGIN
        zero = left + _LABEL + room // 2
        end = zero + round(_LONGEST_BAR * room * value / largest)
        pen.text((left, top), name, fill=_LABEL_COLOR, font=font)
        pen.rectangle((min(zero, end), top + 3, max(zero, end), top + 9), fill=_BAR)
        # On the side of zero that the bar leaves free, or behind the bar.
        number_left = zero + 2 if value < 0 else end + 4
        pen.text((number_left, top), f"{value:.3g}", fill=_NUMBER_COLOR, font=font)
    return np.asarray(image)


def _label_numbers(labels: Mapping[str, Sequence[str] | None], row: Row) -> list[tuple[str, float]]:
    """Return all numbers of an observation with their labels.

    Masks tell little here. They are left out unless there is nothing else.
    """
    numbers: list[tuple[str, float]] = []
    entries = [name for name in row if row[name].dtype != np.bool_] or list(row)
    for name in entries:
        values = np.ravel(row[name]).tolist()
        known = labels.get(name)
        if known is None or len(known) != len(values):
            known = [f"{name} {i}" for i in range(len(values))]
        numbers += [(label, float(value)) for label, value in zip(known, values, strict=True)]
    return numbers
