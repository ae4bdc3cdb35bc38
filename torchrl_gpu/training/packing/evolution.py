"""Weights of placements by an evolution strategy, as a Lightning module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from torchrl_gpu.envs import BatchedEnv, PackingEnv
from torchrl_gpu.policies.packing.placement_values import LinearPlacementValues
from torchrl_gpu.policies.packing.pretrained import PackingPolicy
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments
from torchrl_gpu.system.sections import in_section, section
from torchrl_gpu.training.accelerated.choice import GraphOption
from torchrl_gpu.training.accelerated.functions import GraphedFunction
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.packing.cma_es import Population
from torchrl_gpu.training.run import EnvFactory, EnvRun, check_counts

# Unit of a weight at least, as a share of the largest weight: weights of 0 move, too.
LEAST_UNIT = 0.02

# Steps between reads of whether any episode goes on.
_LOOK_EVERY = 8


@final
class PlacementEvolution(EnvRun):
    """Weights of `LinearPlacementValues`, found by CMA-ES on whole episodes.

    What counts is the utilization at their end. A training step is a generation: `members` weights are drawn, each
    packs the same `num_envs / members` sequences, all side by side in one batch, and mean and covariance follow the
    better half. There is no gradient; `trainer.max_steps` counts generations. The policy is the mean.

    Args:
        env: Makes the `PackingEnv`, as in `EnvRun`; its number of environments is a multiple of `members`.
        members: Of a generation, at least 4.
        step: Standard deviation of the members' weights at first, in units of the first weights.
        begin: Policy whose weights are the first: the name of one that comes with the package, or its file.
        candidates: As in `LinearPlacementValues`.
        cuda_graphs: Whether some steps on CUDA are one launch of a graph; "auto" where nothing speaks against it, which
            a line says otherwise.
    """

    learner_name = "placement values"
    has_values = True
    plays_in_rollout = False

    policy: PackingPolicy
    unit: Tensor
    # Steps that are played at a time.
    _steps = _LOOK_EVERY

    def __init__(
        self,
        env: EnvFactory,
        *,
        members: int = 16,
        step: float = 0.3,
        begin: str = "orders",
        candidates: int = 40,
        cuda_graphs: GraphOption = "auto",
    ) -> None:
        super().__init__(env)
        where = type(self).__name__
        check_counts(where, candidates=candidates)
        self.members = arguments.whole(where, "members", members, 4)
        self.step_size = arguments.number(where, "step", step, above=0)
        self.begin = begin
        self.candidates = candidates
        self.cuda_graphs = cuda_graphs
        self.take_made_env()

    def build(self) -> None:
        env = self.env
        where = type(self).__name__
        if not isinstance(env, PackingEnv) or not env.catalogue.flat or "z_map" not in env.include:
            raise ValueError(f"{where}: env must be a PackingEnv of boxes that includes z_map")
        self.space = AgentSpace.of(env)
        first = PackingPolicy.from_pretrained(self.begin, "cpu", space=self.space).tables
        if not isinstance(first, LinearPlacementValues):
            raise ValueError(f"{where}: begin must be a policy of placement weights, which {self.begin!r} is not")
        weight = first.weight.double() / first.weight.abs().max()
        # Weights differ by orders of magnitude, and the search begins with steps that are as long along every axis. So
        # it counts each weight in units of its first value.
        self.register_buffer("unit", weight.abs().clamp_min(LEAST_UNIT))
        self.population = Population(weight / self.unit, self.step_size, self.members)
        self.values = LinearPlacementValues(self.space, weight.tolist(), self.candidates)

    def check_fit(self) -> None:
        where = type(self).__name__
        num_envs = self.env.num_envs
        if num_envs % self.members:
            raise ValueError(f"{where}: num_envs must be a multiple of {self.members} members, not {num_envs}")
        if self.trainer.world_size > 1:
            raise ValueError(f"{where}: runs in one process, not in {self.trainer.world_size}")

    def policy_for(self, env: BatchedEnv) -> Policy:
        return PackingPolicy(self.space, self.values)

    def configure_optimizers(self) -> None: ...

    # -- fit --

    def on_fit_start(self) -> None:
        super().on_fit_start()
        # All members pack the same orders. With orders of their own, the luck of the draw would decide which member is
        # better.
        self.env.renumber(self.env.first_env, copies=self.members)
        # It keeps the environment's state for checkpoints.
        self.rollout = Rollout(self.env, ["box_heightmap"], n_steps=1, gamma=1.0)
        self._play: Callable[[TensorDictBase], TensorDictBase] = self._played
        if self.takes_graphed_steps(self.cuda_graphs):
            self._play = GraphedFunction(
                "PlacementEvolution", self._played, list, self.env.device, settings=lambda: self._steps
            )

    @property
    def kept_options(self) -> Sequence[str]:
        return ("step", "begin")

    def step_names(self) -> Sequence[str]:
        return ("fitness", "best", "step_size", *self.env.outcome_names, "frames")

    @in_section("step")
    @torch.no_grad()
    def training_step(self, batch: object, batch_idx: int) -> dict[str, Tensor]:
        drawn = self.population.draw(self.env.seed) * self.unit
        weights = drawn.float().repeat_interleave(self.env.num_envs // self.members, 0)
        filled = self._pack(weights)
        fitness = filled.view(self.members, -1).double().mean(1)
        if self.updates_now(1):
            with section("update"):
                self.population.learn(fitness)
                mean = self.population.mean * self.unit
                self.values.weight.copy_(mean / mean.abs().max())
            self.count_updates(1)
        if self.logs_this_step:
            logged = {"fitness": fitness.mean(), "best": fitness.max(), "step_size": self.population.step}
            self.log_step({**logged, **self.outcomes, "frames": self.frames})
        return {"loss": -fitness.mean()}

    # Episodes end at different steps, and to ask after each step whether all have ended would make the host wait for
    # the device as often. So that is asked now and then.
    def _pack(self, weight: Tensor) -> Tensor:
        """Pack the next episode of each environment by weights (N, F) of its own.

        Returns:
            Utilization at its end, (N,).
        """
        seen = self.env.reset()
        left = self.env.longest_episode
        while left > 0:
            self._steps = min(_LOOK_EVERY, left)
            left -= self._steps
            state = TensorDict(self.env.env_state())
            now = TensorDict({"seen": seen, "weight": weight, "state": state})
            later = self._play(now)
            self.env.set_env_state(dict(later["state"].items()))
            seen = later["seen"]
            self.frames += self._steps * self.env.num_envs
            # Fewer steps are the last ones: nothing is asked then, as the loop ends anyway.
            if self._steps == _LOOK_EVERY and bool(seen["done"].all()):
                break
        done = torch.ones_like(seen["done"])
        self.meter.count({"done": done, **self.env.episode_outcomes(seen)})
        return seen["utilization"][:, 0]

    def _played(self, now: TensorDictBase) -> TensorDictBase:
        """What the environment shows after the next steps, and its state.

        What is full stays as it is.
        """
        env = self.env
        seen = now["seen"].copy()
        env.set_env_state(dict(now["state"].items()))
        for _ in range(self._steps):
            action = self._best(seen, now["weight"])
            seen = env.step(seen.set("action", action))["next"]
        return TensorDict({"seen": seen, "state": TensorDict(env.env_state())})

    def _best(self, seen: TensorDictBase, weight: Tensor) -> Tensor:
        """Action (N,) of the largest value, or 0 where none is legal."""
        heights = seen["box_heightmap"] / self.env.bin.size[2]
        found = self.values.find(seen["item_size"], seen["z_map"], seen["legal_mask"])
        numbers = self.values.numbers(heights, found)
        value = (numbers * weight[:, None]).sum(2)
        score = torch.where(found.there, value, -torch.inf)
        best = score.argmax(1, keepdim=True)
        return found.action.gather(1, best)[:, 0]
