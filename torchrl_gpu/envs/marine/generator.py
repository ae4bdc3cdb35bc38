"""World generation by rejection sampling, and the world pool on the device.

Starts, goals, vortex cores and obstacles are drawn by counter on the CPU in float64, with sums, products and square
roots alone: a seed gives the same worlds on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache

import torch
from torch import Tensor

from torchrl_gpu.envs.counter_rng import draw_bits, episode_key
from torchrl_gpu.envs.marine.dynamics import Unicycle, Vessel
from torchrl_gpu.envs.marine.levels import Level, Sizes
from torchrl_gpu.envs.marine.sensors import Sight, object_mask, observation
from torchrl_gpu.envs.marine.types import CORE_RADIUS, FAR, OBSTACLE_RADIUS, Craft, Scene, contiguous_copy

# Candidates for each kind of object in a world, and worlds for each place in the pool.
DRAWS = 500
MOST_ROUNDS = 100

# Least distances from the edge of the map.
START_MARGIN = 2.0  # m
OBSTACLE_MARGIN = 5.0  # m

# Largest relative speed of two like currents where they meet.
MOST_RELATIVE_SPEED = 1.0  # m/s

# Largest share of a core's own edge speed that an unlike neighbour may bring to it.
MOST_SHARE = 0.8

# Largest speed of a unicycle at its start.
MAX_START_SPEED = 2.0  # m/s

# First counters of the draws of each kind, far enough apart that no two kinds share a draw.
_ROBOTS = 0 << 20
_CORES = 1 << 20
_OBSTACLES = 2 << 20
_HEADINGS = 3 << 20
_SPEEDS = 4 << 20
_ROUNDS = 5 << 20


@dataclass
class Worlds:
    """P worlds, in float64.

    Missing objects are `FAR` away. Missing cores have no circulation, and missing robots no speed.

    Attributes:
        start: Starts of the robots.
        goal: Goals of the robots.
        heading: Headings at the start, in [0, 2π).
        speed: v2: speeds through the water at the start.
        core: Centres of the vortex cores.
        circulation: Circulation over 2π, m²/s, (P, C); positive for a core that turns clockwise.
        obstacle: Centres of the obstacles.
        num_robots: Number of robots placed.
        num_cores: Number of cores placed.
        num_obstacles: Number of obstacles placed.
    """

    start: Tensor  # (P, R, 2), metres
    goal: Tensor  # (P, R, 2), metres
    heading: Tensor  # (P, R), radians
    speed: Tensor  # (P, R), m/s
    core: Tensor  # (P, C, 2), metres
    circulation: Tensor
    obstacle: Tensor  # (P, M, 2), metres
    num_robots: Tensor  # (P,) int64
    num_cores: Tensor  # (P,) int64
    num_obstacles: Tensor  # (P,) int64

    def __len__(self) -> int:
        return len(self.start)


@lru_cache(maxsize=4)
def generate(craft: Craft, levels: tuple[Level, ...], pool: int, seed: int, quirks: frozenset[str]) -> Worlds:
    """Return the worlds of a curriculum, `pool` of each level, level after level.

    Of the quirks, "fewer_objects" keeps worlds for which `DRAWS` candidates did not suffice, instead of drawing others,
    and "touching_cores" lets unlike cores overlap.

    Raises:
        ValueError: The map has no room for a level.
    """
    number = torch.arange(len(levels) * pool, dtype=torch.int64, device="cpu")
    level = number // pool
    key = episode_key(seed, level, number % pool)
    worlds = _draw(craft, levels, level, key, quirks)
    if "fewer_objects" in quirks:
        return worlds
    for attempt in range(1, MOST_ROUNDS):
        short = _short(worlds, levels, level)
        if not len(short):
            return worlds
        # By each world's own key, so that it does not depend on which others had to be drawn again.
        again = draw_bits(key[short], torch.tensor(_ROUNDS + attempt, dtype=torch.int64, device="cpu"))
        fresh = _draw(craft, levels, level[short], again, quirks)
        for field in fields(Worlds):
            getattr(worlds, field.name)[short] = getattr(fresh, field.name)
    short = _short(worlds, levels, level)
    if len(short):
        wanted = levels[int(level[short[0]])]
        raise ValueError(
            f"MarineNavEnv: {MOST_ROUNDS} trials found no room on a map of {craft.side:g} m for {wanted.robots} robots,"
            f" {wanted.cores} cores and {wanted.obstacles} obstacles with goals at least {wanted.min_distance:g} m from"
            " their starts: lower one of these numbers"
        )
    return worlds


def _short(worlds: Worlds, levels: tuple[Level, ...], level: Tensor) -> Tensor:
    made = torch.stack((worlds.num_robots, worlds.num_cores, worlds.num_obstacles), 1)
    return (made < _wanted(levels)[level]).any(1).nonzero().squeeze(1)


def _wanted(levels: tuple[Level, ...]) -> Tensor:
    counts = [tuple(level[1:4]) for level in levels]
    return torch.tensor(counts, dtype=torch.int64, device="cpu")


def _draw(craft: Craft, levels: tuple[Level, ...], level: Tensor, key: Tensor, quirks: frozenset[str]) -> Worlds:
    """Draw one world of the level (P,) for each key (P,)."""
    sizes = Sizes.of(levels)
    wanted = _wanted(levels)[level]
    distances = [each.min_distance for each in levels]
    least = torch.tensor(distances, dtype=torch.float64, device="cpu")[level]
    start, goal, robots = _place_robots(craft, key, wanted[:, 0], least, sizes.robots)
    core, circulation, cores = _place_cores(craft, key, wanted[:, 1], sizes.cores, start, goal, quirks)
    obstacle, obstacles = _place_obstacles(craft, key, wanted[:, 2], sizes.obstacles, start, goal, core)
    heading = _uniform(key, _HEADINGS, sizes.robots) * (2 * math.pi)
    speed = _uniform(key, _SPEEDS, sizes.robots) * MAX_START_SPEED
    numbers = torch.arange(sizes.robots, dtype=torch.int64, device="cpu")
    there = numbers < robots[:, None]
    return Worlds(
        start=start,
        goal=goal,
        heading=heading,
        speed=speed * there,
        core=core,
        circulation=circulation,
        obstacle=obstacle,
        num_robots=robots,
        num_cores=cores,
        num_obstacles=obstacles,
    )


def _place_robots(craft: Craft, key: Tensor, wanted: Tensor, least: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return starts and goals (P, R, 2), and the number of robots placed (P,)."""
    start = _nowhere(key, most)
    goal = _nowhere(key, most)

    def candidate(world: Tensor, attempt: int) -> tuple[Tensor, ...]:
        drawn = START_MARGIN + (craft.side - 2 * START_MARGIN) * _uniform(key[world], _ROBOTS + 4 * attempt, 4)
        begin = drawn[:, None, :2]
        end = drawn[:, None, 2:]
        is_far = _distance(begin, end).squeeze(1) >= least[world]
        start_is_clear = _distance(start[world], begin).amin(1) > craft.clear_radius
        goal_is_clear = _distance(goal[world], end).amin(1) > craft.clear_radius
        return is_far & start_is_clear & goal_is_clear, begin.squeeze(1), end.squeeze(1)

    return start, goal, _fill(wanted, candidate, (start, goal))


def _place_cores(
    craft: Craft, key: Tensor, wanted: Tensor, most: int, start: Tensor, goal: Tensor, quirks: frozenset[str]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return positions (P, C, 2), circulations (P, C) and number (P,) of cores placed."""
    core = _nowhere(key, most)
    circulation = torch.zeros(len(key), most, dtype=torch.float64, device="cpu")
    slow, fast = craft.edge_speed

    def candidate(world: Tensor, attempt: int) -> tuple[Tensor, ...]:
        drawn = _uniform(key[world], _CORES + 4 * attempt, 4)
        place = (drawn[:, :2] * craft.side)[:, None]
        share_of_fast = drawn[:, 2:3]
        edge_speed = slow + (fast - slow) * share_of_fast
        strength = CORE_RADIUS * edge_speed  # (W, 1)
        turns_clockwise = drawn[:, 3:] < 0.5
        strength = torch.where(turns_clockwise, strength, -strength)
        inside = ((place >= CORE_RADIUS) & (place <= craft.side - CORE_RADIUS)).all(2).squeeze(1)
        room = CORE_RADIUS + craft.clear_radius
        clear = _clear_of_robots(place, start[world], goal[world], room)
        apart = _distance(core[world], place)
        touching = "touching_cores" in quirks
        may_neighbour = _may_neighbour(apart, circulation[world], strength, touching)
        fits = inside & clear & may_neighbour.all(1)
        return fits, place.squeeze(1), strength.squeeze(1)

    return core, circulation, _fill(wanted, candidate, (core, circulation))


def _may_neighbour(apart: Tensor, first: Tensor, second: Tensor, touching: bool) -> Tensor:
    """Return the pairs of cores that may lie this far apart, (W, C) bool.

    Where like cores meet, their currents run against each other: neither may be faster there than allowed. Of unlike
    cores, the stronger may bring no more than a share of the weaker one's own edge speed to its edge, unless they may
    be `touching`. Circulations are over 2π, (W, C) and (W, 1).
    """
    a, b = first.abs(), second.abs()
    gap = apart - 2 * CORE_RADIUS
    mild = torch.maximum(a, b) <= MOST_SHARE * torch.minimum(a, b) / CORE_RADIUS * gap
    unlike = torch.where(gap > 0, mild, torch.full_like(mild, touching))
    missing = a == 0
    return missing | torch.where(first * second > 0, apart >= (a + b) / MOST_RELATIVE_SPEED, unlike)


def _place_obstacles(
    craft: Craft, key: Tensor, wanted: Tensor, most: int, start: Tensor, goal: Tensor, core: Tensor
) -> tuple[Tensor, Tensor]:
    """Return positions (P, M, 2), and the number of obstacles placed (P,)."""
    obstacle = _nowhere(key, most)

    def candidate(world: Tensor, attempt: int) -> tuple[Tensor, ...]:
        drawn = _uniform(key[world], _OBSTACLES + 2 * attempt, 2)
        span = craft.side - 2 * OBSTACLE_MARGIN
        place = (OBSTACLE_MARGIN + span * drawn)[:, None]
        room = OBSTACLE_RADIUS + craft.clear_radius
        clear = _clear_of_robots(place, start[world], goal[world], room)
        to_cores = _distance(core[world], place)
        from_cores = (to_cores > CORE_RADIUS + OBSTACLE_RADIUS).all(1)
        to_others = _distance(obstacle[world], place)
        from_others = (to_others > 2 * OBSTACLE_RADIUS).all(1)
        return clear & from_cores & from_others, place.squeeze(1)

    return obstacle, _fill(wanted, candidate, (obstacle,))


def _fill(wanted: Tensor, candidate: Callable[[Tensor, int], tuple[Tensor, ...]], into: tuple[Tensor, ...]) -> Tensor:
    """Fill worlds with candidates until each is complete or given up.

    Every attempt draws one candidate for each unfinished world. `candidate` takes the worlds (W,) and the number of the
    attempt, and returns whether each candidate fits, (W,) bool, and its values, (W, …). Those that fit go `into`
    (P, most, …).

    Returns:
        The number of objects of each world, (P,) int64.
    """
    count = torch.zeros_like(wanted)
    world = (wanted > 0).nonzero().squeeze(1)
    for attempt in range(DRAWS):
        if not len(world):
            break
        fits, *values = candidate(world, attempt)
        taken = world[fits]
        for array, value in zip(into, values, strict=True):
            array[taken, count[taken]] = value[fits]
        count[taken] += 1
        world = world[count[world] < wanted[world]]
    return count


def _clear_of_robots(place: Tensor, start: Tensor, goal: Tensor, radius: float) -> Tensor:
    """Return whether a position (W, 1, 2) is clear of starts and goals (W, R, 2).

    It is if it is further than `radius` from all of them. The result is (W,) bool.
    """
    ends = torch.cat((start, goal), 1)
    return (_distance(ends, place) > radius).all(1)


def _distance(a: Tensor, b: Tensor) -> Tensor:
    x, y = (a - b).unbind(-1)
    return (x * x + y * y).sqrt()


def _nowhere(key: Tensor, most: int) -> Tensor:
    return torch.full((len(key), most, 2), FAR, dtype=torch.float64, device="cpu")


def _uniform(key: Tensor, place: int, count: int) -> Tensor:
    """Draw uniform numbers in [0, 1), float64 (W, count), from counter `place` on.

    `key` (W,) names the streams.
    """
    counter = torch.arange(place, place + count, dtype=torch.int64, device="cpu")
    bits = draw_bits(key[:, None], counter)
    return bits.double() * 2.0**-32


# -- the pool ----------------------------------------------------------------------------------------------------------


@dataclass
class FirstState:
    """Worlds before their first step.

    Shapes are as in `MarineState`.
    """

    scene: Tensor
    motion: Tensor
    clearance: Tensor
    exists: Tensor
    observation: Tensor
    object_mask: Tensor


class Pool:
    """Pool of P worlds on the device.

    A world's numbers lie side by side in memory, so that fetching one copies a few long runs. Tensors of a state have
    the environments last, and fetching from those would gather single numbers.

    The pool has the dtype and device of `like`. `look` returns sensor readings from motion, scene, and a mask of 0 and
    1 of the robots that exist. With `still_start` the first velocity leaves the current out.
    """

    def __init__(
        self,
        worlds: Worlds,
        model: Unicycle | Vessel,
        look: Callable[[Tensor, Scene, Tensor], Sight],
        like: Tensor,
        still_start: bool,
    ) -> None:
        scene = _scene(worlds, like)
        place = _last(worlds.start, (2, 1, 0), like)
        heading = _last(worlds.heading, (1, 0), like)
        speed = _last(worlds.speed, (1, 0), like)
        motion = model.start(place, heading, speed, scene, still_start)
        numbers = torch.arange(motion.shape[1], device=like.device, dtype=torch.int64)
        exists = numbers[:, None] < worlds.num_robots.to(like.device)
        there = exists.to(like.dtype)
        sight = look(motion, scene, there)
        scene_rows = scene.join()
        motion_rows = motion.flatten(0, 1)
        self._shape = motion.shape[:2]
        self._lengths = (len(scene_rows), len(motion_rows), len(exists))
        self._numbers = torch.cat((scene_rows, motion_rows, sight.clearance)).t().contiguous()  # (P, …)
        self._exists = exists.t().contiguous()  # (P, R)
        self._observation = observation(sight)
        self._object_mask = object_mask(sight)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Numbers (P, L), robots (P, R), observations (P, R, F), masks (P, R, num_seen).

        The L numbers of a world are the rows of its scene, those of its motion, and the clearances of its robots.
        """
        return self._numbers, self._exists, self._observation, self._object_mask

    def begin(self, world: Tensor) -> FirstState:
        """Fetch worlds by their numbers, int64 (N,)."""
        rows = contiguous_copy(self._numbers.index_select(0, world).t())
        scene, motion, clearance = rows.split(self._lengths)
        exists = self._exists.index_select(0, world).t().contiguous()
        return FirstState(
            scene=scene,
            motion=motion.view(*self._shape, len(world)),
            clearance=clearance,
            exists=exists,
            observation=self._observation.index_select(0, world),
            object_mask=self._object_mask.index_select(0, world),
        )


def _scene(worlds: Worlds, like: Tensor) -> Scene:
    goal = _last(worlds.goal, (2, 1, 0), like)
    core = _last(worlds.core, (2, 1, 0), like)
    circulation = _last(worlds.circulation, (1, 0), like)
    obstacle = _last(worlds.obstacle, (2, 1, 0), like)
    radius = torch.full_like(obstacle[0], OBSTACLE_RADIUS)
    return Scene(
        goal=goal,
        core=core.unsqueeze(2),
        circulation=circulation.unsqueeze(1),
        obstacle=obstacle,
        obstacle_radius=radius,
    )


def _last(worlds_first: Tensor, axes: tuple[int, ...], like: Tensor) -> Tensor:
    return worlds_first.permute(axes).contiguous().to(like)
