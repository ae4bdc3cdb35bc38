"""Episodes of any environment, and the suite of an environment, whatever it simulates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.table import Table
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.viewable import viewable
from torchrl_gpu.evaluation.estimates import comparison_table, estimate
from torchrl_gpu.evaluation.results import DecisionClock, Results, evaluation
from torchrl_gpu.evaluation.suite import UNSEEN_SEED, Suite
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.tasks import load_part, task_of

MOST_FRAMES = 150  # of a film
MOST_STEPS = 10_000  # of an episode

Watch = Callable[[BatchedEnv, int, Tensor], None]
"""Told after so many steps which episodes have just ended, (N,) bool, while the environment still shows their ends."""


@dataclass(frozen=True, kw_only=True)
class EpisodeResults(Results):
    """Results of E episodes of any environment, (E,) each."""

    returned: Tensor  # float64, sums of rewards; means over the agents where there are several
    length: Tensor  # int64, steps
    outcomes: dict[str, Tensor]  # float64 or bool, by name
    actions: list[dict[str, list[Any]]]  # step by step, by key; empty where they were not asked for

    def per_episode(self) -> dict[str, Tensor]:
        return self.outcomes | {"return": self.returned, "length": self.length}

    def scores(self) -> dict[str, float]:
        return {name: values.double().mean().item() for name, values in self.per_episode().items()}


class EpisodeSuite(Suite[BatchedEnv, EpisodeResults]):
    """Episodes of any `BatchedEnv`: returns, lengths, and the `outcomes` that the environment names.

    An episode counts as it is after `max_steps`; other arguments are as in `Suite`.
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
        """The first of the environment's outcomes, else the return."""
        return [*self.env.outcome_names, "return"][0]

    def evaluate(
        self, env: BatchedEnv, policy: Policy, num_episodes: int, watch: Watch = lambda env, step, ended: None
    ) -> EpisodeResults:
        """As in the base class. A row that is over goes on with episodes that nobody counts."""
        self._policy, clock = policy, DecisionClock(env.device)
        actions: list[dict[str, list[Any]]] = [{} for _ in range(num_episodes * self._keeps_actions)]

        def choose(current: TensorDictBase, over: Tensor) -> TensorDictBase:
            chosen = clock.time(env.num_envs, policy, current)
            for key in env.action_keys if self._keeps_actions else ():
                name, rows = key if isinstance(key, str) else "/".join(key), chosen.get(key).tolist()
                for i in (~over).nonzero().flatten().tolist():
                    actions[i].setdefault(name, []).append(rows[i])
            return chosen

        ends = play_first(
            env, policy, num_episodes, self.max_steps, choose, lambda step, _, ended: watch(env, step, ended)
        )
        flags = {name: values.dtype is torch.bool for name, values in ends.outcomes.items()}
        outcomes = {name: values if flags[name] else values.double() for name, values in ends.outcomes.items()}
        found = {"outcomes": outcomes, "actions": actions} | clock.times()
        return EpisodeResults(returned=ends.returned, length=ends.length, **found)

    def table(self, results: dict[str, EpisodeResults], name: str) -> tuple[Table, dict[str, Any]]:
        columns = {
            policy: each.per_episode() | {"ms": torch.tensor([each.decision_ms], dtype=torch.float32, device="cpu")}
            for policy, each in results.items()
        }
        rows = [
            {
                "policy": policy,
                "num_episodes": self.num_episodes,
                "scores": each.scores(),
                "errors": {key: estimate(values).error for key, values in each.per_episode().items()},
                "decision_ms": each.decision_ms,
                "seconds": each.seconds,
            }
            for policy, each in results.items()
        ]
        return comparison_table(columns, f"{self.num_episodes} episodes"), {"policies": rows}

    def plan(self, policy: Policy, folder: Path) -> list[dict[str, Any]]:
        """As in the base class; keeps the actions."""
        self._keeps_actions = True
        try:
            return super().plan(policy, folder)
        finally:
            self._keeps_actions = False

    def plans(self, results: EpisodeResults) -> list[dict[str, Any]]:
        per_episode = {name: values.tolist() for name, values in results.per_episode().items()}
        return [
            {"episode": i} | {name: values[i] for name, values in per_episode.items()} | {"actions": actions}
            for i, actions in enumerate(results.actions)
        ]

    # -- pictures ---------------------------------------------------------------------------------------------------

    def pictures(self, num: int, width: int) -> Tensor:
        """Ends of the first episodes, which are played again for it."""
        shown: dict[int, Tensor] = {}

        def watch(env: BatchedEnv, step: int, ended: Tensor) -> None:
            for row in ended[:num].nonzero().flatten().tolist():
                shown[row] = _picture(env, row, width)

        self._replay(0, watch)
        return torch.stack([shown[row] for row in sorted(shown)])

    def draw(self, folder: Path) -> None:
        """The episode in the middle by the headline as `episode.png` and `episode.gif`; it is played again for it."""
        from torchrl_gpu.envs.pictures import save_gif, save_png  # PIL, which runs without do without

        assert self.last is not None
        values = self.last.per_episode()[self.headline]
        index = int(values.argsort(stable=True)[len(values) // 2])
        length, frames = int(self.last.length[index]), []

        def watch(env: BatchedEnv, step: int, ended: Tensor) -> None:
            if step == length or (step < length and step % -(-length // MOST_FRAMES) == 0):
                frames.append(_picture(env, index % env.num_envs, 480))

        self._replay(index, watch)
        save_png(frames[-1], folder / "episode.png")
        save_gif(torch.stack(frames), folder / "episode.gif", fps=12.0)

    def _replay(self, index: int, watch: Watch) -> None:
        assert self._batch is not None
        assert self._policy is not None
        env = self._batch[0]
        first = index // env.num_envs * env.num_envs
        self.begin(env, first)
        self.evaluate(env, self._policy, min(env.num_envs, self.num_episodes - first), watch)
        self.begin(env, 0)


class Ends(NamedTuple):
    """Return (float64), length (int64) and outcomes by name of episodes, (E,) each, on the CPU."""

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
) -> Ends:
    """Plays the first episode of so many rows; a row that is over goes on with episodes that nobody counts.

    An episode counts as it is after `max_steps`. `choose` gives the policy's decision for observations, and is given
    which rows are over, (N,) bool. `watch` is given the number of each step, its rewards (N,), and which rows it ended,
    (N,); before the first, too.
    """
    over = torch.arange(env.num_envs, device=env.device, dtype=torch.int64) >= num_episodes
    length, returned = torch.zeros_like(over, dtype=torch.int64), torch.zeros_like(over, dtype=torch.float64)
    outcomes: dict[str, Tensor] = {}
    step = 0
    with evaluation(env, policy) as current:
        watch(step, returned, torch.zeros_like(over))
        while not over.all():
            step += 1
            stepped = env.step(choose(current, over))
            after = stepped["next"]
            rewards = [after.get(key).reshape(env.num_envs, -1) for key in env.reward_keys]
            reward = torch.cat(rewards, 1).double().mean(1)  # (N,), over the agents where there are several
            length += ~over
            returned += torch.where(over, 0.0, reward)
            for name, values in env.episode_outcomes(after).items():
                reached = values.reshape(-1)
                outcomes[name] = torch.where(over, outcomes.get(name, reached), reached)
            ended = (after["done"].reshape(-1) | (step == max_steps)) & ~over
            watch(step, reward, ended)
            over = over | ended
            current = env.maybe_reset(env.step_mdp(stepped))
    found = {name: values[:num_episodes].cpu() for name, values in outcomes.items()}
    return Ends(returned[:num_episodes].cpu(), length[:num_episodes].cpu(), found)


def has_pictures(env: Any) -> bool:
    """True for an environment that can be drawn."""
    try:
        return bool(viewable(env))
    except ValueError:
        return False


def _picture(env: Any, row: int, width: int) -> Tensor:
    return torch.as_tensor(viewable(env).pictures([row], width, width * 3 // 4)[0], device="cpu").cpu()


# -- the suite of an environment -------------------------------------------------------------------------------------


def score_names(env: BatchedEnv) -> tuple[str, ...] | None:
    """Patterns of the names in `scores` of an environment's episodes; None where its suite is somebody else's."""
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
) -> Suite[Any, Any]:
    """Episodes like those of an environment, decided by another seed.

    The environment is left as it is. An environment of your own may have a suite of its own: `suite_for.register` a
    function of it. Other arguments are as in `Suite`.
    """
    task = task_of(type(env))
    if task is not None and task.suite:
        make: Callable[..., Suite[Any, Any]] = load_part(task.suite)
        return make(env, num_episodes, seed=seed, pictures=pictures, batch_size=batch_size)
    unseen = env.like(1, seed=seed)
    unseen.renumber(0)
    return EpisodeSuite(unseen, pictures, num_episodes, batch_size)
