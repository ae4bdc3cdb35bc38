"""Whole bins packed by a policy, and what is counted about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad
from torchrl.envs.utils import ExplorationType, set_exploration_type, step_mdp

from torchrl_gpu.device import now
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.counter_rng import draw_bits
from torchrl_gpu.envs.packing.items.source import episode_key
from torchrl_gpu.envs.packing.reward import compactness, pyramidality
from torchrl_gpu.policies.draws import keyed_draws
from torchrl_gpu.policies.generators import seeded
from torchrl_gpu.policies.policy import Policy


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
    stability: float | None = None


@dataclass(frozen=True)
class Packings:
    """Final bins of some episodes, (E,) each on the CPU, and the time that they took.

    Attributes:
        decision_ms: Of one decision for one bin, the policy alone.
        seconds: From empty bins to the last of them that is full, the environment's part included.
        stands: (E, T) int8, each placement in order: 1 stands, 0 does not, −1 none was made. None where the
            environment judges by legality alone.
        placements, placement_z: As in `PackingEnv`, of every episode; 0 behind the last.
        decisions: How many were made in all.
    """

    utilization: Tensor
    num_packed: Tensor
    compactness: Tensor
    pyramidality: Tensor
    decision_ms: float
    seconds: float = 0.0
    stands: Tensor | None = None
    placements: Tensor | None = None
    placement_z: Tensor | None = None
    decisions: int = 0

    @staticmethod
    def joined(parts: Sequence[Packings]) -> Packings:
        """The episodes of several batches, in order."""
        if len(parts) == 1:
            return parts[0]
        decisions = sum(part.decisions for part in parts)
        each = {name: [getattr(part, name) for part in parts] for name in (*_PER_EPISODE, "stands")}
        judged = all(stands is not None for stands in each["stands"])
        return Packings(
            **{name: torch.cat(each[name]) for name in _PER_EPISODE},
            decision_ms=sum(part.decision_ms * part.decisions for part in parts) / max(decisions, 1),
            seconds=sum(part.seconds for part in parts),
            stands=_stacked(each["stands"]) if judged else None,
            decisions=decisions,
        )

    @property
    def stability(self) -> Tensor | None:
        """S: share of each bin's placements that stand, (E,); 1 for an empty bin."""
        if self.stands is None:
            return None
        made = (self.stands >= 0).sum(1)
        return torch.where(made > 0, (self.stands > 0).sum(1) / made.clamp_min(1), 1.0)

    def per_episode(self) -> dict[str, Tensor]:
        """(E,) each, by name."""
        named = {name: getattr(self, name) for name in ("utilization", "num_packed", "compactness", "pyramidality")}
        return named if self.stability is None else named | {"stability": self.stability}

    def scores(self) -> dict[str, float]:
        """Means by name."""
        return {name: values.mean().item() for name, values in self.per_episode().items()}

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


_PER_EPISODE = ("utilization", "num_packed", "compactness", "pyramidality", "placements", "placement_z")


def _stacked(stands: Sequence[Tensor]) -> Tensor:
    """(E, T) of the longest of several batches."""
    longest = max(each.shape[1] for each in stands)
    return torch.cat([pad(each, (0, longest - each.shape[1]), value=-1) for each in stands])


def _standard_error(values: Tensor) -> float:
    return (values.std() / len(values) ** 0.5).item() if len(values) > 1 else 0.0


def pack_episodes(
    env: PackingEnv, policy: Policy, num_episodes: int, say: Callable[[str], None] = lambda words: None
) -> Packings:
    """Packs the first bin of so many environments, numbered from `env.first_env` on, as many at a time as `env` has.

    The same packings whatever the size of `env`, and no more memory for many batches than for one. `say` is told which
    episodes are packed.
    """
    first, parts = env.first_env, []
    try:
        for done in range(0, num_episodes, env.num_envs):
            env.renumber(first + done)
            say(f"episodes {done + 1} to {min(done + env.num_envs, num_episodes)} of {num_episodes}")
            parts.append(pack(env, policy, min(env.num_envs, num_episodes - done)))
    finally:
        env.renumber(first)
    return Packings.joined(parts)


@torch.no_grad()
def pack(env: PackingEnv, policy: Policy, num_episodes: int | None = None) -> Packings:
    """Packs one bin in every environment, greedily; the full bins are left in `env.state`.

    A bin that is done gets actions that are not legal, which change nothing, until all are. What a policy draws is the
    same every time: by `policies.draws.uniform`, whatever other bins are packed beside; else from torch's generators,
    which are seeded for these episodes and then put back.

    Args:
        env: Begins anew.
        policy: Writes `action`.
        num_episodes: Only so many of the first are packed and returned; None stands for all.
    """
    begin, number = now(env.device), env.num_envs if num_episodes is None else num_episodes
    env.set_seed(env.seed)
    observation, seconds, decisions = env.reset(), 0.0, 0
    index = torch.arange(env.num_envs, device=env.device)
    done = index >= number
    stands: list[Tensor] = []
    keys = _draw_keys(env.seed, index + env.first_env)
    seeding = seeded(env.seed + env.first_env, env.device)
    with seeding, keyed_draws(keys), set_exploration_type(ExplorationType.DETERMINISTIC):
        while not done.all():
            start = now(env.device)
            chosen = policy(observation)
            seconds += now(env.device) - start
            decisions += int((~done).sum())
            chosen["action"] = torch.where(done, -1, chosen["action"])
            before = env.num_packed.clone()
            stepped = env.step(chosen)
            stands.append(torch.where(env.num_packed > before, env.state.stable.to(torch.int8), -1))
            done |= stepped["next", "done"].squeeze(-1)
            observation = step_mdp(stepped)
    state = env.state
    made = torch.arange(state.placements.shape[1], device=env.device) < state.num_packed[:, None]  # (N, T)
    found = {
        "utilization": state.volume / env.bin.volume,
        "num_packed": state.num_packed.float(),
        "compactness": compactness(state.heightmap, state.volume, env.bin),
        "pyramidality": pyramidality(state.heightmap, state.volume, env.bin),
        "placements": state.placements * made[..., None],
        "placement_z": torch.where(made, state.placement_z, 0.0),
    }
    if env.stability_judge == "com":
        found["stands"] = torch.stack(stands, 1)
    return Packings(
        **{name: value[:number].to("cpu", copy=True) for name, value in found.items()},
        decision_ms=1e3 * seconds / max(decisions, 1),
        seconds=now(env.device) - begin,
        decisions=decisions,
    )


def _draw_keys(seed: int, env: Tensor) -> Tensor:
    """Keys (N,) of what is drawn in the first episode of environments (N,); not those that its items are drawn by."""
    return draw_bits(episode_key(seed, env, torch.zeros_like(env)), torch.full_like(env, 2**31))
