"""The last decision of a policy server, on its page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

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
_PERIOD_S = 0.1  # between views: looks at a few of many requests
_LEAST_SIDE = 8  # pixels of a picture: what is smaller is a list of numbers
_WIDTH, _HEIGHT = 480, 320  # of what is drawn
_LABEL_LETTERS = 16
_BAR = "#f08a24"
_LINE, _LABEL, _MARGIN = 14, 96, 6  # pixels of a number


Draw = Callable[[Mapping[str, np.ndarray], np.ndarray], np.ndarray]
"""Draws the frame of a `PolicyView` from a row of observations and its action."""


class PolicyPage:
    """Shows one of the newest requests of a policy on the page of a server: its observation and action.

    The picture is an observation that is an image or a clip, and of a clip its newest frame; of a packing it is the bin
    from above with the chosen placement, and otherwise a bar for each number.
    """

    def __init__(self, server: StreamServer, policy: InferencePolicy) -> None:
        self._server, self._policy = server, policy.name
        self._draw, self._has_seen = _drawing(policy)
        self._is_choice = policy.space.num_actions is not None
        self._names = elements_of(policy, "action")
        self._next_at = 0.0

    def show(self, observations: Observations, action: np.ndarray, inference_ms: float, age_s: float) -> None:
        """Shows the last row of a request, unless one was shown just before; see `batching.Watch`."""
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + _PERIOD_S
        view = PolicyView(
            action=self._named(action[-1]), inference_ms=inference_ms, message_age_s=age_s, policy=self._policy
        )
        if self._server.wanted(STREAM) or (self._has_seen and self._server.wanted(f"{STREAM}:seen")):
            picture = self._draw({name: value[-1] for name, value in observations.items()}, action[-1])
            frame = picture if picture.ndim == 3 else picture[-1]
            self._server.show_policy(view._replace(frame=frame, seen=picture if self._has_seen else None), STREAM)
        elif not self._has_seen:
            self._server.show_policy(view)

    def _named(self, action: np.ndarray) -> np.ndarray | dict[str, float]:
        if self._is_choice:
            return action
        values = np.ravel(action).astype(np.float64)
        if self._names is None or len(self._names) != len(values):
            return values
        return dict(zip(self._names, values.tolist(), strict=True))


def _drawing(policy: InferencePolicy) -> tuple[Draw, bool]:
    """Function that draws a policy's observations, and whether it draws all that the policy saw."""
    space = policy.space
    for task in tasks():
        if task.drawing:
            draw: Draw | None = load_part(task.drawing)(policy)
            if draw is not None:
                return draw, False
    forms = {name: space.observations[name] for name in policy.in_keys}
    images = [name for name, (shape, dtype) in forms.items() if _channels_axis(tuple(shape), dtype) is not None]
    maps = [name for name, (shape, dtype) in forms.items() if len(shape) == 2 and _is_plane(shape, dtype)]
    found = sorted(images, key=lambda name: forms[name][1] != "uint8") or maps
    if not found:
        return partial(_numbers, {name: elements_of(policy, name) for name in policy.in_keys}), False
    shape, dtype = forms[found[0]]
    return partial(_image, found[0], _channels_axis(tuple(shape), dtype)), True


def _channels_axis(shape: tuple[int, ...], dtype: str) -> int | None:
    """Axis of the channels of a C×H×W or H×W×C picture, or of a clip of the first; None for what is no picture."""
    if len(shape) in (3, 4) and shape[-3] in (1, 3) and shape[0] > 0 and _is_plane(shape[-2:], dtype):
        return -3
    if len(shape) == 3 and shape[2] == 3 and dtype == "uint8" and _is_plane(shape[:2], dtype):
        return -1
    return None


def _is_plane(shape: tuple[int, ...], dtype: str) -> bool:
    return min(shape) >= _LEAST_SIDE and dtype in ("uint8", "float32", "float16")


def _image(name: str, axis: int | None, row: Mapping[str, np.ndarray], action: np.ndarray) -> np.ndarray:
    """The image or clip of a name, whose channels are on an axis, if it has any."""
    seen = row[name]
    return observation_picture(seen[None] if axis is None else np.moveaxis(seen, axis, -3))


def _numbers(
    names: Mapping[str, Sequence[str] | None], row: Mapping[str, np.ndarray], action: np.ndarray
) -> np.ndarray:
    """A bar from zero for each number of an observation, the largest as long as its column allows."""
    numbers: list[tuple[str, float]] = []
    for name in [name for name in row if row[name].dtype != np.bool_] or list(row):  # masks tell little here
        values, known = np.ravel(row[name]).tolist(), names.get(name)
        if known is None or len(known) != len(values):
            known = [f"{name} {i}" for i in range(len(values))]
        numbers += [(label, float(value)) for label, value in zip(known, values, strict=True)]
    labels = short_names([label for label, _ in numbers], _LABEL_LETTERS)
    image = Image.new("RGB", (_WIDTH, _HEIGHT), BACKGROUND)
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(11)
    rows = _HEIGHT // _LINE - 1
    columns = max(1, -(-min(len(numbers), 3 * rows) // rows))
    width = _WIDTH // columns
    most = max((abs(value) for _, value in numbers), default=0) or 1
    for i, (label, (_, value)) in enumerate(zip(labels[: columns * rows], numbers, strict=False)):
        left, top = (i // rows) * width + _MARGIN, (i % rows) * _LINE + _MARGIN
        room = width - _LABEL - _MARGIN
        middle = left + _LABEL + room // 2
        end = middle + round(0.3 * room * value / most)
        pen.text((left, top), label, fill="#5a6068", font=font)
        pen.rectangle((min(middle, end), top + 3, max(middle, end), top + 9), fill=_BAR)
        pen.text((middle + 2 if value < 0 else end + 4, top), f"{value:.3g}", fill="#1c1e20", font=font)
    return np.asarray(image)
