"""Overlays on a world seen from above.

They show the detection ranges, next actions and action values of robots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from torchrl_gpu.envs.marine.dynamics import ACCELERATION, MAX_SPEED, THRUST_LEVELS, TURN
from torchrl_gpu.envs.marine.types import CRAFTS
from torchrl_gpu.envs.marine.viewer import HULLS, SAND, Chart, Snapshot, draw, robot_colors
from torchrl_gpu.envs.packing.render.legend import FAINT, Legend, heat, rectangle, shares_of

FASTER = "#1d8a4a"
SAME_SPEED = "#2b333d"
SLOWER = "#d0342c"

# An arrow shows this much time, at no less than this speed: a robot that stands still has an arrow, too.
HORIZON_S = 3.0
LEAST_SPEED = 0.8  # m/s

# Length of the bar of a full thruster command.
BAR = 3.5  # m


class Choice(NamedTuple):
    """Next actions of the robots of one world.

    Attributes:
        action: Discrete actions, (R,) int, or commands of both thrusters, (R, 2) float.
        active: Robots that act.
        speed: Speeds over ground.
    """

    action: np.ndarray
    active: np.ndarray  # (R,) bool
    speed: np.ndarray  # (R,), m/s


def draw_range(
    world: Snapshot, trail: np.ndarray, active: np.ndarray, clearance: np.ndarray, width: int, height: int
) -> np.ndarray:
    """Draw the robots' detection ranges and their clearances, (H, W, 3) uint8.

    Robots that are `active` (R,) bool detect; `clearance` (R,) is metres from the hull, the range where there is
    nothing. Trails are those of `viewer.draw`.
    """
    sheet = _Sheet(world, trail, width, height, "detection")
    craft = CRAFTS[world.version]
    for i in np.flatnonzero(active).tolist():
        sheet.ring(world.place[i], craft.sight, sheet.colors[i], 1)
    for i in np.flatnonzero(active).tolist():
        if clearance[i] < craft.sight:
            sheet.ring(world.place[i], max(0.0, float(clearance[i])) + craft.radius, SLOWER, 2)
    sheet.legend.text(f"thin ring: sees {craft.sight:g} m")
    sheet.legend.text("thick red ring: room to", fill=SLOWER)
    sheet.legend.text("the nearest thing seen", fill=SLOWER)
    sheet.legend.gap()
    for i in np.flatnonzero(active).tolist():
        seen = "nothing near"
        if clearance[i] < craft.sight:
            seen = f"{clearance[i]:.1f} m"
        sheet.legend.swatch(sheet.colors[i], seen)
    return sheet.finish()


def draw_actions(world: Snapshot, trail: np.ndarray, choice: Choice, width: int, height: int) -> np.ndarray:
    """Draw the robots' next actions, (H, W, 3) uint8.

    Unicycles have arrows, and thrusters have bars.
    """
    sheet = _Sheet(world, trail, width, height, "next actions")
    sheet.act(choice)
    sheet.explain()
    return sheet.finish()


def draw_values(
    world: Snapshot, trail: np.ndarray, choice: Choice, values: np.ndarray, width: int, height: int
) -> np.ndarray:
    """Draw the next actions, and a table of each robot's action values (R, A)."""
    sheet = _Sheet(world, trail, width, height, "Q of actions")
    sheet.act(choice)
    rows, columns = ("faster, slower", "left, right") if world.version == "v2" else ("left thruster", "right one")
    sheet.legend.text(f"down: {rows}", scale=0.85, fill=FAINT)
    sheet.legend.text(f"across: {columns}", scale=0.85, fill=FAINT)
    sheet.legend.bar(heat(np.linspace(0, 1, 64)), "worst", "best")
    robots = np.flatnonzero(choice.active).tolist()
    if not robots:
        sheet.legend.text("nobody acts")
        return sheet.finish()
    room = (height - sheet.legend.y) // len(robots)
    for i in robots:
        sheet.table(i, *lay_out(values[i], int(choice.action[i]), world.version), room)
    return sheet.finish()


def lay_out(values: np.ndarray, action: int, version: str) -> tuple[np.ndarray, tuple[int, int]]:
    """Return the table of a robot's action values, and the place of its action in it.

    v2: rows faster, steady, slower; columns left, ahead, right. v3: from full ahead to full astern, rows of the left
    thruster and columns of the right one.
    """
    side = math.isqrt(len(values))
    order = [2, 1, 0] if version == "v2" else np.argsort(THRUST_LEVELS)[::-1].tolist()
    row = order.index(action // side)
    column = order.index(action % side)
    table = values.reshape(side, side)[np.ix_(order, order)]
    return table, (row, column)


class _Sheet:
    def __init__(self, world: Snapshot, trail: np.ndarray, width: int, height: int, title: str) -> None:
        side = max(16, min(height, round(0.7 * width)))
        self.world = world
        self.chart = Chart(world.version, world.side, side, side)
        self.image = Image.new("RGB", (width, height), SAND)
        self.top = (height - side) // 2
        self.map = Image.fromarray(draw(world, trail, width=side, height=side))
        # The pen draws on the map alone, so that rings end at its edge.
        self.pen = ImageDraw.Draw(self.map)
        self.colors = robot_colors(len(world.place))
        size = max(7, round(min(height / 26, width / 40)))
        self.legend = Legend(self.image, side + size // 2, size, width - size // 2, size)
        self.legend.text(title, scale=1.25)
        self.legend.gap(0.3)

    def ring(self, place: np.ndarray, radius: float, color: str, width: int) -> None:
        """Draw a circle, with position and radius in metres."""
        x, y = self.chart.pixels(place[None])[0]
        size = radius * self.chart.scale
        self.pen.ellipse((x - size, y - size, x + size, y + size), outline=color, width=width)

    def act(self, choice: Choice) -> None:
        for i in np.flatnonzero(choice.active).tolist():
            if self.world.version == "v2":
                self._arrow(i, int(choice.action[i]), float(choice.speed[i]))
            else:
                levels = choice.action[i]
                if levels.ndim == 0:
                    left, right = divmod(int(levels), len(THRUST_LEVELS))
                    levels = (THRUST_LEVELS[left], THRUST_LEVELS[right])
                self._thrusters(i, [float(level) for level in levels])

    def explain(self) -> None:
        v2 = self.world.version == "v2"
        self.legend.text("the way in the next 3 s" if v2 else "change of each thruster")
        self.legend.text("without the current" if v2 else "the longer, the more", fill=FAINT)
        self.legend.gap()
        self.legend.swatch(FASTER, "faster" if v2 else "more ahead")
        if v2:
            self.legend.swatch(SAME_SPEED, "as fast as now")
        self.legend.swatch(SLOWER, "slower" if v2 else "more astern")

    def table(self, robot: int, values: np.ndarray, place: tuple[int, int], room: int) -> None:
        """Draw a robot's action values, the chosen one framed."""
        legend = self.legend
        pen = legend.pen
        side = len(values)
        cell = max(2, min((legend.right - legend.left) // (side + 5), (room - 4) // side))
        left = legend.left + legend.size
        top = legend.y
        rectangle(pen, (legend.left, top, legend.left + legend.size // 2, top + side * cell), fill=self.colors[robot])
        shares, _, high = shares_of(values)
        tile = Image.fromarray(heat(shares)).resize((side * cell, side * cell), Image.Resampling.NEAREST)
        self.image.paste(tile, (left, top))
        row, column = place
        box = (left + column * cell, top + row * cell, left + (column + 1) * cell - 1, top + (row + 1) * cell - 1)
        rectangle(pen, box, outline="#000000", width=max(1, cell // 6 + 1))
        rectangle(pen, (box[0] + 1, box[1] + 1, box[2] - 1, box[3] - 1), outline="#ffffff")
        words = Legend(self.image, left + side * cell + legend.size // 2, top, legend.right, legend.size)
        words.text(f"{high:.3g}", scale=0.9)
        words.text("at best", scale=0.75, fill=FAINT)
        legend.y = top + side * cell + min(8, max(2, room - side * cell))

    def finish(self) -> np.ndarray:
        self.image.paste(self.map, (0, self.top))
        return np.asarray(self.image)

    def _arrow(self, robot: int, action: int, speed: float) -> None:
        """Draw the path of a unicycle that keeps its action, in still water."""
        push = action // 3 - 1
        turn = action % 3 - 1
        place = self.world.place[robot].copy()
        heading = float(self.world.heading[robot])
        way = [place.copy()]
        step = HORIZON_S / 12
        for _ in range(12):
            pushed = speed + push * ACCELERATION * step
            speed = min(max(pushed, LEAST_SPEED), MAX_SPEED)
            heading += turn * TURN * step
            place += speed * step * _axes(heading)[0]
            way.append(place.copy())
        color = (SLOWER, SAME_SPEED, FASTER)[push + 1]
        width = max(2, self.chart.length(0.35))
        self.pen.line(self.chart.pixels(np.stack(way)), fill=color, width=width, joint="curve")
        self._head(way[-1], heading, color)

    def _head(self, place: np.ndarray, heading: float, color: str) -> None:
        ahead, aside = _axes(heading)
        corners = np.stack([place + 1.3 * ahead, place + 0.8 * aside, place - 0.8 * aside])
        self.pen.polygon(self.chart.pixels(corners), fill=color)

    def _thrusters(self, robot: int, levels: Sequence[float]) -> None:
        """Draw a bar ahead or astern of the middle of each side.

        Yaw is clockwise, so the left side is that of −y.
        """
        heading = float(self.world.heading[robot])
        _, beam = HULLS[self.world.version]
        ahead, right = _axes(heading)
        for sign, level in zip((-1, 1), levels, strict=True):
            begin = self.world.place[robot] + sign * (0.5 * beam + 0.5) * right
            way = np.stack([begin, begin + level * BAR * ahead])
            color = FASTER if level > 0 else SLOWER
            if abs(level) > 0.02:
                self.pen.line(self.chart.pixels(way), fill=color, width=max(2, self.chart.length(0.5)))
                direction = heading if level > 0 else heading + math.pi
                self._head(way[1], direction, color)


def _axes(heading: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the unit vectors ahead, and aside: a quarter turn from x to y."""
    cos, sin = math.cos(heading), math.sin(heading)
    return np.array([cos, sin]), np.array([-sin, cos])
