"""What viewers ask of environments: pictures, metrics, overlays and shapes."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from tensordict import TensorDictBase
from torch import Tensor


@runtime_checkable
class Viewable(Protocol):
    """Environment with current pictures and metrics.

    Reading them changes nothing, and draws no random number. Both may be read before the first reset.
    """

    @property
    def num_envs(self) -> int:
        """Number of environments N."""

    def metrics(self) -> Mapping[str, Tensor]:
        """Return metrics of the running episodes, (N,) each, on the environment's device.

        `step` and `episode` (number begun so far) are counts, `return` is the sum of the rewards so far. Others may
        have any name.
        """

    def pictures(self, index: Sequence[int], width: int, height: int) -> Tensor | np.ndarray:
        """Draw some of the environments, uint8 (B, H, W, 3), RGB.

        The result is a tensor on any device, or an array.
        """


class Decision(NamedTuple):
    """Action and action values of a policy in the current state of one environment.

    Attributes:
        action: In the environment's form, without the axis of environments.
        values: Value of each action, (…, A) float, or None if the policy has none.
    """

    action: Tensor
    values: Tensor | None


class Overlay(NamedTuple):
    """Picture that viewers can show in addition to that of the environment.

    Attributes:
        title: Display name in viewers.
        needs: What it is drawn from: the "env" alone, also the "action" of a policy, or also the "values" of its
            actions.
    """

    title: str
    needs: Literal["env", "action", "values"]


@runtime_checkable
class Overlaid(Viewable, Protocol):
    """`Viewable` with overlays, whose drawing changes nothing, either."""

    @property
    def overlays(self) -> Mapping[str, Overlay]:
        """Overlays by name, of at most 16 lower-case letters and underscores."""

    def observation(self, index: int) -> TensorDictBase:
        """Return the policy input of one environment, batch size (1,)."""

    def overlay(self, name: str, index: int, width: int, height: int, decision: Decision | None) -> Tensor | np.ndarray:
        """Draw an overlay of one environment, uint8 (H, W, 3), RGB.

        `decision` is given if the overlay needs one.
        """


class Shape(NamedTuple):
    """A body in an environment's world, whose z points up.

    Attributes:
        kind: A "cuboid", a "cylinder" that is upright in its own frame, or the edges of a cuboid, an "outline".
        center: Metres.
        size: Sides of the cuboid around it in its own frame, metres.
        color: Red, green, blue and opacity, in [0, 1].
        quaternion: Its rotation: w, x, y, z.
    """

    kind: Literal["cuboid", "cylinder", "outline"]
    center: Sequence[float]
    size: Sequence[float]
    color: Sequence[float]
    quaternion: Sequence[float] = (1.0, 0.0, 0.0, 0.0)


@runtime_checkable
class Spatial(Viewable, Protocol):
    """`Viewable` with the shapes of its bodies, whose reading changes nothing, either."""

    def shapes(self, index: int) -> Sequence[Shape]:
        """Return the current bodies of one environment."""


def viewable(env: object) -> Viewable:
    """Return the `Viewable` interface of an environment.

    An environment that has the methods of `Viewable` is one. For any other, a module `viewable` in the folder in which
    its class is defined makes one by its function `viewable(env)`: an environment itself imports nothing that draws.

    Raises:
        ValueError: It has neither.
    """
    if isinstance(env, Viewable):
        return env
    for cls in type(env).__mro__:
        package, _, _ = cls.__module__.rpartition(".")
        # This module itself is the one of its folder.
        if not package or package == __package__:
            continue
        if importlib.util.find_spec(f"{package}.viewable"):
            return cast(Viewable, importlib.import_module(f"{package}.viewable").viewable(env))
    raise ValueError(
        f"viewable: {type(env).__module__}.{type(env).__name__} has no pictures: give it `metrics` and `pictures`,"
        " or a module `viewable` next to its own"
    )
