"""The same cases packed by every method: in batches, one at a time for latencies, and dropped in simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.evaluation.comparison import columns_of
from torchrl_gpu.evaluation.packing.episodes import Packings, pack
from torchrl_gpu.policies.policy import Policy


@dataclass
class Agreement:
    """On how many placements the rule `com` and physics agree, and how they do not."""

    both_hold: int = 0
    only_com_holds: int = 0
    only_physics_holds: int = 0
    none_holds: int = 0

    @property
    def placements(self) -> int:
        """All of them."""
        return sum(asdict(self).values())

    @property
    def share(self) -> float | None:
        """Of the placements on which they agree; None where there are no placements."""
        return (self.both_hold + self.none_holds) / self.placements if self.placements else None

    def count(self, com: Tensor, physics: Tensor) -> None:
        """Adds the placements of a bin, (I,) bool each."""
        self.both_hold += int((com & physics).sum())
        self.only_com_holds += int((com & ~physics).sum())
        self.only_physics_holds += int((~com & physics).sum())
        self.none_holds += int((~com & ~physics).sum())


@dataclass
class Outcome:
    """What one method did: a value for each batch, case or simulated case."""

    packings: list[Packings] = field(default_factory=list)
    shares_in_physics: list[float] = field(default_factory=list)
    agreement: Agreement = field(default_factory=Agreement)

    def columns(self) -> dict[str, Tensor]:
        """The columns of the table, but for latencies."""
        parts = [columns_of(each) for each in self.packings]
        found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        if self.shares_in_physics:
            found["S physics"] = torch.tensor(self.shares_in_physics)
        order = sorted(found, key=["C", "P", "S com", "S physics", "objects", "utilization"].index)
        rates = torch.stack([each.num_packed.sum() / each.seconds for each in self.packings])
        return {name: found[name] for name in order} | {"objects/s": rates}


def pack_cases(
    env: PackingEnv,
    policies: Mapping[str, Policy],
    cases: int,
    simulated: int,
    say: Callable[[str], None] = lambda words: None,
) -> dict[str, Outcome]:
    """Packs every case by every policy.

    Args:
        env: Its number of environments is that of a batch; case i is the first episode of environment i. It plays all
            batches itself, so that its memory is that of one.
        policies: By name.
        cases: So many.
        simulated: So many of the first are dropped in MuJoCo, too.
        say: Told what is going on.
    """
    outcomes = {name: Outcome() for name in policies}
    for first in range(0, cases, env.num_envs):
        env.renumber(first)
        number = min(env.num_envs, cases - first)
        for name, policy in policies.items():
            say(f"{name}, cases {first + 1} to {first + number} of {cases}")
            packings = pack(env, policy, number)
            outcomes[name].packings.append(packings)
            if first < simulated:
                say(f"{name}, physics")
                drop(env, packings, min(number, simulated - first), outcomes[name])
    env.renumber(0)
    return outcomes


def drop(env: PackingEnv, packings: Packings, number: int, outcome: Outcome) -> None:
    """Drops the first bins that `env` holds in MuJoCo, item by item, and adds what held to the outcome."""
    from torchrl_gpu.envs.packing.physics import plan_of, settle_cases

    assert packings.stands is not None
    settled = settle_cases([plan_of(env, index) for index in range(number)])
    for index, each in enumerate(settled):
        held = torch.from_numpy(each.stable)
        outcome.shares_in_physics.append(each.share)
        outcome.agreement.count(packings.stands[index, : len(held)] > 0, held)


def latencies(
    env: PackingEnv, policies: Mapping[str, Policy], cases: int, say: Callable[[str], None] = lambda words: None
) -> dict[str, Tensor]:
    """Milliseconds for each object of one bin alone, (cases,) by name, warm: maps of all visible objects and decision.

    Methods take turns: whatever else the machine does, it does to all of them alike.
    """
    taken: dict[str, list[float]] = {name: [] for name in policies}
    one = env.like(1, stability_judge="rule")
    for case in (0, *range(cases)):  # the first is a rehearsal
        one.renumber(case)
        for name, policy in policies.items():
            say(f"{name}, timed alone")
            packings = pack(one, policy)
            taken[name].append(1e3 * packings.seconds / max(1.0, packings.num_packed.item()))
    return {name: torch.tensor(values[1:]) for name, values in taken.items()}


def agreement_data(outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """For JSON: of every method that was simulated."""
    return [
        {"method": name, "share": each.agreement.share, "placements": each.agreement.placements}
        | asdict(each.agreement)
        for name, each in outcomes.items()
        if each.shares_in_physics
    ]
