"""Steps of an environment and its policy, one operator after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import NestedKey, TensorDictBase

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.workers.pool import WorkerPool
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.system.sections import section

RESULTS: tuple[NestedKey, ...] = ("reward", "done", "terminated")

MOST_OTHER = 0.1
"""Share of the environments that another form may play otherwise.

Of two values that are alike to rounding either is taken.
"""


def play_steps(
    env: BatchedEnv | WorkerPool,
    policy: Policy,
    current: TensorDictBase,
    steps: int,
    keys: Sequence[NestedKey],
    decisions: Sequence[NestedKey] = ("action",),
    outcomes: Sequence[NestedKey] | None = None,
) -> tuple[TensorDictBase, TensorDictBase]:
    """Play steps of a policy in an environment, one operator after the other.

    Args:
        env: Restarts its own rows.
        policy: Writes `action`.
        current: What the environment shows, (N,).
        steps: How many, T.
        keys: Observations to keep.
        decisions: What else to keep of the state acted in: what the policy writes, observations not wanted in `next`.
        outcomes: What to keep of `next`, where it is there; None for reward, ends and the environment's outcomes.

    Returns:
        The steps (N, T) with `next` holding the outcomes and the observations kept, and what `env` shows then.
    """
    made = []
    for _ in range(steps):
        kept, current = step_once(env, policy, current, keys, decisions, outcomes)
        made.append(kept)
    return torch.stack(made, 1), current


def step_once(
    env: BatchedEnv | WorkerPool,
    policy: Policy,
    current: TensorDictBase,
    keys: Sequence[NestedKey],
    decisions: Sequence[NestedKey],
    outcomes: Sequence[NestedKey] | None,
) -> tuple[TensorDictBase, TensorDictBase]:
    """One step as in `play_steps`, (N,)."""
    outcomes = [*RESULTS, *env.outcomes] if outcomes is None else outcomes
    with section("policy"):
        acted = policy(current)
    with section("environment"):
        stepped, current = env.step_and_maybe_reset(acted)
    kept = stepped.select(*keys, *decisions)
    kept["next"] = stepped["next"].select(*keys, *outcomes, strict=False)
    return kept, current
