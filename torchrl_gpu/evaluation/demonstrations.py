"""A policy's episodes as demonstrations: observation and action of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase, unravel_key
from torch import Tensor

from torchrl_gpu.demonstrations import Demonstrations
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.clips import STORED_KEYS
from torchrl_gpu.evaluation.batch_size import episode_bytes, num_side_by_side
from torchrl_gpu.evaluation.episodes import MOST_STEPS, play_first
from torchrl_gpu.evaluation.suite import AnySuite
from torchrl_gpu.policies.policy import Policy

_MOST_SIDE_BY_SIDE = 4096

# Types that whole numbers are stored in, the narrowest first.
_NARROW = (torch.uint8, torch.int16)


class _Batch(NamedTuple):
    """Episodes of one batch, on the host.

    Attributes:
        rows: Steps of all episodes, one episode behind another.
        lengths: Number of steps of each, int64.
    """

    rows: TensorDict
    lengths: Tensor


def play_rows(
    suite: AnySuite, policy: Policy, episodes: int, progress: Callable[[int], None] = lambda done: None
) -> Demonstrations:
    """Play the first episodes of a suite greedily, and keep their steps on the host.

    As many are played side by side as there is memory for. A row is what replay would keep of a state
    (`BatchedEnv.stored_keys`), and the action in it. Whole numbers, even if they are floats, are stored in the
    narrowest type that holds them. If the environment groups its robots, an episode is that of one robot, for as long
    as it is `active`.

    Raises:
        ValueError: The environment is observed as pictures.
    """
    if set(STORED_KEYS) & set(suite.env.stored_keys):
        raise ValueError(
            f"demonstrations: {type(suite.env).__name__} is observed as pictures, which are not stored as rows: use"
            " --format lerobot, which makes a video of them"
        )
    most = min(episodes, _MOST_SIDE_BY_SIDE)
    size = num_side_by_side(most, episode_bytes(suite.env, policy), suite.env.device)
    env = suite.like(size)
    dtypes = _dtypes(env)
    batches = []
    for first in range(0, episodes, size):
        suite.begin(env, first)
        number = min(size, episodes - first)
        batches.append(_play_batch(env, policy, number, dtypes))
        progress(min(episodes, first + size))

    rows = {}
    for name in dtypes:
        parts = [batch.rows[name] for batch in batches]
        rows[name] = torch.cat(parts)
    lengths = torch.cat([batch.lengths for batch in batches])
    # Those who load the file get the dtypes of the environment back.
    narrowed = {name: dtype for name, dtype in dtypes.items() if dtype != rows[name].dtype}
    facts = {
        "env": type(env).__name__,
        "seed": env.seed,
        "environment_episodes": episodes,
        "meaning": env.stored_meaning,
    }
    joined = TensorDict(rows, batch_size=[int(lengths.sum())])
    return Demonstrations(joined, lengths, narrowed, facts)


def _play_batch(env: BatchedEnv, policy: Policy, number: int, names: Iterable[str]) -> _Batch:
    """Play the first episode of the first `number` environments."""
    group = _group(env)
    keys = {name: unravel_key((*group, name)) for name in names}
    steps: list[TensorDictBase] = []
    acted: list[Tensor] = []

    def choose(current: TensorDictBase, over: Tensor) -> TensorDictBase:
        decided: TensorDictBase = policy(current)
        acts = ~over  # (N,)
        if group:
            active = decided.get((*group, "active"), None)
            acts = acts[:, None].expand(decided.get(group).batch_size)  # (N, R)
            acts = acts if active is None else acts & active.reshape(acts.shape)
        row = TensorDict({name: decided.get(key) for name, key in keys.items()}, batch_size=acts.shape)
        # A copy, since a step may write into what was observed.
        steps.append(row.flatten().to("cpu").clone())
        acted.append(acts.flatten().cpu())
        return decided

    play_first(env, policy, number, MOST_STEPS, choose)
    # Of robots, N·R instead of N.
    has_acted = torch.stack(acted, 1)  # (N, T)
    lengths = has_acted.sum(1)
    rows: TensorDictBase = torch.stack(steps, 1)[has_acted]
    narrow = {name: _narrowest(value) for name, value in rows.items()}
    # A robot that was never active has no episode.
    return _Batch(TensorDict(narrow, batch_size=rows.batch_size), lengths[lengths > 0])


def _dtypes(env: BatchedEnv) -> dict[str, torch.dtype]:
    """Return the dtypes of the entries of a row, by name."""
    group = _group(env)
    specs = env.observation_spec[group] if group else env.observation_spec
    outcomes = [unravel_key(key) for key in env.outcomes]
    dtypes = {}
    for stored in env.stored_keys:
        key = unravel_key(stored)
        *above, name = key if isinstance(key, tuple) else (key,)
        # `active` says which rows there are.
        if key not in outcomes and tuple(above) == group and name != "active":
            dtypes[name] = specs[name].dtype
    dtypes["action"] = env.full_action_spec[env.action_keys[0]].dtype
    return dtypes


def _group(env: BatchedEnv) -> tuple[str, ...]:
    (key,) = env.action_keys
    return key[:-1] if isinstance(key, tuple) else ()


def _narrowest(value: Tensor) -> Tensor:
    """Return whole numbers in the narrowest type that holds them.

    Other values are returned unchanged.
    """
    if value.dtype == torch.bool or not value.numel():
        return value
    # Counts and heights in cells are often floats. As bytes, they take a quarter of a file.
    if bool((value != value.round()).any()):
        return value
    low = value.min()
    high = value.max()
    for kind in _NARROW:
        limits = torch.iinfo(kind)
        if limits.min <= low and high <= limits.max:
            return value.to(kind)
    return value
