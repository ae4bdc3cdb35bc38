"""Episodes on which policies are compared: what `validate`, `test`, `predict`, `play` and `evaluate` know of them."""

from __future__ import annotations

import itertools
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

UNSEEN_SEED = 1_000_003  # decides episodes that training never plays
_APART = 2**29  # between the seeds of test and of validation

E = TypeVar("E", bound=BatchedEnv)
R = TypeVar("R", bound=Results)


@dataclass(frozen=True)
class TableOptions:
    """Options of the tables of irregular packing, as `torchrl-gpu evaluate` takes them; None where not given."""

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
                raise ValueError(f"{type(self).__name__}: {name} must be at least 1; got {number}")
        self.env, self.writes_pictures, self.batch_size = env, pictures, batch_size
        self.say: Callable[[str], None] = lambda words: None
        """Told what is being played, and the empty string when results are about to be printed."""
        self.last: R | None = None
        """Results of the policy that has played last."""
        self._first_env = env.first_env  # kept, since `env` itself may play the batches
        self._batch: tuple[E, int] | None = None  # environment of the batches, and bytes of an episode in it

    # -- what a subclass says ---------------------------------------------------------------------------------------

    @abstractmethod
    def evaluate(self, env: E, policy: Policy, num_episodes: int) -> R:
        """Plays the first episode of so many rows of `env`, the first ones, greedily."""

    @abstractmethod
    def table(self, results: dict[str, R], name: str) -> tuple[Table, dict[str, Any]]:
        """Results of several policies, for the terminal and for `evaluation.json`; `name` is the one evaluated."""

    @abstractmethod
    def plans(self, results: R) -> list[dict[str, Any]]:
        """The actions of each episode, as plain data."""

    @abstractmethod
    def pictures(self, num: int, width: int) -> Tensor:
        """Ends of some of the episodes that were played last: uint8 (B, H, width, 3), B ≤ `num`."""

    @abstractmethod
    def draw(self, folder: Path) -> None:
        """Writes a PNG and a GIF of what was played last."""

    preferred: ClassVar[tuple[str, ...]] = ()
    """Names of baselines that play where nothing is trained, the best first."""

    def pretrained(self) -> Mapping[str, Policy]:
        """The trained policies for these episodes that come with the package, by name."""
        return {}

    def baselines(self) -> Mapping[str, Policy]:
        """The policies for comparison by default, by name."""
        return {"random": RandomActions(self.env)}

    def like(self, num_envs: int) -> E:
        """An environment that batches are played in."""
        return self.env.like(num_envs)

    def play_in(self, num_envs: int) -> E:
        """An environment for somebody who watches: its rows go from one of the episodes to the next."""
        return self.env.like(num_envs)

    def begin(self, env: E, first: int) -> None:
        """Lets the rows of an environment be the episodes from number `first` on."""
        env.renumber(self._first_env + first)

    @property
    def most_on_cpu(self) -> int:
        """Most bytes that the episodes of a batch take on a CPU."""
        return MOST_ON_CPU

    # -- what all have ----------------------------------------------------------------------------------------------

    def play(self, policy: Policy) -> R:
        return self.play_all({"": policy})[""]

    def play_all(self, policies: Mapping[str, Policy]) -> dict[str, R]:
        """Plays every episode with each of several policies; what it does is told by their names."""
        env = self._env_of_batches(list(policies.values()))
        results = {name: self._play(env, policy, name) for name, policy in policies.items()}
        self.last = list(results.values())[-1]
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
        """The environment of the batches, made anew only for policies that take more memory than those before."""
        counted = self.batch_size is None
        per_episode = max(episode_bytes(self.env, policy) for policy in policies) if counted else 0
        if self._batch is None or per_episode > self._batch[1]:
            self._batch = None  # is freed before memory is asked for
            most, device = self.most_on_cpu, self.env.device
            size = self.batch_size or num_side_by_side(self.num_episodes, per_episode, device, most_on_cpu=most)
            size = min(size, self.num_episodes)
            self._batch = self.env if self.env.num_envs == size else self.like(size), per_episode
        return self._batch[0]

    @property
    def side_by_side(self) -> int:
        """Episodes of a batch, of those that were played last."""
        return 0 if self._batch is None else self._batch[0].num_envs

    def policies_of(self, run: Any) -> dict[str, Policy]:
        """The policies for comparison with that of a run, by name, and that policy, where it is trained."""
        others: Mapping[str, Policy] | None = run.baselines(self.env)
        own = {run.learner_name: run.policy_for(self.env)} if run.trained else {}
        return {**(self.baselines() if others is None else others), **own}

    def show(self, name: str, scores: Mapping[str, float]) -> None:
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
        """Plays every episode with the policy and with others; prints the table, and writes it and pictures.

        `folder`, made if it is not there, gets them, and `others` are `baselines` by default; `tested` says in the file
        which weights and options were. Returns the policy's scores by name.
        """
        others = self.baselines() if others is None else others
        results = self.play_all({other: each for other, each in others.items() if other != name} | {name: policy})
        self.say("")
        shown, report = self.table(results, name)
        about = {} if tested is None else {"tested": dict(tested)}
        write_json(folder / "evaluation.json", about | {self.unit: self.describe()} | report)
        print_whole(shown)
        if self.writes_pictures:
            self.draw(folder)
        beside = ", pictures beside it" if self.writes_pictures else ""
        Console().print(f"Written: {folder / 'evaluation.json'}{beside}", soft_wrap=True)
        return results[name].scores()

    def plan(self, policy: Policy, folder: Path) -> list[dict[str, Any]]:
        """Plays every episode and writes what was done in each into `folder`.

        Plans that are there already, and are others, keep their place under another name: `plans-1.json` and so on.
        """
        plans = without_noise(self.plans(self.play(policy)))
        self.say("")
        if (aside := _others_aside(folder / self.plans_name, plans)) is not None:
            Console().print(f"Moved: other plans, {folder / self.plans_name}, to {aside}", soft_wrap=True)
        write_json(folder / self.plans_name, plans)
        Console().print(f"Written: {folder / self.plans_name}, {len(plans)} {self.unit}", soft_wrap=True)
        return plans

    def describe(self) -> dict[str, Any]:
        """The settings that decide the episodes."""
        return {"env": type(self.env).__name__, "seed": self.env.seed, "device": str(self.env.device)}

    def tables(self, run: Any, options: TableOptions) -> Iterator[dict[str, Any]]:
        """The tables of `torchrl-gpu evaluate`, each as plain data once it is printed; here the one of `compare`."""
        if given := [each.name for each in fields(options) if getattr(options, each.name) is not None]:
            raise ValueError(f"evaluate: --{given[0]} is for irregular packing; got it for a {type(self).__name__}")
        name = run.policy_name
        shown, report = self.table(self.play_all(self.policies_of(run) | {name: run.policy_for(self.env)}), name)
        self.say("")
        print_whole(shown)
        yield {"title": shown.title, self.unit: self.describe()} | report


def _others_aside(path: Path, plans: list[dict[str, Any]]) -> Path | None:
    """Move a file of other plans than these to the first free name beside it; return its new path, None for none."""
    if not path.exists():
        return None
    try:
        if json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(plans)):
            return None
    except ValueError:  # not a file of ours
        pass
    number = next(n for n in itertools.count(1) if not path.with_stem(f"{path.stem}-{n}").exists())
    return path.replace(path.with_stem(f"{path.stem}-{number}"))


def unseen_seed(seed: int, trained: Collection[int], *, validation: bool = False) -> int:
    """The seed of episodes that a run never trains on, those of its validation being others than those of its test."""
    step = _APART if seed < 2**62 else -_APART
    found = seed + step * validation
    while found in trained:
        found += 2 * step
    return found
