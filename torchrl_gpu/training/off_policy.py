"""Learning from replay as a Lightning module: rollouts and updates take turns inside a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.agents.base import Agent
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.policies.wrapper import PolicyWrapper
from torchrl_gpu.training.clipping import clip_gradients
from torchrl_gpu.training.episodes import EpisodeMeter
from torchrl_gpu.training.graphed_update import GraphedUpdate, make_capturable
from torchrl_gpu.training.replay import DevicePrioritySampler, replay_buffer
from torchrl_gpu.training.rollout import Rollout
from torchrl_gpu.training.run import ReplayRun, check_counts

AgentFactory = Callable[[AgentSpace], Agent]


class OffPolicy(ReplayRun):
    """Trains any `Agent` in an environment; environment, agent, replay and update are on one device.

    A training step plays `rollout_steps` steps in every environment and then makes `updates_per_step` updates, so that
    Lightning's own cost per step is spread over many. `trainer.max_steps` counts updates and is met exactly. Where the
    environment groups its robots, replay holds the transitions of each robot by itself, and updates draw only those in
    which the robot took part.

    A subclass says what of a run is counted and logged.

    Args:
        env: The environment.
        agent: Makes the agent of an environment's space.
        optimizer: Makes the optimizer of the agent's weights, in a group for each of its losses.
        lr_scheduler: Makes a schedule that is stepped at every update.
        learning_rates: Learning rate of a loss's weights over that of the optimizer, such as `{actor: 0.1}`.
        rollout_steps: Steps in every environment per training step.
        updates_per_step: Updates per training step.
        batch_size: Transitions per update.
        replay_size: Transitions kept.
        warmup_frames: Frames, over all environments, played at random before the first update.
        prioritized: Whether replay draws by TD error.
        priority_alpha: Exponent of the priorities.
        priority_beta: Exponent of the importance weights at the first update.
        priority_beta_updates: Updates after which that exponent has gone to 1; None leaves it.
        reward_scale: Factor on rewards in the loss.
        max_grad_norm: Gradients of each loss's weights are clipped to this norm; None leaves them.
        cuda_graphs: Whether a rollout on CUDA is one replay of a graph; see `training.graphed`.
        graph_updates: Whether an update on CUDA is one replay of a graph; see `training.graphed_update`.
    """

    policy: PolicyWrapper

    def __init__(
        self,
        env: BatchedEnv,
        agent: AgentFactory,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        *,
        learning_rates: dict[str, float] | None = None,
        rollout_steps: int = 4,
        updates_per_step: int = 8,
        batch_size: int = 128,
        replay_size: int = 100_000,
        warmup_frames: int = 4_000,
        prioritized: bool = False,
        priority_alpha: float = 0.6,
        priority_beta: float = 0.4,
        priority_beta_updates: int | None = None,
        reward_scale: float = 1.0,
        max_grad_norm: float | None = 10.0,
        cuda_graphs: bool = False,
        graph_updates: bool = False,
    ) -> None:
        super().__init__(env, warmup_frames)
        name = type(self).__name__
        check_counts(
            name,
            rollout_steps=rollout_steps,
            updates_per_step=updates_per_step,
            batch_size=batch_size,
            replay_size=replay_size,
            priority_beta_updates=1 if priority_beta_updates is None else priority_beta_updates,
        )
        self.agent = agent(AgentSpace.of(env))
        needed = max(batch_size, self.lanes * rollout_steps)
        if replay_size < needed:
            raise ValueError(
                f"{name}: replay_size must hold a batch and a rollout, {needed} transitions; got {replay_size}"
            )
        self.learning_rates = _checked_rates(name, learning_rates or {}, self.agent)
        self.make_optimizer, self.make_scheduler = optimizer, lr_scheduler
        self.rollout_steps, self.updates_per_step, self.batch_size = rollout_steps, updates_per_step, batch_size
        self.replay_size, self.prioritized = replay_size, prioritized
        self.priority_alpha, self.priority_beta = priority_alpha, priority_beta
        self.priority_beta_updates = priority_beta_updates
        self.reward_scale, self.max_grad_norm = reward_scale, max_grad_norm
        self.cuda_graphs, self.graph_updates = cuda_graphs, graph_updates

    # -- what a subclass says ---------------------------------------------------------------------------------------

    counted: tuple[str, ...] = ()
    """Entries of `next` that are counted at the end of an episode, see `EpisodeMeter`."""

    def before_play(self) -> None:
        """Called before every rollout; `frames` have been played."""

    def count(self, steps: TensorDictBase) -> None:
        """Takes the raw steps (N, T) of a rollout."""
        self.meter.count(steps["next"])

    # -- what follows from the agent --------------------------------------------------------------------------------

    @property
    def learner_name(self) -> str:
        """The agent."""
        return self.agent.name

    @property
    def group(self) -> tuple[str, ...]:
        """Where the environment keeps its robots; empty where it has none."""
        return self.agent.space.group

    @property
    def lanes(self) -> int:
        """Streams of transitions: environments, or their robots."""
        return self.env.num_envs * (int(getattr(self.env, "num_robots", 1)) if self.group else 1)

    def policy_for(self, env: EnvBase) -> PolicyWrapper:
        """The agent's policy, which is the same in every environment; greedy in eval mode."""
        return PolicyWrapper(self.agent)

    @property
    def has_values(self) -> bool:
        """Whether actions are discrete, so that the agent has a value for each."""
        return self.agent.space.num_actions is not None

    def configure_optimizers(self) -> Any:
        """One optimizer with a group for each loss, so that a step of the Trainer is an update; and its schedule."""
        groups = [{"params": weights, "name": name} for name, weights in self.agent.parameter_groups.items()]
        optimizer = self.make_optimizer(groups)
        for group in optimizer.param_groups:
            group["lr"] *= self.learning_rates.get(group["name"], 1.0)
        if self.env.device.type == "cuda":
            make_capturable(optimizer)  # else each step reads its own count back
        if self.make_scheduler is None:
            return optimizer
        return [optimizer], [self.make_scheduler(optimizer)]

    # -- fit --------------------------------------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Starts rollouts and replay, or goes on with those of the checkpoint."""
        self.__dict__["policy"] = PolicyWrapper(self.agent).train()  # no submodule: its weights are the agent's
        self.meter = EpisodeMeter(self.env.device, self.counted)
        self.rollout = Rollout(
            self.env,
            self._kept_keys(),
            self.agent.n_steps,
            self.agent.gamma,
            self.cuda_graphs,
            group=self.group,
        )
        self.replay = replay_buffer(
            self.replay_size,
            self.batch_size,
            self.env.device,
            prioritized=self.prioritized,
            alpha=self.priority_alpha,
            beta=self.priority_beta,
            masked=bool(self.group),
        )
        self.graphed_update = self._make_graphed_update() if self.graph_updates else None

    def _make_graphed_update(self) -> GraphedUpdate:
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        if scaled or self.trainer.world_size > 1:
            raise ValueError(
                f"{type(self).__name__}: graph_updates wants one process, and gradients that need no scaler, which"
                f" makes the host wait; got {self.trainer.world_size}, and precision {self.trainer.precision}"
            )
        optimizer = cast("torch.optim.Optimizer", self.optimizers(use_pl_optimizer=False))
        return GraphedUpdate(self.agent, optimizer, self.max_grad_norm)

    def _kept_keys(self) -> list[Any]:
        if not self.group:
            return list(self.env.stored_keys)
        wanted = {*self.agent.observations, "active"}
        return [key for key in self.env.stored_keys if key[-1] in wanted]

    def on_train_start(self) -> None:
        """Fills the replay up to `warmup_frames`; a resumed run has it from beside its checkpoint."""
        self.go_on()
        while self.frames < self.warmup_frames or len(self.replay) < self.batch_size:
            self._play()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Plays, then updates."""
        self._play()
        updates = self.updates_per_step
        if self.trainer.max_steps > 0:
            updates = min(updates, self.trainer.max_steps - self.trainer.global_step)
        losses = [self._update() for _ in range(updates)]
        self._log_losses(losses)
        self.log_dict({f"train/{name}": value for name, value in self.meter.recent.items()})
        self.log_dict({f"train/{name}": value for name, value in self.agent.metrics.items()})
        self.log("train/frames", float(self.frames))

    def _log_losses(self, losses: list[dict[str, Tensor]]) -> None:
        means = {name: torch.stack([each[name] for each in losses]).mean() for name in losses[0]}
        self.log("train/loss", torch.stack(list(means.values())).sum(), prog_bar=True)
        if len(means) > 1:
            self.log_dict({f"train/{name}_loss": mean for name, mean in means.items()})

    def _play(self) -> None:
        self.agent.anneal(self.frames)
        self.before_play()
        with set_exploration_type(ExplorationType.RANDOM):
            transitions, steps = self.rollout.collect(self.policy, self.rollout_steps)
        self.frames += steps.numel()
        self.count(steps)
        if not len(transitions):  # none yet, while fewer steps than a return needs have been played
            return
        index = self.replay.extend(transitions)
        if self.group:
            self._sampler.leave_out(index, ~transitions["active"].squeeze(-1))

    def _update(self) -> dict[str, Tensor]:
        if self.prioritized:
            self._sampler.beta = self._beta()
        batch = self.replay.sample()
        for part in (batch, batch["next"]):
            self.env.restore(part)
        batch["next", "reward"] = batch["next", "reward"] * self.reward_scale
        losses = self._learn(batch) if self.graphed_update is None else self._learn_graphed(self.graphed_update, batch)
        scheduler: Any = self.lr_schedulers()
        if scheduler is not None:
            scheduler.step()
        if self.prioritized:  # TorchRL's update_tensordict_priority knows its own sampler only
            self.replay.update_priority(batch["index"], batch["td_error"])
        return {name: loss.detach() for name, loss in losses.items()}

    def _learn(self, batch: TensorDictBase) -> dict[str, Tensor]:
        with set_exploration_type(ExplorationType.RANDOM):
            losses = self.agent.losses(batch)
        self._descend(torch.stack(list(losses.values())).sum())
        self.agent.update_targets(self.trainer.global_step)
        return losses

    def _learn_graphed(self, update: GraphedUpdate, batch: TensorDictBase) -> dict[str, Tensor]:
        losses = update(batch, self.trainer.global_step + 1)
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.increment_ready()  # Lightning counts the steps that it makes itself; they are `global_step`
        progress.increment_completed()
        return losses

    def _descend(self, loss: Tensor) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        if self.max_grad_norm is not None:
            scaler = getattr(self.trainer.precision_plugin, "scaler", None)
            for group in optimizer.param_groups:
                clip_gradients(group["params"], self.max_grad_norm, scaler)
        optimizer.step()

    @property
    def _sampler(self) -> DevicePrioritySampler:
        return cast("DevicePrioritySampler", self.replay.sampler)

    def _beta(self) -> float:
        """Exponent of the importance weights, by the updates made."""
        if self.priority_beta_updates is None:
            return self.priority_beta
        share = min(1.0, self.trainer.global_step / self.priority_beta_updates)
        return self.priority_beta + (1 - self.priority_beta) * share


def _checked_rates(where: str, rates: dict[str, float], agent: Agent) -> dict[str, float]:
    known = list(agent.parameter_groups)
    for name, rate in rates.items():
        if name not in known or rate <= 0:
            raise ValueError(
                f"{where}: learning_rates wants factors above 0 for {', '.join(known)}; got {{{name}: {rate}}}"
            )
    return rates
