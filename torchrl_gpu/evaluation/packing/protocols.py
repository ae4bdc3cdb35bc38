"""Protocols on which published packing policies are compared.

A protocol is a set of fixed sequences, known by a hash, with published figures. A figure means little unless one knows
what the planner knew of the boxes to come, so every row says it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoardCases, BoxSequences
from torchrl_gpu.envs.packing.items.alike import AlikeSequences
from torchrl_gpu.envs.packing.items.board_cases import BoardCase
from torchrl_gpu.envs.packing.items.sequences import MISFITS
from torchrl_gpu.envs.packing.protocols import (
    BOARD,
    PALLET_EPISODES,
    PALLETS,
    PROTOCOLS,
    SUITE_EPISODES,
    SUITE_SEED,
    make_protocol,
)
from torchrl_gpu.envs.packing.types import Bin
from torchrl_gpu.evaluation.estimates import plus_minus, standard_error
from torchrl_gpu.evaluation.packing.episodes import PackedBins, PackingResults, mean_occupancy
from torchrl_gpu.evaluation.packing.suite import PUBLISHED, PackingSuite, verdict
from torchrl_gpu.evaluation.reports import PlainData
from torchrl_gpu.policies.policy import Policy, known

# Result of `ProtocolSuite.compare_all`, as it is written and read.
_Report = Mapping[str, Any]

# The bin of all `PROTOCOLS`.
_BIN = Bin((10.0, 10.0, 10.0), (10, 10))

# Columns of the table that are aligned to the left.
_WORDS = ("policy", "knew of what comes")

SUITE_HASHES = {
    "rs": "1f7f5ad59cd1a283bc871d09da2667cb502c68ce1c4715d5347e01408774322c",
    "cut1": "10cb4b8ca602d82b17cdd3d0ead8ee3aa16d035e45af2d8b5a1d90fae2f31df6",
    "cut2": "a7192989fb2930309a12baee1109d0b865e429ed8031eb0c2a7b70bdcddab25f",
    "discrete125": "9598dfc4c72e0be74ad70b00f9eee0f3104dbd8b36f71a9a8ec7f159e7f6045a",
    "free125": "9598dfc4c72e0be74ad70b00f9eee0f3104dbd8b36f71a9a8ec7f159e7f6045a",
    "repetitive": "cd680a67006380c2cfed1dea1ee54de94ba3b08b54aee89a02da91e70428fa42",
    "diverse": "ae163c3c69c925855a27fbc5e5f5a5e41539baab81a609b02ff000bb5ef7e506",
    "repetitive-board": "a8d90e750332a6d3df0e8b59197e071f9bcc4549f5128acc93edab0773cd3e22",
    "boards": "914f182bf1a5017545e9e850658d682a2a921c3ee146efd4bbead96861974566",
}
"""Hashes of the sequences of each protocol, see `sequence_hash`.

There are 2,000 sequences, or 30 of a pallet's protocol, or 22 of the board's cases.
"""

# Splits of the factory's rows, as the table of the board's cases calls them.
_SPLITS = {"train": "training rows", "test": "test rows"}


class ProtocolSuite(PackingSuite):
    """Sequences of a protocol, from the fixed suite or from a file.

    Args:
        protocol: One of `PROTOCOLS` or of `PALLETS`.
        num_episodes: How many; None stands for 2,000, for 30 of a pallet's protocol, or for all of a file or of the
            board's cases from `first` on.
        sequences: File of box sequences, played by the protocol's rules, and in its catalogue if that has all boxes.
            None stands for the fixed suite. Pallets' protocols take no file.
        first: Number of the first sequence.
        unit, misfits: Of the file, as in `BoxSequences`. Numbers of sequences count those that are played.
        visible_items: K.
        rule: Arguments of `PackingEnv` for another stability rule than the protocol's.
        include, device: As in `PackingEnv`.
        batch_size: As in `Suite`.

    Raises:
        FileNotFoundError, ValueError: As in `BoxSequences`, or a file has too few sequences.
    """

    def __init__(
        self,
        protocol: str,
        num_episodes: int | None = None,
        *,
        sequences: Path | str | None = None,
        first: int = 0,
        unit: str = "cells",
        misfits: str = MISFITS[0],
        visible_items: int = 1,
        rule: Mapping[str, object] | None = None,
        include: Sequence[str] = ("z_map",),
        device: str | torch.device = "auto",
        batch_size: int | None = None,
    ) -> None:
        known = (*PROTOCOLS, *PALLETS)
        if protocol not in known or (sequences is not None and protocol in PALLETS):
            of_file = "" if sequences is None else " of a file"
            wanted = ", ".join(known if sequences is None else PROTOCOLS)
            raise ValueError(f"ProtocolSuite: protocol{of_file} must be one of {wanted}, not {protocol!r}")
        changes: dict[str, Any] = dict(rule or {})
        # Words for a box of the file that the protocol does not have.
        self.foreign = ""
        if sequences is not None:
            items = BoxSequences(str(sequences), unit, True, misfits)
            rules = PROTOCOLS[protocol]
            # With the protocol's own catalogue, policies trained on the protocol can play the file.
            alike = AlikeSequences(items, rules["items"])
            self.foreign = alike.foreign(_BIN, rules["orientations"])
            changes["items"] = items if self.foreign else alike
        env = make_protocol(
            protocol,
            1,
            seed=SUITE_SEED,
            first_env=first,
            visible_items=visible_items,
            include=include,
            device=device,
            **changes,
        )
        if sequences is not None or protocol == BOARD:
            number = env.item_sequences.num_keys or 0
            if number - first < (num_episodes or 1):
                wanted = f"{num_episodes or 1} sequences from number {first} on"
                raise ValueError(f"ProtocolSuite: {sequences or protocol} must have {wanted}; it has {number} in all")
            num_episodes = num_episodes or number - first
        if num_episodes is None:
            num_episodes = PALLET_EPISODES if protocol in PALLETS else SUITE_EPISODES
        super().__init__(env, False, num_episodes, batch_size)
        self.protocol = protocol
        self.file = None if sequences is None else Path(sequences).name
        self.first = first

    def sequence_hash(self) -> str:
        """Return the hash of the sequences, see `SUITE_HASHES`."""
        return sequence_hash(sequence_sizes(self.env, self.num_episodes))

    @property
    def board_cases(self) -> tuple[BoardCase, ...]:
        """Cases of the board that are played, in their order. Other protocols have none."""
        items = self.env.items
        if not isinstance(items, BoardCases):
            return ()
        return items.cases[self.first : self.first + self.num_episodes]

    def describe(self) -> PlainData:
        more: PlainData = {
            "protocol": self.protocol,
            "file": self.file,
            "first": self.first,
            "sequences": self.num_episodes,
        }
        if self.board_cases:
            more["cases"] = [case._asdict() | {"rows": case.rows} for case in self.board_cases]
        return super().describe() | more | {"sha256": self.sequence_hash()}

    def compare_all(self, policies: Mapping[str, Policy], timed: int = 0) -> dict[str, Any]:
        """Play all sequences with each policy, and return a row for each as plain data.

        The first `timed` sequences are also packed one bin at a time, to measure how long that takes.
        """
        results = self.play_all(policies)
        alone = self.pack_alone(policies, timed)
        settled = self.settle(results)
        rows = []
        for name, policy in policies.items():
            row = asdict(results[name].score(name)) | {"knows": known(policy, self.env.visible_items)}
            row["decision_alone_ms"] = PackingResults.join(alone[name]).decision_ms if timed else None
            # One for each sequence, so that two reports can be compared case by case.
            row["utilizations"] = [round(each, 6) for each in results[name].utilization.tolist()]
            if self.protocol in PALLETS:
                occupancy = mean_occupancy(PackedBins(self.env, results[name]))
                row["occupancy"] = occupancy.mean().item()
            if self.board_cases:
                row["boxes"] = results[name].num_packed.int().tolist()
                row["occupancies"] = [round(each, 6) for each in occupancy.tolist()]
                row["means"] = _means_by_rows(results[name], occupancy, self.board_cases)
            rows.append(row | settled.get(name, {}))
        self.announce("")
        figures = PUBLISHED.get((self.protocol, self.env.visible_items), ())
        published = [{"policy": name, "utilization": share / 100, "knows": knows} for name, share, knows in figures]
        return {"sequences": self.describe(), "policies": rows, "published": published}


def _means_by_rows(results: PackingResults, occupancy: Tensor, cases: Sequence[BoardCase]) -> PlainData:
    """Return means over the cases in training rows, and over those in test rows."""
    means: PlainData = {}
    for split, words in _SPLITS.items():
        in_split = torch.tensor([case.rows == split for case in cases], dtype=torch.bool, device="cpu")
        if not in_split.any():
            continue
        utilization = results.utilization[in_split]
        means[words] = {
            "cases": len(utilization),
            "utilization": utilization.mean().item(),
            "utilization_error": standard_error(utilization),
            "num_packed": results.num_packed[in_split].mean().item(),
            "occupancy": occupancy[in_split].mean().item(),
        }
    return means


def sequence_sizes(env: PackingEnv, number: int) -> list[Tensor]:
    """Return the sides of the boxes of the first episodes, (T, 3) int64 cells each.

    They are the episodes of `number` environments from `env.first_env` on.
    """
    row = torch.arange(number, device=env.device, dtype=torch.int64)
    made = env.item_sequences
    key = made.begin(env.seed, row + env.first_env, torch.zeros_like(row))
    places = torch.arange(min(made.length, env.num_items), device=env.device, dtype=torch.int64)
    items = made.items(key, places.expand(number, -1)).cpu()
    # Heights of boxes in millimetres are no whole cells.
    unit = env.bin.cell[0] if env.items.unit == "cells" else 1e-3
    height = (env.catalogue.height[:, 0].cpu().double() / unit).round().long()
    sizes = torch.cat([env.catalogue.extent[:, 0].cpu(), height[:, None]], 1)
    return [sizes[each[each >= 0]] for each in items]


def sequence_hash(sequences: Sequence[Tensor]) -> str:
    """Return the SHA-256 of sequences from `sequence_sizes`.

    The length and the sizes of each sequence are hashed, as 32-bit little-endian integers.
    """
    # A seed says little: a change of the generator would change the sequences without anybody noticing.
    digest = hashlib.sha256()
    for each in sequences:
        digest.update(len(each).to_bytes(4, "little"))
        digest.update(each.to(torch.int32).numpy().astype("<i4").tobytes())
    return digest.hexdigest()


def protocol_table(report: _Report) -> Table:
    """Make a table of `ProtocolSuite.compare_all`, with published figures last."""
    facts = report["sequences"]
    rows = report["policies"]
    known_suite = SUITE_HASHES.get(facts["protocol"]) == facts["sha256"]
    source = facts["file"] or ("the fixed suite" if known_suite else "sequences of the fixed seed")
    title = f"{facts['protocol']}: {facts['sequences']} sequences from {facts['first']} of {source}"
    shown = Table(title=f"{title}, sha256 {facts['sha256'][:16]}", title_justify="left")

    is_pallet = facts["protocol"] in PALLETS
    is_simulated = "stands" in rows[0]
    columns = [*_WORDS, "utilization", "items", "ms/decision", "ms for one bin"]
    if is_pallet:
        columns.append("occupancy")
    if is_simulated:
        columns += ["stands", "faultless"]
    for column in columns:
        shown.add_column(column, justify="left" if column in _WORDS else "right", no_wrap=True)

    for row in sorted(rows, key=lambda row: row["utilization"]):
        alone = row["decision_alone_ms"]
        cells = [row["policy"], row["knows"]]
        cells.append(f"{row['utilization']:.2%}{plus_minus(row['utilization_error'], '.2%')}")
        cells.append(f"{row['num_packed']:.2f}{plus_minus(row['num_packed_error'], '.2f')}")
        cells.append(f"{row['decision_ms']:.4f}")
        cells.append("–" if alone is None else f"{alone:.2f}")
        if is_pallet:
            cells.append(f"{row['occupancy']:.3f}")
        if is_simulated:
            cells += verdict(row)
        shown.add_row(*cells)
    for row in report["published"]:
        cells = [row["policy"], row["knows"], f"{row['utilization']:.1%}"]
        dashes = ["–"] * (len(columns) - len(cells))
        shown.add_row(*cells, *dashes, style="dim")
    return shown


def board_table(report: _Report) -> Table:
    """Make a table of boxes and utilization of every case of the board.

    It is of `ProtocolSuite.compare_all`. Means of cases in training rows and in test rows are apart.
    """
    shown = Table(title="boxes placed, and utilization", title_justify="left")
    rows = report["policies"]
    for column in ("case", "first row", "in the", *(row["policy"] for row in rows)):
        shown.add_column(column, justify="right")
    for number, case in enumerate(report["sequences"]["cases"]):
        cells = [str(case["case"]), str(case["first_row"]), _SPLITS[case["rows"]]]
        cells += [f"{row['boxes'][number]} {row['utilizations'][number]:.1%}" for row in rows]
        shown.add_row(*cells)
    for words in rows[0]["means"]:
        means = [row["means"][words] for row in rows]
        cells = [f"mean of {means[0]['cases']}", "", words]
        cells += [f"{mean['num_packed']:.1f} {mean['utilization']:.1%}" for mean in means]
        shown.add_row(*cells, style="bold")
    return shown
