"""The page's view of a policy at one moment: its input, its action, its timing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torchrl_gpu.streaming.broadcast.frames import MAX_BITS, MAX_EXACT, Scalar
from torchrl_gpu.streaming.codecs.images import Frame, to_array

if TYPE_CHECKING:
    import torch

MAX_ACTIONS = 32  # values of an action that are shown
SEEN = "seen"  # the overlay of a stream that shows what the policy saw
_MAX_NAME, _MAX_POLICY = 32, 64


class PolicyView(NamedTuple):
    """Input, action and timing of a policy at one moment; see `StreamServer.show_policy`. None is not shown.

    Attributes:
        frame: What the camera showed: any frame that `StreamServer.publish` takes.
        seen: What the policy was given of it, in the same formats; see `observation_picture` for what a network takes.
        action: Its values on the host, in their order or by name; the first 32 are shown.
        inference_ms: How long it took to decide.
        message_age_s: How old the newest message was when it was decided on.
        stale: Whether that was too old, so that the action is the safe one and not the policy's.
        confidence: The policy's own, in [0, 1].
        policy: Name of the policy.
    """

    frame: Frame | None = None
    seen: Frame | None = None
    action: Sequence[float] | np.ndarray | torch.Tensor | Mapping[str, float] | None = None
    inference_ms: float | None = None
    message_age_s: float | None = None
    stale: bool | None = None
    confidence: float | None = None
    policy: str | None = None

    def facts(self) -> dict[str, Scalar]:
        """All but the frames as metadata of a picture: finite numbers, and text that is short and printable.

        `policy`, `stale`, `inference_ms`, `message_age_ms`, `confidence`, and `action/NAME` for each value; `choices`
        where these are several integers, each the number of what was chosen and no size.
        """
        age_ms = None if self.message_age_s is None else 1e3 * self.message_age_s
        numbers = {"inference_ms": self.inference_ms, "message_age_ms": age_ms, "confidence": self.confidence}
        facts: dict[str, Scalar] = {} if self.policy is None else {"policy": _line(self.policy, _MAX_POLICY)}
        facts |= {} if self.stale is None else {"stale": bool(self.stale)}
        facts |= {name: _number(value) for name, value in numbers.items() if value is not None}
        action: Any = self.action
        if action is None:
            return facts
        if isinstance(action, Mapping):
            names = short_names(list(action)[:MAX_ACTIONS], _MAX_NAME)
            actions = list(zip(names, action.values(), strict=False))
        else:
            if hasattr(action, "is_floating_point"):  # a tensor; NumPy knows not every dtype of theirs
                action = to_array(action.double() if action.is_floating_point() else action)
            values = np.asarray(action)
            if values.size > 1 and values.dtype.kind in "iu":
                facts["choices"] = True
            actions = [(str(i), value) for i, value in enumerate(np.ravel(values)[:MAX_ACTIONS])]
        return facts | {f"action/{name}": _number(value) for name, value in actions}


def short_names(names: Sequence[object], most: int) -> list[str]:
    """Names as text of at most so many printable characters, of which no two are the same.

    Names that would be the same once they are cut keep both their ends, as names of parts often differ at the last
    letter. Where that is not enough, a number is added.
    """
    texts = [_printable(str(name)) for name in names]
    times = Counter(text[:most] for text in texts)
    found: dict[str, None] = {}
    for text in texts:
        short = text[:most] if times[text[:most]] == 1 else _with_both_ends(text, most)
        unique, number = short, 1
        while unique in found:
            number += 1
            mark = f"~{number}"
            unique = short[: most - len(mark)] + mark
        found[unique] = None
    return list(found)


def _with_both_ends(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    head = most // 2
    return f"{text[:head]}…{text[len(text) - (most - head - 1) :]}"


def observation_picture(observation: np.ndarray | torch.Tensor) -> np.ndarray:
    """Observations as pictures: uint8 H×W×C, or N×H×W×C for several, which `publish` tiles.

    Args:
        observation: C×H×W, or N×C×H×W such as the frames of a clip, with one channel or three. What is no uint8 is
            normalised, so that its own least value is shown black and its greatest white; what is not finite is black.
    """
    if not isinstance(observation, np.ndarray):
        observation = to_array(observation if observation.element_size() == 1 else observation.float())
    values = observation
    if values.ndim not in (3, 4) or values.shape[-3] not in (1, 3) or not values.size:
        raise ValueError(f"observation_picture: want (N,) C×H×W with 1 or 3 channels; got shape {values.shape}")
    if values.dtype != np.uint8:
        values = values.astype(np.float32)
        finite = np.isfinite(values)
        low, high = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 1.0)
        scaled = (np.where(finite, values, low) - low) * (255.0 / max(high - low, 1e-12))
        values = np.rint(scaled).astype(np.uint8)
    return np.ascontiguousarray(np.moveaxis(values, -3, -1))


def _line(text: object, most: int) -> str:
    return _printable(str(text)[:most])


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)


def _number(value: Any) -> float | str | None:
    """A finite number as JSON holds it, an integer that JavaScript would read as another as text; None for others."""
    if isinstance(value, int | np.integer) and abs(int(value)) >= MAX_EXACT:
        return str(int(value)) if int(value).bit_length() <= MAX_BITS else None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
