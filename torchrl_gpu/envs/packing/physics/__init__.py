"""Stability of packings by MuJoCo simulation.

Here: models of packings (`scene`), their simulation and what follows from it. Needs the extra `physics`. Not here: the
rules that decide without simulation (`packing.stability`). Read `settle.py` first.
"""

from __future__ import annotations

from torchrl_gpu.envs.packing.physics.judge import stands_in_physics
from torchrl_gpu.envs.packing.physics.settle import Settled, settle, settle_cases
from torchrl_gpu.envs.packing.physics.transport import Transported, tipping_g, transport, transport_cases
from torchrl_gpu.envs.packing.plan import PackingPlan, plan_of

__all__ = [
    "PackingPlan",
    "Settled",
    "Transported",
    "plan_of",
    "settle",
    "settle_cases",
    "stands_in_physics",
    "tipping_g",
    "transport",
    "transport_cases",
]
