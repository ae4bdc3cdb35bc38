"""Learning from rollouts of the present policy as a Lightning module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, cast, final

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu.policies.agents.ppo import PPO
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.system import arguments
from torchrl_gpu.system.sections import in_section, section
from torchrl_gpu.training.accelerated.choice import GraphOption
from torchrl_gpu.training.agent_run import AgentFactory, AgentRun
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.run import EnvFactory, check_counts


@final
class OnPolicy(AgentRun):
    """Train `PPO` from rollouts, with the whole loop on one device.

    Nothing is read back to the host. A training step plays `rollout_steps` steps in every environment, values them
    once, and goes over them in `epochs`, each in `minibatches` updates of as many rows drawn without replacement.
    `trainer.max_steps` counts updates and is met exactly; a multiple of `epochs · minibatches` leaves no rollout half
    learnt. Where the environment groups its robots, each has a trajectory of its own, and steps in which it takes no
    part do not count.

    Args:
        env: Makes the environment, as in `EnvRun`.
        agent: Makes the agent of an environment's space.
        optimizer: Makes the optimizer of the agent's weights, in a group for each of its losses.
        lr_scheduler: Makes a schedule that is stepped at every update.
        learning_rates: Learning rate of a loss's weights over that of the optimizer, such as `{critic: 2.0}`.
        rollout_steps: Steps in every environment per training step.
        epochs: Times that each step is learnt from.
        minibatches: Updates of an epoch.
        reward_scale: Factor on rewards.
        max_grad_norm: Gradients of each loss's weights are clipped to this norm; None leaves them.
        cuda_graphs: Whether a rollout on CUDA is one launch of a graph; see `training.collect.graphed`. "auto" where
            nothing speaks against it, which a line says otherwise.
        graph_updates: Whether all that is learnt from a rollout on CUDA is one launch of a graph, from the values of
            its states to the last update; see `training.updates.graphed`. "auto" as above.
        torch_compile: As in `OffPolicy`.
    """

    # The critic has values of states, and none of actions.
    has_values = False

    agent: PPO

    def __init__(
        self,
        env: EnvFactory,
        agent: AgentFactory,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        *,
        learning_rates: dict[str, float] | None = None,
        rollout_steps: int = 32,
        epochs: int = 4,
        minibatches: int = 4,
        reward_scale: float = 1.0,
        max_grad_norm: float | None = 0.5,
        cuda_graphs: GraphOption = "auto",
        graph_updates: GraphOption = "auto",
        torch_compile: bool | Literal["auto"] = False,
    ) -> None:
        super().__init__(env)
        where = type(self).__name__
        check_counts(where, rollout_steps=rollout_steps, epochs=epochs, minibatches=minibatches)
        self.make_agent = agent
        self.make_optimizer = optimizer
        self.make_scheduler = lr_scheduler
        self.learning_rates = dict(learning_rates or {})
        self.rollout_steps = rollout_steps
        self.epochs = epochs
        self.minibatches = minibatches
        self.reward_scale = arguments.number(where, "reward_scale", reward_scale, above=0)
        self.max_grad_norm = arguments.optional(arguments.number, where, "max_grad_norm", max_grad_norm, above=0)
        self.cuda_graphs = cuda_graphs
        self.graph_updates = graph_updates
        self.torch_compile = torch_compile
        self.take_made_env()

    def build(self) -> None:
        agent = self.make_agent(AgentSpace.of(self.env))
        if agent.learns_from_replay:
            raise ValueError(f"{type(self).__name__}: {agent.name} learns from replay; give an agent such as PPO")
        # Not the type of the argument, since jsonargparse reads a final class as one of plain data.
        self.agent = cast("PPO", agent)
        self.check_rates()

    def check_fit(self) -> None:
        rows = self.num_trajectories * self.rollout_steps
        # A last batch of another size would be another CUDA graph, and its gradients would count more.
        if rows % self.minibatches:
            raise ValueError(
                f"{type(self).__name__}: minibatches must divide the {rows} steps of a rollout, {self.rollout_steps} of"
                f" each of {self.num_trajectories} trajectories, which {self.minibatches} does not"
            )

    @property
    def updates_of_step(self) -> int:
        return self.epochs * self.minibatches

    def on_fit_start(self) -> None:
        super().on_fit_start()
        keys: list[NestedKey] = list(self.agent.observations)
        if "active" in self.agent.space.observations and "active" not in keys:
            keys.append("active")
        if self.group:
            keys = [(*self.group, key) for key in keys]
        self.rollout = Rollout(
            self.env,
            keys,
            n_steps=1,
            gamma=self.agent.gamma,
            cuda_graphs=self.takes_graphed_steps(self.cuda_graphs),
            decisions=self.agent.policy.out_keys,
            group=self.group,
            compiled=self._compiled,
        )
        if self.graphed_update is not None:
            self.graphed_learning = self._make_graphed_learning(lambda steps: self.batches_of(self.sample_of(steps)))

    @in_section("step")
    def training_step(self, batch: object, batch_idx: int) -> dict[str, Tensor]:
        with set_exploration_type(ExplorationType.RANDOM):
            steps = self.play(self.policy, self.rollout_steps)
        with section("update"):
            losses = self._learn_from(steps)
        return self.log_losses(losses)

    def _learn_from(self, steps: TensorDictBase) -> list[dict[str, Tensor]]:
        losses = self.learn_in_graph(self.graphed_learning, steps, self.updates_of_step)
        if losses is not None:
            self.note_batch(steps)
            return losses
        most = self.updates_now(self.updates_of_step)
        batches = self.batches_of(self.sample_of(steps))
        return [self.learn(rows) for _, rows in zip(range(most), batches, strict=False)]

    def sample_of(self, steps: TensorDictBase) -> TensorDictBase:
        scaled = steps.copy()
        scaled["next", "reward"] = steps["next", "reward"] * self.reward_scale
        if self.trainer.world_size == 1:
            return self.agent.estimate(scaled)
        return self.agent.estimate(scaled, self.total)

    def batches_of(self, sample: TensorDictBase) -> Iterator[TensorDictBase]:
        """Every row once in each epoch.

        Rows that do not count are spread evenly over the batches.
        """
        idle: Tensor | float = 0.0
        # Iterating over a tensordict would give its rows.
        if "priority_weight" in sample.keys():  # noqa: SIM118
            idle = 1.0 - sample["priority_weight"]
        for _ in range(self.epochs):
            rows = len(sample)
            drawn = torch.rand(rows, device=self.env.device, dtype=torch.float32)
            # Draws are below 1, so that rows that do not count, to which 1 is added, come last in random order.
            order = (drawn + idle).argsort()
            spread = order.view(-1, self.minibatches).t().flatten()
            yield from sample[spread].split(rows // self.minibatches)
