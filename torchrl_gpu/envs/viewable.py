"""What can be watched of a batched environment, whatever it simulates."""

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
    """Pictures and metrics of an environment as it stands; asking changes nothing, and draws no random number.

    Both may be asked for before the first reset.
    """

    @property
    def num_envs(self) -> int:
        """N."""

    def metrics(self) -> Mapping[str, Tensor]:
        """(N,) each, on the environment's device, of the episode that is running.

        `step` and `episode` (begun so far) are counts, `return` is the sum of the rewards so far; others by any name.
        """

    def pictures(self, index: Sequence[int], width: int, height: int) -> Tensor | np.ndarray:
        """uint8 (B, H, W, 3) RGB of some of the environments, a tensor on any device or an array."""


class Decision(NamedTuple):
    """What a policy makes of one environment as it stands.

    Attributes:
        action: What it would do, as the environment takes it, without its axis of environments.
        values: What it expects of each action, (…, A) float; None where it does not say.
    """

    action: Tensor
    values: Tensor | None


class Overlay(NamedTuple):
    """Something that can be shown besides the environment itself.

    Attributes:
        title: What viewers read.
        needs: What it takes: "env" alone, the "action" of a policy, or the "values" of its actions, too.
    """

    title: str
    needs: Literal["env", "action", "values"]


@runtime_checkable
class Overlaid(Viewable, Protocol):
    """A `Viewable` that has overlays; asking for one changes nothing, either."""

    @property
    def overlays(self) -> Mapping[str, Overlay]:
        """By name, at most 16 lower-case letters and underscores."""

    def observation(self, index: int) -> TensorDictBase:
        """What a policy reads of one environment, batch size (1,)."""

    def overlay(self, name: str, index: int, width: int, height: int, decision: Decision | None) -> Tensor | np.ndarray:
        """uint8 (H, W, 3) RGB of one environment; `decision` is there where the overlay needs one."""


class Shape(NamedTuple):
    """A body in an environment's world, whose z points up.

    Attributes:
        kind: "cuboid"; "cylinder", upright in its own frame; or "outline", the edges of a cuboid.
        center: Metres.
        size: Sides of the cuboid around it in its own frame, metres.
        color: Red, green, blue, opacity in [0, 1].
        quaternion: w, x, y, z of its turn.
    """

    kind: Literal["cuboid", "cylinder", "outline"]
    center: Sequence[float]
    size: Sequence[float]
    color: Sequence[float]
    quaternion: Sequence[float] = (1.0, 0.0, 0.0, 0.0)


@runtime_checkable
class Spatial(Viewable, Protocol):
    """A `Viewable` that says what is where; asking changes nothing, either."""

    def shapes(self, index: int) -> Sequence[Shape]:
        """The bodies of one environment as it stands."""


def viewable(env: Any) -> Viewable:
    """An environment as something to watch.

    An environment that has the methods of `Viewable` is one. For any other, the module `viewable` beside the one in
    which its class is defined gives one by its function `viewable(env)`: an environment itself imports nothing that
    draws.

    Raises:
        ValueError: There is neither.
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
