"""Simulation of a MuJoCo model until it is at rest.

And distances of its items from their plans.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from torchrl_gpu.envs.packing.physics.scene import centre_of
from torchrl_gpu.envs.packing.plan import PackingPlan, quaternion
from torchrl_gpu.system.extras import load_mujoco

if TYPE_CHECKING:
    import mujoco

# At rest is what in this time moved by less than a tenth of a millimetre and turned by less than a ninth of a degree.
WINDOW_S = 0.1
REST_M = 1e-4
REST_TURN = 2e-3


def run(model: mujoco.MjModel, data: mujoco.MjData, seconds: float, watched: slice = slice(1, None)) -> float:
    """Simulate until the watched bodies are at rest, or for `seconds`.

    The time that passed is returned.
    """
    mj = load_mujoco()
    steps = max(1, round(WINDOW_S / model.opt.timestep))
    windows = max(1, math.ceil(seconds / WINDOW_S - 1e-9))
    mj.mj_kinematics(model, data)
    for window in range(windows):
        places = data.xpos[watched].copy()
        turns = data.xquat[watched].copy()
        mj.mj_step(model, data, steps)
        shift = np.linalg.norm(data.xpos[watched] - places, axis=1)
        turn = angle_between(data.xquat[watched], turns)
        if shift.max(initial=0.0) < REST_M and turn.max(initial=0.0) < REST_TURN:
            return (window + 1) * WINDOW_S
    return windows * WINDOW_S


def move_in(data: mujoco.MjData, plan: PackingPlan, number: int) -> None:
    """Move the first `number` items to their planned poses, at zero velocity.

    The others stay parked.
    """
    for i, (solid, pose) in enumerate(zip(plan.solids[:number], plan.poses[:number], strict=True)):
        place = slice(7 * i, 7 * i + 7)
        data.qpos[place] = *centre_of(solid, pose), *quaternion(pose.rotation)
    data.qvel[: 6 * number] = 0.0
    data.qacc_warmstart[: 6 * number] = 0.0


def distances(data: mujoco.MjData, plan: PackingPlan, items: range) -> tuple[np.ndarray, np.ndarray]:
    """Return distances of I items from their plans, (I,) each.

    Metres between centres of mass, and radians. They are inf and π where the simulation has left the finite numbers.
    """
    bodies = slice(items.start + 1, items.stop + 1)
    centres = [centre_of(plan.solids[i], plan.poses[i]) for i in items]
    quaternions = [quaternion(plan.poses[i].rotation) for i in items]
    places = np.array(centres).reshape(-1, 3)
    turns = np.array(quaternions).reshape(-1, 4)
    moved = np.linalg.norm(data.xpos[bodies] - places, axis=1)
    turned = angle_between(data.xquat[bodies], turns)
    known = np.isfinite(moved) & np.isfinite(turned)
    return np.where(known, moved, np.inf), np.where(known, turned, np.pi)


def angle_between(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return angles between unit quaternions (…, 4), radians, 0 to π."""
    # By the chord, which keeps the small angles that the arc cosine of a scalar product rounds away.
    sign = np.where((first * second).sum(-1, keepdims=True) < 0, -1.0, 1.0)
    half_chord = np.linalg.norm(first - sign * second, axis=-1) / 2
    return 4 * np.arcsin(np.minimum(half_chord, math.sqrt(0.5)))
