"""Episodes on which policies are compared.

`validate`, `test`, `predict`, `play` and `evaluate` know of them what is here.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from rich.console import Console
from rich.table import Table
from torch import Tensor

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.evaluation.batch_size import MOST_ON_CPU, episode_bytes, num_side_by_side
from torchrl_gpu.evaluation.random_actions import RandomActions
from torchrl_gpu.evaluation.reports import print_whole, without_noise, write_json
from torchrl_gpu.evaluation.results import Results
from torchrl_gpu.policies.policy import Policy

# Decides episodes that training never plays.
UNSEEN_SEED = 1_000_003

# Between the seeds of test and of validation.
_APART = 2**29

E = TypeVar("E", bound=BatchedEnv)
R = TypeVar("R", bound=Results)


@dataclass(frozen=True)
class TableOptions:
    """Options of the tables of irregular packing, None where not given.

    `torchrl-gpu evaluate` takes them.
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
    """Episodes on which policies are compared, played in batches that fit into memory.

    A subclass plays a batch, and says what is shown and written of the results.

    Args:
        env: Its arguments decide the episodes: number i is the first of its row `first_env + i`. Policies are made for
            it; batches are played in environments like it.
        pictures: Whether `compare` writes pictures.
        num_episodes: How many; None stands for as many as `env` has rows.
        batch_size: Episodes side by side; None takes as many as fit, see `side_by_side`. The scores do not depend on
            it, but for the last bits of networks that round differently in batches of another size.
    """

    headline: str
    """The score that tells most."""
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
        self.say: Callable[[str], None] = lambda words: None
        """Told what is being played, and the empty string when results are about to be printed."""
        self.last: R | None = None
        """Results of the policy that has played last."""
        # Kept, since `env` itself may play the batches.
        self._first_env = env.first_env
        # Environment of the batches, and bytes of an episode in it.
        self._batch: tuple[E, int] | None = None

    # -- what a subclass says ---------------------------------------------------------------------------------------

    @abstractmethod
    def evaluate(self, env: E, policy: Policy, num_episodes: int) -> R:
        """Play the first episode of the first `num_episodes` rows of `env`, greedily."""

    @abstractmethod
    def table(self, results: dict[str, R], name: str) -> tuple[Table, dict[str, Any]]:
        """Table of several policies' results, for the terminal and as plain data.

        `name` is the policy that is evaluated.
        """

    @abstractmethod
    def plans(self, results: R) -> list[dict[str, Any]]:
        """Actions of each episode, as plain data."""

    @abstractmethod
    def pictures(self, num: int, width: int) -> Tensor:
        """Ends of some episodes that were played last, uint8 (B, H, width, 3), B ≤ `num`."""

    @abstractmethod
    def draw(self, folder: Path) -> None:
        """Write a PNG and a GIF of what was played last."""

    preferred: ClassVar[tuple[str, ...]] = ()
    """Names of baselines that play where nothing is trained, the best first."""

    def pretrained(self) -> Mapping[str, Policy]:
        """The trained policies for these episodes that come with the package, by name."""
        return {}

    def baselines(self) -> Mapping[str, Policy]:
        """Policies to compare with by default, by name."""
        return {"random": RandomActions(self.env)}

    def like(self, num_envs: int) -> E:
        """An environment that batches are played in."""
        return self.env.like(num_envs)

    def play_in(self, num_envs: int) -> E:
        """An environment for somebody who watches.

        Its rows go from one of the episodes to the next.
        """
        return self.env.like(num_envs)

    def begin(self, env: E, first: int) -> None:
        """Make the rows of an environment the episodes from number `first` on."""
        env.renumber(self._first_env + first)

    @property
    def most_on_cpu(self) -> int:
        """Most bytes that the episodes of a batch take on a CPU."""
        return MOST_ON_CPU

    # -- what all have ----------------------------------------------------------------------------------------------

    def play(self, policy: Policy) -> R:
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
                whom = f"{name}, " if name else ""
                self.say(f"{whom}{self.unit} {first + 1} to {first + number} of {self.num_episodes}")
                parts.append(self.evaluate(env, policy, number))
        finally:
            self.begin(env, 0)
        return type(parts[0]).joined(parts)

    def _env_of_batches(self, policies: Sequence[Policy]) -> E:
        """The environment of the batches.

        It is made anew only for policies that take more memory than those before.
        """
        per_episode = 0
        if self.batch_size is None:
            per_episode = max(episode_bytes(self.env, policy) for policy in policies)
        if self._batch is not None and per_episode <= self._batch[1]:
            return self._batch[0]
        # The environment of before is freed first, since memory is asked for.
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

    def policies_of(self, run: Any) -> dict[str, Policy]:
        """Policies to compare a run's with, by name, and its own where it is trained."""
        others: Mapping[str, Policy] | None = run.baselines(self.env)
        policies = dict(self.baselines() if others is None else others)
        if run.trained:
            policies[run.learner_name] = run.policy_for(self.env)
        return policies

    def show(self, name: str, scores: Mapping[str, float]) -> None:
        """Print the scores of a policy in a line."""
        self.say("")
        listed = ", ".join(f"{key} {value:.3f}" for key, value in scores.items())
        Console().print(f"{name} on {self.num_episodes} {self.unit}: {listed}", soft_wrap=True)

    def compare(
        self,
        policy: Policy,
        folder: Path,
        name: str = "policy",
        others: Mapping[str, Policy] | None = None,
        tested: Mapping[str, Any] | None = None,
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
        policies[name] = policy
        results = self.play_all(policies)
        self.say("")
        shown, report = self.table(results, name)
        about = {} if tested is None else {"tested": dict(tested)}
        write_json(folder / "evaluation.json", about | {self.unit: self.describe()} | report)
        print_whole(shown)
        if self.writes_pictures:
            self.draw(folder)
        beside = ", and pictures" if self.writes_pictures else ""
        Console().print(f"Written: {folder / 'evaluation.json'}{beside}", soft_wrap=True)
        return results[name].scores()

    def plan(self, policy: Policy, folder: Path) -> list[dict[str, Any]]:
        """Play every episode and write what was done in each into `folder`.

        Plans that are there already, and are others, keep their place under another name: `plans-1.json` and so on.
        """
        plans = without_noise(self.plans(self.play(policy)))
        self.say("")
        aside = _move_others_aside(folder / self.plans_name, plans)
        if aside is not None:
            Console().print(f"Moved: other plans, {folder / self.plans_name}, to {aside}", soft_wrap=True)
        write_json(folder / self.plans_name, plans)
        Console().print(f"Written: {folder / self.plans_name}, {len(plans)} {self.unit}", soft_wrap=True)
        return plans

    def describe(self) -> dict[str, Any]:
        """Settings that decide the episodes."""
        return {"env": type(self.env).__name__, "seed": self.env.seed, "device": str(self.env.device)}

    def tables(self, run: Any, options: TableOptions) -> Iterator[dict[str, Any]]:
        """Tables of `torchrl-gpu evaluate`, each as plain data once it is printed.

        Here it is the one of `compare`.
        """
        given = [each.name for each in fields(options) if getattr(options, each.name) is not None]
        if given:
            raise ValueError(f"evaluate: --{given[0]} is for irregular packing, not for a {type(self).__name__}")
        name = run.policy_name
        policies = self.policies_of(run)
        policies[name] = run.policy_for(self.env)
        shown, report = self.table(self.play_all(policies), name)
        self.say("")
        print_whole(shown)
        yield {"title": shown.title, self.unit: self.describe()} | report


def _move_others_aside(path: Path, plans: list[dict[str, Any]]) -> Path | None:
    """Move a file of other plans than these to a free name, and return that.

    None where there is no such file.
    """
    if not path.exists() or _holds(path, plans):
        return None
    number = 1
    while path.with_stem(f"{path.stem}-{number}").exists():
        number += 1
    return path.replace(path.with_stem(f"{path.stem}-{number}"))


def _holds(path: Path, plans: list[dict[str, Any]]) -> bool:
    """Whether a file is JSON of these plans."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return bool(found == json.loads(json.dumps(plans)))


def unseen_seed(seed: int, trained: Collection[int], *, validation: bool = False) -> int:
    """Seed of episodes that a run never trains on.

    Those of its validation differ from those of its test.
    """
    step = _APART if seed < 2**62 else -_APART
    found = seed + step * validation
    while found in trained:
        found += 2 * step
    return found
