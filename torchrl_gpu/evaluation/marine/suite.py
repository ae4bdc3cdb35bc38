"""Navigators compared on the same worlds: the table, the pictures and how each robot fared."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.marine.levels import EVALUATION, FINAL_TEST, Levels
from torchrl_gpu.evaluation.estimates import percent, share_error
from torchrl_gpu.evaluation.marine.episodes import NavigationMetrics, NavigationResults, evaluate
from torchrl_gpu.evaluation.marine.trajectories import Trajectories
from torchrl_gpu.evaluation.suite import UNSEEN_SEED, Suite
from torchrl_gpu.policies.policy import Policy

SOURCE = "released weights, measured again; Lin et al. ICRA 2024 / RA-L 2025"


@dataclass(frozen=True)
class ReportedScores:
    """Means over some worlds, as in `NavigationMetrics`; None where they were not given."""

    success: float
    arrived: float | None = None
    time: float | None = None
    energy: float | None = None
    discounted: float | None = None


@dataclass(frozen=True)
class PublishedTest:
    """A published test: rows of so many worlds each, and what the agents came to in each row and over all."""

    version: str
    levels: Levels
    max_steps: int
    end_on_collision: bool
    worlds: int
    rows: Mapping[str, tuple[ReportedScores, ...]]
    overall: Mapping[str, ReportedScores] = field(default_factory=dict)

    def num_worlds(self, row: int | None = None) -> int:
        return self.worlds * (len(self.levels) if row is None else 1)

    def fits(self, env: MarineNavEnv) -> bool:
        """True if the environment plays this test."""
        own = env.version, env.levels, env.max_steps, env.end_on_collision
        return own == (self.version, self.levels, self.max_steps, self.end_on_collision)


def _successes(*shares: float) -> tuple[ReportedScores, ...]:
    return tuple(ReportedScores(share) for share in shares)


V2_TEST = PublishedTest(
    version="v2",
    levels=FINAL_TEST,
    max_steps=360,
    end_on_collision=False,
    worlds=100,
    rows={
        "adaptive IQN": (
            ReportedScores(0.98, 0.993, 28.1, 78.7),
            ReportedScores(1.00, 1.000, 28.8, 82.7),
            ReportedScores(0.85, 0.958, 30.3, 88.2),
            ReportedScores(0.78, 0.943, 31.7, 93.6),
            ReportedScores(0.72, 0.943, 34.3, 103.0),
        ),
        "IQN": (
            ReportedScores(0.94, 0.973, 27.2, 76.8),
            ReportedScores(0.93, 0.968, 27.5, 79.4),
            ReportedScores(0.70, 0.908, 28.2, 82.7),
            ReportedScores(0.57, 0.885, 28.7, 85.2),
            ReportedScores(0.53, 0.871, 30.1, 90.8),
        ),
        "DQN": (
            ReportedScores(0.27, 0.593, 26.9, 75.2),
            ReportedScores(0.14, 0.550, 27.1, 77.0),
            ReportedScores(0.04, 0.502, 27.4, 79.7),
            ReportedScores(0.00, 0.380, 27.1, 78.8),
            ReportedScores(0.00, 0.374, 27.2, 78.8),
        ),
        "APF": (ReportedScores(0.71, 0.890, 43.4, 130.9),),
    },
)

V3_TEST = PublishedTest(
    version="v3",
    levels=EVALUATION["v3"],
    max_steps=1000,
    end_on_collision=True,
    worlds=10,
    rows={
        "AC-IQN": _successes(0.8, 1.0, 0.9, 1.0, 0.3, 0.7),
        "IQN": _successes(0.8, 1.0, 0.7, 0.9, 0.6, 0.5),
        "DDPG": _successes(0.7, 0.5, 0.5, 0.6, 0.2, 0.1),
        "DQN": _successes(0.8, 0.3, 0.4, 0.4, 0.1, 0.2),
        "SAC (sampled)": _successes(0.9, 0.9, 0.8, 0.6, 0.6, 0.6),
        "SAC (mean)": _successes(0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    },
    overall={
        "AC-IQN": ReportedScores(0.783, time=20.08, energy=30961.7, discounted=33.1),
        "IQN": ReportedScores(0.750, time=32.95, energy=35926.5, discounted=26.2),
        "DDPG": ReportedScores(0.433, time=18.7, energy=30429.9, discounted=23.8),
        "DQN": ReportedScores(0.367, time=20.04, energy=30669.7, discounted=23.4),
        "SAC (sampled)": ReportedScores(0.733, time=30.72, energy=40650.3, discounted=29.6),
        "SAC (mean)": ReportedScores(0.000, discounted=27.1),
    },
)
"""Of 60 worlds, as during training; the last test of v3 was made with a simulator of its own."""

PUBLISHED = (V2_TEST, V3_TEST)


def published_for(env: MarineNavEnv) -> PublishedTest | None:
    """The published test that the environment plays."""
    return next((test for test in PUBLISHED if test.fits(env)), None)


RELEASED = ", released"
ALL = "all"
COLUMNS = ("robots/cores/obstacles", "policy", "worlds", "success", "arrived", "time s", "energy", "discounted return")


def navigation_table(
    levels: Levels, results: Mapping[str, NavigationResults], published: PublishedTest | None, title: str
) -> Table:
    """For the terminal: own policies first, the first of them in bold, then the released ones, its own kind first.

    Robots of one world meet the same things: the error of the share that arrived is that of as many robots as there are
    worlds, which it does not exceed.
    """
    shown = Table(title=title, title_justify="left")
    for column in COLUMNS:
        shown.add_column(column, justify="left" if column in COLUMNS[:2] else "right", no_wrap=True)
    first, *_ = results
    for row in [*sorted(set(results[first].level.tolist())), None]:
        level = ALL if row is None else "/".join(str(count) for count in levels[row][1:4])
        metrics = {name: each.metrics(row) for name, each in results.items()}
        lines = {name: _line(each, each.worlds) for name, each in metrics.items()}
        lines |= {} if published is None else _reported(published, row, first)
        for name, cells in lines.items():
            shown.add_row(level if name == first else "", name, *cells, style="bold" if name == first else "")
        shown.add_section()
    if published is not None:
        shown.caption = f"{SOURCE}; in other worlds of the same rows"
        shown.caption_justify = "left"
    return shown


def _reported(published: PublishedTest, row: int | None, first: str) -> dict[str, list[str]]:
    lines: dict[str, ReportedScores] = {}
    for agent, rows in published.rows.items():
        if row is None and agent in published.overall:
            lines[agent] = published.overall[agent]
        elif row is not None and row < len(rows):
            lines[agent] = rows[row]
    worlds = published.num_worlds(row)
    same_first = sorted(lines, key=lambda agent: _kind(agent) != _kind(first))
    return {agent + RELEASED: _line(lines[agent], worlds) for agent in same_first}


def _kind(name: str) -> str:
    """Name of a policy without remarks: of "AC-IQN" and "ACIQN (untrained)" the same."""
    return name.partition(" (")[0].replace("-", "")


def _line(scores: NavigationMetrics | ReportedScores, worlds: int) -> list[str]:
    numbers = scores.time, scores.energy, scores.discounted
    return [
        str(worlds),
        _share(scores.success, worlds),
        _share(scores.arrived, worlds),
        *("–" if value is None else f"{value:,.1f}" for value in numbers),
    ]


def _share(share: float | None, worlds: int) -> str:
    return "–" if share is None else percent(share, share_error(share, worlds))


class NavigationSuite(Suite[MarineNavEnv, NavigationResults]):
    """Worlds to cross: the first ones of every row of the environment's curriculum, as many as its pool holds.

    Or only `num_worlds`, spread evenly over the rows, the first of which have one more. With `pictures` a PNG and a GIF
    of a world of the last row are written, too.
    """

    headline, unit, pictures_tag, plans_name = "success", "worlds", "crossings", "crossings.json"

    def __init__(
        self, env: MarineNavEnv, pictures: bool = True, batch_size: int | None = None, num_worlds: int | None = None
    ) -> None:
        if not env.in_order:
            raise ValueError("NavigationSuite: want an environment with in_order, so that no world is played twice")
        number = len(env.levels) * env.pool if num_worlds is None else num_worlds
        super().__init__(env, pictures, number, batch_size)
        each, more = divmod(number, len(env.levels))
        counts = [each + (row < more) for row in range(len(env.levels))]
        self._firsts = [sum(counts[:row]) for row, count in enumerate(counts) if count]  # first world of each row

    @classmethod
    def of_rows(
        cls,
        env: MarineNavEnv,
        worlds_per_level: int,
        pictures: bool = True,
        batch_size: int | None = None,
        num_worlds: int | None = None,
        **changes: Any,
    ) -> NavigationSuite:
        """The first worlds of every row, in environments like another."""
        rows = {"curriculum": env.levels, "robots": None, "cores": None, "obstacles": None, "min_distance": None}
        fixed = {"first_env": 0, "in_order": True, "pool": worlds_per_level}
        return cls(env.like(1, **rows | fixed | changes), pictures, batch_size, num_worlds)

    def begin(self, env: MarineNavEnv, first: int) -> None:
        super().begin(env, first)
        env.assign_levels([bisect(self._firsts, number) - 1 for number in range(first, first + env.num_envs)])

    def baselines(self) -> Mapping[str, Policy]:
        """None: the released navigators stand beside, where this is a test that they were put to."""
        return {}

    def play_in(self, num_envs: int) -> MarineNavEnv:
        """The hardest row first."""
        env = super().play_in(num_envs)
        env.assign_levels([(-1 - i) % len(env.levels) for i in range(num_envs)])
        return env

    def evaluate(self, env: MarineNavEnv, policy: Policy, num_episodes: int) -> NavigationResults:
        """As in the base class; records the first world of every row, and those of the last row to be drawn."""
        hardest = self._firsts[-1] if self.writes_pictures else self.num_episodes
        numbers = range(env.first_env, env.first_env + num_episodes)
        record = [i - env.first_env for i in numbers if i in self._firsts or i >= hardest]
        return evaluate(env, policy, num_episodes, record)

    def table(self, results: dict[str, NavigationResults], name: str) -> tuple[Table, dict[str, Any]]:
        """With what the released navigators came to, where this is a test that they were put to."""
        published, own = published_for(self.env), {each: results[each] for each in (name,) if each in results}
        policies = []
        for policy, each in (own | results).items():
            played = sorted(set(each.level.tolist()))  # with fewer worlds than rows, not all of them
            rows = {str(row): each.metrics(row) for row in played}
            errors = {row: {"success_error": share_error(found.success, found.worlds)} for row, found in rows.items()}
            policies.append(
                {
                    "policy": policy,
                    "scores": each.scores(),
                    "rows": {row: asdict(found) | errors[row] for row, found in rows.items()},
                    "decision_ms": each.decision_ms,
                    "seconds": each.seconds,
                }
            )
        reported = None if published is None else {"source": SOURCE, **asdict(published)}
        shown = navigation_table(self.env.levels, own | results, published, f"{self.num_episodes} worlds")
        return shown, {"policies": policies, "published": reported}

    def describe(self) -> dict[str, Any]:
        env, names = self.env, ("max_steps", "end_on_collision", "actions", "sensor_noise", "seed")
        rows = {str(row): level._asdict() for row, level in enumerate(env.levels)}
        settings = {name: getattr(env, name) for name in names} | {"device": str(env.device)}
        return {"version": env.version, "rows": rows, "num_worlds": self.num_episodes} | settings

    def pictures(self, num: int, width: int) -> Tensor:
        trajectories = self._trajectories
        firsts = [which for which, number in enumerate(trajectories.index) if number in self._firsts]
        return torch.stack([trajectories.picture(which, width=width) for which in firsts[-num:]])

    def draw(self, folder: Path) -> None:
        """The world in the middle of those of the last row, by how many robots arrived and how soon."""
        from torchrl_gpu.envs.marine.viewer import save_gif, save_png

        assert self.last is not None
        hardest = self._firsts[-1]
        arrived, steps = (each[hardest:] for each in (self.last.arrived.sum(1), self.last.steps.amax(1)))
        order = torch.argsort(arrived * (1 + steps.max()) - steps, stable=True)
        number = hardest + int(order[len(order) // 2])
        which = self._trajectories.index.index(number)
        save_png(self._trajectories.picture(which), folder / "crossing.png")
        save_gif(self._trajectories.film(which), folder / "crossing.gif", fps=12.0)

    @property
    def _trajectories(self) -> Trajectories:
        assert self.last is not None
        assert self.last.trajectories is not None
        return self.last.trajectories

    def plans(self, results: NavigationResults) -> list[dict[str, Any]]:
        assert results.start is not None
        assert results.goal is not None
        columns = {"start_m": results.start, "goal_m": results.goal, "arrived": results.arrived}
        columns |= {"collided": results.collided, "time_s": results.time, "energy": results.energy}
        return [
            {
                "world": world,
                "level": level,
                "robots": [
                    {name: values[world, robot].tolist() for name, values in columns.items()}
                    for robot in results.exists[world].nonzero().squeeze(1).tolist()
                ],
            }
            for world, level in enumerate(results.level.tolist())
        ]


def navigation_suite(
    env: MarineNavEnv,
    num_episodes: int,
    *,
    seed: int = UNSEEN_SEED,
    pictures: bool = True,
    batch_size: int | None = None,
) -> NavigationSuite:
    each = -(-num_episodes // len(env.levels))
    return NavigationSuite.of_rows(env, each, pictures, batch_size, seed=seed)
