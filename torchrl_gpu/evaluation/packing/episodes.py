"""Whole bins packed by a policy, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchrl.envs.utils import step_mdp

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import ItemSource
from torchrl_gpu.envs.packing.reward import compactness, pyramidality
from torchrl_gpu.envs.packing.types import Bin, Catalogue
from torchrl_gpu.evaluation.estimates import standard_error
from torchrl_gpu.evaluation.results import DecisionClock, Results, evaluation
from torchrl_gpu.policies.policy import Policy


@dataclass(frozen=True)
class Score:
    """Scores of one policy on a set of episodes.

    They are means over the episodes. Those named `_error` are standard errors, which one episode does not have.
    """

    policy: str
    utilization: float
    utilization_error: float | None
    num_packed: float
    num_packed_error: float | None
    compactness: float
    pyramidality: float
    decision_ms: float
    num_episodes: int
    stability: float | None = None


SCORES = ("utilization", "num_packed", "compactness", "pyramidality", "stability")
"""Names in `PackingResults.scores`."""


@dataclass(frozen=True, kw_only=True)
class PackingResults(Results):
    """Final bins of E episodes, (E,) each unless said otherwise.

    Attributes:
        utilization: Packed volume over bin volume.
        num_packed: Items in the bin.
        compactness: C, see `envs.packing.reward`.
        pyramidality: P, see `envs.packing.reward`.
        stable: Each placement in order, (E, T) int8: 1 stable, 0 not stable, −1 if no item was placed. None if every
            legal placement counts as stable.
        placements: As in `PackingEnv`, 0 after the last.
        placement_z: As in `PackingEnv`, 0 after the last.
    """

    utilization: Tensor
    num_packed: Tensor
    compactness: Tensor
    pyramidality: Tensor
    stable: Tensor | None = None
    placements: Tensor | None = None
    placement_z: Tensor | None = None

    @property
    def stability(self) -> Tensor | None:
        """S, the share of stable placements of each bin, (E,), which is 1 if empty."""
        if self.stable is None:
            return None
        made = (self.stable >= 0).sum(1)
        return torch.where(made > 0, (self.stable > 0).sum(1) / made.clamp_min(1), 1.0)

    def per_episode(self) -> dict[str, Tensor]:
        named = {name: getattr(self, name) for name in SCORES}
        return {name: values for name, values in named.items() if values is not None}

    def columns(self, physics: Tensor | None = None) -> dict[str, Tensor]:
        """Return the columns of the table of irregular packing.

        S is by the rule `com`; if shares (E,) by `physics` are given, they are a column of their own.
        """
        columns = {
            "C": self.compactness,
            "P": self.pyramidality,
            "S com": self.stability,
            "S physics": physics,
            "objects": self.num_packed,
            "utilization": self.utilization,
        }
        return {name: values for name, values in columns.items() if values is not None}

    def scores(self) -> dict[str, float]:
        return {name: values.mean().item() for name, values in self.per_episode().items()}

    def score(self, policy: str) -> Score:
        """Return the scores, with the name of a policy."""
        return Score(
            policy,
            utilization_error=standard_error(self.utilization),
            num_packed_error=standard_error(self.num_packed),
            decision_ms=self.decision_ms,
            num_episodes=len(self.utilization),
            **self.scores(),
        )


def evaluate(env: PackingEnv, policy: Policy, num_episodes: int | None = None) -> PackingResults:
    """Pack one bin in every environment, greedily.

    The full bins are left in `env.state`. A bin that is done gets illegal actions, which change nothing, until all
    bins are done. Only the first `num_episodes` are packed and returned; None for all.
    """
    number = env.num_envs if num_episodes is None else num_episodes
    clock = DecisionClock(env.device)
    row = torch.arange(env.num_envs, device=env.device, dtype=torch.int64)
    done = row >= number
    stable: list[Tensor] = []
    with evaluation(env, policy) as observation:
        while not done.all():
            chosen = clock.time(env.num_envs, policy, observation)
            # To leave them out would change the batch, and with it the last bits of networks.
            chosen["action"] = torch.where(done, -1, chosen["action"])
            # A step may skip an item, so whether one was placed is seen by their number.
            before = env.num_packed.clone()
            stepped = env.step(chosen)
            was_placed = env.num_packed > before
            is_stable = env.state.stable.to(torch.int8)
            stable.append(torch.where(was_placed, is_stable, -1))
            done |= stepped["next", "done"].squeeze(-1)
            observation = step_mdp(stepped)
    state = env.state
    longest = state.placements.shape[1]
    number_of = torch.arange(longest, device=env.device, dtype=torch.int64)
    made = number_of < state.num_packed[:, None]  # (N, T)
    # Entries after the last placement are left from earlier episodes.
    placements = state.placements * made[..., None]
    placement_z = torch.where(made, state.placement_z, 0.0)

    def per_episode(values: Tensor) -> Tensor:
        """Return copies of the values (N, …) of the packed bins on the CPU."""
        return values[:number].to("cpu", copy=True)

    utilization = per_episode(state.volume / env.bin.volume)
    num_packed = per_episode(state.num_packed.float())
    c = per_episode(compactness(state.heightmap, state.volume, env.bin))
    p = per_episode(pyramidality(state.heightmap, state.volume, env.bin))
    return PackingResults(
        utilization=utilization,
        num_packed=num_packed,
        compactness=c,
        pyramidality=p,
        stable=per_episode(torch.stack(stable, 1)) if env.stability_judge == "com" else None,
        placements=per_episode(placements),
        placement_z=per_episode(placement_z),
        **clock.times(),
    )


def sequence_number(env: PackingEnv, index: int) -> int:
    """Return the number of an episode's items among the sequences of their source.

    Episodes are counted from `first_env`.
    """
    number = env.first_env + index
    row = torch.tensor([number], dtype=torch.int64, device=env.device)
    return int(env.item_sequences.begin(env.seed, row, torch.zeros_like(row)))


def mean_occupancy(bins: PackedBins) -> Tensor:
    """Return the occupancy of each bin, averaged over its placements.

    After every placement it is the packed volume over the volume under the heightmap, as RoboBPP (arXiv 2512.04415)
    measures it. `pyramidality` is that after the last one alone. Items are boxes.

    Returns:
        (E,) float64 on the CPU; 0 for an empty bin.
    """
    assert bins.catalogue.flat
    extent = bins.catalogue.extent.cpu()
    height = bins.catalogue.height.cpu().double()
    volume = bins.catalogue.volume.cpu().double()
    numbers = bins.num_packed.tolist()
    means = torch.zeros(len(numbers), dtype=torch.float64, device="cpu")
    for episode, number in enumerate(numbers):
        heightmap = torch.zeros(bins.bin.cells, dtype=torch.float64, device="cpu")
        packed = total = 0.0
        rows = bins.placements[episode, :number].tolist()
        bases = bins.placement_z[episode, :number].tolist()
        for (item, orientation, x, y), z in zip(rows, bases, strict=True):
            length, width = extent[item, orientation].tolist()
            heightmap[x : x + length, y : y + width] = z + height[item, orientation]
            packed += volume[item].item()
            total += packed / (heightmap.sum().item() * bins.bin.cell_area)
        if number:
            means[episode] = total / number
    return means


class PackedBins:
    """Bins of some results, in the form of an environment, for `viewer` and `plan_of`."""

    bin: Bin
    catalogue: Catalogue
    items: ItemSource
    orientations: str | float

    def __init__(self, env: PackingEnv, results: PackingResults) -> None:
        assert results.placements is not None
        assert results.placement_z is not None
        self._env = env
        self.placements = results.placements.to(env.device)  # (E, T, 4) int32
        self.placement_z = results.placement_z.to(env.device)  # (E, T) float32, metres
        self.num_packed = results.num_packed.long().to(env.device)  # (E,) int64

    def sequence_number(self, index: int) -> int:
        """Return the number of a bin's items among the sequences of their source."""
        return sequence_number(self._env, index)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the environment."""
        return getattr(self._env, name)
