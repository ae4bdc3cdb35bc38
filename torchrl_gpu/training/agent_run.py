"""Base of the runs that train an `Agent`: its policy, optimizer and update."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.agents.base import Agent
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.wrapper import PolicyWrapper
from torchrl_gpu.training.accelerated.choice import GraphOption
from torchrl_gpu.training.run import STEPS_PER_EPOCH, EnvRun
from torchrl_gpu.training.trainer_fields import datamodule_of
from torchrl_gpu.training.updates.compiled import CompiledLosses
from torchrl_gpu.training.updates.graphed import Batches, GraphedLearning, GraphedUpdate, Losses
from torchrl_gpu.training.updates.optimizers import keep_capturable

# Updates of a run in which minutes of compilation pay.
_MANY = 5_000

AgentFactory = Callable[[AgentSpace], Agent]
"""Makes the agent of an environment's space."""


class AgentRun(EnvRun):
    """An `EnvRun` that trains an `Agent`.

    A subclass makes `agent` in `build` and sets the attributes below.

    Attributes:
        make_optimizer: Makes the optimizer of the agent's weights, in a group for each of its losses.
        make_scheduler: Makes a schedule that is stepped at every update; None for none.
        learning_rates: Learning rate of a loss's weights over that of the optimizer.
        max_grad_norm: Gradients of each loss's weights are clipped to this norm; None leaves them.
        graph_updates: Whether updates on CUDA are launches of graphs, one each or all of a training step in one; see
            `training.updates.graphed`. "auto" does so where nothing speaks against it.
        torch_compile: As in `OffPolicy`.
    """

    agent: Agent
    policy: PolicyWrapper
    make_optimizer: OptimizerCallable
    make_scheduler: LRSchedulerCallable | None
    learning_rates: Mapping[str, float]
    max_grad_norm: float | None
    graph_updates: GraphOption
    torch_compile: bool | Literal["auto"]
    graphed_update: GraphedUpdate | None
    graphed_learning: GraphedLearning | None
    # Whether the run that this one goes on from was compiled.
    _compiled_before: bool | None = None
    _compiled = False

    @property
    def learner_name(self) -> str:
        return self.agent.name

    @property
    def kept_options(self) -> Sequence[str]:
        learned = [f"agent.{each}" for each in self.agent.learned_settings]
        return (*super().kept_options, "encoder.pretrained", *learned)

    @property
    def space(self) -> AgentSpace:
        """Observations and actions of the agent."""
        return self.agent.space

    @property
    def group(self) -> tuple[str, ...]:
        """Key of the environment's robots, empty where it has none."""
        return self.space.group

    @property
    def num_trajectories(self) -> int:
        """Trajectories that are played at a time, of environments or their robots."""
        if not self.group:
            return self.env.num_envs
        return self.env.num_envs * int(getattr(self.env, "num_robots", 1))

    def policy_for(self, env: BatchedEnv) -> PolicyWrapper:
        """The agent's policy, the same in every environment and greedy in eval mode."""
        return PolicyWrapper(self.agent)

    def baselines(self, env: BatchedEnv) -> Mapping[str, Policy] | None:
        return self.agent.alternatives() or None

    @property
    def compiles(self) -> bool:
        """Whether steps and losses of this fit are compiled.

        A compiled backward pass is over before the scaler sees the loss, so that small gradients would be lost.

        Raises:
            ValueError: Compilation is asked for, and gradients are scaled.
        """
        if self.torch_compile != "auto":
            if self.torch_compile and self.scales_gradients:
                raise ValueError(
                    f"{type(self).__name__}: torch_compile cannot be with precision {self.trainer.precision}, whose"
                    " gradients are scaled"
                )
            return self.torch_compile
        if self.scales_gradients:
            return False
        if self._compiled_before is not None:
            return self._compiled_before
        return self.planned_updates() >= _MANY

    # Compilation takes minutes at the start, and pays for runs that are long. How long this one will be is asked of the
    # Trainer before it begins, where there is no clock yet to tell.
    def planned_updates(self) -> float:
        """The most updates of this fit, by `max_steps` and `max_epochs`."""
        trainer = self.trainer
        most = trainer.max_steps if trainer.max_steps >= 0 else math.inf
        epochs = trainer.max_epochs
        if epochs is None or epochs < 0:
            return most
        steps = getattr(datamodule_of(trainer), "steps_per_epoch", None) or STEPS_PER_EPOCH
        limit = trainer.limit_train_batches
        # As Lightning has it: a whole number is one of batches, a float a share of them.
        if isinstance(limit, int):
            steps = min(steps, limit)
        else:
            steps = int(steps * limit)
        return min(most, epochs * steps * self.updates_of_step)

    @property
    def updates_of_step(self) -> int:
        """Updates of a training step."""
        raise NotImplementedError

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["compiled"] = self._compiled

    def on_load_checkpoint(self, checkpoint: dict[str, object]) -> None:
        """Keep whether the run was compiled.

        Compiled code rounds otherwise, so a run that is extended goes on as it was, however long it is to be now.
        """
        super().on_load_checkpoint(checkpoint)
        compiled = checkpoint.get("compiled")
        self._compiled_before = compiled if isinstance(compiled, bool) else None

    @property
    def has_values(self) -> bool:
        """Whether actions are discrete, so that the agent has a value for each."""
        return self.space.num_actions is not None

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Make one optimizer with a group for each loss, and its schedule.

        With one optimizer a step of the Trainer is an update.
        """
        groups = [{"params": weights, "name": name} for name, weights in self.agent.parameter_groups.items()]
        optimizer = self.make_optimizer(groups)
        for group in optimizer.param_groups:
            # Before the schedule is made, which takes the rates of now for its first ones.
            group["lr"] *= self.learning_rates.get(group["name"], 1.0)
        keep_capturable(optimizer)
        return self.scheduled(optimizer, self.make_scheduler)

    def check_rates(self) -> None:
        """ValueError unless each of `learning_rates` is above 0 and of a known loss."""
        known = list(self.agent.parameter_groups)
        for name, rate in self.learning_rates.items():
            if name not in known or not 0 < rate < math.inf:
                raise ValueError(
                    f"{type(self).__name__}: learning_rates must be factors above 0 for {', '.join(known)}, not"
                    f" {{{name}: {rate}}}"
                )

    def _make_graphed_update(self) -> GraphedUpdate:
        return GraphedUpdate(self.agent, self.torch_optimizer, self.max_grad_norm, losses=self._losses)

    def _make_graphed_learning(
        self,
        batches: Batches,
        *,
        learned: Callable[[TensorDictBase], None] | None = None,
        also_written: Callable[[], list[Tensor]] | None = None,
    ) -> GraphedLearning:
        """Make one function of all updates of a training step.

        `learned` and `also_written` are those of `GraphedLearning`.
        """
        return GraphedLearning(
            self.agent,
            self.torch_optimizer,
            self.max_grad_norm,
            batches=batches,
            updates=self.updates_of_step,
            schedule=self.rate_schedule,
            losses=self._losses,
            learned=learned,
            also_written=also_written,
        )

    def on_fit_start(self) -> None:
        super().on_fit_start()
        # It is no submodule: its weights are the agent's.
        self.__dict__["policy"] = PolicyWrapper(self.agent).train()
        if self.trainer.ckpt_path is None:
            # It would be of a checkpoint that another command has loaded.
            self._compiled_before = None
        self._compiled = self.compiles
        if self.torch_compile == "auto" and self._compiled_before is self._compiled:
            how = "compiled" if self._compiled else "not compiled"
            rank_zero_info(f"{type(self).__name__}: torch_compile auto: steps and losses stay {how}, as the run began")
        self._losses: Losses = CompiledLosses(self.agent) if self._compiled else self.agent.losses
        takes_graphs = self.takes_graphed_updates(self.graph_updates)
        self.graphed_update = self._make_graphed_update() if takes_graphs else None
        self.graphed_learning = None

    def step_names(self) -> Sequence[str]:
        return ("loss", "*_loss", *self.env.outcome_names, *self.agent.metrics, "frames")

    def learn(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """Make an update from a batch, as `Agent.losses` takes it.

        Returns:
            Its losses, without gradients.
        """
        self.note_batch(batch)
        if self.graphed_update is None:
            losses = self._learn(batch)
        else:
            losses = self.graphed_update(batch, self.trainer.global_step + 1)
            self.count_updates(1)
        self.step_schedule()
        return {name: loss.detach() for name, loss in losses.items()}

    def _learn(self, batch: TensorDictBase) -> dict[str, Tensor]:
        with set_exploration_type(ExplorationType.RANDOM):
            losses = self._losses(batch)
        groups = [group["params"] for group in self.lightning_optimizer.param_groups]
        loss = torch.stack(list(losses.values())).sum()
        self.descend(loss, groups, self.max_grad_norm)
        self.agent.update_targets(self.trainer.global_step)
        return losses

    def log_losses(self, losses: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Log the means over the updates of a training step, where that is due.

        Returns:
            The loss of the last update, as Lightning gives it to callbacks such as `SpikeDetection`.
        """
        if self.logs_this_step:
            means = means_of(losses)
            values: dict[str, Tensor | float] = {"loss": torch.stack(list(means.values())).sum()}
            if len(means) > 1:
                values |= {f"{name}_loss": mean for name, mean in means.items()}
            self.log_step({**values, **self.outcomes, **self.agent.metrics, "frames": self.frames})
        if not losses:
            return {}
        # The last one alone, as Lightning's callbacks look at every loss for spikes, which a mean would hide.
        last = list(losses[-1].values())
        loss = last[0]
        if len(last) > 1:
            loss = torch.stack(last).sum()
        return {"loss": loss}


def means_of(losses: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Mean of each loss over some updates."""
    means = {}
    for name in losses[0]:
        values = torch.stack([each[name] for each in losses])
        means[name] = values.mean()
    return means
