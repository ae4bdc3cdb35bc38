"""A policy's episodes as demonstrations: what was observed and done in each step, many episodes side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, unravel_key
from torch import Tensor

from torchrl_gpu.demonstrations import Demonstrations
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.clips import STORED_KEYS
from torchrl_gpu.evaluation.batch_size import episode_bytes, num_side_by_side
from torchrl_gpu.evaluation.episodes import MOST_STEPS, play_first
from torchrl_gpu.evaluation.suite import Suite
from torchrl_gpu.policies.policy import Policy

_MOST_SIDE_BY_SIDE = 4096
_NARROW = (torch.uint8, torch.int16)


def play_rows(
    suite: Suite[Any, Any], policy: Policy, episodes: int, progress: Callable[[int], None] = lambda done: None
) -> Demonstrations:
    """The first episodes of a suite, played greedily, as many side by side as there is memory for; on the host.

    A row is what replay would keep of a state (`BatchedEnv.stored_keys`), and the action in it; whole numbers, reals
    that are whole included, in the narrowest type that holds them. Where the environment groups its robots, an episode
    is that of one robot, as long as it is `active`. ValueError where the environment shows pictures.
    """
    if set(STORED_KEYS) & set(suite.env.stored_keys):
        raise ValueError(
            f"demonstrations: want an environment that shows numbers; {type(suite.env).__name__} shows pictures,"
            " of which --format lerobot makes a video"
        )
    most = min(episodes, _MOST_SIDE_BY_SIDE)
    size = num_side_by_side(most, episode_bytes(suite.env, policy), suite.env.device)
    env, parts = suite.like(size), list[tuple[TensorDict, Tensor]]()
    dtypes = _dtypes(env)
    for first in range(0, episodes, size):
        suite.begin(env, first)
        parts.append(_play_batch(env, policy, min(size, episodes - first), dtypes))
        progress(min(episodes, first + size))
    whole = {name: torch.cat([rows[name] for rows, _ in parts]) for name in dtypes}
    lengths = torch.cat([each for _, each in parts])
    narrowed = {name: dtype for name, dtype in dtypes.items() if dtype != whole[name].dtype}
    about = {"env": type(env).__name__, "seed": env.seed, "environment_episodes": episodes}
    about["meaning"] = env.stored_meaning
    return Demonstrations(TensorDict(whole, batch_size=[int(lengths.sum())]), lengths, narrowed, about)


def _play_batch(env: BatchedEnv, policy: Policy, number: int, names: Iterable[str]) -> tuple[TensorDict, Tensor]:
    """Rows of the first episode of so many environments, and how many each episode has; on the host."""
    group = _group(env)
    keys = {name: unravel_key((*group, name)) for name in names}
    steps, acted = list[TensorDict](), list[Tensor]()

    def choose(current: TensorDictBase, over: Tensor) -> TensorDictBase:
        decided: TensorDictBase = policy(current)
        acts = ~over  # (N,)
        if group:
            active = decided.get((*group, "active"), None)
            acts = acts[:, None].expand(decided.get(group).batch_size)  # (N, R)
            acts = acts if active is None else acts & active.reshape(acts.shape)
        row = TensorDict({name: decided.get(key) for name, key in keys.items()}, batch_size=acts.shape)
        steps.append(row.flatten().to("cpu").clone())  # a step may change what was shown
        acted.append(acts.flatten().cpu())
        return decided

    play_first(env, policy, number, MOST_STEPS, choose)
    taken = torch.stack(acted, 1)  # (N, T), or (N·R, T) of robots
    lengths = taken.sum(1)
    rows: Any = torch.stack(steps, 1)[taken]
    narrow = {name: _narrowest(value) for name, value in rows.items()}
    return TensorDict(narrow, batch_size=rows.batch_size), lengths[lengths > 0]


def _dtypes(env: BatchedEnv) -> dict[str, torch.dtype]:
    group = _group(env)
    shown: Any = env.observation_spec[group] if group else env.observation_spec
    outcomes = [unravel_key(key) for key in env.outcomes]
    keys = [unravel_key(key) for key in env.stored_keys]
    own = [key if isinstance(key, tuple) else (key,) for key in keys if key not in outcomes]
    names = [key[-1] for key in own if key[:-1] == group and key[-1] != "active"]
    return {name: shown[name].dtype for name in names} | {"action": env.full_action_spec[env.action_keys[0]].dtype}


def _group(env: BatchedEnv) -> tuple[str, ...]:
    (key,) = env.action_keys
    return key[:-1] if isinstance(key, tuple) else ()


def _narrowest(value: Tensor) -> Tensor:
    if value.dtype == torch.bool or not value.numel() or bool((value != value.round()).any()):
        return value
    low, high = value.min(), value.max()
    for kind in _NARROW:
        if torch.iinfo(kind).min <= low and high <= torch.iinfo(kind).max:
            return value.to(kind)
    return value
