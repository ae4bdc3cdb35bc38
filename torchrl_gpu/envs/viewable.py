"""What can be watched of a batched environment, whatever it simulates."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from torch import Tensor


@runtime_checkable
class Viewable(Protocol):
    """Pictures and figures of an environment as it stands; asking changes nothing, and draws no random number.

    Both may be asked for before the first reset.
    """

    @property
    def num_envs(self) -> int:
        """N."""

    def figures(self) -> Mapping[str, Tensor]:
        """(N,) each, on the environment's device, of the episode that is running.

        `step` and `episode` (begun so far) are counts, `return` is the sum of the rewards so far; others by any name.
        """

    def pictures(self, index: Sequence[int], width: int, height: int) -> Tensor | np.ndarray:
        """uint8 (B, H, W, 3) RGB of some of the environments, a tensor on any device or an array."""


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
        "viewable: want an environment with `figures` and `pictures`, or a module `viewable` beside its own;"
        f" got {type(env).__module__}.{type(env).__name__}"
    )
