"""Running a model until it is at rest, and reading how far items are from their plans."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from torchrl_gpu.envs.packing.physics.scene import centre_of, load_mujoco
from torchrl_gpu.envs.packing.plan import Plan
from torchrl_gpu.envs.packing.poses import quaternion

# At rest is what in this time moved by less than a tenth of a millimetre and turned by less than a ninth of a degree.
WINDOW_S, REST_M, REST_TURN = 0.1, 1e-4, 2e-3
DEEP_M = 0.01


def run(model: Any, data: Any, seconds: float) -> float:
    """Simulates until everything is at rest, or for `seconds`; returns the time that passed."""
    mj = load_mujoco()
    steps = max(1, round(WINDOW_S / model.opt.timestep))
    windows = max(1, math.ceil(seconds / WINDOW_S - 1e-9))
    mj.mj_kinematics(model, data)
    for window in range(windows):
        places, turns = data.xpos.copy(), data.xquat.copy()
        mj.mj_step(model, data, steps)
        shift, turn = np.linalg.norm(data.xpos - places, axis=1), angle_between(data.xquat, turns)
        if shift.max() < REST_M and turn.max() < REST_TURN:
            return (window + 1) * WINDOW_S
    return windows * WINDOW_S


def enter(model: Any, data: Any, item: int, planned: np.ndarray) -> None:
    """Puts a waiting item where it is planned, or above, if it would be deep inside of what has moved there."""
    mj = load_mujoco()
    place = data.qpos[7 * item : 7 * item + 3]
    place[:] = planned
    mj.mj_fwdPosition(model, data)
    while (overlap := _overlap(model, data, item + 1)) > DEEP_M:
        place[2] += overlap
        mj.mj_fwdPosition(model, data)


def _overlap(model: Any, data: Any, body: int) -> float:
    """How deep a body is in another item, metres."""
    bodies = model.geom_bodyid[data.contact.geom]  # (C, 2)
    with_other = (bodies == body).any(1) & (bodies > 0).all(1)
    return -float(data.contact.dist[with_other].min(initial=0.0))


def distances(data: Any, plan: Plan, items: range) -> tuple[np.ndarray, np.ndarray]:
    """How far some items are from their plans: metres between centres of mass, radians; infinite if it diverged."""
    bodies = slice(items.start + 1, items.stop + 1)
    places = np.array([centre_of(plan.solids[i], plan.poses[i]) for i in items]).reshape(-1, 3)
    turns = np.array([quaternion(plan.poses[i].rotation) for i in items]).reshape(-1, 4)
    moved = np.linalg.norm(data.xpos[bodies] - places, axis=1)
    turned = angle_between(data.xquat[bodies], turns)
    known = np.isfinite(moved) & np.isfinite(turned)
    return np.where(known, moved, np.inf), np.where(known, turned, np.pi)


def angle_between(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Radians, 0 to π, between rotations given as unit quaternions (…, 4)."""
    # By the chord, which keeps the small angles that the arc cosine of a scalar product rounds away.
    sign = np.where((first * second).sum(-1, keepdims=True) < 0, -1.0, 1.0)
    half_chord = np.linalg.norm(first - sign * second, axis=-1) / 2
    return 4 * np.arcsin(np.minimum(half_chord, math.sqrt(0.5)))
