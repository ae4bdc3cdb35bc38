"""Some of a suite's episodes as MCAP files.

All of them, the worst, the best, or those that failed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.demonstrations import CHOICES
from torchrl_gpu.demonstrations.mcap import EpisodeRecorder, check_pictures
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.viewable import viewable
from torchrl_gpu.evaluation.batch_size import episode_bytes, num_side_by_side
from torchrl_gpu.evaluation.episodes import MOST_STEPS, play_first
from torchrl_gpu.evaluation.suite import AnySuite
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.system import arguments, locks

_WHERE = "record_episodes"

# Each episode that is written has an encoder of its own.
_MOST_SIDE_BY_SIDE = 64


def record_episodes(
    suite: AnySuite,
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
    facts: Mapping[str, object] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Path]:
    """Play the first episodes of a suite greedily, and write those that are chosen.

    To choose, all are played once without pictures. Those that are chosen are played again, in the same batches, to the
    same bits: to draw and encode all of them would take far longer. See `EpisodeRecorder` for what a file holds. It has
    its name, `episode-NUMBER.mcap`, once the episode is written.

    Args:
        suite: The episodes.
        policy: Plays them.
        folder: Gets the files.
        episodes: How many are played.
        choose: "all"; "worst" or "best" by a metric; or "failures", whose metric is below a limit.
        most: Most files, unless all are chosen.
        by: The metric: an outcome of the environment, or "return". By default the first outcome, if there is one.
        below: The limit; by default 1 if the metric is a flag.
        size: Height and width of pictures, pixels.
        fps: Pictures per second.
        facts: More metadata for the files.
        progress: Called after every batch with the number of episodes done.

    Returns:
        All files, in the order of the episodes.
    """
    arguments.choice(_WHERE, "choose", choose, CHOICES)
    episodes = arguments.whole(_WHERE, "episodes", episodes, 1)
    most = arguments.whole(_WHERE, "most", most, 1)
    viewable(suite.env)
    check_pictures(size, fps)
    by = ranks_by(suite.env, choose, by, below)
    per_episode = episode_bytes(suite.env, policy)
    side_by_side = num_side_by_side(min(episodes, _MOST_SIDE_BY_SIDE), per_episode, suite.env.device)
    env = suite.like(side_by_side)
    view = viewable(env)
    batches = range(0, episodes, side_by_side)

    def path_of(episode: int) -> Path:
        return Path(folder) / f"episode-{episode:06d}.mcap"

    with _own_folder(Path(folder)):
        chosen = list(range(episodes))
        if choose != "all":
            # Which are the worst is known once all are played.
            parts = []
            for first in batches:
                suite.begin(env, first)
                number = min(side_by_side, episodes - first)
                played = _play(env, policy, number, {})
                parts.append(played[by])
                progress(min(episodes, first + side_by_side))
            chosen = choose_episodes(torch.cat(parts), choose, most, below)

        metadata = {"env": type(env).__name__, "seed": env.seed, **(facts or {})}
        for first in batches:
            end = first + side_by_side
            rows = [each - first for each in chosen if first <= each < end]
            if rows:
                suite.begin(env, first)
                # If one file cannot be written, none of the batch is left.
                with ExitStack() as files:
                    recorders = {}
                    for row in rows:
                        recorder = EpisodeRecorder(path_of(first + row), view, row, size=size, fps=fps)
                        recorders[row] = files.enter_context(recorder)
                    # Rows behind the last one that is recorded need not finish.
                    played = _play(env, policy, max(rows) + 1, recorders)
                    for row, recorder in recorders.items():
                        reached = {name: values[row].item() for name, values in played.items()}
                        recorder.describe({"episode": first + row, **reached, **metadata})
            progress(min(episodes, end))
        return [path_of(each) for each in chosen]


@contextmanager
def _own_folder(folder: Path) -> Iterator[None]:
    """Make a folder, and hold its lock.

    Two recordings into one folder would give their files the same names.

    Raises:
        FileExistsError: Another program records into it.
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
    """Return the metric that episodes are ranked by.

    Raises:
        ValueError: There is no such metric, or it is no flag and has no limit for failures.
    """
    names = [*env.outcome_names, "return"]
    asked = names[0] if by is None else by
    by = arguments.choice(_WHERE, "by", asked, names)
    outcomes = dict(zip(names, env.outcomes, strict=False))
    if choose == "failures" and below is None:
        spec = env.full_observation_spec.get(outcomes[by], None) if by in outcomes else None
        if spec is None or spec.dtype != torch.bool:
            raise ValueError(f"{_WHERE}: give below, since {by} is no flag: an episode fails if it is below that")
    return by


def choose_episodes(values: Tensor, choose: str, most: int, below: float | None = None) -> list[int]:
    """Return the numbers of the chosen episodes, in order, by their metric."""
    if choose == "failures":
        failed = values.double() < (1.0 if below is None else below)
        return failed.nonzero().flatten().tolist()[:most]
    # Stable, so that equal episodes are chosen by their numbers on every machine.
    ranked = values.double().argsort(descending=choose == "best", stable=True)
    return sorted(ranked[:most].tolist())


def _play(
    env: BatchedEnv, policy: Policy, num_episodes: int, recorders: Mapping[int, EpisodeRecorder]
) -> dict[str, Tensor]:
    """Play the first episode of the first rows, and write those with a recorder.

    Returns:
        Return, length and outcomes of all by name, (E,) on the CPU.
    """
    # Recorders of the episodes that are still running.
    running = dict(recorders)

    def choose(current: TensorDictBase, over: Tensor) -> TensorDictBase:
        decided = policy(current)
        for recorder in running.values():
            recorder.decide(decided, env.action_keys)
        return decided

    def watch(step: int, reward: Tensor, ended: Tensor) -> None:
        for row, recorder in list(running.items()):
            # Before the first step there is no reward.
            if step:
                recorder.advance(reward[row].item())
            recorder.look()
            if ended[row]:
                del running[row]

    played = play_first(env, policy, num_episodes, MOST_STEPS, choose, watch)
    return {**played.outcomes, "return": played.returned, "length": played.length}
