"""Episodes of any environment, and the choice of an environment's suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import NamedTuple

import torch
from rich.table import Table
from tensordict import NestedKey, TensorDictBase
from torch import Tensor

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.viewable import viewable
from torchrl_gpu.evaluation.estimates import comparison_table, estimate
from torchrl_gpu.evaluation.reports import PlainData
from torchrl_gpu.evaluation.results import DecisionClock, Results, evaluation
from torchrl_gpu.evaluation.suite import UNSEEN_SEED, AnySuite, Suite
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.tasks import load_part, task_of

# Pictures of a film.
MOST_FRAMES = 150

# Steps of an episode, which otherwise might never end.
MOST_STEPS = 10_000

Actions = dict[str, list[object]]
"""Actions of one episode, step by step, by the names of their keys."""

Watch = Callable[[BatchedEnv, int, Tensor], None]
"""Called with the environment, the number of steps, and which episodes have just ended, (N,) bool.

The environment is still in the state of their ends.
"""


@dataclass(frozen=True, kw_only=True)
class EpisodeResults(Results):
    """Results of E episodes of any environment, (E,) each.

    Attributes:
        returned: Sums of rewards, float64; with several agents, means over them.
        length: Steps, int64.
        outcomes: By name, float64 or bool.
        actions: Of each episode; empty unless they were kept.
    """

    returned: Tensor
    length: Tensor
    outcomes: dict[str, Tensor]
    actions: list[Actions]

    def per_episode(self) -> dict[str, Tensor]:
        return self.outcomes | {"return": self.returned, "length": self.length}

    def scores(self) -> dict[str, float]:
        return {name: values.double().mean().item() for name, values in self.per_episode().items()}


class EpisodeSuite(Suite[BatchedEnv, EpisodeResults]):
    """Episodes of any `BatchedEnv`, with return, length and its named outcomes.

    Args:
        env, pictures, num_episodes, batch_size: As in `Suite`.
        max_steps: Steps after which an episode is cut off.
    """

    def __init__(
        self,
        env: BatchedEnv,
        pictures: bool = True,
        num_episodes: int | None = None,
        batch_size: int | None = None,
        max_steps: int = MOST_STEPS,
    ) -> None:
        super().__init__(env, pictures and has_pictures(env), num_episodes, batch_size)
        self.max_steps = max_steps
        self._policy: Policy | None = None
        self._keeps_actions = False

    @property
    def headline(self) -> str:  # type: ignore[override]
        """The first of the environment's outcomes, or the return if there are none."""
        names = [*self.env.outcome_names, "return"]
        return names[0]

    def evaluate(
        self, env: BatchedEnv, policy: Policy, num_episodes: int, watch: Watch = lambda env, step, ended: None
    ) -> EpisodeResults:
        """Play the first episode of the first rows, greedily.

        A row whose episode is over plays further ones, which do not count.
        """
        self._policy = policy
        clock = DecisionClock(env.device)
        actions: list[Actions] = []
        if self._keeps_actions:
            actions = [{} for _ in range(num_episodes)]

        def choose(current: TensorDictBase, over: Tensor) -> TensorDictBase:
            chosen: TensorDictBase = clock.time(env.num_envs, policy, current)
            if self._keeps_actions:
                running = (~over).nonzero().flatten().tolist()
                _keep_actions(chosen, env.action_keys, running, actions)
            return chosen

        def watch_ends(step: int, reward: Tensor, ended: Tensor) -> None:
            watch(env, step, ended)

        played = play_first(env, policy, num_episodes, self.max_steps, choose, watch_ends)
        outcomes = {}
        for name, values in played.outcomes.items():
            outcomes[name] = values if values.dtype is torch.bool else values.double()
        return EpisodeResults(
            returned=played.returned, length=played.length, outcomes=outcomes, actions=actions, **clock.times()
        )

    def table(self, results: dict[str, EpisodeResults], name: str) -> tuple[Table, PlainData]:
        columns = {}
        rows: list[PlainData] = []
        for policy, each in results.items():
            per_episode = each.per_episode()
            milliseconds = torch.tensor([each.decision_ms], dtype=torch.float32, device="cpu")
            columns[policy] = per_episode | {"ms": milliseconds}
            errors = {key: estimate(values).error for key, values in per_episode.items()}
            rows.append(
                {
                    "policy": policy,
                    "num_episodes": self.num_episodes,
                    "scores": each.scores(),
                    "errors": errors,
                    "decision_ms": each.decision_ms,
                    "seconds": each.seconds,
                }
            )
        return comparison_table(columns, f"{self.num_episodes} episodes"), {"policies": rows}

    def plan(self, policy: Policy, folder: Path) -> list[PlainData]:
        # Actions of all episodes take memory, so they are only kept here.
        self._keeps_actions = True
        try:
            return super().plan(policy, folder)
        finally:
            self._keeps_actions = False

    def plans(self, results: EpisodeResults) -> list[PlainData]:
        per_episode = {name: values.tolist() for name, values in results.per_episode().items()}
        plans: list[PlainData] = []
        for episode, actions in enumerate(results.actions):
            reached = {name: values[episode] for name, values in per_episode.items()}
            plans.append({"episode": episode, **reached, "actions": actions})
        return plans

    # -- pictures ---------------------------------------------------------------------------------------------------

    def pictures(self, num: int, width: int) -> Tensor:
        """Draw the ends of the first episodes, which are played again for that."""
        drawn: dict[int, Tensor] = {}

        def watch(env: BatchedEnv, step: int, ended: Tensor) -> None:
            for row in ended[:num].nonzero().flatten().tolist():
                drawn[row] = _picture(env, row, width)

        self._replay(0, watch)
        return torch.stack([drawn[row] for row in sorted(drawn)])

    def draw(self, folder: Path) -> None:
        """Write the episode of median headline as `episode.png` and `episode.gif`.

        It is played again to be drawn.
        """
        # This imports PIL, which runs without pictures do not need.
        from torchrl_gpu.envs.pictures import save_gif, save_png

        assert self.last is not None
        # The median episode is typical; the first, or the best, may be anything.
        values = self.last.per_episode()[self.headline]
        index = int(values.argsort(stable=True)[len(values) // 2])
        length = int(self.last.length[index])
        # A film with every step of a long episode would take minutes to draw, and to watch.
        steps_per_frame = -(-length // MOST_FRAMES)
        frames = []

        def watch(env: BatchedEnv, step: int, ended: Tensor) -> None:
            # The row goes on after its first episode, whose last picture is always in the film.
            is_due = step < length and step % steps_per_frame == 0
            if is_due or step == length:
                frames.append(_picture(env, index % env.num_envs, 480))

        self._replay(index, watch)
        save_png(frames[-1], folder / "episode.png")
        save_gif(torch.stack(frames), folder / "episode.gif", fps=12.0)

    def _replay(self, index: int, watch: Watch) -> None:
        """Play the batch again that holds an episode.

        Episodes are decided by their numbers, and policies draw the same in them, so that they are the same as before.
        """
        assert self._batch is not None
        assert self._policy is not None
        env = self._batch[0]
        first = index // env.num_envs * env.num_envs
        number = min(env.num_envs, self.num_episodes - first)
        self.begin(env, first)
        self.evaluate(env, self._policy, number, watch)
        self.begin(env, 0)


def _keep_actions(
    chosen: TensorDictBase, keys: Sequence[NestedKey], running: list[int], actions: list[Actions]
) -> None:
    """Append the actions of the running episodes to those that are kept."""
    for key in keys:
        name = key if isinstance(key, str) else "/".join(key)
        rows = chosen.get(key).tolist()
        for episode in running:
            actions[episode].setdefault(name, []).append(rows[episode])


class PlayedEpisodes(NamedTuple):
    """Outcomes of E episodes, on the CPU.

    Attributes:
        returned: Sums of rewards, (E,) float64.
        length: Steps, (E,) int64.
        outcomes: By name, (E,) each.
    """

    returned: Tensor
    length: Tensor
    outcomes: dict[str, Tensor]


def play_first(
    env: BatchedEnv,
    policy: Policy,
    num_episodes: int,
    max_steps: int,
    choose: Callable[[TensorDictBase, Tensor], TensorDictBase],
    watch: Callable[[int, Tensor, Tensor], None] = lambda step, reward, ended: None,
) -> PlayedEpisodes:
    """Play the first episode of some rows.

    A row whose episode is over plays further ones, which do not count: to leave it out would change the batch.

    Args:
        env: Begins anew.
        policy: Acts in it, by `choose`.
        num_episodes: How many of the first rows count.
        max_steps: Steps after which an episode is cut off.
        choose: Returns the decision for observations. Its second argument is which rows are over, (N,) bool.
        watch: Called before the first step and after each step, with its number, its rewards (N,), and which rows it
            ended, (N,) bool.
    """
    row = torch.arange(env.num_envs, device=env.device, dtype=torch.int64)
    over = row >= num_episodes
    length = torch.zeros_like(over, dtype=torch.int64)
    returned = torch.zeros_like(over, dtype=torch.float64)
    outcomes: dict[str, Tensor] = {}
    step = 0
    with evaluation(env, policy) as current:
        watch(step, returned, torch.zeros_like(over))
        while not over.all():
            step += 1
            stepped = env.step(choose(current, over))
            after = stepped["next"]
            rewards = [after.get(key).reshape(env.num_envs, -1) for key in env.reward_keys]
            # With several agents, the mean over them.
            reward = torch.cat(rewards, 1).double().mean(1)  # (N,)
            length += ~over
            returned += torch.where(over, 0.0, reward)
            for name, values in env.episode_outcomes(after).items():
                reached = values.reshape(-1)
                # A row that is over keeps the outcomes of its first episode.
                before = outcomes.get(name, reached)
                outcomes[name] = torch.where(over, before, reached)
            is_done = after["done"].reshape(-1)
            ended = (is_done | (step == max_steps)) & ~over
            watch(step, reward, ended)
            over = over | ended
            current = env.maybe_reset(env.step_mdp(stepped))
    found = {name: values[:num_episodes].cpu() for name, values in outcomes.items()}
    return PlayedEpisodes(returned[:num_episodes].cpu(), length[:num_episodes].cpu(), found)


def has_pictures(env: object) -> bool:
    """Return whether an environment can be drawn."""
    try:
        return bool(viewable(env))
    except ValueError:
        return False


def _picture(env: BatchedEnv, row: int, width: int) -> Tensor:
    pictures = viewable(env).pictures([row], width, width * 3 // 4)
    return torch.as_tensor(pictures[0], device="cpu").cpu()


# -- the suite of an environment -------------------------------------------------------------------------------------


def score_names(env: BatchedEnv) -> tuple[str, ...] | None:
    """Return patterns of the names of an environment's scores.

    They are None if somebody else has registered its suite.
    """
    # Scores of a registered suite are known to its results alone.
    if suite_for.dispatch(type(env)) is not suite_for.dispatch(object):
        return None
    task = task_of(type(env))
    if task is None or not task.suite:
        return (*env.outcome_names, "return", "length")
    names: tuple[str, ...] = load_part(task.scores)
    return names


@singledispatch
def suite_for(
    env: BatchedEnv, num_episodes: int, *, seed: int = UNSEEN_SEED, pictures: bool = True, batch_size: int | None = None
) -> AnySuite:
    """Return episodes like those of an environment, but of another seed.

    The environment is not changed. An environment of your own may have a suite of its own: `suite_for.register` a
    function that makes it. Other arguments are as in `Suite`.
    """
    task = task_of(type(env))
    if task is not None and task.suite:
        make: Callable[..., AnySuite] = load_part(task.suite)
        return make(env, num_episodes, seed=seed, pictures=pictures, batch_size=batch_size)
    # Ranks and shards number their environments from elsewhere; the episodes of an evaluation are the same for all.
    unseen = env.like(1, seed=seed)
    unseen.renumber(0)
    return EpisodeSuite(unseen, pictures, num_episodes, batch_size)
