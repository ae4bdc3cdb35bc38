"""The page's view of a policy at one moment: its input, its action, its timing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from torchrl_gpu.streaming.broadcast.frames import MAX_BITS, MAX_EXACT, Scalar
from torchrl_gpu.streaming.codecs.images import Frame, to_array

if TYPE_CHECKING:
    import torch

Action: TypeAlias = "Sequence[float] | np.ndarray | torch.Tensor | Mapping[str, float]"

# Values of an action that are shown.
MAX_ACTIONS = 32
# The overlay of a stream that shows what the policy saw.
SEEN = "seen"
# Characters of the name of a value, and of a policy.
_MAX_NAME = 32
_MAX_POLICY = 64


class PolicyView(NamedTuple):
    """Input, action and timing of a policy at one moment.

    `StreamServer.show_policy` shows them, and leaves out what is None.

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
    action: Action | None = None
    inference_ms: float | None = None
    message_age_s: float | None = None
    stale: bool | None = None
    confidence: float | None = None
    policy: str | None = None

    def facts(self) -> dict[str, Scalar]:
        """Return all but the frames as metadata of a picture.

        Numbers are finite, texts short and printable. The names are `policy`, `stale`, `inference_ms`,
        `message_age_ms`, `confidence`, and `action/NAME` for each value of the action; and `choices` if those are
        several integers, each of which is the number of an option and no quantity.
        """
        age_ms = None if self.message_age_s is None else 1e3 * self.message_age_s
        numbers = {"inference_ms": self.inference_ms, "message_age_ms": age_ms, "confidence": self.confidence}
        facts: dict[str, Scalar] = {}
        if self.policy is not None:
            facts["policy"] = _printable(str(self.policy)[:_MAX_POLICY])
        if self.stale is not None:
            facts["stale"] = bool(self.stale)
        for name, value in numbers.items():
            if value is not None:
                facts[name] = _number(value)
        if self.action is not None:
            facts |= _action_facts(self.action)
        return facts


def _action_facts(action: Action) -> dict[str, Scalar]:
    """Return the values of an action as metadata."""
    facts: dict[str, Scalar] = {}
    if isinstance(action, Mapping):
        names = short_names(list(action)[:MAX_ACTIONS], _MAX_NAME)
        for name, value in zip(names, action.values(), strict=False):
            facts[f"action/{name}"] = _number(value)
        return facts
    # NumPy does not know every dtype of torch, such as bfloat16.
    if hasattr(action, "is_floating_point"):
        tensor = cast("torch.Tensor", action)
        action = to_array(tensor.double() if tensor.is_floating_point() else tensor)
    values = np.asarray(action)
    if values.size > 1 and values.dtype.kind in "iu":
        facts["choices"] = True
    for i, value in enumerate(np.ravel(values)[:MAX_ACTIONS]):
        facts[f"action/{i}"] = _number(value)
    return facts


def short_names(names: Sequence[object], most: int) -> list[str]:
    """Return names as different texts of at most `most` printable characters.

    Names that would be the same once they are cut keep both their ends, as names of parts often differ at the last
    letter. If that is not enough, a number is added.
    """
    texts = [_printable(str(name)) for name in names]
    uses = Counter(text[:most] for text in texts)
    short: dict[str, None] = {}
    for text in texts:
        is_unique = uses[text[:most]] == 1
        wanted = text[:most] if is_unique else _with_both_ends(text, most)
        unique = wanted
        number = 1
        while unique in short:
            number += 1
            mark = f"~{number}"
            unique = wanted[: most - len(mark)] + mark
        short[unique] = None
    return list(short)


def _with_both_ends(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    head = most // 2
    tail = most - head - 1
    end = text[len(text) - tail :]
    return f"{text[:head]}…{end}"


def observation_picture(observation: np.ndarray | torch.Tensor) -> np.ndarray:
    """Convert observations to pictures: uint8 H×W×C, or N×H×W×C for several.

    `StreamServer.publish` tiles several into a grid.

    Args:
        observation: C×H×W, or N×C×H×W such as the frames of a clip, with one channel or three. Other dtypes than uint8
            are normalised: the least value of the observation becomes black, the greatest white, and what is not finite
            black.

    Raises:
        ValueError: The shape is another.
    """
    if not isinstance(observation, np.ndarray):
        observation = to_array(observation if observation.element_size() == 1 else observation.float())
    values = observation
    if values.ndim not in (3, 4) or values.shape[-3] not in (1, 3) or not values.size:
        raise ValueError(
            "observation_picture: observation must be C×H×W or N×C×H×W with 1 or 3 channels,"
            f" not of shape {values.shape}"
        )
    if values.dtype != np.uint8:
        values = _normalise(values.astype(np.float32))
    return np.ascontiguousarray(np.moveaxis(values, -3, -1))


def _normalise(values: np.ndarray) -> np.ndarray:
    """Return values as uint8, from 0 for the least to 255 for the greatest finite one."""
    finite = np.isfinite(values)
    if finite.any():
        measured = values[finite]
        low, high = measured.min(), measured.max()
    else:
        low, high = 0.0, 1.0
    scaled = (np.where(finite, values, low) - low) * (255.0 / max(high - low, 1e-12))
    return np.rint(scaled).astype(np.uint8)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)


def _number(value: Any) -> float | str | None:
    """Return a number as JSON holds it, and None for what is not finite.

    An integer that JavaScript would round becomes text.
    """
    whole = int(value) if isinstance(value, int | np.integer) else 0
    if abs(whole) >= MAX_EXACT:
        return str(whole) if whole.bit_length() <= MAX_BITS else None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
