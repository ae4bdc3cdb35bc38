"""`PackingSuite`: packing policies compared on the same episodes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TypedDict

import torch
from rich.table import Table
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences
from torchrl_gpu.envs.packing.items.sequences import PlayedBoxes
from torchrl_gpu.envs.packing.protocols import packs_orders, protocol_of
from torchrl_gpu.evaluation.estimates import comparison_data, comparison_table, plus_minus, standard_error
from torchrl_gpu.evaluation.packing.episodes import PackedBins, PackingResults, Score, evaluate, sequence_number
from torchrl_gpu.evaluation.reports import PlainData, without_noise
from torchrl_gpu.evaluation.suite import ComparedRun, Suite, TableOptions
from torchrl_gpu.policies.packing import baselines
from torchrl_gpu.policies.packing.heuristics import RULE, VALUES
from torchrl_gpu.policies.packing.pretrained import pretrained_for
from torchrl_gpu.policies.policy import Policy

# Orders of a file that are drawn.
_MOST_PICTURES = 16

# Characters of an order's name in a file name.
_LONGEST_NAME = 64

Published = tuple[tuple[str, float, str], ...]
"""Published policies: name, utilization in per cent, what it knew of the boxes to come."""

_DISCRETE125: Published = (
    ("GOPT, RA-L 2024, online BPH", 51.6, "nothing"),
    ("GOPT, RA-L 2024, heightmap minimisation", 56.5, "nothing"),
    ("PCT, ICLR 2022, as trained by GOPT", 72.7, "nothing"),
    ("GOPT, RA-L 2024", 76.1, "nothing"),
)
_REPETITIVE: Published = (
    ("MACS, RoboBPP", 44.5, "nothing"),
    ("HM, RoboBPP", 57.9, "nothing"),
    ("DBL, RoboBPP", 61.7, "nothing"),
    ("LSAH, RoboBPP", 61.9, "nothing"),
    ("PCT, RoboBPP", 65.9, "nothing"),
    ("AR2L, RoboBPP", 67.3, "nothing"),
)
# Of the board's cases that are known.
_REPETITIVE_BOARD: Published = (
    ("MACS, RoboBPP", 45.3, "nothing"),
    ("HM, RoboBPP", 57.9, "nothing"),
    ("DBL, RoboBPP", 60.8, "nothing"),
    ("LSAH, RoboBPP", 61.9, "nothing"),
    ("PCT, RoboBPP", 65.8, "nothing"),
    ("AR2L, RoboBPP", 67.6, "nothing"),
)
_DIVERSE: Published = (
    ("MACS, RoboBPP", 35.2, "nothing"),
    ("HM, RoboBPP", 42.3, "nothing"),
    ("DBL, RoboBPP", 54.9, "nothing"),
    ("LSAH, RoboBPP", 56.9, "nothing"),
    ("AR2L, RoboBPP", 65.5, "nothing"),
    ("PCT, RoboBPP", 66.8, "nothing"),
)
_BOARDS: Published = (
    ("MACS, RoboBPP", 23.2, "nothing"),
    ("HM, RoboBPP", 35.5, "nothing"),
    ("LSAH, RoboBPP", 47.4, "nothing"),
    ("DBL, RoboBPP", 52.0, "nothing"),
    ("AR2L, RoboBPP", 53.8, "nothing"),
    ("PCT, RoboBPP", 57.1, "nothing"),
)
_AAAI_RS = ("AAAI 2021, policy", 50.5, "nothing")
_AAAI_CUT1 = ("AAAI 2021, policy", 73.4, "nothing")
_AAAI_CUT2 = ("AAAI 2021, policy", 66.9, "nothing")
_OF_100 = "arXiv 2208.07123, 100 sequences"

PUBLISHED: dict[tuple[str, int], Published] = {}
"""Published results, by protocol and by how many boxes the policies could choose from.

They are means over other sequences of the same protocol, and of "repetitive-board" over the same. arXiv 2208.07123 and
PCT's version of 2025 call that number a buffer.
"""
PUBLISHED["rs", 1] = (_AAAI_RS, (_OF_100, 53.1, "nothing"))
PUBLISHED["rs", 3] = ((_OF_100, 62.1, "3 visible"),)
PUBLISHED["cut1", 1] = (_AAAI_CUT1, (_OF_100, 83.4, "nothing"))
PUBLISHED["cut2", 1] = (_AAAI_CUT2, (_OF_100, 69.9, "nothing"))
PUBLISHED["cut2", 2] = ((_OF_100, 71.5, "2 visible"),)
PUBLISHED["cut2", 3] = ((_OF_100, 77.1, "3 visible"),)
PUBLISHED["discrete125", 1] = _DISCRETE125
PUBLISHED["free125", 1] = (("PCT, ICLR 2022", 86.0, "nothing"),)
PUBLISHED["free125", 5] = (("PCT, IJRR 2025, second-hand", 88.3, "5 visible"),)
PUBLISHED["free125", 10] = (("PCT, IJRR 2025, second-hand", 93.5, "10 visible"),)
PUBLISHED["repetitive", 1] = _REPETITIVE
PUBLISHED["repetitive-board", 1] = _REPETITIVE_BOARD
PUBLISHED["diverse", 1] = _DIVERSE
PUBLISHED["boards", 1] = _BOARDS


class Settled(TypedDict):
    """Result of boxes that are all released at once, in simulation.

    Attributes:
        stands: Share of the boxes that stay.
        stands_error: Its standard error.
        simulated: Number of bins.
        faultless: Number of bins in which all boxes stay.
        simulation_s: Seconds for a bin.
    """

    stands: float
    stands_error: float | None
    simulated: int
    faultless: int
    simulation_s: float


class PackingSuite(Suite[PackingEnv, PackingResults]):
    """Bins to pack.

    Pictures show each order of a file, otherwise the bin of median utilization.
    """

    headline = "utilization"
    pictures_tag = "packed bins"
    preferred = ("pretrained", VALUES, RULE, "heightmap minimisation")
    simulated = 0
    """Number of the first bins of each policy that `table` simulates."""

    def evaluate(self, env: PackingEnv, policy: Policy, num_episodes: int) -> PackingResults:
        return evaluate(env, policy, num_episodes)

    @property
    def most_on_cpu(self) -> int:
        # Maps of boxes cost less than their way to memory and back. glibc returns tensors above 32 MiB to the system,
        # which must be asked for them again at every step.
        return 1 << 27 if self.env.catalogue.flat else super().most_on_cpu

    def pack_alone(self, policies: Mapping[str, Policy], cases: int) -> dict[str, list[PackingResults]]:
        """Pack the first cases by each policy, one bin at a time, to measure times.

        The first case is packed once beforehand, since a first call takes longer. Policies take turns, so that other
        load slows all of them alike.
        """
        # The test of stability for S is no part of a policy's time.
        env = self.env.like(1, stability_judge="rule", items=self.env.shared_items())
        results: dict[str, list[PackingResults]] = {name: [] for name in policies}
        rehearsal = [0] if cases else []
        for case in (*rehearsal, *range(min(cases, self.num_episodes))):
            self.begin(env, case)
            for name, policy in policies.items():
                self.announce(f"{name}, timed alone")
                results[name].append(evaluate(env, policy))
        return {name: each[1:] for name, each in results.items()}

    def baselines(self) -> Mapping[str, Policy]:
        """Return the heuristics, and on the pallet of orders the policy of the package."""
        policies: dict[str, Policy] = dict(baselines(self.env))
        if packs_orders(self.env):
            policies |= self.pretrained()
        return policies

    def pretrained(self) -> Mapping[str, Policy]:
        return pretrained_for(self.env)

    def like(self, num_envs: int) -> PackingEnv:
        # Making a catalogue of irregular objects takes seconds.
        return self.env.like(num_envs, items=self.env.shared_items())

    def table(self, results: dict[str, PackingResults], name: str) -> tuple[Table, PlainData]:
        """Return a table of several policies' results.

        If the rule of irregular packing is among the policies, it shows differences from that.
        """
        rows = [each.score(policy) for policy, each in results.items()]
        title = f"{self.num_episodes} episodes"
        if RULE not in results:
            settled = self.settle(results)
            policies = [asdict(row) | dict(settled.get(row.policy, {})) for row in rows]
            return packing_table(rows, title, self.published(), settled), {"policies": policies}
        methods = {}
        for policy, each in results.items():
            milliseconds = torch.tensor([each.decision_ms], dtype=torch.float32, device="cpu")
            methods[policy] = each.columns() | {"ms/decision": milliseconds}
        report: PlainData = {"policies": [asdict(row) for row in rows]}
        return comparison_table(methods, title, RULE), report | {"comparison": comparison_data(methods, RULE)}

    def settle(self, results: dict[str, PackingResults]) -> dict[str, Settled]:
        """Release all boxes of each policy's first bins at once, in simulation.

        The result is empty if no bins are to be simulated.
        """
        if not self.simulated:
            return {}
        from torchrl_gpu.envs.packing.physics import plan_of, settle_cases

        found = {}
        for name, each in results.items():
            self.announce(f"{name}, physics")
            # `env` has the bins of the policy that played last.
            bins = PackedBins(self.env, each)
            started = time.perf_counter()
            plans = [plan_of(bins, index) for index in range(min(self.simulated, self.num_episodes))]
            cases = settle_cases(plans, progress=True, sequential=False, friction=self.env.friction)
            shares = torch.tensor([case.share for case in cases], dtype=torch.float64, device="cpu")
            seconds = time.perf_counter() - started
            faultless = [bool(case.stable.all()) for case in cases]
            found[name] = Settled(
                stands=shares.mean().item(),
                stands_error=standard_error(shares),
                simulated=len(cases),
                faultless=sum(faultless),
                simulation_s=seconds / len(cases),
            )
        return found

    def published(self) -> dict[str, float]:
        """Return utilizations of published policies by the same rules, in per cent."""
        # No published policy may skip a box.
        if self.env.skip_unplaceable:
            return {}
        key = protocol_of(self.env) or "", self.env.visible_items
        return {name: share for name, share, _ in PUBLISHED.get(key, ())}

    def describe(self) -> PlainData:
        env = self.env
        items = env.items.path.name if isinstance(env.items, BoxSequences) else type(env.items).__name__
        facts: PlainData = {"bin_size_m": list(env.bin_size), "cells": list(env.bin.cells), "grid_step": env.grid_step}
        facts["items"] = items
        if self.played is not None:
            facts |= {"unit": env.items.unit, "left_out": self.played.left_out}
        names = ["num_items", "orientations", "stability", "visible_items", "seed", *env.bin.rule.options]
        if env.fallback is not None:
            names.append("fallback")
        for name in names:
            facts[name] = getattr(env, name)
        facts["device"] = str(env.device)
        return facts

    @cached_property
    def played(self) -> PlayedBoxes | None:
        """The boxes of a file, if there is one."""
        items = self.env.items
        return items.played(self.env.bin, self.env.orientations) if isinstance(items, BoxSequences) else None

    def names(self) -> list[str]:
        """Return the name of each episode: that of its order if a file gives one."""
        if self.played is None:
            return [str(i) for i in range(self.num_episodes)]
        # Episodes draw their orders, unless the file is played in order.
        numbers = [sequence_number(self.env, i) for i in range(self.num_episodes)]
        return [self.env.items.names[self.played.episodes[i]] for i in numbers]  # type: ignore[attr-defined]

    def pictures(self, num: int, width: int) -> Tensor:
        from torchrl_gpu.envs.packing import viewer

        assert self.last is not None
        index = list(range(min(num, self.num_episodes)))
        return viewer.render(PackedBins(self.env, self.last), index, width=width, height=width * 3 // 4)

    def draw(self, folder: Path) -> None:
        """Write pictures called `packing`, or `order-NAME` for each order of a file."""
        from torchrl_gpu.envs.packing import viewer

        assert self.last is not None
        utilization = self.last.utilization
        bins = PackedBins(self.env, self.last)
        if isinstance(self.env.items, BoxSequences):
            names = self.names()[: min(_MOST_PICTURES, self.num_episodes)]
            chosen = {_file_name(name, i): i for i, name in enumerate(names)}
        else:
            # The median bin is typical; the best may be luck.
            chosen = {"packing": int(utilization.argsort()[len(utilization) // 2])}
        for name, index in chosen.items():
            film = viewer.frames(bins, index)
            caption = f"{utilization[index]:.1%} of the bin, {int(bins.num_packed[index])} items"
            viewer.save_png(film[-1], folder / f"{name}.png", caption=caption)
            viewer.save_gif(film, folder / f"{name}.gif")

    def plans(self, results: PackingResults) -> list[PlainData]:
        """Return the placements of each episode, in the unit of the user's sizes."""
        bins = PackedBins(self.env, results)
        plans: list[PlainData] = []
        for episode, name in enumerate(self.names()[: self.num_episodes]):
            plans.append(
                {
                    "episode": name,
                    "unit": self.env.items.unit,
                    "utilization": results.utilization[episode].item(),
                    "placements": placements(bins, episode),
                }
            )
        return plans

    def tables(self, run: ComparedRun, options: TableOptions) -> Iterator[PlainData]:
        # Boxes have a simulation of their own, so this one option of irregular packing has a meaning here.
        self.simulated = options.physics or 0
        return super().tables(run, replace(options, physics=None))


def placements(env: PackingEnv | PackedBins, index: int) -> list[PlainData]:
    """Return the placements of one bin's items, in `env.items.unit`.

    Each has label, orientation, and corner and size of the turned bounding box.
    """
    number = int(env.num_packed[index])
    rows = env.placements[index, :number].tolist()
    heights = env.placement_z[index, :number].tolist()
    per_unit = env.bin.per_unit(env.items.unit)
    out: list[PlainData] = []

    def in_unit(x: int, y: int, z: float) -> list[float]:
        """Convert cells along x and y, and metres along z."""
        cells = z / env.cell[0]
        # Heights of boxes are whole cells or tenths, except for the rounding of float32.
        if env.catalogue.flat:
            cells = round(cells, 3)
        metres = (x * env.cell[0], y * env.cell[1], cells * env.cell[0])
        return [without_noise(side / per) for side, per in zip(metres, per_unit, strict=True)]

    items = [item for item, *_ in rows]
    labels = env.items.labels_of(env.sequence_number(index), items, env.bin, env.orientations)
    for (item, orientation, x, y), z, label in zip(rows, heights, labels, strict=True):
        extent = env.catalogue.extent[item, orientation].tolist()
        height = env.catalogue.height[item, orientation].item()
        placement: PlainData = dict(label)
        placement["orientation"] = orientation
        placement["corner"] = in_unit(x, y, z)
        placement["size"] = in_unit(extent[0], extent[1], height)
        out.append(placement)
    return out


def _file_name(order: str, number: int) -> str:
    """Return the file name of an order's pictures.

    It contains the order's number if its name cannot be a file's, since two such names may look the same.
    """
    plain = re.sub(r"[^\w.-]", "_", order)[:_LONGEST_NAME]
    return f"order-{plain}" if plain == order else f"order-{plain}-{number}"


def packing_table(
    rows: list[Score],
    title: str,
    published: Mapping[str, float] | None = None,
    settled: Mapping[str, Settled] | None = None,
) -> Table:
    """Make a table of a comparison for the terminal, with the best utilization last.

    Milliseconds are for one decision of one bin. With `settled` there are the share of boxes that stay in simulation,
    and the bins in which all do.
    """
    shown = Table(title=title, title_justify="left")
    columns = ["policy", "utilization", "items", "C", "P", "ms"]
    if settled:
        columns += ["stands", "faultless"]
    for column in columns:
        shown.add_column(column, justify="left" if column == "policy" else "right", no_wrap=True)
    best = max(row.utilization for row in rows)
    for row in sorted(rows, key=lambda row: row.utilization):
        utilization = f"{row.utilization:.1%}{plus_minus(row.utilization_error, '.1%')}"
        num_packed = f"{row.num_packed:.2f}{plus_minus(row.num_packed_error, '.2f')}"
        further = verdict(settled[row.policy]) if settled else []
        shown.add_row(
            row.policy,
            utilization,
            num_packed,
            f"{row.compactness:.3f}",
            f"{row.pyramidality:.3f}",
            f"{row.decision_ms:.3f}",
            *further,
            style="bold" if row.utilization == best else "",
        )
    dashes = ["–"] * (len(columns) - 2)
    for name, share in (published or {}).items():
        shown.add_row(f"{name} (published)", f"{share:.1f}%", *dashes, style="dim")
    return shown


def verdict(settled: Settled) -> list[str]:
    """Return the results of a simulation as cells of a table."""
    share = f"{settled['stands']:.1%}{plus_minus(settled['stands_error'], '.1%')}"
    return [share, f"{settled['faultless']} of {settled['simulated']}"]
