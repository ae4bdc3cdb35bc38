"""The table of navigators, row after row of the curriculum."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from torchrl_gpu.envs.marine.levels import Levels
from torchrl_gpu.evaluation.estimates import percent, share_error
from torchrl_gpu.evaluation.navigation.episodes import NavigationMetrics, NavigationResults
from torchrl_gpu.evaluation.navigation.published import SOURCE, PublishedTest, ReportedScores

RELEASED = ", released"
ALL = "all"
COLUMNS = ("robots/cores/obstacles", "policy", "worlds", "success", "arrived", "time s", "energy", "discounted return")


def navigation_table(
    levels: Levels, results: Mapping[str, NavigationResults], published: PublishedTest | None, title: str
) -> Table:
    """For the terminal: own policies first, the first of them in bold, then the released ones, its own kind first.

    Shares stand with their standard errors. Robots of one world meet the same things, so that the error of the share
    that arrived is that of as many robots as there are worlds, which it does not exceed.
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
