"""The table of navigators, row after row of the curriculum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.table import Table

from torchrl_gpu.envs.marine.levels import Levels
from torchrl_gpu.evaluation.navigation.episodes import Crossings, Figures
from torchrl_gpu.evaluation.navigation.published import SOURCE, Protocol, Told
from torchrl_gpu.evaluation.shares import percent, share_error

RELEASED = ", released"
ALL = "all"
COLUMNS = ("robots/cores/obstacles", "policy", "worlds", "success", "arrived", "time s", "energy", "discounted return")


def navigation_table(levels: Levels, crossed: Mapping[str, Crossings], published: Protocol | None, title: str) -> Table:
    """For the terminal: own policies first, the first of them in bold, then the released ones, its own kind first.

    Shares stand with their standard errors. Robots of one world meet the same things, so that the error of the share
    that arrived is that of as many robots as there are worlds, which it does not exceed.

    Args:
        levels: Rows of the curriculum.
        crossed: What the policies came to, by name; all in the same worlds.
        published: What the released ones came to, in other worlds of these rows.
        title: Of the table.
    """
    shown = Table(title=title, title_justify="left")
    for column in COLUMNS:
        shown.add_column(column, justify="left" if column in COLUMNS[:2] else "right", no_wrap=True)
    first, *_ = crossed
    for row in [*sorted(set(crossed[first].level.tolist())), None]:
        level = ALL if row is None else "/".join(str(count) for count in levels[row][1:4])
        figures = {name: crossings.figures(row) for name, crossings in crossed.items()}
        own = {name: _line(each, each.worlds) for name, each in figures.items()}
        told = {} if published is None else _told(published, row, first)
        _add_section(shown, level, own | told, first)
    if published is not None:
        shown.caption = f"{SOURCE}; in other worlds of the same rows"
        shown.caption_justify = "left"
    return shown


def _add_section(shown: Table, level: str, lines: Mapping[str, Iterable[str]], first: str) -> None:
    for name, figures in lines.items():
        shown.add_row(level if name == first else "", name, *figures, style="bold" if name == first else "")
    shown.add_section()


def _told(published: Protocol, row: int | None, first: str) -> dict[str, list[str]]:
    """Figures of the released navigators, by name."""
    lines: dict[str, Told] = {}
    for agent, rows in published.rows.items():
        if row is None and agent in published.overall:
            lines[agent] = published.overall[agent]
        elif row is not None and row < len(rows):
            lines[agent] = rows[row]
    worlds = published.num_worlds(row)
    same_first = sorted(lines, key=lambda agent: _kind(agent) != _kind(first))
    return {agent + RELEASED: _line(lines[agent], worlds) for agent in same_first}


def _kind(name: str) -> str:
    """What a policy is, without what is said about it: of "AC-IQN" and "ACIQN (untrained)" the same."""
    return name.partition(" (")[0].replace("-", "")


def _line(figures: Figures | Told, worlds: int) -> list[str]:
    numbers = figures.time, figures.energy, figures.discounted
    return [
        str(worlds),
        _share(figures.success, worlds),
        _share(figures.arrived, worlds),
        *("–" if value is None else f"{value:,.1f}" for value in numbers),
    ]


def _share(share: float | None, worlds: int) -> str:
    return "–" if share is None else percent(share, share_error(share, worlds))
