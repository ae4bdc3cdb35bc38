"""Packing policies compared on the same episodes: the table, the pictures and the plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences
from torchrl_gpu.policies.packing import baselines
from torchrl_gpu.policies.packing.contestants import RULE
from torchrl_gpu.training.comparison import columns_of, comparison_data, comparison_table
from torchrl_gpu.training.graphed import Policy
from torchrl_gpu.training.packings import Packings, Score, pack
from torchrl_gpu.training.reports import print_whole, write_json


class PackingSuite:
    """Episodes on which packing policies are compared.

    Args:
        env: Plays all the episodes side by side; its seed decides them.
        pictures: Whether `compare` writes a PNG and a GIF of a bin being packed, one of each for every order of a file.
    """

    headline = "utilization"  # the score that tells most

    def __init__(self, env: PackingEnv, pictures: bool = True) -> None:
        self.env, self.pictures = env, pictures

    def play(self, policy: Policy) -> Packings:
        """Packs every episode with one policy."""
        return pack(self.env, policy)

    def show(self, name: str, scores: dict[str, float]) -> None:
        """Prints one policy's scores."""
        told = ", ".join(f"{key} {value:.3f}" for key, value in scores.items())
        Console().print(f"{name} on {self.env.num_envs} episodes: {told}", soft_wrap=True)

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
        packed = {other: self.play(each) for other, each in others.items() if other != name}
        packed[name] = self.play(policy)  # last, so that `env.state` holds its bins
        rows = [packings.score(other) for other, packings in packed.items()]
        folder.mkdir(parents=True, exist_ok=True)
        title = f"{self.env.num_envs} episodes"
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
        return items.names if isinstance(items, BoxSequences) else [str(i) for i in range(self.env.num_envs)]

    def draw(self, folder: Path, packings: Packings) -> None:
        """Pictures of the bins in `env.state`: each order of a file, else the bin of median utilization."""
        from torchrl_gpu.envs.packing import viewer

        if isinstance(self.env.items, BoxSequences):
            chosen = {f"order-{name}": i for i, name in enumerate(self.names()[:16])}
        else:
            chosen = {"packing": int(packings.utilization.argsort()[len(packings.utilization) // 2])}
        for name, index in chosen.items():
            film = viewer.frames(self.env, index)
            caption = f"{packings.utilization[index]:.1%} of the bin, {int(packings.num_packed[index])} items"
            viewer.save_png(film[-1], folder / f"{name}.png", caption=caption)
            viewer.save_gif(film, folder / f"{name}.gif")

    def plan(self, policy: Policy, folder: Path) -> list[dict[str, Any]]:
        """Packs every episode and writes where each item goes as `plans.json` into `folder`."""
        packings = self.play(policy)
        plans = [
            {"episode": name, "utilization": packings.utilization[i].item(), "placements": placements(self.env, i)}
            for i, name in enumerate(self.names()[: self.env.num_envs])
        ]
        write_json(folder / "plans.json", plans)
        Console().print(f"Written: {folder / 'plans.json'}, {len(plans)} plans", soft_wrap=True)
        return plans


def placements(env: PackingEnv, index: int) -> list[dict[str, Any]]:
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


def _decision_time(packings: Packings) -> dict[str, torch.Tensor]:
    return {"ms/decision": torch.tensor([packings.decision_ms])}
