"""Small worlds to cross, and who crosses them."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase

from tests.envs.marine.settings import acted, homing_action
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.policies.policy import Policy

ALONE = {"robots": 1, "cores": 0, "obstacles": 0, "min_distance": 20.0}
CROWD = {"robots": 4, "cores": 3, "obstacles": 3, "min_distance": 25.0}
# Actions of v2: full acceleration, and nothing.
AHEAD, IDLE = 7, 4


def marine_env(num_envs: int = 8, **changes: Any) -> MarineNavEnv:
    arguments = ALONE | {"device": "cpu", "seed": 4, "pool": num_envs, "in_order": True, "max_steps": 80}
    return MarineNavEnv(num_envs, **arguments | changes)


def always(action: int) -> Policy:
    def policy(seen: TensorDictBase) -> TensorDictBase:
        active = seen["robots", "active"].squeeze(-1)
        return seen.set(("robots", "action"), torch.full_like(active, action, dtype=torch.int64))

    return policy


def homing(env: MarineNavEnv) -> Policy:
    return lambda seen: acted(env, seen, homing_action(env, seen))
