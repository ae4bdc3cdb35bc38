"""Packing policies compared on the same episodes: the table, the pictures and the plans."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type, step_mdp

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences
from torchrl_gpu.envs.packing.reward import compactness, pyramidality
from torchrl_gpu.policies.packing import baselines

Policy = Callable[[TensorDictBase], TensorDictBase]


@dataclass(frozen=True)
class Score:
    """How one policy packed a set of episodes; means over episodes, `_error` their standard error."""

    policy: str
    utilization: float
    utilization_error: float
    num_packed: float
    num_packed_error: float
    compactness: float
    pyramidality: float
    decision_ms: float
    num_episodes: int


@dataclass(frozen=True)
class Packings:
    """Final bins of some episodes, (E,) each on the CPU, and the time that decisions took."""

    utilization: Tensor
    num_packed: Tensor
    compactness: Tensor
    pyramidality: Tensor
    decision_ms: float

    def scores(self) -> dict[str, float]:
        """Means by name."""
        return {name: getattr(self, name).mean().item() for name in asdict(self) if name != "decision_ms"}

    def score(self, policy: str) -> Score:
        """The table's row."""
        number = len(self.utilization)
        return Score(
            policy,
            utilization_error=_standard_error(self.utilization),
            num_packed_error=_standard_error(self.num_packed),
            decision_ms=self.decision_ms,
            num_episodes=number,
            **self.scores(),
        )


def _standard_error(values: Tensor) -> float:
    return (values.std() / len(values) ** 0.5).item() if len(values) > 1 else 0.0


@torch.no_grad()
def pack(env: PackingEnv, policy: Policy) -> Packings:
    """Packs one bin in every environment, greedily; the full bins are left in `env.state`.

    A bin that is done gets actions that are not legal, which change nothing, until all are.
    """
    env.set_seed(env.seed)
    observation, seconds, decisions = env.reset(), 0.0, 0
    done = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        while not done.all():
            start = _now(env.device)
            chosen = policy(observation)
            seconds += _now(env.device) - start
            decisions += int((~done).sum())
            chosen["action"] = torch.where(done, -1, chosen["action"])
            stepped = env.step(chosen)
            done |= stepped["next", "done"].squeeze(-1)
            observation = step_mdp(stepped)
    state = env.state
    return Packings(
        (state.volume / env.bin.volume).cpu(),
        state.num_packed.float().cpu(),
        compactness(state.heightmap, state.volume, env.bin).cpu(),
        pyramidality(state.heightmap, state.volume, env.bin).cpu(),
        1e3 * seconds / max(decisions, 1),
    )


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class PackingSuite:
    """Episodes on which packing policies are compared.

    Args:
        env: Plays all the episodes side by side; its seed decides them.
        pictures: Whether `compare` writes a PNG and a GIF of a bin being packed, one of each for every order of a file.
    """

    def __init__(self, env: PackingEnv, pictures: bool = True) -> None:
        self.env, self.pictures = env, pictures

    def play(self, policy: Policy) -> Packings:
        """Packs every episode with one policy."""
        return pack(self.env, policy)

    def show(self, name: str, scores: dict[str, float]) -> None:
        """Prints one policy's scores."""
        told = ", ".join(f"{key} {value:.3f}" for key, value in scores.items())
        Console().print(f"{name} on {self.env.num_envs} episodes: {told}", soft_wrap=True)

    def compare(self, policy: Policy, folder: Path, name: str = "policy") -> dict[str, float]:
        """Packs every episode with the policy and with every baseline.

        Prints the table, and writes `evaluation.json` and pictures of the policy's bins into `folder`.

        Returns:
            The policy's scores by name.
        """
        rows = []
        for other, baseline in baselines(self.env).items():
            rows.append(self.play(baseline).score(other))
        packings = self.play(policy)
        rows.append(packings.score(name))  # last, so that `env.state` holds its bins
        folder.mkdir(parents=True, exist_ok=True)
        _print_whole(table(rows, f"{len(packings.utilization)} episodes"))
        report = {"episodes": self.describe(), "policies": [asdict(row) for row in rows]}
        _write_json(folder / "evaluation.json", report)
        if self.pictures:
            self.draw(folder, packings)
        Console().print(
            f"Written: {folder / 'evaluation.json'}" + (", pictures beside it" if self.pictures else ""), soft_wrap=True
        )
        return packings.scores()

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
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / "plans.json", plans)
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


def _print_whole(shown: Table) -> None:
    """Prints a table at its own width: rich takes a log for 80 columns and would leave figures out."""
    console = Console()
    width = console.measure(shown, options=console.options.update(max_width=1000)).maximum
    Console(width=max(console.width, width)).print(shown)


def _write_json(path: Path, content: Any) -> None:
    fresh = path.with_suffix(".json-new")
    fresh.write_text(json.dumps(content, indent=2) + "\n")
    fresh.replace(path)
