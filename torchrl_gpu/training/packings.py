"""Whole bins packed by a policy, and what is counted about them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type, step_mdp

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.reward import compactness, pyramidality
from torchrl_gpu.training.graphed import Policy


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
    """

    utilization: Tensor
    num_packed: Tensor
    compactness: Tensor
    pyramidality: Tensor
    decision_ms: float
    seconds: float = 0.0
    stands: Tensor | None = None

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


def _standard_error(values: Tensor) -> float:
    return (values.std() / len(values) ** 0.5).item() if len(values) > 1 else 0.0


@torch.no_grad()
def pack(env: PackingEnv, policy: Policy) -> Packings:
    """Packs one bin in every environment, greedily; the full bins are left in `env.state`.

    A bin that is done gets actions that are not legal, which change nothing, until all are. What a policy draws comes
    from torch's generator, seeded for these episodes and then put back: the same packings every time.
    """
    begin = now(env.device)
    env.set_seed(env.seed)
    observation, seconds, decisions = env.reset(), 0.0, 0
    done = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
    stands: list[Tensor] = []
    seeding = seeded(env.seed + env.first_env, env.device)
    with seeding, set_exploration_type(ExplorationType.DETERMINISTIC):
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
    return Packings(
        (state.volume / env.bin.volume).cpu(),
        state.num_packed.float().cpu(),
        compactness(state.heightmap, state.volume, env.bin).cpu(),
        pyramidality(state.heightmap, state.volume, env.bin).cpu(),
        1e3 * seconds / max(decisions, 1),
        now(env.device) - begin,
        torch.stack(stands, 1).cpu() if env.judge == "com" else None,
    )


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's generators begin from a seed, and are put back in the end."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def now(device: torch.device) -> float:
    """Seconds of a clock, once all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
