"""Water currents, and the dynamics of robots during one action.

A robot is a unicycle (v2) or a vessel with two thrusters (v3).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchrl_gpu.envs.marine.types import CORE_RADIUS, DT, HEADING, SPEED, SUBSTEPS, THRUST, Scene, contiguous_copy

# Largest speed through the water.
MAX_SPEED = 2.0  # m/s
ACCELERATION = 0.4  # m/s²
TURN = math.pi / 6  # rad/s
# Rate at which the speed through the water decays, 1/s.
DRAG = ACCELERATION / MAX_SPEED

MASS = 400.0  # kg
# Moment of inertia about the vertical axis, kg m².
YAW_INERTIA = 450.0

# Added mass of surge, X_u̇, and added inertia of yaw, −N_ṙ.
ADDED_SURGE = 20.0
ADDED_YAW = 980.0

# Drag of surge and of sway, then of yaw.
LINEAR_DRAG = 100.0
QUADRATIC_DRAG = 150.0
LINEAR_YAW_DRAG = 980.0
QUADRATIC_YAW_DRAG = 950.0

# Distance from the centre line to a thruster.
THRUST_ARM = 1.25  # m
LEAST_THRUST = -500.0  # N
MOST_THRUST = 1000.0  # N

# Rate at which a full command changes the thrust, N/s.
THRUST_RATE = 1000.0

# Discrete commands of one thruster, as shares of `THRUST_RATE`.
THRUST_LEVELS = (0.0, -0.5, -1.0, 0.5, 1.0)


def flow(x: Tensor, y: Tensor, core: Tensor, circulation: Tensor) -> tuple[Tensor, Tensor]:
    """Return the velocity of the water at given positions.

    It is a sum of Rankine vortices, which turn as a solid inside their core. With q = core − place, a core moves it by
    γ q⊥ / max(|q|², r₀²), where γ is the circulation over 2π and q⊥ is q turned by a quarter from x to y. Places x and
    y are (R, N), cores (2, C, 1, N), metres, and γ (C, 1, N), m²/s, 0 for a core that is not there. Returned are the
    velocities along x and along y, m/s, (R, N).
    """
    if not len(circulation):
        return torch.zeros_like(x), torch.zeros_like(y)
    core_x, core_y = core.unbind()
    qx, qy = core_x - x, core_y - y  # (C, R, N)
    # In place: half of this function's time goes into memory.
    strength = circulation / (qx * qx).addcmul_(qy, qy).clamp_min_(CORE_RADIUS**2)
    return qy.mul_(strength).sum(0).neg_(), qx.mul_(strength).sum(0)


class Unicycle:
    """Unicycle model of v2, with linear drag through the water.

    Actions are a forward acceleration and a rate of turn. It has the dtype and device of `like`. With `lagged`, robots
    observe the velocity before the last substep.
    """

    def __init__(self, like: Tensor, lagged: bool = False) -> None:
        step = torch.arange(SUBSTEPS + 1, dtype=like.dtype, device=like.device).view(-1, 1, 1)
        self.kept = (1 - DRAG * DT) ** step
        self.time = step * DT
        self.lagged = lagged
        signs = torch.tensor([-1.0, 0.0, 1.0], dtype=like.dtype, device=like.device)
        self.signs = torch.stack((signs.repeat_interleave(3), signs.repeat(3)))  # (2, 9)

    def move(self, motion: Tensor, action: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
        """Return the motion after one action, and the energy that it took.

        The motion is (8, R, N), with rows as in `types`, and the energy is 0, 1 or 2, (R, N). Action 3·i + j, int64 (R,
        N), is acceleration i and turn j of −1, 0, 1 times their largest; any other number does nothing. Of the scene
        only the cores are used.
        """
        push, turn = _look_up(self.signs, action, idle=4)
        # Speed and heading do not depend on where the robot is, so all substeps of both are computed at once, where a
        # loop would launch operators for each: u' = clip(u + (a − k u) dt, 0, 2) is a geometric series towards
        # a/k, and a speed that has been clipped stays clipped.
        limit = push * MAX_SPEED
        speed = (limit + (motion[SPEED] - limit) * self.kept).clamp(0, MAX_SPEED)  # (11, R, N)
        heading = motion[HEADING] + turn * TURN * self.time
        own_x = speed * heading.cos()
        own_y = speed * heading.sin()
        x, y, _, _, _, drift_x, drift_y, _ = motion
        vx = vy = x
        for k in range(SUBSTEPS):
            vx = own_x[k] + drift_x
            vy = own_y[k] + drift_y
            x = x + vx * DT
            y = y + vy * DT
            drift_x, drift_y = flow(x, y, scene.core, scene.circulation)
        if not self.lagged:
            vx = own_x[SUBSTEPS] + drift_x
            vy = own_y[SUBSTEPS] + drift_y
        last = heading[SUBSTEPS].remainder(2 * math.pi)
        moved = torch.stack((x, y, last, vx, vy, drift_x, drift_y, speed[SUBSTEPS]))
        return moved, push.abs() + turn.abs()

    def start(self, place: Tensor, heading: Tensor, speed: Tensor, scene: Scene, still: bool) -> Tensor:
        """Return the initial motion (8, R, N).

        Given are place (2, R, N), heading and speed (R, N). With `still`, the velocity leaves the current out.
        """
        drift = torch.stack(flow(place[0], place[1], scene.core, scene.circulation))
        own = speed * torch.stack((heading.cos(), heading.sin()))
        return torch.cat((place, heading[None], own if still else own + drift, drift, speed[None]))


class Vessel:
    """Vessel model of v3, a WAM-V 16 with two fixed thrusters.

    It has three degrees of freedom (Fossen 2011, chapter 6): x north, y east, yaw clockwise; M ν̇_r = −C_RB ν − (C_A +
    D + D_n) ν_r + τ, with ν_r relative to the water. Arguments are those of `Unicycle`.
    """

    def __init__(self, like: Tensor, lagged: bool = False) -> None:
        self.lagged = lagged
        levels = torch.tensor(THRUST_LEVELS, dtype=like.dtype, device=like.device)
        self.commands = torch.stack((levels.repeat_interleave(5), levels.repeat(5)))  # (2, 25)

    def move(self, motion: Tensor, action: Tensor, scene: Scene) -> tuple[Tensor, Tensor]:
        """Return the motion after one action, and the energy that it took.

        The motion is (13, R, N), with rows as in `types`, and the energy is in N s, (R, N). Actions are commands of
        both thrusters in [−1, 1], (2, R, N); or 5·i + j, int64 (R, N): level i of the left one and j of the right one,
        where any other number does nothing.
        """
        if action.is_floating_point():
            command = action.to(motion.dtype).nan_to_num(0.0).clamp(-1, 1)
        else:
            command = _look_up(self.commands, action, idle=0)
        thrust = (motion[THRUST] + command * (THRUST_RATE * DT * SUBSTEPS)).clamp(LEAST_THRUST, MOST_THRUST)
        force = thrust[0] + thrust[1]
        torque = (thrust[0] - thrust[1]) * THRUST_ARM
        x, y, heading, vx, vy, drift_x, drift_y, seen_yaw, wx, wy, yaw, _, _ = motion
        for _ in range(SUBSTEPS):
            vx = wx + drift_x
            vy = wy + drift_y
            seen_yaw = yaw
            x = x + vx * DT
            y = y + vy * DT
            heading = heading + yaw * DT
            wx, wy, yaw = self._accelerate(vx, vy, wx, wy, yaw, heading, force, torque)
            drift_x, drift_y = flow(x, y, scene.core, scene.circulation)
        if not self.lagged:
            vx = wx + drift_x
            vy = wy + drift_y
            seen_yaw = yaw
        heading = heading.remainder(2 * math.pi)
        rows = torch.stack((x, y, heading, vx, vy, drift_x, drift_y, seen_yaw, wx, wy, yaw))
        return torch.cat((rows, thrust)), thrust.abs().sum(0) * (DT * SUBSTEPS)

    def start(self, place: Tensor, heading: Tensor, speed: Tensor, scene: Scene, still: bool) -> Tensor:
        """Return the initial motion (13, R, N) of robots at rest through the water.

        Arguments are those of `Unicycle.start`.
        """
        drift = torch.stack(flow(place[0], place[1], scene.core, scene.circulation))
        rest = torch.zeros_like(place)
        none = torch.zeros_like(heading)[None]
        return torch.cat((place, heading[None], rest if still else drift, drift, none, rest, none, rest))

    def _accelerate(
        self, vx: Tensor, vy: Tensor, wx: Tensor, wy: Tensor, r: Tensor, *loads: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return velocity through the water and yaw rate after one substep.

        Both are in the frame of the map.

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


def _look_up(table: Tensor, action: Tensor, idle: int) -> Tensor:
    """Return the columns (2, R, N) of a table (2, A) for actions (R, N).

    An action that does not exist gets the column of `idle`.
    """
    known = (action >= 0) & (action < table.shape[1])
    column = torch.where(known, action, idle)
    return contiguous_copy(table.index_select(1, column.flatten()).view(2, *action.shape))
