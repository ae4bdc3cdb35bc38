"""What a policy server decided last, on its page."""

from __future__ import annotations

import time

import numpy as np

from torchrl_gpu.policies.inference import InferencePolicy
from torchrl_gpu.serving.messages import Observations
from torchrl_gpu.streaming import PolicyView, StreamServer, observation_picture

STREAM = "policy"
_PERIOD_S = 0.1  # between views: looks at a few of many requests


class PolicyPage:
    """Shows one of the newest requests on the page of a server: what the policy saw of it and did.

    The picture is that of an observation which is an image or a clip, and of a clip its newest frame; where there is
    none, the numbers stand alone.

    Args:
        server: Has the page.
        policy: Whose requests.
    """

    def __init__(self, server: StreamServer, policy: InferencePolicy) -> None:
        self._server, self._policy = server, policy.name
        shapes = {name: policy.space.observations[name] for name in policy.in_keys}
        images = {name: dtype for name, (shape, dtype) in shapes.items() if _is_image(tuple(shape), dtype)}
        self._image = min(images, key=lambda name: images[name] != "uint8", default=None)
        self._next_at = 0.0

    def show(self, observations: Observations, action: np.ndarray, inference_ms: float, age_s: float) -> None:
        """Shows the last row of a request, unless one was shown just before or nobody wants a picture.

        Args:
            observations: (B, …) each.
            action: (B, …).
            inference_ms: Of the pass that decided it.
            age_s: For how long the request had waited by then.
        """
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + _PERIOD_S
        view = PolicyView(action=action[-1], inference_ms=inference_ms, message_age_s=age_s, policy=self._policy)
        if self._image is None:
            self._server.show_policy(view)
        elif self._server.wanted(STREAM) or self._server.wanted(f"{STREAM}:seen"):
            seen = observation_picture(observations[self._image][-1])
            self._server.show_policy(view._replace(frame=seen if seen.ndim == 3 else seen[-1], seen=seen), STREAM)


def _is_image(shape: tuple[int, ...], dtype: str) -> bool:
    """Whether an observation is C×H×W or a clip of them."""
    return len(shape) in (3, 4) and shape[-3] in (1, 3) and min(shape) > 0 and dtype in ("uint8", "float32", "float16")
