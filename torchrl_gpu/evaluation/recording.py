"""Some of a suite's episodes as MCAP files: all of them, the worst, the best, or those that failed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.demonstrations import CHOICES
from torchrl_gpu.demonstrations.mcap import EpisodeRecorder, check_pictures
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.viewable import viewable
from torchrl_gpu.evaluation.batch_size import episode_bytes, num_side_by_side
from torchrl_gpu.evaluation.episodes import MOST_STEPS, play_first
from torchrl_gpu.evaluation.suite import Suite
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.system import arguments, locks

_WHERE = "record_episodes"
_MOST_SIDE_BY_SIDE = 64  # each that is written has an encoder of its own


def record_episodes(
    suite: Suite[Any, Any],
    policy: Policy,
    folder: str | os.PathLike[str],
    episodes: int,
    *,
    choose: str = "all",
    most: int = 10,
    by: str | None = None,
    below: float | None = None,
    size: Sequence[int] = (480, 640),
    fps: float = 10.0,
    facts: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Path]:
    """Plays the first episodes of a suite greedily, and writes those that are chosen: `episode-NUMBER.mcap` each.

    To choose, all are played once without pictures, and those that are chosen again, in the same batches, to the same
    bits. See `EpisodeRecorder` for what a file holds, for `size` and `fps`; `facts` are more for its metadata. A file
    has its name once the episode is written; returned are all files, in the order of the episodes.

    `choose` is "all"; "worst" or "best" by a metric; or "failures", whose metric is below a limit; of these at most
    `most`. The metric `by` is an outcome of the environment or "return", by default the first outcome, else the return;
    `below` is 1 by default where that is a flag. `progress` is called after every batch with the number of episodes
    done.
    """

    def path_of(episode: int) -> Path:
        return Path(folder) / f"episode-{episode:06d}.mcap"

    arguments.choice(_WHERE, "choose", choose, CHOICES)
    episodes, most = (arguments.whole(_WHERE, *each, 1) for each in (("episodes", episodes), ("most", most)))
    viewable(suite.env)
    check_pictures(size, fps)
    by = ranks_by(suite.env, choose, by, below)
    per_episode = episode_bytes(suite.env, policy)
    side_by_side = num_side_by_side(min(episodes, _MOST_SIDE_BY_SIDE), per_episode, suite.env.device)
    env, chosen = suite.like(side_by_side), list(range(episodes))
    batches = range(0, episodes, side_by_side)
    with _own_folder(Path(folder)):
        if choose != "all":
            parts = []
            for first in batches:
                suite.begin(env, first)
                parts.append(_play(env, policy, min(side_by_side, episodes - first), {})[by])
                progress(min(episodes, first + side_by_side))
            chosen = choose_episodes(torch.cat(parts), choose, most, below)
        about, view = {"env": type(env).__name__, "seed": env.seed, **(facts or {})}, viewable(env)
        for first in batches:
            rows = [each - first for each in chosen if first <= each < first + side_by_side]
            if rows:
                suite.begin(env, first)
                with ExitStack() as files:  # none of a batch's files is left where writing one fails
                    recorders = {
                        row: files.enter_context(EpisodeRecorder(path_of(first + row), view, row, size=size, fps=fps))
                        for row in rows
                    }
                    ends = _play(env, policy, max(rows) + 1, recorders)
                    for row, recorder in recorders.items():
                        reached = {name: values[row].item() for name, values in ends.items()}
                        recorder.describe({"episode": first + row, **reached, **about})
            progress(min(episodes, first + side_by_side))
        return [path_of(each) for each in chosen]


@contextmanager
def _own_folder(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder, which is made; FileExistsError where another program records into it.

    Two recordings of one folder give their files the same names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = locks.lock(folder)
    except BlockingIOError as error:
        holder = locks.holder_of(folder)
        raise FileExistsError(f"{_WHERE}: {holder} records into {folder}; wait, or give another folder") from error
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def ranks_by(env: BatchedEnv, choose: str, by: str | None, below: float | None) -> str:
    """The metric that episodes are ranked by; ValueError where there is none, or failures of no flag have no limit."""
    names = [*env.outcome_names, "return"]
    by = arguments.choice(_WHERE, "by", names[0] if by is None else by, names)
    outcomes = dict(zip(names, env.outcomes, strict=False))
    if choose == "failures" and below is None:
        spec = env.full_observation_spec.get(outcomes[by], None) if by in outcomes else None
        if spec is None or spec.dtype != torch.bool:
            raise ValueError(f"{_WHERE}: want below to say which {by} is a failure, since it is no flag; got None")
    return by


def choose_episodes(values: Tensor, choose: str, most: int, below: float | None = None) -> list[int]:
    """Numbers of episodes in their order, by what they came to."""
    if choose == "failures":
        failed = values.double() < (1.0 if below is None else below)
        return failed.nonzero().flatten().tolist()[:most]
    ranked = values.double().argsort(descending=choose == "best", stable=True)
    return sorted(ranked[:most].tolist())


def _play(
    env: BatchedEnv, policy: Policy, num_episodes: int, recorders: Mapping[int, EpisodeRecorder]
) -> dict[str, Tensor]:
    """Plays the first episode of so many rows, and writes some; return, length and outcomes of all, (E,) on the CPU."""
    recorded = dict(recorders)

    def choose(current: TensorDictBase, over: Tensor) -> TensorDictBase:
        decided = policy(current)
        for recorder in recorded.values():
            recorder.decide(decided, env.action_keys)
        return decided

    def watch(step: int, reward: Tensor, ended: Tensor) -> None:
        for row, recorder in list(recorded.items()):
            if step:
                recorder.advance(reward[row].item())
            recorder.look()
            if ended[row]:
                del recorded[row]

    ends = play_first(env, policy, num_episodes, MOST_STEPS, choose, watch)
    return {**ends.outcomes, "return": ends.returned, "length": ends.length}
