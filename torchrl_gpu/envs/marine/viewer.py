"""Pictures of a world seen from above.

They show water, obstacles, and robots with their goals and trails. They are drawn on the host, since a picture is small
and made from a few hundred numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from PIL import Image, ImageDraw
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.envs.marine.dynamics import flow
from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.marine.types import CORE_RADIUS, FAR, GOAL_RADIUS, HEADING, PLACE
from torchrl_gpu.envs.packing.render.palette import item_colors
from torchrl_gpu.envs.pictures import save_gif, save_png

__all__ = ["Snapshot", "draw", "film", "render", "save_gif", "save_png", "snapshot"]

SUPERSAMPLE = 2

# Width of the border around the map.
MARGIN = 1.5  # m

# Colours (sRGB) of still water, and of water at `FAST_SPEED`.
CALM = np.array([236.0, 242.0, 247.0])
FAST = np.array([120.0, 170.0, 210.0])
FAST_SPEED = 3.0  # m/s

SAND = "#f3f4f6"
FRAME = "#8b97a5"
STREAK = "#ffffff"
OBSTACLE = "#5f6b78"
EDGE = "#26303b"
CRASH = "#d0342c"

# Streaks along the flow: distance between two of them, points of each, and distance between points.
STREAK_SPACING = 2.5  # m
STREAK_POINTS = 12
STREAK_STEP = 0.16  # m

# Length and width of a hull as it is drawn, metres. That of v2 is larger than in the dynamics.
HULLS = {"v2": (1.6, 1.0), "v3": (5.0, 2.5)}
TRAIL_WIDTH = 0.22  # m

Polygon = list[tuple[float, float]]


@dataclass(frozen=True)
class Snapshot:
    """One world at one moment, on the host.

    Attributes:
        version: "v2" or "v3".
        side: Side of the map.
        place: Positions of the robots.
        heading: Headings of the robots.
        goal: Goals of the robots.
        exists: Robots that the world has.
        arrived: Robots that have reached their goals.
        collided: Robots that have met something.
        core: Place and circulation over 2π of each core.
        obstacle: Place and radius of each obstacle.
    """

    version: str
    side: float  # metres
    place: np.ndarray  # (R, 2), metres
    heading: np.ndarray  # (R,), radians
    goal: np.ndarray  # (R, 2), metres
    exists: np.ndarray  # (R,) bool
    arrived: np.ndarray  # (R,) bool
    collided: np.ndarray  # (R,) bool
    core: np.ndarray  # (C, 3)
    obstacle: np.ndarray  # (M, 3), metres


def snapshot(env: MarineNavEnv, index: int) -> Snapshot:
    """Take a snapshot of the world of one environment.

    Reads the device.
    """
    s = env.state
    scene = env.scene
    cores = torch.cat((scene.core[:, :, 0, index], scene.circulation[None, :, 0, index]))
    obstacles = torch.cat((scene.obstacle[..., index], scene.obstacle_radius[None, :, index]))
    exists = s.exists[:, index].cpu().numpy()
    arrived = s.arrived[:, index].cpu().numpy()
    collided = s.collided[:, index].cpu().numpy()
    place = _host(s.motion[PLACE, :, index].t())
    heading = _host(s.motion[HEADING, :, index])
    goal = _host(scene.goal[..., index].t())
    return Snapshot(
        version=env.version,
        side=env.craft.side,
        place=place,
        heading=heading,
        goal=goal,
        exists=exists,
        arrived=arrived,
        collided=collided,
        core=_there(_host(cores.t())),
        obstacle=_there(_host(obstacles.t())),
    )


def render(env: MarineNavEnv, index: int | Sequence[int] = 0, *, width: int = 640, height: int = 640) -> Tensor:
    """Draw the world of one environment, (H, W, 3), or of several, (B, H, W, 3).

    Pictures are uint8, RGB, on the CPU.
    """
    several = [index] if isinstance(index, int) else index
    drawn = [draw(snapshot(env, i), width=width, height=height) for i in several]
    pictures = torch.from_numpy(np.stack(drawn))
    return pictures[0] if isinstance(index, int) else pictures


def film(
    env: MarineNavEnv,
    policy: Callable[[TensorDictBase], TensorDictBase],
    *,
    index: int = 0,
    steps: int = 300,
    width: int = 480,
    height: int = 480,
) -> Tensor:
    """Draw one episode of a policy, with the trails, as frames (T, H, W, 3) uint8.

    Frames are on the CPU, one for the start and one for each step. The environment is reset and played until the
    episode of `index` is over, or for `steps` steps.
    """
    current = env.reset()
    seen = [snapshot(env, index)]
    for _ in range(steps):
        current = env.step(policy(current))["next"].exclude("reward", ("robots", "reward"))
        seen.append(snapshot(env, index))
        if current["done"][index]:
            break
    trail = np.stack([each.place for each in seen])  # (T, R, 2)
    frames = [draw(each, trail[: t + 1], width=width, height=height) for t, each in enumerate(seen)]
    return torch.from_numpy(np.stack(frames))


def draw(world: Snapshot, trail: np.ndarray | None = None, *, width: int = 640, height: int = 640) -> np.ndarray:
    """Draw one world, with trails through the positions (T, R, 2) of its robots.

    The picture is uint8 (H, W, 3), RGB.
    """
    chart = Chart(world.version, world.side, width * SUPERSAMPLE, height * SUPERSAMPLE)
    image = _water(chart, world.core.tobytes()).copy()
    pen = ImageDraw.Draw(image)
    for x, y, radius in world.obstacle:
        _disc(pen, chart, (x, y), radius, fill=OBSTACLE)
    colors = robot_colors(len(world.place))
    for i in np.flatnonzero(world.exists).tolist():
        fill, middle = (colors[i], SAND) if world.arrived[i] else (None, colors[i])
        _disc(pen, chart, world.goal[i], GOAL_RADIUS, outline=colors[i], fill=fill, width=chart.length(0.25))
        _disc(pen, chart, world.goal[i], 0.35, fill=middle)
        if trail is not None and len(trail) > 1:
            pen.line(chart.pixels(trail[:, i]), fill=colors[i], width=chart.length(TRAIL_WIDTH), joint="curve")
            _disc(pen, chart, trail[0, i], 2 * TRAIL_WIDTH, fill=colors[i])
    for i in np.flatnonzero(world.exists & ~world.arrived).tolist():
        _robot(pen, chart, world, i, colors[i])
    return np.asarray(image.resize((width, height), Image.Resampling.LANCZOS))


@dataclass(frozen=True)
class Chart:
    """Mapping from metres to pixels.

    North is up: it is x in v3, whose yaw is clockwise, and y in v2.
    """

    version: str
    side: float
    width: int
    height: int

    @property
    def scale(self) -> float:
        """Pixels per metre."""
        shown_side = self.side + 2 * MARGIN
        return min(self.width, self.height) / shown_side

    def pixels(self, place: np.ndarray) -> Polygon:
        """Return the pixel coordinates of positions (K, 2)."""
        east, north = (place[:, 1], place[:, 0]) if self.version == "v3" else (place[:, 0], place[:, 1])
        middle = self.side / 2
        x = self.width / 2 + (east - middle) * self.scale
        y = self.height / 2 - (north - middle) * self.scale
        return list(zip(x.tolist(), y.tolist(), strict=True))

    def length(self, metres: float) -> int:
        """Return a length in whole pixels, at least one."""
        return max(1, round(metres * self.scale))


@lru_cache(maxsize=16)
def _water(chart: Chart, cores: bytes) -> Image.Image:
    """Draw the map with its currents.

    Faster water is bluer, and streaks follow the flow. Cached, since frames share it.
    """
    core = np.frombuffer(cores).reshape(-1, 3)
    image = Image.new("RGB", (chart.width, chart.height), SAND)
    cells = 160
    axis = (np.arange(cells) + 0.5) * chart.side / cells
    by_axis = np.meshgrid(axis, axis, indexing="ij")
    middles = np.stack(by_axis, -1).reshape(-1, 2)
    speed = np.linalg.norm(_flow(core, middles), axis=1)
    share_of_fast = np.clip(speed / FAST_SPEED, 0, 1)
    share = share_of_fast.reshape(cells, cells, 1) ** 0.7
    grid = (CALM + (FAST - CALM) * share).astype(np.uint8)
    grid = grid[::-1] if chart.version == "v3" else grid.transpose(1, 0, 2)[::-1]
    (left, low), (right, high) = chart.pixels(np.array([[0.0, 0.0], [chart.side, chart.side]]))
    box = round(left), round(high), round(right), round(low)
    sea = Image.fromarray(np.ascontiguousarray(grid)).resize(
        (box[2] - box[0], box[3] - box[1]), Image.Resampling.BICUBIC
    )
    image.paste(sea, box[:2])
    pen = ImageDraw.Draw(image)
    if len(core):
        for line in _streaks(core, chart.side):
            pen.line(chart.pixels(line), fill=STREAK, width=chart.length(0.09), joint="curve")
            _disc(pen, chart, (line[-1, 0], line[-1, 1]), 0.13, fill=STREAK)
    for x, y, _ in core:
        _disc(pen, chart, (x, y), CORE_RADIUS, outline=FRAME, width=chart.length(0.12))
    pen.rectangle(box, outline=FRAME, width=chart.length(0.1))
    return image


def _streaks(core: np.ndarray, side: float) -> np.ndarray:
    """Return short lines along the flow, (K, points, 2).

    They point in its direction, and are longer in faster water.
    """
    axis = np.arange(STREAK_SPACING / 2, side, STREAK_SPACING)
    by_axis = np.meshgrid(axis, axis, indexing="ij")
    at = np.stack(by_axis, -1).reshape(-1, 2)
    points = [at]
    for _ in range(STREAK_POINTS - 1):
        velocity = _flow(core, at)
        at = at + velocity * (STREAK_STEP / np.maximum(np.linalg.norm(velocity, axis=1, keepdims=True), 1.0))
        points.append(at)
    return np.stack(points, 1)


def _flow(core: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return the velocity of the water at positions (K, 2), m/s, (K, 2)."""
    x, y = torch.from_numpy(place.T.copy()).unsqueeze(-1)  # (K, 1)
    at = torch.from_numpy(core[:, :2].T.copy())
    circulation = torch.from_numpy(core[:, 2].copy())
    return torch.cat(flow(x, y, at[:, :, None, None], circulation[:, None, None]), 1).numpy()


def _robot(pen: ImageDraw.ImageDraw, chart: Chart, world: Snapshot, i: int, color: str) -> None:
    """Draw a hull with its bow ahead, crossed out after a collision."""
    length, beam = HULLS[world.version]
    outline = np.array([[0.5, 0.0], [0.15, 0.5], [-0.5, 0.5], [-0.5, -0.5], [0.15, -0.5]]) * (length, beam)
    cos = math.cos(world.heading[i])
    sin = math.sin(world.heading[i])
    turned = outline @ np.array([[cos, sin], [-sin, cos]]) + world.place[i]
    crash = bool(world.collided[i])
    edge, width = (CRASH, 0.4) if crash else (EDGE, 0.12)
    pen.polygon(chart.pixels(turned), fill=color, outline=edge, width=chart.length(width))
    for side in (1, -1) if crash else ():
        reach = np.array([1, side]) * 0.6 * length
        pen.line(chart.pixels(world.place[i] + np.stack((-reach, reach))), fill=CRASH, width=chart.length(0.4))


def _disc(
    pen: ImageDraw.ImageDraw, chart: Chart, place: Sequence[float] | np.ndarray, radius: float, **how: object
) -> None:
    x, y = chart.pixels(np.asarray(place, dtype=np.float64)[None])[0]
    size = radius * chart.scale
    pen.ellipse((x - size, y - size, x + size, y + size), **how)  # type: ignore[arg-type]


def robot_colors(count: int) -> list[str]:
    """Return colours "#rrggbb" of robots, darker than those of items on a bright sea."""
    rgb = (item_colors(torch.arange(count, dtype=torch.int64, device="cpu")) * 190).round().to(torch.uint8)
    return ["#{:02x}{:02x}{:02x}".format(*row) for row in rgb.tolist()]


def _host(part: Tensor) -> np.ndarray:
    return part.detach().double().cpu().numpy().copy()


def _there(rows: np.ndarray) -> np.ndarray:
    """Return the rows of objects that exist: missing ones are `FAR` away."""
    return np.ascontiguousarray(rows[rows[:, 0] < FAR / 2])
