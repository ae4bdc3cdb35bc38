"""Packing policies compared on the same episodes: the table, the pictures and the plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences
from torchrl_gpu.envs.packing.items.source import SameItems
from torchrl_gpu.envs.packing.types import Catalogue
from torchrl_gpu.evaluation.comparison import columns_of, comparison_data, comparison_table
from torchrl_gpu.evaluation.packing.episodes import Packings, Score, pack_episodes
from torchrl_gpu.evaluation.packing.side_by_side import episode_bytes, num_side_by_side
from torchrl_gpu.evaluation.reports import print_whole, write_json
from torchrl_gpu.policies.packing import baselines
from torchrl_gpu.policies.packing.contestants import RULE
from torchrl_gpu.policies.policy import Policy


class PackingSuite:
    """Episodes on which packing policies are compared, played in batches that fit into memory.

    Args:
        env: Its arguments decide the episodes: number i is the first of environment `first_env + i`. Policies are made
            for it; the batches are played in an environment like it, which shares its items.
        pictures: Whether `compare` writes a PNG and a GIF of a bin being packed, one of each for every order of a file.
        num_episodes: How many; None stands for as many as `env` has environments.
        batch_size: Episodes side by side; None takes as many as fit, see `side_by_side`. The scores do not depend on
            it, but for the last bits of networks that round differently in batches of another size.
    """

    headline = "utilization"  # the score that tells most

    def __init__(
        self, env: PackingEnv, pictures: bool = True, num_episodes: int | None = None, batch_size: int | None = None
    ) -> None:
        self.num_episodes = env.num_envs if num_episodes is None else num_episodes
        for name, number in (("num_episodes", self.num_episodes), ("batch_size", batch_size)):
            if number is not None and number < 1:
                raise ValueError(f"PackingSuite: {name} must be at least 1; got {number}")
        self.env, self.pictures, self.batch_size = env, pictures, batch_size
        self.say: Callable[[str], None] = lambda words: None
        """Told what is being played, and the empty string when results are about to be printed."""
        self.played: _Bins | None = None
        """The bins of the episodes that were played last, as `viewer` wants to see them."""
        self._playing: tuple[PackingEnv, int] | None = None

    def play(self, policy: Policy) -> Packings:
        """Packs every episode with one policy."""
        packings = pack_episodes(self._env_for([policy]), policy, self.num_episodes, self.say)
        self.played = _Bins.of(self.env, packings)
        return packings

    def _say_of(self, policy: str, words: str) -> None:
        self.say(f"{policy}, {words}")

    def _env_for(self, policies: Sequence[Policy]) -> PackingEnv:
        """What the batches are played in; it is made anew only for policies that take more memory than those before."""
        counted = self.batch_size is None
        per_episode = max(episode_bytes(self.env, policy) for policy in policies) if counted else 0
        if self._playing is None or per_episode > self._playing[1]:
            self._playing = None  # is freed before memory is asked for
            device = self.env.device
            size = self.batch_size or num_side_by_side(self.num_episodes, per_episode, device)
            self._playing = self._of_size(min(size, self.num_episodes)), per_episode
        return self._playing[0]

    def _of_size(self, num_envs: int) -> PackingEnv:
        return self.env if self.env.num_envs == num_envs else self.env.like(num_envs, items=SameItems(self.env))

    def show(self, name: str, scores: dict[str, float]) -> None:
        """Prints one policy's scores."""
        self.say("")
        told = ", ".join(f"{key} {value:.3f}" for key, value in scores.items())
        Console().print(f"{name} on {self.num_episodes} episodes: {told}", soft_wrap=True)

    def compare(
        self, policy: Policy, folder: Path, name: str = "policy", others: Mapping[str, Policy] | None = None
    ) -> dict[str, float]:
        """Packs every episode with the policy and with the others.

        Prints the table, and writes `evaluation.json` and pictures of the policy's bins into `folder`.

        Args:
            policy: Of the last row.
            folder: Made if it is not there.
            name: Of the policy.
            others: By name; None stands for every baseline.

        Returns:
            The policy's scores by name.
        """
        others = baselines(self.env) if others is None else others
        policies = {other: each for other, each in others.items() if other != name} | {name: policy}
        env = self._env_for(list(policies.values()))
        packed = {
            other: pack_episodes(env, each, self.num_episodes, partial(self._say_of, other))
            for other, each in policies.items()
        }
        self.say("")
        rows = [packings.score(other) for other, packings in packed.items()]
        folder.mkdir(parents=True, exist_ok=True)
        title = f"{self.num_episodes} episodes"
        report: dict[str, Any] = {"episodes": self.describe(), "policies": [asdict(row) for row in rows]}
        if RULE in packed:
            methods = {other: columns_of(p) | _decision_time(p) for other, p in packed.items()}
            print_whole(comparison_table(methods, title, RULE))
            report["comparison"] = comparison_data(methods, RULE)
        else:
            print_whole(table(rows, title))
        write_json(folder / "evaluation.json", report)
        if self.pictures:
            self.draw(folder, packed[name])
        Console().print(
            f"Written: {folder / 'evaluation.json'}" + (", pictures beside it" if self.pictures else ""), soft_wrap=True
        )
        return packed[name].scores()

    def describe(self) -> dict[str, Any]:
        """What decides the episodes."""
        env = self.env
        return {
            "bin_size_m": list(env.bin_size),
            "cells": list(env.bin.cells),
            "grid_step": env.grid_step,
            "items": env.items.path.name if isinstance(env.items, BoxSequences) else type(env.items).__name__,
            "num_items": env.num_items,
            "orientations": env.orientations,
            "stability": env.stability,
            "visible_items": env.visible_items,
            "seed": env.seed,
            "device": str(env.device),
        }

    def names(self) -> list[str]:
        """A name for each episode: the order's, where a file gives one."""
        items = self.env.items
        return items.names if isinstance(items, BoxSequences) else [str(i) for i in range(self.num_episodes)]

    def draw(self, folder: Path, packings: Packings) -> None:
        """Pictures of packings: of each order of a file, else of the bin of median utilization."""
        from torchrl_gpu.envs.packing import viewer

        if isinstance(self.env.items, BoxSequences):
            chosen = {f"order-{name}": i for i, name in enumerate(self.names()[:16])}
        else:
            chosen = {"packing": int(packings.utilization.argsort()[len(packings.utilization) // 2])}
        for name, index in chosen.items():
            film = viewer.frames(_Bins.of(self.env, packings), index)
            caption = f"{packings.utilization[index]:.1%} of the bin, {int(packings.num_packed[index])} items"
            viewer.save_png(film[-1], folder / f"{name}.png", caption=caption)
            viewer.save_gif(film, folder / f"{name}.gif")

    def plan(self, policy: Policy, folder: Path) -> list[dict[str, Any]]:
        """Packs every episode and writes where each item goes as `plans.json` into `folder`."""
        packings = self.play(policy)
        self.say("")
        bins = _Bins.of(self.env, packings)
        plans = [
            {"episode": name, "utilization": packings.utilization[i].item(), "placements": placements(bins, i)}
            for i, name in enumerate(self.names()[: self.num_episodes])
        ]
        write_json(folder / "plans.json", plans)
        Console().print(f"Written: {folder / 'plans.json'}, {len(plans)} plans", soft_wrap=True)
        return plans


@dataclass(frozen=True)
class _Bins:
    """Packed bins as `viewer` and `placements` want to see them, whatever environment they were packed in."""

    placements: Tensor  # (E, T, 4) int32
    placement_z: Tensor  # (E, T) float32, metres
    num_packed: Tensor  # (E,) int64
    catalogue: Catalogue
    cell: tuple[float, float]
    bin_size: tuple[float, float, float]

    @staticmethod
    def of(env: PackingEnv, packings: Packings) -> _Bins:
        """Of packings of an environment's items, on its device."""
        assert packings.placements is not None
        assert packings.placement_z is not None
        return _Bins(
            packings.placements.to(env.device),
            packings.placement_z.to(env.device),
            packings.num_packed.long().to(env.device),
            env.catalogue,
            env.cell,
            env.bin.size,
        )


def placements(env: PackingEnv | _Bins, index: int) -> list[dict[str, Any]]:
    """Where the items of one bin are, in order: corner and extent of the item's bounding box, metres."""
    number = int(env.num_packed[index])
    rows, heights = env.placements[index, :number].tolist(), env.placement_z[index, :number].tolist()
    out = []
    for (item, orientation, x, y), z in zip(rows, heights, strict=True):
        p, q = env.catalogue.extent[item, orientation].tolist()
        size = [p * env.cell[0], q * env.cell[1], env.catalogue.height[item, orientation].item()]
        corner = [x * env.cell[0], y * env.cell[1], z]
        out.append({"item": item, "orientation": orientation, "corner_m": corner, "size_m": size})
    return out


def table(rows: list[Score], title: str) -> Table:
    """The comparison as a table for the terminal, best utilization last; ms are of one decision for one bin."""
    shown = Table(title=title, title_justify="left")
    for column in ("policy", "utilization", "items", "C", "P", "ms"):
        shown.add_column(column, justify="left" if column == "policy" else "right", no_wrap=True)
    best = max(row.utilization for row in rows)
    for row in sorted(rows, key=lambda row: row.utilization):
        shown.add_row(
            row.policy,
            f"{row.utilization:.1%} ± {row.utilization_error:.1%}",
            f"{row.num_packed:.2f} ± {row.num_packed_error:.2f}",
            f"{row.compactness:.3f}",
            f"{row.pyramidality:.3f}",
            f"{row.decision_ms:.3f}",
            style="bold" if row.utilization == best else "",
        )
    return shown


def _decision_time(packings: Packings) -> dict[str, Tensor]:
    return {"ms/decision": torch.tensor([packings.decision_ms])}
