"""Stability of the last placement of each bin, by physics simulation instead of a rule: tens of milliseconds each."""

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
    """Stability of the last item of bins `indices` (B,): it must stay where it was put while all others are fixed.

    The state is read back to the host; seconds, friction and workers are as for `settle_cases`. Returns (B,) bool, True
    for an empty bin.
    """
    plans = [plan_of(env, index) for index in indices]
    verdicts = in_threads(lambda plan: _last_stands(plan, seconds, friction), plans, workers, progress=False)
    return np.array(verdicts, dtype=bool)


def _last_stands(plan: PackingPlan, seconds: float, friction: float) -> bool:
    if not plan.poses:
        return True
    last = len(plan.poses) - 1
    model = model_of(plan, friction=friction, num_fixed=last)
    data = load_mujoco().MjData(model)
    passed = run(model, data, seconds)
    return bool(verdict(*distances(data, plan, range(last, last + 1)), passed).stable.all())
