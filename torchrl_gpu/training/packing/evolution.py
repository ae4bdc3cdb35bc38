"""`PlacementEvolution`: weights of placements by an evolution strategy on whole episodes, as a Lightning module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

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
from torchrl_gpu.training.run import EnvFactory, EnvRun, check_counts

LEAST_UNIT = 0.02  # of a weight, share of the largest: weights of 0 move, too
_LOOK_EVERY = 8  # steps between reads of whether any episode goes on


@final
class PlacementEvolution(EnvRun):
    """Searches the weights of `LinearPlacementValues` by CMA-ES on the utilization at the end of episodes.

    A training step is a generation: `members` weights are drawn, each packs the same `num_envs / members` sequences,
    all side by side in one batch, and mean and covariance follow the better half. There is no gradient;
    `trainer.max_steps` counts generations. The policy is the mean.

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
    _steps = _LOOK_EVERY  # that are played at a time

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
        self.begin, self.candidates, self.cuda_graphs = begin, candidates, cuda_graphs
        self.take_made_env()

    def build(self) -> None:
        env, where = self.env, type(self).__name__
        if not isinstance(env, PackingEnv) or not env.catalogue.flat or "z_map" not in env.include:
            raise ValueError(f"{where}: want a PackingEnv of boxes that includes z_map; got another environment")
        self.space = AgentSpace.of(env)
        first = PackingPolicy.from_pretrained(self.begin, "cpu", space=self.space).tables
        if not isinstance(first, LinearPlacementValues):
            raise ValueError(f"{where}: want begin a policy of placement weights; got {self.begin!r}")
        weight = first.weight.double() / first.weight.abs().max()
        self.register_buffer("unit", weight.abs().clamp_min(LEAST_UNIT))
        self.population = Population(weight / self.unit, self.step_size, self.members)
        self.values = LinearPlacementValues(self.space, weight.tolist(), self.candidates)

    def check_fit(self) -> None:
        where, num_envs = type(self).__name__, self.env.num_envs
        if num_envs % self.members:
            raise ValueError(f"{where}: want num_envs a multiple of {self.members} members; got {num_envs}")
        if self.trainer.world_size > 1:
            raise ValueError(f"{where}: want one process; got {self.trainer.world_size}")

    def policy_for(self, env: BatchedEnv) -> Policy:
        return PackingPolicy(self.space, self.values)

    def configure_optimizers(self) -> None: ...

    # -- fit --

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self.env.renumber(self.env.first_env, copies=self.members)
        self.rollout = Rollout(self.env, ["box_heightmap"], n_steps=1, gamma=1.0)  # keeps the environment's state
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
    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        drawn = self.population.draw(self.env.seed) * self.unit
        filled = self._pack(drawn.float().repeat_interleave(self.env.num_envs // self.members, 0))
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

    def _pack(self, weight: Tensor) -> Tensor:
        """Utilization (N,) at the end of the next episode of each environment, by a weight (N, F) of its own."""
        seen, left = self.env.reset(), self.env.longest_episode
        while left > 0:
            self._steps = min(_LOOK_EVERY, left)
            left -= self._steps
            now = TensorDict({"seen": seen, "weight": weight, "state": TensorDict(self.env._env_state())})
            later = self._play(now)
            self.env._set_env_state(dict(later["state"].items()))
            seen = later["seen"]
            self.frames += self._steps * self.env.num_envs
            if self._steps == _LOOK_EVERY and bool(seen["done"].all()):
                break
        done = torch.ones_like(seen["done"])
        self.meter.count({"done": done, **self.env.episode_outcomes(seen)})
        return seen["utilization"][:, 0]

    def _played(self, now: TensorDictBase) -> TensorDictBase:
        """What the environment shows after the next steps, and its state.

        What is full stays as it is.
        """
        env, seen = self.env, now["seen"].copy()
        env._set_env_state(dict(now["state"].items()))
        for _ in range(self._steps):
            action = self._best(seen, now["weight"])
            seen = env.step(seen.set("action", action))["next"]
        return TensorDict({"seen": seen, "state": TensorDict(env._env_state())})

    def _best(self, seen: TensorDictBase, weight: Tensor) -> Tensor:
        """The action (N,) of the largest value; 0, which is not legal, where none is."""
        heights = seen["box_heightmap"] / self.env.bin.size[2]
        found = self.values.find(seen["item_size"], seen["z_map"], seen["legal_mask"])
        value = (self.values.numbers(heights, found) * weight[:, None]).sum(2)
        best = torch.where(found.there, value, -torch.inf).argmax(1, keepdim=True)
        return found.action.gather(1, best)[:, 0]


class Population(nn.Module):
    """Normal distribution of vectors whose mean and covariance follow the better of those drawn: CMA-ES.

    Hansen, "The CMA evolution strategy: a tutorial", arXiv 1604.00772, figure 6 with the default parameters of table 1,
    without negative weights. In float64. A generation is drawn from a seed and its number alone.

    Args:
        mean: (F,) float64, at first.
        step: Standard deviation along each axis at first.
        members: Of a generation.
    """

    mean: Tensor
    step: Tensor
    path: Tensor
    step_path: Tensor
    covariance: Tensor
    generation: Tensor

    def __init__(self, mean: Tensor, step: float, members: int) -> None:
        super().__init__()
        n, self.members = len(mean), members
        parents = torch.arange(1, members // 2 + 1, dtype=torch.float64, device=mean.device)
        share = math.log((members + 1) / 2) - parents.log()
        self.share = (share / share.sum()).tolist()
        mass = self.mass = 1 / sum(each**2 for each in self.share)
        self.path_rate = (4 + mass / n) / (n + 4 + 2 * mass / n)
        self.step_rate = (mass + 2) / (n + mass + 5)
        self.rank_one = 2 / ((n + 1.3) ** 2 + mass)
        self.rank_many = min(1 - self.rank_one, 2 * (mass - 2 + 1 / mass) / ((n + 2) ** 2 + mass))
        self.damping = 1 + 2 * max(0.0, ((mass - 1) / (n + 1)) ** 0.5 - 1) + self.step_rate
        self.length = n**0.5 * (1 - 1 / (4 * n) + 1 / (21 * n * n))  # expected, of a standard normal vector
        state = {"mean": mean.double(), "step": mean.new_tensor(step).double()}
        state |= {"path": torch.zeros_like(mean), "step_path": torch.zeros_like(mean)}
        state |= {"covariance": torch.eye(n, dtype=torch.float64, device=mean.device)}
        state |= {"generation": torch.zeros((), dtype=torch.int64, device=mean.device)}
        for name, value in state.items():
            self.register_buffer(name, value.clone())

    def draw(self, seed: int) -> Tensor:
        """The members (M, F) of the next generation. Reads its number back."""
        number = int(self.generation)
        generator = torch.Generator().manual_seed((seed + 0x9E3779B9 * (number + 1)) % 2**63)
        normal = torch.randn(self.members, len(self.mean), dtype=torch.float64, device="cpu", generator=generator)
        values, self._axes = torch.linalg.eigh(self.covariance)
        self._scale = values.clamp_min(1e-12).sqrt()
        self._moves = (normal.to(self.mean.device) * self._scale) @ self._axes.T
        return self.mean + self.step * self._moves

    def learn(self, fitness: Tensor) -> None:
        """Follows the members of the largest fitness (M,), of those drawn last."""
        self.generation += 1
        order = fitness.argsort(descending=True, stable=True)[: len(self.share)]
        share, better = self.mean.new_tensor(self.share), self._moves[order]
        move = share @ better
        self.mean += self.step * move
        rate = self.step_rate
        white = self._axes @ ((self._axes.T @ move) / self._scale)
        self.step_path.mul_(1 - rate).add_((rate * (2 - rate) * self.mass) ** 0.5 * white)
        length = self.step_path.norm()
        settled = (1 - (1 - rate) ** (2 * self.generation)) ** 0.5
        goes_on = (length / settled < (1.4 + 2 / (len(self.mean) + 1)) * self.length).double()
        rate = self.path_rate
        self.path.mul_(1 - rate).add_(goes_on * (rate * (2 - rate) * self.mass) ** 0.5 * move)
        kept = 1 - self.rank_one - self.rank_many + (1 - goes_on) * self.rank_one * rate * (2 - rate)
        self.covariance.mul_(kept)
        self.covariance += self.rank_one * torch.outer(self.path, self.path)
        self.covariance += self.rank_many * (better.T * share) @ better
        self.step *= (self.step_rate / self.damping * (length / self.length - 1)).exp()
