"""`NavigationSuite`: navigators compared on the same worlds."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor

from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.marine.levels import Levels
from torchrl_gpu.evaluation.estimates import percent, share_error
from torchrl_gpu.evaluation.marine.episodes import NavigationMetrics, NavigationResults, evaluate
from torchrl_gpu.evaluation.marine.published import SOURCE, PublishedTest, ReportedScores, published_for
from torchrl_gpu.evaluation.marine.trajectories import Trajectories
from torchrl_gpu.evaluation.reports import PlainData
from torchrl_gpu.evaluation.suite import UNSEEN_SEED, Suite
from torchrl_gpu.policies.policy import Policy

# Suffix of the names of released agents.
RELEASED = ", released"

# Label of the lines over all rows.
ALL = "all"

# Columns of words and of figures.
_WORDS = ("robots/cores/obstacles", "policy")
_FIGURES = ("worlds", "success", "arrived", "time s", "energy", "discounted return")
COLUMNS = (*_WORDS, *_FIGURES)


def navigation_table(
    levels: Levels, results: Mapping[str, NavigationResults], published: PublishedTest | None, title: str
) -> Table:
    """Make a table that compares navigators, for the terminal.

    Our policies come first, the first of them in bold, then the released ones, those of its kind first. Robots of one
    world are not independent, since they meet the same obstacles. The error of the share that arrived is therefore
    that of one robot for each world, which is an upper bound.
    """
    shown = Table(title=title, title_justify="left")
    for column in COLUMNS:
        shown.add_column(column, justify="left" if column in _WORDS else "right", no_wrap=True)
    first, *_ = results
    rows = sorted(set(results[first].level.tolist()))
    # None stands for the lines over all rows.
    for row in [*rows, None]:
        level = ALL if row is None else "/".join(str(count) for count in levels[row][1:4])
        metrics = {name: each.metrics(row) for name, each in results.items()}
        lines = {name: _cells(each, each.worlds) for name, each in metrics.items()}
        if published is not None:
            lines |= _reported(published, row, first)
        for name, cells in lines.items():
            is_first = name == first
            shown.add_row(level if is_first else "", name, *cells, style="bold" if is_first else "")
        shown.add_section()
    if published is not None:
        shown.caption = f"{SOURCE}; in other worlds of the same rows"
        shown.caption_justify = "left"
    return shown


def _reported(published: PublishedTest, row: int | None, first: str) -> dict[str, list[str]]:
    """Return the cells of the released agents in a row, or over all rows, by name."""
    lines: dict[str, ReportedScores] = {}
    for agent, rows in published.rows.items():
        if row is None and agent in published.overall:
            lines[agent] = published.overall[agent]
        elif row is not None and row < len(rows):
            lines[agent] = rows[row]
    worlds = published.num_worlds(row)
    same_first = sorted(lines, key=lambda agent: _kind(agent) != _kind(first))
    return {agent + RELEASED: _cells(lines[agent], worlds) for agent in same_first}


def _kind(name: str) -> str:
    """Return the name of a policy without remarks.

    It is the same for "AC-IQN" and "ACIQN (untrained)".
    """
    return name.partition(" (")[0].replace("-", "")


def _cells(scores: NavigationMetrics | ReportedScores, worlds: int) -> list[str]:
    """Return the cells of a line of the table."""
    shares = [_share(scores.success, worlds), _share(scores.arrived, worlds)]
    figures = (scores.time, scores.energy, scores.discounted)
    numbers = [_number(value) for value in figures]
    return [str(worlds), *shares, *numbers]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _share(share: float | None, worlds: int) -> str:
    return "–" if share is None else percent(share, share_error(share, worlds))


class NavigationSuite(Suite[MarineNavEnv, NavigationResults]):
    """Worlds to cross: the first ones of every row of the environment's curriculum.

    Args:
        env: Its `in_order` must be true.
        pictures: Whether `compare` writes a PNG and a GIF of a world of the last row.
        batch_size: As in `Suite`.
        num_worlds: Number of all worlds, spread evenly over the rows; the first rows get one more if there is a rest.
            None stands for all worlds of the environment's pool.
    """

    headline = "success"
    unit = "worlds"
    pictures_tag = "crossings"
    plans_name = "crossings.json"

    def __init__(
        self, env: MarineNavEnv, pictures: bool = True, batch_size: int | None = None, num_worlds: int | None = None
    ) -> None:
        if not env.in_order:
            raise ValueError("NavigationSuite: in_order of the environment must be true, else worlds are played twice")
        number = len(env.levels) * env.pool if num_worlds is None else num_worlds
        super().__init__(env, pictures, number, batch_size)
        each, more = divmod(number, len(env.levels))
        counts = [each + (row < more) for row in range(len(env.levels))]
        # Number of the first world of each row that has any.
        self._firsts = [sum(counts[:row]) for row, count in enumerate(counts) if count]

    @classmethod
    def of_rows(
        cls,
        env: MarineNavEnv,
        worlds_per_level: int,
        pictures: bool = True,
        batch_size: int | None = None,
        num_worlds: int | None = None,
        **changes: object,
    ) -> NavigationSuite:
        """Make a suite of the first worlds of every row, in environments like another."""
        settings: dict[str, object] = {"first_env": 0, "in_order": True, "pool": worlds_per_level}
        # The levels replace numbers that the environment may have been made with.
        settings |= {"curriculum": env.levels, "robots": None, "cores": None, "obstacles": None, "min_distance": None}
        settings |= changes
        return cls(env.like(1, **settings), pictures, batch_size, num_worlds)

    def begin(self, env: MarineNavEnv, first: int) -> None:
        super().begin(env, first)
        # A world is known by its row and its number in it. Numbers count through the rows.
        numbers = range(first, first + env.num_envs)
        env.assign_levels([bisect(self._firsts, number) - 1 for number in numbers])

    def baselines(self) -> Mapping[str, Policy]:
        """Return none, since the table shows the released navigators."""
        return {}

    def play_in(self, num_envs: int) -> MarineNavEnv:
        """Make an environment for somebody who watches, with the hardest row first."""
        # The hardest worlds show most.
        env = super().play_in(num_envs)
        env.assign_levels([(-1 - i) % len(env.levels) for i in range(num_envs)])
        return env

    def evaluate(self, env: MarineNavEnv, policy: Policy, num_episodes: int) -> NavigationResults:
        """Play the first worlds.

        Recorded are the first world of every row, and those of the last row if one of them is drawn.
        """
        # Trajectories take memory, so only what may be drawn is recorded.
        hardest = self._firsts[-1] if self.writes_pictures else self.num_episodes
        numbers = range(env.first_env, env.first_env + num_episodes)
        record = [i - env.first_env for i in numbers if i in self._firsts or i >= hardest]
        return evaluate(env, policy, num_episodes, record)

    def table(self, results: dict[str, NavigationResults], name: str) -> tuple[Table, PlainData]:
        """Return a table of several policies' results.

        Released navigators are in it if these are the worlds of a published test.
        """
        published = published_for(self.env)
        # The policy that is evaluated comes first.
        ordered = {name: results[name]} if name in results else {}
        ordered |= results
        policies: list[PlainData] = []
        for policy, each in ordered.items():
            policies.append(
                {
                    "policy": policy,
                    "scores": each.scores(),
                    "rows": _rows_data(each),
                    "decision_ms": each.decision_ms,
                    "seconds": each.seconds,
                }
            )
        reported = None if published is None else {"source": SOURCE, **asdict(published)}
        shown = navigation_table(self.env.levels, ordered, published, f"{self.num_episodes} worlds")
        return shown, {"policies": policies, "published": reported}

    def describe(self) -> PlainData:
        env = self.env
        rows = {str(row): level._asdict() for row, level in enumerate(env.levels)}
        return {
            "version": env.version,
            "rows": rows,
            "num_worlds": self.num_episodes,
            "max_steps": env.max_steps,
            "end_on_collision": env.end_on_collision,
            "actions": env.actions,
            "sensor_noise": env.sensor_noise,
            "seed": env.seed,
            "device": str(env.device),
        }

    def pictures(self, num: int, width: int) -> Tensor:
        trajectories = self._trajectories
        # The first world of each row; the last rows are the hardest.
        firsts = [which for which, number in enumerate(trajectories.index) if number in self._firsts]
        return torch.stack([trajectories.picture(which, width=width) for which in firsts[-num:]])

    def draw(self, folder: Path) -> None:
        """Write pictures of the median world of the last row.

        Worlds are ranked by how many robots arrived, then by how soon.
        """
        from torchrl_gpu.envs.marine.viewer import save_gif, save_png

        assert self.last is not None
        hardest = self._firsts[-1]
        arrived = self.last.arrived.sum(1)[hardest:]
        steps = self.last.steps.amax(1)[hardest:]
        # One more robot counts more than any number of steps.
        rank = arrived * (1 + steps.max()) - steps
        order = torch.argsort(rank, stable=True)
        number = hardest + int(order[len(order) // 2])
        which = self._trajectories.index.index(number)
        save_png(self._trajectories.picture(which), folder / "crossing.png")
        save_gif(self._trajectories.film(which), folder / "crossing.gif", fps=12.0)

    @property
    def _trajectories(self) -> Trajectories:
        assert self.last is not None
        assert self.last.trajectories is not None
        return self.last.trajectories

    def plans(self, results: NavigationResults) -> list[PlainData]:
        assert results.start is not None
        assert results.goal is not None
        columns = {
            "start_m": results.start,
            "goal_m": results.goal,
            "arrived": results.arrived,
            "collided": results.collided,
            "time_s": results.time,
            "energy": results.energy,
        }
        plans: list[PlainData] = []
        for world, level in enumerate(results.level.tolist()):
            numbers = results.exists[world].nonzero().squeeze(1).tolist()
            robots = [_robot_data(columns, world, robot) for robot in numbers]
            plans.append({"world": world, "level": level, "robots": robots})
        return plans


def _robot_data(columns: Mapping[str, Tensor], world: int, robot: int) -> PlainData:
    """Return the values of one robot, by column, as plain data."""
    return {name: values[world, robot].tolist() for name, values in columns.items()}


def _rows_data(results: NavigationResults) -> PlainData:
    """Return the metrics of each row that was played, as plain data."""
    rows: PlainData = {}
    for row in sorted(set(results.level.tolist())):
        metrics = results.metrics(row)
        error = share_error(metrics.success, metrics.worlds)
        rows[str(row)] = asdict(metrics) | {"success_error": error}
    return rows


def navigation_suite(
    env: MarineNavEnv,
    num_episodes: int,
    *,
    seed: int = UNSEEN_SEED,
    pictures: bool = True,
    batch_size: int | None = None,
) -> NavigationSuite:
    """Return worlds like those of an environment, with arguments as in `suite_for`."""
    each = -(-num_episodes // len(env.levels))
    return NavigationSuite.of_rows(env, each, pictures, batch_size, seed=seed)
