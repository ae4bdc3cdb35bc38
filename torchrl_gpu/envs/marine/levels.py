"""Levels, the rows of curricula and of evaluations: numbers of robots, cores and obstacles of a world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torchrl_gpu.system import arguments

MOST = 256  # robots, cores or obstacles of a level


class Level(NamedTuple):
    """One row of a curriculum: numbers of robots, cores and obstacles, and from when it is played."""

    from_step: int  # of the environment
    robots: int
    cores: int
    obstacles: int
    min_distance: float  # least distance from a start to its goal, metres


class Sizes(NamedTuple):
    """R, C and M: robots, cores and obstacles to which every world is padded."""

    robots: int
    cores: int
    obstacles: int

    @staticmethod
    def of(levels: Sequence[Level]) -> Sizes:
        """Maximum over all levels; one obstacle at least, so that there is a nearest one."""
        return Sizes(
            robots=max(level.robots for level in levels),
            cores=max(level.cores for level in levels),
            obstacles=max(1, *(level.obstacles for level in levels)),
        )


Levels = tuple[Level, ...]

DEFAULTS = {"v2": Level(0, 5, 6, 6, 40.0), "v3": Level(0, 5, 0, 4, 40.0)}

PAPER: dict[str, Levels] = {
    "v2": (
        Level(0, 3, 4, 0, 30.0),
        Level(1_000_000, 5, 6, 0, 35.0),
        Level(2_000_000, 7, 8, 0, 40.0),
        Level(3_000_000, 7, 8, 6, 40.0),
        Level(4_000_000, 7, 8, 8, 40.0),
        Level(5_000_000, 7, 8, 10, 40.0),
    ),
    "v3": (
        Level(0, 3, 0, 0, 30.0),
        Level(1_000_000, 4, 0, 0, 35.0),
        Level(2_000_000, 5, 0, 0, 40.0),
        Level(3_000_000, 5, 0, 2, 40.0),
        Level(4_000_000, 5, 0, 3, 40.0),
        Level(5_000_000, 5, 0, 4, 40.0),
    ),
}
"""The curricula of the papers, over six million steps."""

EVALUATION: dict[str, Levels] = {
    "v2": (
        Level(0, 3, 4, 0, 40.0),
        Level(0, 5, 6, 0, 40.0),
        Level(0, 7, 8, 0, 40.0),
        Level(0, 3, 4, 6, 40.0),
        Level(0, 5, 6, 8, 40.0),
        Level(0, 7, 8, 10, 40.0),
    ),
    "v3": tuple(level._replace(from_step=0) for level in PAPER["v3"]),
}
"""The rows on which the papers evaluate during training, ten worlds each."""

FINAL_TEST: Levels = tuple(Level(0, robots, robots + 1, robots + 1, 40.0) for robots in (3, 4, 5, 6, 7))
"""The rows of the last test of v2."""

CURRICULA: dict[str, dict[str, tuple[Level, ...]]] = {
    "paper": PAPER,
    "evaluation": EVALUATION,
    "test": {"v2": FINAL_TEST},
}


def chosen_levels(
    version: str, single: Sequence[float | None], curriculum: str | Sequence[Sequence[float]] | None
) -> tuple[Level, ...]:
    """Levels that the arguments of `MarineNavEnv` select.

    They are those of `curriculum`, rows or a word of `CURRICULA`, or the one of `single`: robots, cores, obstacles and
    least distance, each None for the version's default. ValueError where both are given, or rows or their order are
    invalid.
    """
    if curriculum is None:
        values = [own if value is None else value for value, own in zip(single, DEFAULTS[version][1:], strict=True)]
        return (_level((0, *values)),)
    if any(value is not None for value in single):
        raise ValueError(
            "MarineNavEnv: want a curriculum, or robots, cores, obstacles and min_distance; got both:"
            f" {curriculum!r} and {tuple(single)}"
        )
    if isinstance(curriculum, str):
        known = [word for word, rows in CURRICULA.items() if version in rows]
        if curriculum not in known:
            raise ValueError(f"MarineNavEnv: curriculum must be rows, or one of {', '.join(known)}; got {curriculum!r}")
        return CURRICULA[curriculum][version]
    levels = tuple(_level(row) for row in arguments.listed("MarineNavEnv", "curriculum", _ROWS, curriculum))
    starts = [level.from_step for level in levels]
    if not levels or starts[0] != 0 or starts != sorted(starts):
        raise ValueError(f"MarineNavEnv: want rows in order of their steps, from step 0 on; got steps {starts}")
    return levels


_ROWS = f"a word, or a list of rows ({', '.join(Level._fields)})"


def _level(row: Any) -> Level:
    if not isinstance(row, (tuple, list)) or len(row) != len(Level._fields):
        came = tuple(row) if isinstance(row, (tuple, list)) else row
        raise ValueError(
            f"MarineNavEnv: a row of a curriculum wants {', '.join(Level._fields)}; got {arguments.shown(came)}"
        )
    where, steps = "MarineNavEnv", arguments.whole("MarineNavEnv", "from_step", row[0], high=arguments.INT64[1])
    robots, cores, obstacles = (
        arguments.whole(where, name, value, high=MOST) for name, value in zip(Level._fields[1:4], row[1:4], strict=True)
    )
    level = Level(steps, robots, cores, obstacles, arguments.number(where, "min_distance", row[4]))
    if level.robots < 1 or min(level.cores, level.obstacles, level.min_distance) < 0:
        raise ValueError(f"MarineNavEnv: want at least one robot and no count or distance below 0; got {level}")
    return level
