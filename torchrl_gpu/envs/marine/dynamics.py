"""Water currents, and robot dynamics during one action: a unicycle (v2) or a vessel with two thrusters (v3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchrl_gpu.envs.marine.types import CORE_RADIUS, DT, HEADING, SPEED, SUBSTEPS, THRUST, Scene, contiguous_copy

MAX_SPEED = 2.0  # m/s through the water
ACCELERATION = 0.4  # m/s²
TURN = math.pi / 6  # rad/s
DRAG = ACCELERATION / MAX_SPEED  # 1/s

MASS, YAW_INERTIA = 400.0, 450.0  # kg, kg m²
ADDED_SURGE, ADDED_YAW = 20.0, 980.0  # X_u̇ and −N_ṙ
LINEAR_DRAG, QUADRATIC_DRAG = 100.0, 150.0  # of surge and of sway
LINEAR_YAW_DRAG, QUADRATIC_YAW_DRAG = 980.0, 950.0
THRUST_ARM = 1.25  # m, from the centre line to a thruster
LEAST_THRUST, MOST_THRUST = -500.0, 1000.0  # N
THRUST_RATE = 1000.0  # N/s, of a full command
THRUST_LEVELS = (0.0, -0.5, -1.0, 0.5, 1.0)  # of `THRUST_RATE`: the discrete commands of one thruster


def flow(x: Tensor, y: Tensor, core: Tensor, circulation: Tensor) -> tuple[Tensor, Tensor]:
    """Velocity of the water at given positions: a sum of Rankine vortices, which turn as a solid inside their core.

    With q = core − place, a core moves it by γ q⊥ / max(|q|², r₀²), where γ is the circulation over 2π and q⊥ is q
    turned by a quarter from x to y. Places x and y are (R, N), cores (2, C, 1, N), metres, and γ (C, 1, N), m²/s, 0
    for a core that is not there. Returned are the velocities along x and along y, m/s, (R, N).
    """
    if not len(circulation):
        return torch.zeros_like(x), torch.zeros_like(y)
    core_x, core_y = core.unbind()
    qx, qy = core_x - x, core_y - y  # (C, R, N)
    # In place: half of this function's time goes into memory.
    strength = circulation / (qx * qx).addcmul_(qy, qy).clamp_min_(CORE_RADIUS**2)
    return qy.mul_(strength).sum(0).neg_(), qx.mul_(strength).sum(0)


class Unicycle:
    """Unicycle model of v2: forward acceleration and rate of turn, linear drag through the water.

    It has the dtype and device of `like`; where it is `lagged`, the velocity before the last substep is observed.
    """

    def __init__(self, like: Tensor, lagged: bool = False) -> None:
        step = torch.arange(SUBSTEPS + 1, dtype=like.dtype, device=like.device).view(-1, 1, 1)
        self.kept, self.time, self.lagged = (1 - DRAG * DT) ** step, step * DT, lagged
        signs = torch.tensor([-1.0, 0.0, 1.0], dtype=like.dtype, device=like.device)
        self.signs = torch.stack((signs.repeat_interleave(3), signs.repeat(3)))  # (2, 9)

    def move(self, motion: Tensor, action: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
        """Motion (8, R, N), rows as in `types`, after one action, and the energy that it took: 0, 1 or 2, (R, N).

        Action 3·i + j, int64 (R, N), is acceleration i and turn j of −1, 0, 1 times their largest; any other number
        does nothing. Of the scene only the cores are used.
        """
        push, turn = _looked_up(self.signs, action, idle=4)
        # Speed and heading do not depend on where the robot is, so that all substeps of both are worked out at once:
        # u' = clip(u + (a − k u) dt, 0, 2) is of a geometric series towards a/k that, once clipped, stays so.
        limit = push * MAX_SPEED
        speed = (limit + (motion[SPEED] - limit) * self.kept).clamp(0, MAX_SPEED)  # (11, R, N)
        heading = motion[HEADING] + turn * TURN * self.time
        own_x, own_y = speed * heading.cos(), speed * heading.sin()
        x, y, _, _, _, drift_x, drift_y, _ = motion
        vx = vy = x
        for k in range(SUBSTEPS):
            vx, vy = own_x[k] + drift_x, own_y[k] + drift_y
            x, y = x + vx * DT, y + vy * DT
            drift_x, drift_y = flow(x, y, scene.core, scene.circulation)
        if not self.lagged:
            vx, vy = own_x[SUBSTEPS] + drift_x, own_y[SUBSTEPS] + drift_y
        last = heading[SUBSTEPS].remainder(2 * math.pi)
        return torch.stack((x, y, last, vx, vy, drift_x, drift_y, speed[SUBSTEPS])), push.abs() + turn.abs()

    def start(self, place: Tensor, heading: Tensor, speed: Tensor, scene: Scene, still: bool) -> Tensor:
        """Initial motion (8, R, N) from place (2, R, N), heading and speed (R, N), without the current if `still`."""
        drift = torch.stack(flow(place[0], place[1], scene.core, scene.circulation))
        own = speed * torch.stack((heading.cos(), heading.sin()))
        return torch.cat((place, heading[None], own if still else own + drift, drift, speed[None]))


class Vessel:
    """Vessel model of v3: WAM-V 16 with two fixed thrusters, three degrees of freedom (Fossen 2011, chapter 6).

    x north, y east, yaw clockwise; M ν̇_r = −C_RB ν − (C_A + D + D_n) ν_r + τ, with ν_r relative to the water. Arguments
    are those of `Unicycle`.
    """

    def __init__(self, like: Tensor, lagged: bool = False) -> None:
        self.lagged = lagged
        levels = torch.tensor(THRUST_LEVELS, dtype=like.dtype, device=like.device)
        self.commands = torch.stack((levels.repeat_interleave(5), levels.repeat(5)))  # (2, 25)

    def move(self, motion: Tensor, action: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
        """Motion (13, R, N), rows as in `types`, after one action, and the energy that it took, N s, (R, N).

        Actions are commands of both thrusters in [−1, 1], (2, R, N); or 5·i + j, int64 (R, N): level i of the left one
        and j of the right one, where any other number does nothing.
        """
        if action.is_floating_point():
            command = action.to(motion.dtype).nan_to_num(0.0).clamp(-1, 1)
        else:
            command = _looked_up(self.commands, action, idle=0)
        thrust = (motion[THRUST] + command * (THRUST_RATE * DT * SUBSTEPS)).clamp(LEAST_THRUST, MOST_THRUST)
        force, torque = thrust[0] + thrust[1], (thrust[0] - thrust[1]) * THRUST_ARM
        x, y, heading, vx, vy, drift_x, drift_y, seen_yaw, wx, wy, yaw, _, _ = motion
        for _ in range(SUBSTEPS):
            vx, vy, seen_yaw = wx + drift_x, wy + drift_y, yaw
            x, y, heading = x + vx * DT, y + vy * DT, heading + yaw * DT
            wx, wy, yaw = self._accelerated(vx, vy, wx, wy, yaw, heading, force, torque)
            drift_x, drift_y = flow(x, y, scene.core, scene.circulation)
        if not self.lagged:
            vx, vy, seen_yaw = wx + drift_x, wy + drift_y, yaw
        heading = heading.remainder(2 * math.pi)
        rows = torch.stack((x, y, heading, vx, vy, drift_x, drift_y, seen_yaw, wx, wy, yaw))
        return torch.cat((rows, thrust)), thrust.abs().sum(0) * (DT * SUBSTEPS)

    def start(self, place: Tensor, heading: Tensor, speed: Tensor, scene: Scene, still: bool) -> Tensor:
        """Initial motion of robots at rest through the water, (13, R, N); as for `Unicycle.start`."""
        drift = torch.stack(flow(place[0], place[1], scene.core, scene.circulation))
        rest = torch.zeros_like(place)
        none = torch.zeros_like(heading)[None]
        return torch.cat((place, heading[None], rest if still else drift, drift, none, rest, none, rest))

    def _accelerated(
        self, vx: Tensor, vy: Tensor, wx: Tensor, wy: Tensor, r: Tensor, *loads: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Velocity through the water and yaw rate after one substep, in the frame of the map.

        Given are the velocities over ground and through the water, yaw rate, and heading, force ahead and torque.
        """
        heading, force, torque = loads
        cos, sin = heading.cos(), heading.sin()
        u, v = cos * vx + sin * vy, cos * vy - sin * vx
        u_r, v_r = cos * wx + sin * wy, cos * wy - sin * wx
        surge = MASS * r * v - (LINEAR_DRAG + QUADRATIC_DRAG * u_r.abs()) * u_r + force
        sway = (ADDED_SURGE * u_r - MASS * u) * r - (LINEAR_DRAG + QUADRATIC_DRAG * v_r.abs()) * v_r
        yaw = torque - ADDED_SURGE * u_r * v_r - (LINEAR_YAW_DRAG + QUADRATIC_YAW_DRAG * r.abs()) * r
        u_r = u_r + surge * (DT / (MASS - ADDED_SURGE))
        v_r = v_r + sway * (DT / MASS)
        r = r + yaw * (DT / (YAW_INERTIA + ADDED_YAW))
        return cos * u_r - sin * v_r, sin * u_r + cos * v_r, r


def _looked_up(table: Tensor, action: Tensor, idle: int) -> Tensor:
    """Columns of a table (2, A) for actions (R, N), (2, R, N); that of `idle` for an action that does not exist."""
    known = (action >= 0) & (action < table.shape[1])
    column = torch.where(known, action, idle)
    return contiguous_copy(table.index_select(1, column.flatten()).view(2, *action.shape))
