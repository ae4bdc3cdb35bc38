"""How many episodes are evaluated side by side: as many as there is memory for."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.live_bytes import LiveBytes
from torchrl_gpu.envs.memory import free_bytes
from torchrl_gpu.policies.generators import seeded
from torchrl_gpu.policies.policy import Policy

_SHARE = 0.5  # of the free memory: what kernels and convolutions take inside themselves is in no estimate
_MOST_ON_CPU = 1 << 30  # bytes; more bins side by side pack no faster there


def num_side_by_side(num_episodes: int, per_episode: int, device: torch.device, free: int | None = None) -> int:
    """Episodes of a batch, at least 1; all batches of an evaluation have this size, the last one to an episode each.

    Args:
        num_episodes: To be played.
        per_episode: Bytes of one, see `episode_bytes`.
        device: Where they are played.
        free: Bytes to be had there; None asks `free_bytes`.
    """
    free = free_bytes(device) if free is None else free
    allowed = _MOST_ON_CPU if free is None else int(_SHARE * free)
    if device.type == "cpu":
        allowed = min(allowed, _MOST_ON_CPU)
    fitting = max(1, min(num_episodes, allowed // per_episode))
    num_batches = -(-num_episodes // fitting)
    return -(-num_episodes // num_batches)


def episode_bytes(env: PackingEnv, policy: Policy) -> int:
    """Most bytes that one episode takes while it is played: the environment's estimate and `decision_bytes`."""
    return env.bytes_per_env + decision_bytes(env, policy)


@torch.no_grad()
def decision_bytes(env: PackingEnv, policy: Policy) -> int:
    """Most bytes that a policy takes to decide for one bin, beyond what it holds: counted while it decides for two.

    Begins the episodes of `env` anew. Torch's generators are left as they were.
    """
    with seeded(env.seed, env.device), set_exploration_type(ExplorationType.DETERMINISTIC):
        env.set_seed(env.seed)
        one = env.reset()[:1]
        policy(one.clone())  # what is made once, such as maps of all items, is made by now
        first, second = (_peak(policy, torch.cat([one] * number)) for number in (1, 2))
    return max(first, second - first)


def _peak(policy: Policy, observation: TensorDictBase) -> int:
    with LiveBytes() as counter:
        policy(observation)
    return counter.peak
