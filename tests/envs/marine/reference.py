"""Reference of the two marine environments, in NumPy.

It plays one world, one robot and one obstacle at a time. Written from the published description of the environments,
and from nothing in the package: it is what the batched ones are held to. Nothing is fast here.

Sources: Lin et al., "Decentralized Multi-Robot Navigation for Autonomous Surface Vehicles with Distributional
Reinforcement Learning", ICRA 2024 ("v2"), and "Distributional Reinforcement Learning Based Integrated Decision Making
and Control for Autonomous Surface Vehicles", RA-L 2025 ("v3"); vessel model: Fossen, "Handbook of Marine Craft
Hydrodynamics and Motion Control", 2011.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

DT, SUBSTEPS = 0.05, 10
GOAL_RADIUS = 2.0
CORE_RADIUS = 0.5

# What the published code does, although it means something else.
# The velocity that is observed is that at the beginning of the last substep.
LAGGED = "lagged_velocity"
# The time limit is checked before the step is counted.
LATE = "late_limit"
# The time limit is reported as an end of the task.
TERMINAL = "terminal_limit"


@dataclass
class Core:
    """A vortex: place, circulation (m²/s), and which way it turns."""

    place: np.ndarray
    circulation: float
    clockwise: bool


@dataclass
class Obstacle:
    place: np.ndarray
    radius: float


@dataclass
class Robot:
    """One robot.

    What only the vessels of v3 have stays 0 in v2.

    Attributes:
        place: Metres.
        goal: Metres.
        heading: Radians.
        speed: v2: through the water, m/s.
        through_water: v3: velocity in the world frame, m/s, and yaw rate, rad/s.
        velocity: Over ground, as stored, m/s, and yaw rate, rad/s.
        thrust: v3: left and right, newtons.
        present: Whether it is in this world at all.
        arrived: Whether it has arrived.
        collided: Whether it has collided.
        energy: Spent so far.
    """

    place: np.ndarray
    goal: np.ndarray
    heading: float
    speed: float = 0.0
    through_water: np.ndarray = field(default_factory=lambda: np.zeros(3))
    velocity: np.ndarray = field(default_factory=lambda: np.zeros(3))
    thrust: np.ndarray = field(default_factory=lambda: np.zeros(2))
    present: bool = True
    arrived: bool = False
    collided: bool = False
    energy: float = 0.0

    @property
    def active(self) -> bool:
        return self.present and not (self.arrived or self.collided)

    @property
    def distance(self) -> float:
        return float(np.linalg.norm(self.goal - self.place))


@dataclass
class Seen:
    """Observation of one robot.

    Attributes:
        own: Numbers of its own state.
        static: v2 only: numbers of the nearest obstacles.
        objects: v2: numbers of the nearest robots. v3: of everything nearest.
        clearance: Distance to the nearest, metres.
        touches: Whether it touches anything.
    """

    own: list[float]
    static: list[list[float]]
    objects: list[list[float]]
    clearance: float
    touches: bool


def rotated(vector: np.ndarray, angle: float) -> np.ndarray:
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[c, -s], [s, c]]) @ vector


def wrapped(angle: float) -> float:
    """Into [−π, π)."""
    while angle < -math.pi:
        angle += 2 * math.pi
    while angle >= math.pi:
        angle -= 2 * math.pi
    return angle


def turned(angle: float) -> float:
    """Into [0, 2π)."""
    while angle < 0:
        angle += 2 * math.pi
    while angle >= 2 * math.pi:
        angle -= 2 * math.pi
    return angle


def current(place: np.ndarray, cores: list[Core]) -> np.ndarray:
    flow = np.zeros(2)
    for core in cores:
        towards = core.place - place
        distance = float(np.linalg.norm(towards))
        if distance <= CORE_RADIUS:
            speed = core.circulation * distance / (2 * math.pi * CORE_RADIUS**2)
        else:
            speed = core.circulation / (2 * math.pi * distance)
        if distance > 0:
            flow += speed * rotated(towards / distance, math.pi / 2 if core.clockwise else -math.pi / 2)
    return flow


class World:
    """The common part of both versions: the order of a step, rewards and ends."""

    width: float
    radius: float
    sight: float
    step_reward: float
    collision_reward: float
    goal_reward: float

    def __init__(
        self,
        robots: list[Robot],
        cores: list[Core],
        obstacles: list[Obstacle],
        max_steps: int = 1000,
        quirks: Collection[str] = (),
        end_on_collision: bool = False,
    ) -> None:
        self.robots = robots
        self.cores = cores
        self.obstacles = obstacles
        self.max_steps = max_steps
        self.quirks = quirks
        self.end_on_collision = end_on_collision
        self.steps = 0

    def begin(self, feel_current: bool = True) -> None:
        for robot in self.robots:
            flow = current(robot.place, self.cores) if feel_current else np.zeros(2)
            own = robot.speed * np.array([math.cos(robot.heading), math.sin(robot.heading)])
            robot.velocity = np.array([*(own + robot.through_water[:2] + flow), robot.through_water[2]])

    def step(self, actions: list[object], noise: np.ndarray | None = None) -> dict[str, Any]:
        """Play one action of every robot.

        In v3 `noise` (R, J, 5) is what is added to the position and the velocity of each object as each robot observes
        it, and the angle drawn for its radius. Objects are the obstacles and then the robots.

        Returns:
            Rewards, ends and observations of each robot; the observation is None for one that took no part.
        """
        taking_part = [robot.active for robot in self.robots]
        rewards = [0.0] * len(self.robots)
        for i, robot in enumerate(self.robots):
            if taking_part[i]:
                before = robot.distance
                self.move(robot, actions[i])
                rewards[i] = self.step_reward + before - robot.distance
        counted = self.steps if LATE in self.quirks else self.steps + 1
        late = counted >= self.max_steps
        seen = self.look(noise)
        for i, robot in enumerate(self.robots):
            view = seen[i]
            if view is None:
                continue
            rewards[i] += self.rule_reward(robot, view)
            if late:
                continue
            if view.touches:
                rewards[i] += self.collision_reward
            elif robot.distance <= GOAL_RADIUS:
                rewards[i] += self.goal_reward
        for i, robot in enumerate(self.robots):
            view = seen[i]
            if view is not None and not late:
                robot.collided = view.touches
                robot.arrived = robot.distance <= GOAL_RADIUS and not view.touches
        self.steps += 1
        return {"rewards": rewards, "seen": seen, **self.ends(late)}

    def ends(self, late: bool) -> dict[str, Any]:
        """Who is done after a step, and whether the episode is."""
        everybody = not any(robot.active for robot in self.robots)
        crash = self.end_on_collision and any(robot.collided for robot in self.robots)
        done = everybody or late or crash
        terminated, truncated = [], []
        for robot in self.robots:
            cut = robot.active and done
            terminal = cut and late and TERMINAL in self.quirks
            terminated.append(robot.arrived or robot.collided or terminal)
            truncated.append(cut)
        return {
            "terminated": terminated,
            "truncated": truncated,
            "done": done,
            "all_terminated": everybody or crash or (late and TERMINAL in self.quirks),
            "all_truncated": late,
            "success": all(robot.arrived for robot in self.robots if robot.present),
        }

    def look(self, noise: np.ndarray | None = None) -> list[Seen | None]:
        return [
            self.sees(i, None if noise is None else noise[i]) if robot.active else None
            for i, robot in enumerate(self.robots)
        ]

    def others(self, i: int) -> list[tuple[int, Robot]]:
        return [(j, robot) for j, robot in enumerate(self.robots) if j != i and robot.active]

    def detected(self, gap: float, radius: float) -> bool:
        return gap <= self.sight + radius

    def move(self, robot: Robot, action: Any) -> None:
        raise NotImplementedError

    def sees(self, i: int, noise: np.ndarray | None) -> Seen:
        raise NotImplementedError

    def rule_reward(self, robot: Robot, view: Seen) -> float:
        return 0.0


class World2(World):
    width = 50.0
    radius = 0.8
    sight = 15.0
    step_reward = -1.0
    collision_reward = -50.0
    goal_reward = 100.0
    detection_radius = 0.5 * math.sqrt(1.0**2 + 0.5**2)
    max_speed = 2.0
    drag = 0.2
    accelerations = (-0.4, 0.0, 0.4)
    turns = (-math.pi / 6, 0.0, math.pi / 6)

    def move(self, robot: Robot, action: int) -> None:
        acceleration, turn = self.accelerations[action // 3], self.turns[action % 3]
        for _ in range(SUBSTEPS):
            robot.velocity[:2] = self.over_ground(robot)
            robot.place = robot.place + robot.velocity[:2] * DT
            robot.speed = robot.speed + (acceleration - self.drag * robot.speed) * DT
            robot.speed = min(max(robot.speed, 0.0), self.max_speed)
            robot.heading = turned(robot.heading + turn * DT)
        if LAGGED not in self.quirks:
            robot.velocity[:2] = self.over_ground(robot)
        robot.energy += abs(acceleration) / 0.4 + abs(turn) / (math.pi / 6)

    def over_ground(self, robot: Robot) -> np.ndarray:
        own = robot.speed * np.array([math.cos(robot.heading), math.sin(robot.heading)])
        return own + current(robot.place, self.cores)

    def sees(self, i: int, noise: np.ndarray | None) -> Seen:
        robot = self.robots[i]
        own = [*rotated(robot.goal - robot.place, -robot.heading), *rotated(robot.velocity[:2], -robot.heading)]
        static = []
        dynamic = []
        touches = False
        for obstacle in self.obstacles:
            place = rotated(obstacle.place - robot.place, -robot.heading)
            gap = float(np.linalg.norm(place))
            if self.detected(gap, obstacle.radius):
                clearance = gap - obstacle.radius - self.radius
                touches = touches or clearance <= 0
                static.append((clearance, [*place, obstacle.radius]))
        for _, other in self.others(i):
            place = rotated(other.place - robot.place, -robot.heading)
            gap = float(np.linalg.norm(place))
            if self.detected(gap, self.detection_radius):
                clearance = gap - 2 * self.radius
                touches = touches or clearance <= 0
                dynamic.append((clearance, [*place, *rotated(other.velocity[:2], -robot.heading)]))
        static.sort(key=lambda item: item[0])
        dynamic.sort(key=lambda item: item[0])
        nearest = min([clearance for clearance, _ in static + dynamic], default=self.sight)
        return Seen(own, [o for _, o in static[:5]], [o for _, o in dynamic[:5]], nearest, touches)


class World3(World):
    width = 55.0
    sight = 20.0
    radius = 0.5 * math.sqrt(5.0**2 + 2.5**2)
    step_reward = -0.1
    collision_reward = -5.0
    goal_reward = 10.0
    rule_weight = -0.1
    levels = (0.0, -500.0, -1000.0, 500.0, 1000.0)

    def command(self, action: Any) -> np.ndarray:
        """Newtons per second of the left and the right thruster."""
        if np.ndim(action) == 0:
            return np.array([self.levels[int(action) // 5], self.levels[int(action) % 5]])
        return 1000.0 * np.asarray(action, dtype=np.float64)

    def move(self, robot: Robot, action: Any) -> None:
        for substep in range(SUBSTEPS):
            robot.velocity = robot.through_water + np.array([*current(robot.place, self.cores), 0.0])
            robot.place = robot.place + robot.velocity[:2] * DT
            robot.heading = turned(robot.heading + robot.velocity[2] * DT)
            if substep == 0:
                robot.thrust = np.clip(robot.thrust + self.command(action) * DT * SUBSTEPS, -500.0, 1000.0)
            self.accelerate(robot)
        if LAGGED not in self.quirks:
            robot.velocity = robot.through_water + np.array([*current(robot.place, self.cores), 0.0])
        robot.energy += float(np.abs(robot.thrust).sum()) * DT * SUBSTEPS

    def accelerate(self, robot: Robot) -> None:
        """One substep of A ν̇_r = −C_RB ν − (C_A + D + D_n) ν_r + τ."""
        u, v = rotated(robot.velocity[:2], -robot.heading)
        u_r, v_r = rotated(robot.through_water[:2], -robot.heading)
        r = robot.velocity[2]
        mass, added = 400.0, 20.0
        inertia = np.diag([mass - added, mass, 450.0 + 980.0])
        rigid = np.array([[0.0, -mass * r, 0.0], [mass * r, 0.0, 0.0], [0.0, 0.0, 0.0]])
        added_mass = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, -added * u_r], [0.0, added * u_r, 0.0]])
        linear = np.diag([100.0, 100.0, 980.0])
        quadratic = np.diag([150.0 * abs(u_r), 150.0 * abs(v_r), 950.0 * abs(r)])
        left, right = robot.thrust
        tau = np.array([left + right, 0.0, (left - right) * 1.25])
        relative = np.array([u_r, v_r, r])
        force = -rigid @ np.array([u, v, r]) - (added_mass + linear + quadratic) @ relative + tau
        relative = relative + np.linalg.solve(inertia, force) * DT
        robot.through_water = np.array([*rotated(relative[:2], robot.heading), relative[2]])

    def sees(self, i: int, noise: np.ndarray | None) -> Seen:
        robot = self.robots[i]
        own = [
            *rotated(robot.goal - robot.place, -robot.heading),
            *rotated(robot.velocity[:2], -robot.heading),
            robot.velocity[2],
            *robot.thrust,
        ]
        objects = [(k, o.place, np.zeros(2), o.radius) for k, o in enumerate(self.obstacles)]
        first = len(self.obstacles)
        objects += [(first + j, o.place, o.velocity[:2], self.radius) for j, o in self.others(i)]
        found, touches = [], False
        for k, true_place, true_velocity, true_radius in objects:
            errors = np.zeros(5) if noise is None else noise[k]
            place = rotated(true_place + errors[:2] - robot.place, -robot.heading)
            velocity = rotated(true_velocity + errors[2:4], -robot.heading)
            radius = 0.8 * true_radius + 0.2 * true_radius * errors[4] / math.pi if noise is not None else true_radius
            gap = float(np.linalg.norm(place))
            if not self.detected(gap, radius):
                continue
            true_gap = float(np.linalg.norm(true_place - robot.place))
            touches = touches or true_gap - true_radius - self.radius <= 0
            found.append((gap - radius - self.radius, [*place, *velocity, radius]))
        found.sort(key=lambda item: item[0])
        nearest = found[0][0] if found else self.sight
        return Seen(own, [], [o for _, o in found[:5]], nearest, touches)

    def rule_reward(self, robot: Robot, view: Seen) -> float:
        velocity = rotated(robot.velocity[:2], -robot.heading)
        for seen in view.objects:
            phi = self.rule_angle(np.array(seen[:2]), np.array(seen[2:4]), seen[4], velocity)
            if phi > 0:
                return self.rule_weight * phi
        return 0.0

    def rule_angle(self, place: np.ndarray, velocity: np.ndarray, radius: float, own: np.ndarray) -> float:
        """By how much to turn to starboard for one object, or 0 if no rule asks for it.

        Everything is in the robot's frame.
        """
        if np.linalg.norm(velocity) < 0.5 or np.linalg.norm(own) < 0.5:
            return 0.0
        course = math.atan2(velocity[1], velocity[0])
        x, y = rotated(-place, -course)
        approach = rotated(own, -course)
        angle = math.atan2(approach[1], approach[0])
        head_on = 0 <= x <= 17 and abs(y) <= 4.5 and abs(angle) > 3 * math.pi / 4
        in_front = y + 7 > -7 / 12 * (x - 12)
        from_left = -9 <= x <= 12 and -17 <= y <= 0 and not in_front and math.pi / 4 <= angle <= 3 * math.pi / 4
        if not (head_on or from_left):
            return 0.0
        distance, wide = float(np.linalg.norm(place)), radius + 1
        if distance < wide:
            return 0.0
        bearing = math.atan2(place[1], place[0])
        tangent = math.sqrt(distance**2 - wide**2)
        desired = bearing + math.asin(wide / distance) + math.atan2(self.radius, tangent)
        return max(wrapped(desired - math.atan2(own[1], own[0])), 0.0)
