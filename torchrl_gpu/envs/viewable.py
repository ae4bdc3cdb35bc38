"""Viewer interface of batched environments: pictures, metrics, overlays and shapes."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
from tensordict import TensorDictBase
from torch import Tensor


@runtime_checkable
class Viewable(Protocol):
    """Current pictures and metrics of an environment; reading them changes nothing, and draws no random number.

    Both may be read before the first reset.
    """

    @property
    def num_envs(self) -> int:
        """Number of environments N."""

    def metrics(self) -> Mapping[str, Tensor]:
        """Metrics of the running episodes by name, (N,) each, on the environment's device.

        `step` and `episode` (begun so far) are counts, `return` is the sum of the rewards so far; others by any name.
        """

    def pictures(self, index: Sequence[int], width: int, height: int) -> Tensor | np.ndarray:
        """RGB pictures of some of the environments, uint8 (B, H, W, 3), a tensor on any device or an array."""


class Decision(NamedTuple):
    """Action and action values of a policy in the current state of one environment."""

    action: Tensor  # in the environment's form, without the axis of environments
    values: Tensor | None  # value of each action, (…, A) float; None where the policy gives none


class Overlay(NamedTuple):
    """Picture that viewers can show besides that of the environment itself."""

    title: str  # display name in viewers
    # required input: "env" alone, the "action" of a policy, or the "values" of its actions, too
    needs: Literal["env", "action", "values"]


@runtime_checkable
class Overlaid(Viewable, Protocol):
    """A `Viewable` that has overlays; drawing one changes nothing, either."""

    @property
    def overlays(self) -> Mapping[str, Overlay]:
        """Overlays by name, of at most 16 lower-case letters and underscores."""

    def observation(self, index: int) -> TensorDictBase:
        """Policy input of one environment, batch size (1,)."""

    def overlay(self, name: str, index: int, width: int, height: int, decision: Decision | None) -> Tensor | np.ndarray:
        """RGB picture of one environment, uint8 (H, W, 3); `decision` is given where the overlay needs one."""


class Shape(NamedTuple):
    """A body in an environment's world, whose z points up."""

    # "cuboid"; "cylinder", upright in its own frame; or "outline", the edges of a cuboid
    kind: Literal["cuboid", "cylinder", "outline"]
    center: Sequence[float]  # metres
    size: Sequence[float]  # sides of the cuboid around it in its own frame, metres
    color: Sequence[float]  # red, green, blue, opacity in [0, 1]
    quaternion: Sequence[float] = (1.0, 0.0, 0.0, 0.0)  # w, x, y, z of its rotation


@runtime_checkable
class Spatial(Viewable, Protocol):
    """A `Viewable` with the shapes of its bodies; reading them changes nothing, either."""

    def shapes(self, index: int) -> Sequence[Shape]:
        """Current bodies of one environment."""


def viewable(env: Any) -> Viewable:
    """`Viewable` interface of an environment; ValueError where it has none.

    An environment that has the methods of `Viewable` is one. For any other, the module `viewable` beside the one in
    which its class is defined gives one by its function `viewable(env)`: an environment itself imports nothing that
    draws.
    """
    if isinstance(env, Viewable):
        return env
    for cls in type(env).__mro__:
        package, _, _ = cls.__module__.rpartition(".")
        if package and importlib.util.find_spec(f"{package}.viewable") and package != __package__:
            return cast(Viewable, importlib.import_module(f"{package}.viewable").viewable(env))
    raise ValueError(
        "viewable: want an environment with `metrics` and `pictures`, or a module `viewable` beside its own;"
        f" got {type(env).__module__}.{type(env).__name__}"
    )
