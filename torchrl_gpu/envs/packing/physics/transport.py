"""Loads under the accelerations of a lorry.

A shipper must show that a load holds 0.5 g in each direction for 0.3 s (EUMOS 40509). The acceleration of the lorry is
a force on every box the other way, so gravity is tilted: it rises within 0.05 s, is held, and falls again. Boxes are
loose: no film, straps or friction sheets hold them. A wrapped load is one block at best, and tips as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torchrl_gpu.envs.packing.physics.scene import FRICTION, model_of
from torchrl_gpu.envs.packing.physics.settle import in_threads
from torchrl_gpu.envs.packing.physics.simulate import run
from torchrl_gpu.envs.packing.plan import PackingPlan
from torchrl_gpu.system.extras import load_mujoco

if TYPE_CHECKING:
    import mujoco

# EUMOS 40509: acceleration in g, seconds until it is reached and for which it is held.
EUMOS_G = 0.5
RAMP_S = 0.05
HOLD_S = 0.3
# Then the load comes to rest.
_REST_S = 0.3
# Farthest that a box may have moved when the lorry goes evenly again: 5% of the load's height, and 4 cm near the floor.
_PERMANENT_SHARE = 0.05
_PERMANENT_LOW_M = 0.04
_LOW_M = 0.2
# A box has gone once it is so far from its place.
_GONE_M = 0.02
_LOOK_S = 0.01
DIRECTIONS = {"+x": (1.0, 0.0), "-x": (-1.0, 0.0), "+y": (0.0, 1.0), "-y": (0.0, -1.0)}


@dataclass(frozen=True)
class Transported:
    """What became of a load.

    Attributes:
        moved: Farthest that each box was from its place afterwards, over all directions, metres, (I,) float64.
        holds: Whether all boxes are within what EUMOS 40509 allows.
        first: The box that went first, None where none did.
        direction: In which direction the load was pushed then.
        after_s: Seconds after the push had begun.
    """

    moved: np.ndarray
    holds: bool
    first: int | None = None
    direction: str = ""
    after_s: float = 0.0


def transport_cases(
    plans: Sequence[PackingPlan],
    *,
    acceleration_g: float = EUMOS_G,
    friction: float = FRICTION,
    workers: int | None = None,
    progress: bool = False,
) -> list[Transported]:
    """Push each load in every direction, in parallel threads.

    Args:
        plans: The loads, without walls.
        acceleration_g: In g.
        friction: Coulomb's coefficient between any two things.
        workers: Threads; None takes one for each processor.
        progress: Whether to draw a bar.
    """

    def one(plan: PackingPlan) -> Transported:
        return transport(plan, acceleration_g=acceleration_g, friction=friction)

    return in_threads(one, list(plans), workers, progress)


def transport(plan: PackingPlan, *, acceleration_g: float = EUMOS_G, friction: float = FRICTION) -> Transported:
    """Push a load in every direction, each time from rest.

    Args:
        plan: The load, without walls.
        acceleration_g: In g.
        friction: Coulomb's coefficient between any two things.
    """
    mj = load_mujoco()
    model = model_of(plan, friction=friction)
    data = mj.MjData(model)
    run(model, data, 1.0)
    at_rest = data.qpos.copy()
    places = data.xpos[1:].copy()
    moved = np.zeros(len(plan.poses))
    if not len(moved):
        return Transported(moved, holds=True)
    firsts: list[tuple[float, int, str]] = []
    for name, direction in DIRECTIONS.items():
        mj.mj_resetData(model, data)
        data.qpos[:] = at_rest
        gone_at = _push(model, data, places, np.array(direction) * acceleration_g)
        # Where the simulation has left the finite numbers a box is infinitely far.
        shift = np.linalg.norm(data.xpos[1:] - places, axis=1)
        moved = np.maximum(moved, np.where(np.isfinite(shift), shift, np.inf))
        first = int(gone_at.argmin())
        if np.isfinite(gone_at[first]):
            firsts.append((float(gone_at[first]), first, name))
    holds = bool((moved <= _allowed(plan, places)).all())
    if holds or not firsts:
        return Transported(moved, holds)
    after_s, first, name = min(firsts)
    return Transported(moved, holds, first, name, after_s)


def _push(model: mujoco.MjModel, data: mujoco.MjData, places: np.ndarray, acceleration_g: np.ndarray) -> np.ndarray:
    """Push a load once.

    Returned are the seconds at which each box has gone, inf for those that stay, (I,).
    """
    mj = load_mujoco()
    down = float(np.linalg.norm(model.opt.gravity))
    steps = max(1, round(_LOOK_S / model.opt.timestep))
    gone_at = np.full(len(places), np.inf)
    end = 2 * RAMP_S + HOLD_S
    time = 0.0
    while time < end + _REST_S:
        share = np.clip(min(time / RAMP_S, (end - time) / RAMP_S), 0.0, 1.0)
        model.opt.gravity[:] = (*(-acceleration_g * down * share), -down)
        mj.mj_step(model, data, steps)
        time += steps * model.opt.timestep
        shift = np.linalg.norm(data.xpos[1:] - places, axis=1)
        is_new = ~(shift < _GONE_M) & np.isinf(gone_at)
        gone_at[is_new] = time
    model.opt.gravity[:] = (0.0, 0.0, -down)
    return gone_at


def _allowed(plan: PackingPlan, places: np.ndarray) -> np.ndarray:
    """Metres that each box may have moved, (I,)."""
    height = max((_bounds(plan, i)[1][2] for i in range(len(plan.poses))), default=0.0)
    of_height = _PERMANENT_SHARE * height
    is_low = places[:, 2] < _LOW_M
    return np.where(is_low, min(of_height, _PERMANENT_LOW_M), of_height)


def _bounds(plan: PackingPlan, item: int) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper corner of an item, metres, (3,) each."""
    pose = plan.poses[item]
    vertices = plan.solids[item].vertices @ pose.rotation.T + pose.position
    return vertices.min(0), vertices.max(0)


def tipping_g(plan: PackingPlan) -> float:
    """Return the acceleration at which a load that is wrapped to one block tips, in g.

    It is half of the least width of the load over the height of its centre of gravity.
    """
    bounds = [_bounds(plan, i) for i in range(len(plan.poses))]
    low = np.array([first for first, _ in bounds])
    high = np.array([last for _, last in bounds])
    masses = np.array(plan.masses) if plan.masses is not None else (high - low).prod(1)
    middle = (low + high) / 2
    centre = (masses[:, None] * middle).sum(0) / masses.sum()
    on_floor = low[:, 2] < 1e-3
    first = low[on_floor, :2].min(0)
    last = high[on_floor, :2].max(0)
    arm = np.minimum(centre[:2] - first, last - centre[:2]).min()
    return float(arm / centre[2])
