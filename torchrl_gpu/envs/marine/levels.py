"""Levels, the rows of curricula and of evaluations.

A level says how many robots, cores and obstacles a world has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torchrl_gpu.system import arguments

# Most robots, cores or obstacles of a level.
MOST = 256


class Level(NamedTuple):
    """One row of a curriculum.

    Attributes:
        from_step: Environment step from which the level is played.
        robots: Number of robots.
        cores: Number of vortex cores.
        obstacles: Number of obstacles.
        min_distance: Least distance from a start to its goal, metres.
    """

    from_step: int
    robots: int
    cores: int
    obstacles: int
    min_distance: float


class Sizes(NamedTuple):
    """R, C and M: robots, cores and obstacles to which every world is padded."""

    robots: int
    cores: int
    obstacles: int

    @staticmethod
    def of(levels: Sequence[Level]) -> Sizes:
        """Return the maximum over all levels.

        There is at least one obstacle, so that there is a nearest one.
        """
        return Sizes(
            robots=max(level.robots for level in levels),
            cores=max(level.cores for level in levels),
            obstacles=max(1, *(level.obstacles for level in levels)),
        )


Levels = tuple[Level, ...]

DEFAULTS = {"v2": Level(0, 5, 6, 6, 40.0), "v3": Level(0, 5, 0, 4, 40.0)}

_V2_PAPER = (
    Level(0, 3, 4, 0, 30.0),
    Level(1_000_000, 5, 6, 0, 35.0),
    Level(2_000_000, 7, 8, 0, 40.0),
    Level(3_000_000, 7, 8, 6, 40.0),
    Level(4_000_000, 7, 8, 8, 40.0),
    Level(5_000_000, 7, 8, 10, 40.0),
)
_V3_PAPER = (
    Level(0, 3, 0, 0, 30.0),
    Level(1_000_000, 4, 0, 0, 35.0),
    Level(2_000_000, 5, 0, 0, 40.0),
    Level(3_000_000, 5, 0, 2, 40.0),
    Level(4_000_000, 5, 0, 3, 40.0),
    Level(5_000_000, 5, 0, 4, 40.0),
)
PAPER: dict[str, Levels] = {"v2": _V2_PAPER, "v3": _V3_PAPER}
"""The curricula of the papers, over six million steps."""

_V2_EVALUATION = (
    Level(0, 3, 4, 0, 40.0),
    Level(0, 5, 6, 0, 40.0),
    Level(0, 7, 8, 0, 40.0),
    Level(0, 3, 4, 6, 40.0),
    Level(0, 5, 6, 8, 40.0),
    Level(0, 7, 8, 10, 40.0),
)
_V3_EVALUATION = tuple(level._replace(from_step=0) for level in _V3_PAPER)
EVALUATION: dict[str, Levels] = {"v2": _V2_EVALUATION, "v3": _V3_EVALUATION}
"""The rows on which the papers evaluate during training, ten worlds each."""

FINAL_TEST: Levels = tuple(Level(0, robots, robots + 1, robots + 1, 40.0) for robots in (3, 4, 5, 6, 7))
"""The rows of the last test of v2."""

CURRICULA: dict[str, dict[str, tuple[Level, ...]]] = {
    "paper": PAPER,
    "evaluation": EVALUATION,
    "test": {"v2": FINAL_TEST},
}


def choose_levels(
    version: str, single: Sequence[float | None], curriculum: str | Sequence[Sequence[float]] | None
) -> tuple[Level, ...]:
    """Return the levels that the arguments of `MarineNavEnv` select.

    They are those of `curriculum`, rows or a word of `CURRICULA`, or the one of `single`: robots, cores, obstacles and
    least distance, each None for the version's default.

    Raises:
        ValueError: Both are given, or a row or the order of the rows is invalid.
    """
    if curriculum is None:
        defaults = DEFAULTS[version][1:]
        values = [default if value is None else value for value, default in zip(single, defaults, strict=True)]
        return (_level((0, *values)),)
    if any(value is not None for value in single):
        raise ValueError(
            f"MarineNavEnv: curriculum={curriculum!r} excludes robots, cores, obstacles and min_distance, which are"
            f" {tuple(single)}: give one or the other"
        )
    if isinstance(curriculum, str):
        known = [word for word, rows in CURRICULA.items() if version in rows]
        if curriculum not in known:
            raise ValueError(f"MarineNavEnv: curriculum must be rows or one of {', '.join(known)}, not {curriculum!r}")
        return CURRICULA[curriculum][version]
    levels = tuple(_level(row) for row in arguments.listed("MarineNavEnv", "curriculum", _ROWS, curriculum))
    starts = [level.from_step for level in levels]
    if not levels or starts[0] != 0 or starts != sorted(starts):
        raise ValueError(
            f"MarineNavEnv: curriculum must have rows that start at step 0 and are sorted by step, not steps {starts}"
        )
    return levels


_ROWS = f"a word, or a list of rows ({', '.join(Level._fields)})"


def _level(row: object) -> Level:
    where = "MarineNavEnv"
    if not isinstance(row, (tuple, list)) or len(row) != len(Level._fields):
        given = tuple(row) if isinstance(row, (tuple, list)) else row
        raise ValueError(
            f"MarineNavEnv: a row of curriculum must be ({', '.join(Level._fields)}), not {arguments.shown(given)}"
        )
    from_step = arguments.whole(where, "from_step", row[0], high=arguments.INT64[1])
    robots = arguments.whole(where, "robots", row[1], high=MOST)
    cores = arguments.whole(where, "cores", row[2], high=MOST)
    obstacles = arguments.whole(where, "obstacles", row[3], high=MOST)
    min_distance = arguments.number(where, "min_distance", row[4])
    level = Level(from_step, robots, cores, obstacles, min_distance)
    least = min(level.cores, level.obstacles, level.min_distance)
    if level.robots < 1 or least < 0:
        raise ValueError(
            f"MarineNavEnv: a level must have at least one robot, and no count or distance below 0, not {level}"
        )
    return level
