"""Navigators compared on the same worlds: the table, the pictures and the crossings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.marine.types import PLACE
from torchrl_gpu.evaluation.navigation.episodes import Crossings, cross
from torchrl_gpu.evaluation.navigation.published import SOURCE, Protocol, published_for
from torchrl_gpu.evaluation.navigation.table import navigation_table
from torchrl_gpu.evaluation.reports import print_whole, write_json
from torchrl_gpu.policies.policy import Policy


class NavigationSuite:
    """Worlds on which navigators are compared.

    Args:
        env: Plays a world in each environment, of the row that it was assigned; its seed decides them.
        pictures: Whether `compare` writes a PNG and a GIF of a world being crossed.
    """

    headline = "success"  # the score that tells most

    def __init__(self, env: MarineNavEnv, pictures: bool = True) -> None:
        self.env, self.pictures = env, pictures
        self.say: Callable[[str], None] = lambda words: None
        """Told what is being played, and the empty string when results are about to be printed."""
        self.last: Crossings | None = None
        """What was played last, with the trails of the first world of every row."""

    @classmethod
    def of_rows(
        cls, env: MarineNavEnv, worlds_per_level: int, pictures: bool = True, **changes: Any
    ) -> NavigationSuite:
        """The first worlds of every row of a curriculum, in environments like another.

        Args:
            env: With the rows, or with others if `changes` has a `curriculum`.
            worlds_per_level: Of each row.
            pictures: As in `NavigationSuite`.
            changes: Of the environment's arguments.
        """
        rows = {"curriculum": env.levels, "robots": None, "cores": None, "obstacles": None, "min_distance": None}
        arguments = rows | {"first_env": 0, "in_order": True, "pool": worlds_per_level} | changes
        one = env.like(1, **arguments)  # to know the rows
        many = env.like(len(one.levels) * worlds_per_level, **arguments)
        many.assign_levels([i // worlds_per_level for i in range(many.num_envs)])
        return cls(many, pictures)

    @property
    def rows(self) -> list[int]:
        """Rows of the curriculum that are played."""
        return sorted(set(self._levels().tolist()))

    def _levels(self) -> Tensor:
        return self.env.state.next_level.cpu()

    def _of_row(self, row: int) -> list[int]:
        """Environments that play a row."""
        return (self._levels() == row).nonzero().squeeze(1).tolist()

    def play(self, policy: Policy) -> Crossings:
        """Crosses every world with one policy."""
        self.last = cross(self.env, policy, [self._of_row(row)[0] for row in self.rows])
        return self.last

    def show(self, name: str, scores: dict[str, float]) -> None:
        """Prints one policy's scores."""
        self.say("")
        told = ", ".join(f"{key} {value:.3f}" for key, value in scores.items())
        Console().print(f"{name} on {self.env.num_envs} worlds: {told}", soft_wrap=True)

    def compare(
        self, policy: Policy, folder: Path, name: str = "policy", others: Mapping[str, Policy] | None = None
    ) -> dict[str, float]:
        """Crosses every world with the policy and with the others.

        Prints the table, with what the released navigators came to where this is a test that they were put to, and
        writes `evaluation.json` and pictures of a world of the last row into `folder`.

        Args:
            policy: Of the first line of each row.
            folder: Made if it is not there.
            name: Of the policy.
            others: By name; None stands for none.

        Returns:
            The policy's scores by name.
        """
        hardest = self._of_row(self.rows[-1])
        self.say(f"{name}, {self.env.num_envs} worlds")
        own = cross(self.env, policy, hardest if self.pictures else ())
        crossed = {name: own}
        for other, each in (others or {}).items():
            if other != name:
                self.say(f"{other}, {self.env.num_envs} worlds")
                crossed[other] = cross(self.env, each)
        self.say("")
        published = published_for(self.env)
        print_whole(navigation_table(self.env.levels, crossed, published, f"{self.env.num_envs} worlds"))
        write_json(folder / "evaluation.json", self._report(crossed, published))
        if self.pictures:
            draw(folder, own)
        Console().print(
            f"Written: {folder / 'evaluation.json'}" + (", pictures beside it" if self.pictures else ""), soft_wrap=True
        )
        return own.scores()

    def _report(self, crossed: Mapping[str, Crossings], published: Protocol | None) -> dict[str, Any]:
        policies = [
            {
                "policy": name,
                "scores": crossings.scores(),
                "rows": {str(row): _figures(crossings, row) for row in self.rows},
                "decision_ms": crossings.decision_ms,
                "seconds": crossings.seconds,
            }
            for name, crossings in crossed.items()
        ]
        told = None if published is None else {"source": SOURCE, **asdict(published)}
        return {"worlds": self.describe(), "policies": policies, "published": told}

    def describe(self) -> dict[str, Any]:
        """What decides the worlds, and when they are over."""
        env = self.env
        return {
            "version": env.version,
            "rows": {str(row): env.levels[row]._asdict() for row in self.rows},
            "num_worlds": env.num_envs,
            "max_steps": env.max_steps,
            "end_on_collision": env.end_on_collision,
            "actions": env.actions,
            "sensor_noise": env.sensor_noise,
            "seed": env.seed,
            "device": str(env.device),
        }

    def plan(self, policy: Policy, folder: Path) -> list[dict[str, Any]]:
        """Crosses every world and writes how each robot fared as `crossings.json` into `folder`."""
        crossings = cross(self.env, policy)
        self.say("")
        goals = self.env.scene.goal.permute(2, 1, 0).cpu()  # (E, R, 2)
        self.env.set_seed(self.env.seed)
        self.env.reset()
        starts = self.env.state.motion[PLACE].permute(2, 1, 0).cpu()
        plans = [_plan(i, crossings, starts[i], goals[i]) for i in range(self.env.num_envs)]
        write_json(folder / "crossings.json", plans)
        Console().print(f"Written: {folder / 'crossings.json'}, {len(plans)} worlds", soft_wrap=True)
        return plans


def _figures(crossings: Crossings, row: int) -> dict[str, Any]:
    figures = crossings.figures(row)
    return {**asdict(figures), "success_error": figures.error}


def _plan(world: int, crossings: Crossings, start: Tensor, goal: Tensor) -> dict[str, Any]:
    """How the robots of one world fared."""
    robots = [
        {
            "start_m": start[i].tolist(),
            "goal_m": goal[i].tolist(),
            "arrived": bool(crossings.arrived[world, i]),
            "collided": bool(crossings.collided[world, i]),
            "time_s": crossings.time[world, i].item(),
            "energy": crossings.energy[world, i].item(),
        }
        for i in crossings.exists[world].nonzero().squeeze(1).tolist()
    ]
    return {"world": world, "level": int(crossings.level[world]), "robots": robots}


def draw(folder: Path, crossings: Crossings) -> None:
    """The median world of those that were watched as `crossing.png` and `crossing.gif`."""
    from torchrl_gpu.envs.marine.viewer import save_gif, save_png

    trails = crossings.trails
    assert trails is not None
    which = _median(crossings, list(trails.index))
    save_png(trails.picture(which), folder / "crossing.png")
    save_gif(trails.film(which), folder / "crossing.gif", fps=12.0)


def _median(crossings: Crossings, worlds: list[int]) -> int:
    """Which of some worlds lies in the middle: by how many robots arrived, and then by how soon."""
    arrived, steps = crossings.arrived[worlds].sum(1), crossings.steps[worlds].amax(1)
    order = torch.argsort(arrived * (1 + steps.max()) - steps, stable=True)
    return int(order[len(order) // 2])
