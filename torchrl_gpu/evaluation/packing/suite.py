"""Packing policies compared on the same episodes: the table, the pictures and the plans."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences
from torchrl_gpu.envs.packing.items.sequences import PlayedBoxes
from torchrl_gpu.envs.packing.protocols import packs_orders, protocol_of
from torchrl_gpu.evaluation.estimates import comparison_data, comparison_table, plus_minus, standard_error
from torchrl_gpu.evaluation.packing.episodes import PackedBins, PackingResults, Score, evaluate, sequence_number
from torchrl_gpu.evaluation.reports import without_noise
from torchrl_gpu.evaluation.suite import Suite, TableOptions
from torchrl_gpu.policies.packing import baselines
from torchrl_gpu.policies.packing.heuristics import RULE, VALUES
from torchrl_gpu.policies.packing.pretrained import pretrained_for
from torchrl_gpu.policies.policy import Policy

PUBLISHED: dict[tuple[str, int], tuple[tuple[str, float, str], ...]] = {
    ("rs", 1): (("AAAI 2021, policy", 50.5, "nothing"), ("arXiv 2208.07123, 100 sequences", 53.1, "nothing")),
    ("rs", 3): (("arXiv 2208.07123, 100 sequences", 62.1, "3 visible"),),
    ("cut1", 1): (("AAAI 2021, policy", 73.4, "nothing"), ("arXiv 2208.07123, 100 sequences", 83.4, "nothing")),
    ("cut2", 1): (("AAAI 2021, policy", 66.9, "nothing"), ("arXiv 2208.07123, 100 sequences", 69.9, "nothing")),
    ("cut2", 2): (("arXiv 2208.07123, 100 sequences", 71.5, "2 visible"),),
    ("cut2", 3): (("arXiv 2208.07123, 100 sequences", 77.1, "3 visible"),),
    ("discrete125", 1): (
        ("GOPT, RA-L 2024, online BPH", 51.6, "nothing"),
        ("GOPT, RA-L 2024, heightmap minimisation", 56.5, "nothing"),
        ("PCT, ICLR 2022, as trained by GOPT", 72.7, "nothing"),
        ("GOPT, RA-L 2024", 76.1, "nothing"),
    ),
    ("free125", 1): (("PCT, ICLR 2022", 86.0, "nothing"),),
    ("free125", 5): (("PCT, IJRR 2025, second-hand", 88.3, "5 visible"),),
    ("free125", 10): (("PCT, IJRR 2025, second-hand", 93.5, "10 visible"),),
    **{
        (name, 1): tuple((f"{policy}, RoboBPP", share, "nothing") for policy, share in rows)
        for name, rows in {
            "repetitive": (("MACS", 44.5), ("HM", 57.9), ("DBL", 61.7), ("LSAH", 61.9), ("PCT", 65.9), ("AR2L", 67.3)),
            "diverse": (("MACS", 35.2), ("HM", 42.3), ("DBL", 54.9), ("LSAH", 56.9), ("AR2L", 65.5), ("PCT", 66.8)),
            "boards": (("MACS", 23.2), ("HM", 35.5), ("LSAH", 47.4), ("DBL", 52.0), ("AR2L", 53.8), ("PCT", 57.1)),
        }.items()
    },
}
"""Utilization in per cent of published policies on sequences of their own, and what they knew; by protocol and by how
many boxes they could choose from (arXiv 2208.07123 and PCT's version of 2025 call that a buffer)."""


class PackingSuite(Suite[PackingEnv, PackingResults]):
    """Bins to pack; pictures are of each order of a file, else of the bin of median utilization."""

    headline, pictures_tag = "utilization", "packed bins"
    preferred = ("pretrained", VALUES, RULE, "heightmap minimisation")
    simulated = 0
    """First bins of each policy that `table` simulates."""

    def evaluate(self, env: PackingEnv, policy: Policy, num_episodes: int) -> PackingResults:
        return evaluate(env, policy, num_episodes)

    @property
    def most_on_cpu(self) -> int:
        # Maps of boxes cost less than their way to memory and back, and glibc keeps no tensor above 32 MiB.
        return 1 << 27 if self.env.catalogue.flat else super().most_on_cpu

    def packed_alone(self, policies: Mapping[str, Policy], cases: int) -> dict[str, list[PackingResults]]:
        """Results of the first cases by each policy, which packs one bin at a time, warm, for its times.

        Policies take turns, so that other load slows all of them alike.
        """
        env = self.env.like(1, stability_judge="rule", items=self.env.shared_items())
        results: dict[str, list[PackingResults]] = {name: [] for name in policies}
        for case in (0, *range(min(cases, self.num_episodes))) if cases else ():  # the first is a rehearsal
            self.begin(env, case)
            for name, policy in policies.items():
                self.say(f"{name}, timed alone")
                results[name].append(evaluate(env, policy))
        return {name: each[1:] for name, each in results.items()}

    def baselines(self) -> Mapping[str, Policy]:
        """The heuristics; on the pallet of orders the policy that comes with the package, too."""
        return {**baselines(self.env), **(self.pretrained() if packs_orders(self.env) else {})}

    def pretrained(self) -> Mapping[str, Policy]:
        return pretrained_for(self.env)

    def like(self, num_envs: int) -> PackingEnv:
        return self.env.like(num_envs, items=self.env.shared_items())

    def table(self, results: dict[str, PackingResults], name: str) -> tuple[Table, dict[str, Any]]:
        """Beside the rule of irregular packing, where that is among the policies, differences from it too."""
        rows, title = [each.score(policy) for policy, each in results.items()], f"{self.num_episodes} episodes"
        report: dict[str, Any] = {"policies": [asdict(row) for row in rows]}
        if RULE not in results:
            settled = self.settled(results)
            for row in report["policies"]:
                row |= settled.get(row["policy"], {})
            return packing_table(rows, title, self.published(), settled), report
        methods = {
            policy: each.columns()
            | {"ms/decision": torch.tensor([each.decision_ms], dtype=torch.float32, device="cpu")}
            for policy, each in results.items()
        }
        return comparison_table(methods, title, RULE), report | {"comparison": comparison_data(methods, RULE)}

    def settled(self, results: dict[str, PackingResults]) -> dict[str, dict[str, Any]]:
        """Share of stable boxes of each policy's first bins, all released at once; empty where none is simulated."""
        if not self.simulated:
            return {}
        from torchrl_gpu.envs.packing.physics import plan_of, settle_cases

        found = {}
        for name, each in results.items():
            self.say(f"{name}, physics")
            bins, started = PackedBins(self.env, each), time.perf_counter()
            plans = [plan_of(bins, index) for index in range(min(self.simulated, self.num_episodes))]
            cases = settle_cases(plans, progress=True, sequential=False, friction=self.env.friction)
            shares = torch.tensor([case.share for case in cases], dtype=torch.float64, device="cpu")
            found[name] = {
                "stands": shares.mean().item(),
                "stands_error": standard_error(shares),
                "simulated": len(cases),
                "faultless": sum(bool(case.stable.all()) for case in cases),
                "simulation_s": (time.perf_counter() - started) / len(cases),
            }
        return found

    def published(self) -> dict[str, float]:
        """Results of published policies by the same rules, on sequences of their own; per cent by name."""
        if self.env.skip_unplaceable:
            return {}
        key = protocol_of(self.env) or "", self.env.visible_items
        return {name: share for name, share, _ in PUBLISHED.get(key, ())}

    def describe(self) -> dict[str, Any]:
        env = self.env
        names = ["num_items", "orientations", "stability", "visible_items", "seed"]
        names += ["margin", "max_tilt"] if env.stability == "load_bearing" else []
        names += ["fallback"] if env.fallback is not None else []
        items = env.items.path.name if isinstance(env.items, BoxSequences) else type(env.items).__name__
        bins = {"bin_size_m": list(env.bin_size), "cells": list(env.bin.cells), "grid_step": env.grid_step}
        played = {} if self.played is None else {"unit": env.items.unit, "left_out": self.played.left_out}
        settings = {name: getattr(env, name) for name in names} | {"device": str(env.device)}
        return bins | {"items": items} | played | settings

    @cached_property
    def played(self) -> PlayedBoxes | None:
        """The boxes of a file; None where there is no file."""
        items = self.env.items
        return items.played(self.env.bin, self.env.orientations) if isinstance(items, BoxSequences) else None

    def names(self) -> list[str]:
        """A name for each episode: the order's, where a file gives one."""
        if self.played is None:
            return [str(i) for i in range(self.num_episodes)]
        numbers = [sequence_number(self.env, i) for i in range(self.num_episodes)]
        return [self.env.items.names[self.played.episodes[i]] for i in numbers]  # type: ignore[attr-defined]

    def pictures(self, num: int, width: int) -> Tensor:
        from torchrl_gpu.envs.packing import viewer

        assert self.last is not None
        shown = list(range(min(num, self.num_episodes)))
        return viewer.render(PackedBins(self.env, self.last), shown, width=width, height=width * 3 // 4)

    def draw(self, folder: Path) -> None:
        """As `packing` or, for each order of a file, `order-NAME`."""
        from torchrl_gpu.envs.packing import viewer

        assert self.last is not None
        utilization, bins = self.last.utilization, PackedBins(self.env, self.last)
        if isinstance(self.env.items, BoxSequences):
            chosen = {_file_name(name, i): i for i, name in enumerate(self.names()[: min(16, self.num_episodes)])}
        else:
            chosen = {"packing": int(utilization.argsort()[len(utilization) // 2])}
        for name, index in chosen.items():
            film = viewer.frames(bins, index)
            caption = f"{utilization[index]:.1%} of the bin, {int(bins.num_packed[index])} items"
            viewer.save_png(film[-1], folder / f"{name}.png", caption=caption)
            viewer.save_gif(film, folder / f"{name}.gif")

    def plans(self, results: PackingResults) -> list[dict[str, Any]]:
        """The placement of each item, in the unit that the user gave sizes in, see `placements`."""
        bins, names, unit = PackedBins(self.env, results), self.names()[: self.num_episodes], self.env.items.unit
        return [
            {
                "episode": name,
                "unit": unit,
                "utilization": results.utilization[i].item(),
                "placements": placements(bins, i),
            }
            for i, name in enumerate(names)
        ]

    def tables(self, run: Any, options: TableOptions) -> Iterator[dict[str, Any]]:
        self.simulated = options.physics or 0
        return super().tables(run, replace(options, physics=None))


def placements(env: PackingEnv | PackedBins, index: int) -> list[dict[str, Any]]:
    """Placements of one bin's items: label, corner and size of the turned bounding box, in `env.items.unit`."""
    number = int(env.num_packed[index])
    rows, heights = env.placements[index, :number].tolist(), env.placement_z[index, :number].tolist()
    per_unit, out = env.bin.per_unit(env.items.unit), []

    def in_unit(x: int, y: int, z: float) -> list[float]:
        cells = z / env.cell[0]
        if env.catalogue.flat:  # heights of boxes are whole cells or tenths, but for the rounding of float32
            cells = round(cells, 3)
        metres = (x * env.cell[0], y * env.cell[1], cells * env.cell[0])
        return [without_noise(side / per) for side, per in zip(metres, per_unit, strict=True)]

    items = [item for item, *_ in rows]
    labels = env.items.labels_of(env.sequence_number(index), items, env.bin, env.orientations)
    for (item, orientation, x, y), z, label in zip(rows, heights, labels, strict=True):
        size = (*env.catalogue.extent[item, orientation].tolist(), env.catalogue.height[item, orientation].item())
        where = {"orientation": orientation, "corner": in_unit(x, y, z), "size": in_unit(*size)}
        out.append(label | where)
    return out


def _file_name(order: str, number: int) -> str:
    """Of the pictures of an order; with its number where its name cannot be that of a file."""
    plain = re.sub(r"[^\w.-]", "_", order)[:64]
    return f"order-{plain}" if plain == order else f"order-{plain}-{number}"


def packing_table(
    rows: list[Score],
    title: str,
    published: Mapping[str, float] | None = None,
    settled: Mapping[str, Mapping[str, Any]] | None = None,
) -> Table:
    """The comparison as a table for the terminal, best utilization last; ms are of one decision for one bin.

    With `settled`, the share of placements that stand in simulation, and the bins in which all do.
    """
    shown = Table(title=title, title_justify="left")
    for column in ("policy", "utilization", "items", "C", "P", "ms", *(("stands", "faultless") if settled else ())):
        shown.add_column(column, justify="left" if column == "policy" else "right", no_wrap=True)
    best = max(row.utilization for row in rows)
    for row in sorted(rows, key=lambda row: row.utilization):
        shown.add_row(
            row.policy,
            f"{row.utilization:.1%}{plus_minus(row.utilization_error, '.1%')}",
            f"{row.num_packed:.2f}{plus_minus(row.num_packed_error, '.2f')}",
            f"{row.compactness:.3f}",
            f"{row.pyramidality:.3f}",
            f"{row.decision_ms:.3f}",
            *(verdict(settled[row.policy]) if settled else ()),
            style="bold" if row.utilization == best else "",
        )
    for name, share in (published or {}).items():
        shown.add_row(f"{name} (published)", f"{share:.1f}%", *["–"] * (6 if settled else 4), style="dim")
    return shown


def verdict(settled: Mapping[str, Any]) -> list[str]:
    """Cells of a table: the share of placements that stand, and the bins in which all do."""
    share = f"{settled['stands']:.1%}{plus_minus(settled['stands_error'], '.1%')}"
    return [share, f"{settled['faultless']} of {settled['simulated']}"]
