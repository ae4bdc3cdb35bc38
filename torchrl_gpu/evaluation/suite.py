"""`Suite`: the episodes on which policies are compared.

Runs and the commands `play` and `evaluate` know no more of an environment's episodes than what is here.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from rich.console import Console
from rich.table import Table
from torch import Tensor

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.evaluation.batch_size import MOST_ON_CPU, episode_bytes, num_side_by_side
from torchrl_gpu.evaluation.random_actions import RandomActions
from torchrl_gpu.evaluation.reports import PlainData, print_whole, without_noise, write_json
from torchrl_gpu.evaluation.results import Results
from torchrl_gpu.policies.policy import Policy

# Seed of episodes that training never plays.
UNSEEN_SEED = 1_000_003

# Distance between the seeds of test and validation: beyond any seed that a person would count up to.
_APART = 2**29

E = TypeVar("E", bound=BatchedEnv)
R = TypeVar("R", bound=Results)


class ComparedRun(Protocol):
    """What a suite asks of a run, see `training.run.EnvRun`."""

    @property
    def env(self) -> BatchedEnv:
        """Environment that it trains in."""

    @property
    def trained(self) -> bool:
        """Whether the weights are those of a run."""

    @property
    def learner_name(self) -> str:
        """Display name of the learner."""

    @property
    def policy_name(self) -> str:
        """Display name of the policy, which says if it is untrained."""

    def baselines(self, env: BatchedEnv) -> Mapping[str, Policy] | None:
        """Return policies to compare with, by name, or None for the suite's."""

    def policy_for(self, env: BatchedEnv) -> Policy:
        """Return the greedy policy in an environment."""


@dataclass(frozen=True)
class TableOptions:
    """Options of `torchrl-gpu evaluate` for tables of irregular packing.

    Those that are not given are None.
    """

    sets: Sequence[str] | None = None
    shapes: Sequence[str] | None = None
    meshes: Path | None = None
    unit: str | None = None
    visible: Sequence[int] | None = None
    steps: Sequence[float] | None = None
    resolutions: Sequence[int] | None = None
    methods: Sequence[str] | None = None
    physics: int | None = None
    timed: int | None = None


class Suite(ABC, Generic[E, R]):
    """Episodes on which policies are compared.

    They are played in batches that fit into memory. A subclass plays a batch, and says how results are shown and
    written.

    Args:
        env: Its arguments decide the episodes: number i is the first of its row `first_env + i`. Policies are made for
            it; batches are played in environments like it.
        pictures: Whether `compare` writes pictures.
        num_episodes: How many; None stands for the number of rows of `env`.
        batch_size: Episodes side by side; None takes as many as fit, see `side_by_side`. The scores do not depend on
            it, except for the last bits of networks that round differently in batches of another size.
    """

    headline: str
    """Name of the most important score."""
    unit: ClassVar[str] = "episodes"
    """Name of episodes in messages."""
    pictures_tag: ClassVar[str] = "episodes"
    """Tag of `pictures` in TensorBoard."""
    plans_name: ClassVar[str] = "plans.json"

    def __init__(
        self, env: E, pictures: bool = True, num_episodes: int | None = None, batch_size: int | None = None
    ) -> None:
        self.num_episodes = env.num_envs if num_episodes is None else num_episodes
        for name, number in (("num_episodes", self.num_episodes), ("batch_size", batch_size)):
            if number is not None and number < 1:
                raise ValueError(f"{type(self).__name__}: {name} must be at least 1, not {number}")
        self.env = env
        self.writes_pictures = pictures
        self.batch_size = batch_size
        self.announce: Callable[[str], None] = lambda words: None
        """Called with what is being played, and with "" when results are about to be printed."""
        self.last: R | None = None
        """Results of the policy that has played last."""
        # `env` itself may play the batches, and is renumbered then.
        self._first_env = env.first_env
        # Environment of the batches, and bytes of an episode in it.
        self._batch: tuple[E, int] | None = None

    # -- what a subclass defines --------------------------------------------------------------------------------------

    @abstractmethod
    def evaluate(self, env: E, policy: Policy, num_episodes: int) -> R:
        """Play the first episode of the first `num_episodes` rows of `env`, greedily."""

    @abstractmethod
    def table(self, results: dict[str, R], name: str) -> tuple[Table, PlainData]:
        """Return a table of several policies' results, for the terminal and as plain data.

        `name` is the policy that is evaluated.
        """

    @abstractmethod
    def plans(self, results: R) -> list[PlainData]:
        """Return the actions of each episode as plain data."""

    @abstractmethod
    def pictures(self, num: int, width: int) -> Tensor:
        """Draw the ends of some episodes that were played last.

        Returns:
            uint8 (B, H, width, 3), B ≤ `num`.
        """

    @abstractmethod
    def draw(self, folder: Path) -> None:
        """Write a PNG and a GIF of what was played last."""

    preferred: ClassVar[tuple[str, ...]] = ()
    """Names of baselines that play if nothing is trained, the best first."""

    def pretrained(self) -> Mapping[str, Policy]:
        """Return the trained policies for these episodes that come with the package."""
        return {}

    def baselines(self) -> Mapping[str, Policy]:
        """Return the policies to compare with by default, by name."""
        return {"random": RandomActions(self.env)}

    def like(self, num_envs: int) -> E:
        """Make an environment that batches are played in."""
        return self.env.like(num_envs)

    def play_in(self, num_envs: int) -> E:
        """Make an environment for somebody who watches.

        Each row plays one of the episodes after another.
        """
        return self.env.like(num_envs)

    def begin(self, env: E, first: int) -> None:
        """Give the rows of an environment the episodes from number `first` on."""
        env.renumber(self._first_env + first)

    @property
    def most_on_cpu(self) -> int:
        """Most bytes that the episodes of a batch take on a CPU."""
        return MOST_ON_CPU

    # -- what all suites have -----------------------------------------------------------------------------------------

    def play(self, policy: Policy) -> R:
        """Play every episode with a policy."""
        return self.play_all({"": policy})[""]

    def play_all(self, policies: Mapping[str, Policy]) -> dict[str, R]:
        """Play every episode with each of several policies, given by name."""
        env = self._env_of_batches(list(policies.values()))
        results = {}
        for name, policy in policies.items():
            self.last = self._play(env, policy, name)
            results[name] = self.last
        return results

    def _play(self, env: E, policy: Policy, name: str) -> R:
        parts = []
        try:
            for first in range(0, self.num_episodes, env.num_envs):
                number = min(env.num_envs, self.num_episodes - first)
                self.begin(env, first)
                prefix = f"{name}, " if name else ""
                self.announce(f"{prefix}{self.unit} {first + 1} to {first + number} of {self.num_episodes}")
                parts.append(self.evaluate(env, policy, number))
        finally:
            # The environment may be that of the caller.
            self.begin(env, 0)
        return type(parts[0]).join(parts)

    def _env_of_batches(self, policies: Sequence[Policy]) -> E:
        """Return the environment of the batches.

        A new one is made only for policies that take more memory than those before.
        """
        # Measuring takes as long as playing a few steps, so it is left out if the size is given.
        per_episode = 0
        if self.batch_size is None:
            per_episode = max(episode_bytes(self.env, policy) for policy in policies)
        if self._batch is not None and per_episode <= self._batch[1]:
            return self._batch[0]
        # The old environment is freed before the free memory is measured.
        self._batch = None
        size = self.batch_size
        if size is None:
            size = num_side_by_side(self.num_episodes, per_episode, self.env.device, most_on_cpu=self.most_on_cpu)
        size = min(size, self.num_episodes)
        env = self.env if self.env.num_envs == size else self.like(size)
        self._batch = env, per_episode
        return env

    @property
    def side_by_side(self) -> int:
        """Episodes of a batch, when episodes were played last."""
        return 0 if self._batch is None else self._batch[0].num_envs

    def policies_of(self, run: ComparedRun) -> dict[str, Policy]:
        """Return the policies to compare with, and that of the run if it is trained."""
        others: Mapping[str, Policy] | None = run.baselines(self.env)
        policies = dict(self.baselines() if others is None else others)
        if run.trained:
            policies[run.learner_name] = run.policy_for(self.env)
        return policies

    def show(self, name: str, scores: Mapping[str, float]) -> None:
        """Print the scores of a policy in a line."""
        self.announce("")
        listed = ", ".join(f"{key} {value:.3f}" for key, value in scores.items())
        Console().print(f"{name} on {self.num_episodes} {self.unit}: {listed}", soft_wrap=True)

    def compare(
        self,
        policy: Policy,
        folder: Path,
        name: str = "policy",
        others: Mapping[str, Policy] | None = None,
        tested: Mapping[str, object] | None = None,
    ) -> dict[str, float]:
        """Play every episode with a policy and others, print the table and write it.

        Args:
            policy: The policy that is evaluated.
            folder: Gets `evaluation.json` and pictures; made if it is missing.
            name: Of the policy.
            others: Policies to compare with, by name; None for `baselines`.
            tested: Weights and options, for the file.

        Returns:
            The policy's scores by name.
        """
        others = self.baselines() if others is None else others
        policies = {other: each for other, each in others.items() if other != name}
        # The policy plays last, so that pictures of what was played last are its own.
        policies[name] = policy
        results = self.play_all(policies)
        self.announce("")
        shown, report = self.table(results, name)
        facts: PlainData = {} if tested is None else {"tested": dict(tested)}
        write_json(folder / "evaluation.json", facts | {self.unit: self.describe()} | report)
        print_whole(shown)
        if self.writes_pictures:
            self.draw(folder)
        also = ", and pictures" if self.writes_pictures else ""
        Console().print(f"Written: {folder / 'evaluation.json'}{also}", soft_wrap=True)
        return results[name].scores()

    def plan(self, policy: Policy, folder: Path) -> list[PlainData]:
        """Play every episode and write what was done in each into `folder`.

        A file of other plans that is there already is renamed first: `plans-1.json` and so on.
        """
        # Rounded, so that plans of another machine are not taken for others.
        plans = without_noise(self.plans(self.play(policy)))
        self.announce("")
        aside = _move_others_aside(folder / self.plans_name, plans)
        if aside is not None:
            Console().print(f"Moved: other plans, {folder / self.plans_name}, to {aside}", soft_wrap=True)
        write_json(folder / self.plans_name, plans)
        Console().print(f"Written: {folder / self.plans_name}, {len(plans)} {self.unit}", soft_wrap=True)
        return plans

    def describe(self) -> PlainData:
        """Return the settings that decide the episodes."""
        return {"env": type(self.env).__name__, "seed": self.env.seed, "device": str(self.env.device)}

    def tables(self, run: ComparedRun, options: TableOptions) -> Iterator[PlainData]:
        """Print the tables of `torchrl-gpu evaluate`, and yield each as plain data.

        Here there is one, that of `compare`.
        """
        # An option without effect would look as if it had one.
        given = [each.name for each in fields(options) if getattr(options, each.name) is not None]
        if given:
            raise ValueError(f"evaluate: --{given[0]} is for irregular packing, not for a {type(self).__name__}")
        name = run.policy_name
        policies = self.policies_of(run)
        policies[name] = run.policy_for(self.env)
        shown, report = self.table(self.play_all(policies), name)
        self.announce("")
        print_whole(shown)
        yield {"title": shown.title, self.unit: self.describe()} | report


AnySuite: TypeAlias = Suite[Any, Any]
"""Suite of an environment and results that the framework does not know."""


def _move_others_aside(path: Path, plans: list[PlainData]) -> Path | None:
    """Move a file of other plans to a free name, and return its path.

    It is None if there is no such file.
    """
    if not path.exists() or _holds(path, plans):
        return None
    number = 1
    while path.with_stem(f"{path.stem}-{number}").exists():
        number += 1
    return path.replace(path.with_stem(f"{path.stem}-{number}"))


def _holds(path: Path, plans: list[PlainData]) -> bool:
    """Return whether a file is JSON of these plans."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    # Tuples and keys change on their way through JSON, so the plans take it, too.
    return bool(found == json.loads(json.dumps(plans)))


def unseen_seed(seed: int, trained: Collection[int], *, validation: bool = False) -> int:
    """Return a seed of episodes that a run never trains on.

    That of its validation differs from that of its test.
    """
    step = _APART if seed < 2**62 else -_APART
    found = seed + step * validation
    while found in trained:
        found += 2 * step
    return found
