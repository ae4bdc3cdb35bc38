"""Number of episodes that are evaluated side by side, by the free memory."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.memory import LiveBytes, free_bytes
from torchrl_gpu.evaluation.results import evaluation
from torchrl_gpu.policies.policy import Policy

# Share of the free memory that is used. What kernels and convolutions allocate inside is in no estimate.
_SHARE = 0.5

# Most bytes on a CPU, where more episodes side by side are played no faster.
MOST_ON_CPU = 1 << 30


def num_side_by_side(
    num_episodes: int, per_episode: int, device: torch.device, free: int | None = None, most_on_cpu: int = MOST_ON_CPU
) -> int:
    """Return the number of episodes of a batch, at least 1.

    Batches are made equal in size, since a last one of a few episodes would take as long as a full one.

    Args:
        num_episodes: Of all batches.
        per_episode: Bytes of one.
        device: Where they are played.
        free: Free bytes of the device; None to ask for them.
        most_on_cpu: Most bytes of a batch on a CPU.
    """
    free = free_bytes(device) if free is None else free
    allowed = most_on_cpu if free is None else int(_SHARE * free)
    if device.type == "cpu":
        allowed = min(allowed, most_on_cpu)
    fitting = max(1, min(num_episodes, allowed // max(1, per_episode)))
    num_batches = -(-num_episodes // fitting)
    return -(-num_episodes // num_batches)


def episode_bytes(env: BatchedEnv, policy: Policy) -> int:
    """Return the most bytes that one episode takes while it is played.

    They are the environment's part and `decision_bytes`. The environment's part is its `bytes_per_env` if it has that,
    otherwise it is counted in one step. The episodes of `env` begin anew.
    """
    own = getattr(env, "bytes_per_env", None)
    return (_step_bytes(env, policy) if own is None else own) + decision_bytes(env, policy)


def decision_bytes(env: BatchedEnv, policy: Policy) -> int:
    """Return the most bytes that a policy takes to decide for one row.

    Its weights do not count. One row and two are compared, since the first may take what all rows share.
    """
    with evaluation(env, policy) as current:
        one = current[:1]
        # A first call makes what a policy keeps, such as maps of all items.
        policy(one.clone())
        first = _peak(policy, torch.cat([one]))
        second = _peak(policy, torch.cat([one, one]))
    return max(first, second - first)


def _step_bytes(env: BatchedEnv, policy: Policy) -> int:
    with evaluation(env, policy) as current:
        chosen = policy(current)
        with LiveBytes() as counter:
            env.step(chosen)
    # The state was made before the step, so the counter has not seen it.
    state = sum(each.nbytes for each in env.env_state().values())
    return (state + counter.peak) // env.num_envs


def _peak(policy: Policy, observation: TensorDictBase) -> int:
    with LiveBytes() as counter:
        policy(observation)
    return counter.peak
