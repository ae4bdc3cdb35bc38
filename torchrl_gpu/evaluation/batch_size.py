"""Number of episodes that are evaluated side by side: as many as fit into memory."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.memory import LiveBytes, free_bytes
from torchrl_gpu.evaluation.results import evaluation
from torchrl_gpu.policies.policy import Policy

# Of the free memory: what kernels and convolutions take inside themselves is in no estimate.
_SHARE = 0.5

# On a CPU more episodes side by side are played no faster.
MOST_ON_CPU = 1 << 30  # bytes


def num_side_by_side(
    num_episodes: int, per_episode: int, device: torch.device, free: int | None = None, most_on_cpu: int = MOST_ON_CPU
) -> int:
    """Number of episodes of a batch, at least 1.

    All batches of an evaluation have this size, or one less in the last.
    """
    free = free_bytes(device) if free is None else free
    allowed = most_on_cpu if free is None else int(_SHARE * free)
    if device.type == "cpu":
        allowed = min(allowed, most_on_cpu)
    fitting = max(1, min(num_episodes, allowed // max(1, per_episode)))
    num_batches = -(-num_episodes // fitting)
    return -(-num_episodes // num_batches)


def episode_bytes(env: BatchedEnv, policy: Policy) -> int:
    """Most bytes that one episode takes while it is played.

    They are the environment's part and `decision_bytes`. The environment's is `bytes_per_env` where it has that, else
    counted in one step. Begins the episodes of `env` anew.
    """
    own = getattr(env, "bytes_per_env", None)
    return (_step_bytes(env, policy) if own is None else own) + decision_bytes(env, policy)


def decision_bytes(env: BatchedEnv, policy: Policy) -> int:
    """Most bytes that a policy takes to decide for one row, beyond what it holds.

    They are counted while it decides for two rows.
    """
    with evaluation(env, policy) as current:
        one = current[:1]
        # A first call makes what is made once, such as maps of all items.
        policy(one.clone())
        first = _peak(policy, torch.cat([one]))
        second = _peak(policy, torch.cat([one, one]))
    return max(first, second - first)


def _step_bytes(env: BatchedEnv, policy: Policy) -> int:
    with evaluation(env, policy) as current:
        chosen = policy(current)
        with LiveBytes() as counter:
            env.step(chosen)
    state = sum(each.nbytes for each in env._env_state().values())
    return (state + counter.peak) // env.num_envs


def _peak(policy: Policy, observation: TensorDictBase) -> int:
    with LiveBytes() as counter:
        policy(observation)
    return counter.peak
