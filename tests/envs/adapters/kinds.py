"""Small environments of every kind, for the adapters."""

from __future__ import annotations

import pytest

from tests.training.tiny import packing_env
from tests.training.tiny_navigation import marine_env
from torchrl_gpu.envs import BatchedEnv, DishwashingEnv

KINDS = ("packing", "v2", "v3", "dishes")
each_kind = pytest.mark.parametrize("kind", KINDS)


def env_of(kind: str, **changes: object) -> BatchedEnv:
    if kind == "packing":
        return packing_env(**changes)
    if kind in ("dishes", "video"):
        given = {"num_envs": 8, "max_steps": 6, "frame_size": (16, 16), "device": "cpu", "seed": 2} | changes
        return DishwashingEnv(**{"observe_as": "video" if kind == "video" else "state"} | given)  # type: ignore[arg-type]
    return marine_env(kind, **{"curriculum": [[0, 2, 1, 0, 5.0]]} | changes)
