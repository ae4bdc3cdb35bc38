"""`AgentRun`: base of the runs that train an `Agent`, with its policy, its optimizer and an update."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.agents.base import Agent
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.wrapper import PolicyWrapper
from torchrl_gpu.training.collect.graphed import same_random_numbers, say_plain
from torchrl_gpu.training.run import EnvRun
from torchrl_gpu.training.updates.graphed import GraphedUpdate, Losses
from torchrl_gpu.training.updates.optimizers import keep_capturable

_CLOSE = 1e-2  # of losses and errors, relatively: fused operators round less often, in half precision much less
_FAR = 0.1  # of the length of the gradient: how far apart two may be


class CompiledLosses:
    """`Agent.losses` as one compiled function, with the same random numbers as operators one by one.

    The first batch is computed both ways. Where losses, errors or gradients differ by more than rounding, or where the
    machine cannot compile, a warning says so and the operators run one by one from then on. The self-test leaves
    generators and buffers of the agent as they were.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._losses: Losses | None = None

    @property
    def compiled(self) -> bool:
        """True once the self-test has found that the compiled function gives the same."""
        return self._losses not in (None, self.agent.losses)

    def __call__(self, batch: TensorDictBase) -> dict[str, Tensor]:
        if self._losses is None:
            self._losses = self._proven(batch)
        try:
            return self._losses(batch)
        except Exception as error:  # of a compiler, for a batch of another shape; else the operators raise it again
            if not self.compiled:
                raise
            self._losses = self._give_up(error)
            return self._losses(batch)

    def _proven(self, batch: TensorDictBase) -> Losses:
        before = [value.clone() for value in self.agent.buffers()]
        try:
            options: dict[str, str | int | bool | Callable] = {"fallback_random": True}
            compiled = torch.compile(self.agent.losses, fullgraph=True, dynamic=False, options=options)
            found = []
            with warnings.catch_warnings():  # of tensordict about a setting of torch that it looks at
                warnings.filterwarnings("ignore", r"torch\._dynamo\.config\.inline_inbuilt_nn", FutureWarning)
                for losses in (self.agent.losses, compiled):
                    with same_random_numbers(self.agent.parameters_to_train[0].device):
                        found.append(self._computed(losses, batch.clone()))
                    self._restore(before)
            _check(*found)
            return compiled
        except Exception as error:  # whatever a compiler raises
            return self._give_up(error)
        finally:
            self._restore(before)

    def _computed(self, losses: Losses, batch: TensorDictBase) -> dict[str, Tensor]:
        given = losses(batch)
        weights = self.agent.parameters_to_train
        gradients = torch.autograd.grad(torch.stack(list(given.values())).sum(), weights, allow_unused=True)
        flat = [
            (torch.zeros_like(weight) if gradient is None else gradient).double().flatten()
            for weight, gradient in zip(weights, gradients, strict=True)
        ]
        found = {name: loss.detach() for name, loss in given.items()}
        return found | {"td_error": batch["td_error"], "gradient": torch.cat(flat)}

    def _restore(self, before: list[Tensor]) -> None:
        for value, buffer in zip(before, self.agent.buffers(), strict=True):
            buffer.copy_(value)

    def _give_up(self, error: Exception) -> Losses:
        say_plain(type(self).__name__, error)
        return self.agent.losses


def _check(plain: dict[str, Tensor], compiled: dict[str, Tensor]) -> None:
    wanted = "CompiledLosses: want what the operators give one by one; got"
    gradients = plain.pop("gradient"), compiled.pop("gradient")
    for name, value in plain.items():
        if not bool(torch.isclose(compiled[name], value, rtol=_CLOSE, atol=1e-3, equal_nan=True).all()):
            raise RuntimeError(f"{wanted} another {name}")
    if not bool((gradients[0] - gradients[1]).norm() <= _FAR * gradients[0].norm() + 1e-6):
        raise RuntimeError(f"{wanted} another gradient")


AgentFactory = Callable[[AgentSpace], Agent]
"""Makes the agent of an environment's space."""


class AgentRun(EnvRun):
    """An `EnvRun` that trains an `Agent`. A subclass makes `agent` in `build` and sets the attributes below.

    Attributes:
        make_optimizer: Makes the optimizer of the agent's weights, in a group for each of its losses.
        make_scheduler: Makes a schedule that is stepped at every update; None for none.
        learning_rates: Learning rate of a loss's weights over that of the optimizer.
        max_grad_norm: Gradients of each loss's weights are clipped to this norm; None leaves them.
        graph_updates: Whether an update on CUDA is one launch of a graph; see `training.updates.graphed`. A subclass
            may have more of them in one.
        compile_losses: Whether losses go through torch.compile; see `training.agent_run.CompiledLosses`.
    """

    agent: Agent
    policy: PolicyWrapper
    make_optimizer: OptimizerCallable
    make_scheduler: LRSchedulerCallable | None
    learning_rates: Mapping[str, float]
    max_grad_norm: float | None
    graph_updates: bool
    compile_losses: bool
    graphed_update: GraphedUpdate | None

    @property
    def learner_name(self) -> str:
        return self.agent.name

    @property
    def group(self) -> tuple[str, ...]:
        """Key of the environment's robots; empty where it has none."""
        return self.agent.space.group

    @property
    def num_trajectories(self) -> int:
        """Trajectories that are played at a time: those of environments, or of their robots."""
        return self.env.num_envs * (int(getattr(self.env, "num_robots", 1)) if self.group else 1)

    def policy_for(self, env: BatchedEnv) -> PolicyWrapper:
        """The agent's policy, which is the same in every environment; greedy in eval mode."""
        return PolicyWrapper(self.agent)

    def baselines(self, env: BatchedEnv) -> Mapping[str, Policy] | None:
        return self.agent.alternatives() or None

    @property
    def has_values(self) -> bool:
        """True where actions are discrete, so that the agent has a value for each."""
        return self.agent.space.num_actions is not None

    def configure_optimizers(self) -> Any:
        """One optimizer with a group for each loss, so that a step of the Trainer is an update; and its schedule."""
        groups = [{"params": weights, "name": name} for name, weights in self.agent.parameter_groups.items()]
        optimizer = self.make_optimizer(groups)
        for group in optimizer.param_groups:
            group["lr"] *= self.learning_rates.get(group["name"], 1.0)
        keep_capturable(optimizer)
        return self.scheduled(optimizer, self.make_scheduler)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["agent_space"] = self.agent.space.to_dict()

    def check_rates(self) -> None:
        """ValueError unless each of `learning_rates` is above 0 and of a loss that the agent has."""
        known = list(self.agent.parameter_groups)
        for name, rate in self.learning_rates.items():
            if name not in known or not 0 < rate < math.inf:
                raise ValueError(
                    f"{type(self).__name__}: learning_rates wants factors above 0 for {', '.join(known)};"
                    f" got {{{name}: {rate}}}"
                )

    def _make_graphed_update(self) -> GraphedUpdate:
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        if scaled or self.trainer.world_size > 1:
            raise ValueError(
                f"{type(self).__name__}: graph_updates wants one process, and gradients that need no scaler, which"
                f" makes the host wait; got {self.trainer.world_size}, and precision {self.trainer.precision}"
            )
        optimizer = cast("torch.optim.Optimizer", self.optimizers(use_pl_optimizer=False))
        return GraphedUpdate(self.agent, optimizer, self.max_grad_norm, losses=self._losses)

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self.__dict__["policy"] = PolicyWrapper(self.agent).train()  # no submodule: its weights are the agent's
        self._losses: Losses = CompiledLosses(self.agent) if self.compile_losses else self.agent.losses
        self.graphed_update = self._make_graphed_update() if self.graph_updates else None

    def learn(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """An update from a batch, as `Agent.losses` takes it: its losses, without gradients."""
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
        groups = [group["params"] for group in cast("Any", self.optimizers()).param_groups]
        self.descend(torch.stack(list(losses.values())).sum(), groups, self.max_grad_norm)
        self.agent.update_targets(self.trainer.global_step)
        return losses

    def log_losses(self, losses: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Logs the means over the updates of a training step, where that is due.

        Returns the loss of the last update, as Lightning gives it to callbacks such as `SpikeDetection`.
        """
        if self.step_log.due:
            values: dict[str, Tensor | float] = {**self.outcomes, **self.agent.metrics, "frames": self.frames}
            means = {name: torch.stack([each[name] for each in losses]).mean() for name in losses[0]}
            parts = {f"{name}_loss": mean for name, mean in means.items()} if len(means) > 1 else {}
            self.step_log.write({"loss": torch.stack(list(means.values())).sum(), **parts, **values})
        if not losses:
            return {}
        first, *others = losses[-1].values()
        return {"loss": torch.stack([first, *others]).sum() if others else first}
