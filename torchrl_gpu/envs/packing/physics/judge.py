"""Stability of the last placement of each bin by simulation.

That takes tens of milliseconds each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchrl_gpu.envs.packing.physics.scene import FRICTION, model_of
from torchrl_gpu.envs.packing.physics.settle import in_threads, verdict
from torchrl_gpu.envs.packing.physics.simulate import distances, run
from torchrl_gpu.envs.packing.plan import PackedBins, PackingPlan, plan_of
from torchrl_gpu.system.extras import load_mujoco


def stands_in_physics(
    env: PackedBins,
    indices: Sequence[int],
    *,
    seconds: float = 1.0,
    friction: float = FRICTION,
    workers: int | None = None,
) -> np.ndarray:
    """Return whether the last item of each bin stays where it was put.

    All others are fixed meanwhile. The state is read back to the host.

    Args:
        env: The bins.
        indices: Numbers of B bins.
        seconds, friction, workers: As for `settle_cases`.

    Returns:
        (B,) bool, true for an empty bin.
    """
    plans = [plan_of(env, index) for index in indices]

    def stands(plan: PackingPlan) -> bool:
        return _last_stands(plan, seconds, friction)

    return np.array(in_threads(stands, plans, workers, progress=False), dtype=bool)


def _last_stands(plan: PackingPlan, seconds: float, friction: float) -> bool:
    if not plan.poses:
        return True
    last = len(plan.poses) - 1
    model = model_of(plan, friction=friction, num_fixed=last)
    data = load_mujoco().MjData(model)
    passed = run(model, data, seconds)
    moved, turned = distances(data, plan, range(last, last + 1))
    return bool(verdict(moved, turned, passed).stable.all())
