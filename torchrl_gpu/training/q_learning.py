"""Q-learning as a Lightning module: rollouts and updates take turns inside a training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.agents.base import Agent
from torchrl_gpu.training.episodes import EpisodeMeter
from torchrl_gpu.training.replay import replay_buffer
from torchrl_gpu.training.replay_run import ReplayRun, check_counts
from torchrl_gpu.training.rollout import Rollout

AgentFactory = Callable[[EnvBase], Agent]


class QLearning(ReplayRun):
    """Trains a Q-agent in an environment; environment, agent, replay and update are on one device.

    A training step plays `rollout_steps` steps in every environment and then makes `updates_per_step` updates, so that
    Lightning's own cost per step is spread over many. `trainer.max_steps` counts updates and is met exactly.

    Args:
        env: The environment.
        agent: Makes the agent of an environment.
        optimizer: Makes the optimizer of the agent's weights.
        lr_scheduler: Makes a schedule that is stepped at every update.
        rollout_steps: Steps in every environment per training step.
        updates_per_step: Updates per training step.
        batch_size: Transitions per update.
        replay_size: Transitions kept.
        warmup_frames: Frames, over all environments, played at random before the first update.
        prioritized: Whether replay draws by TD error.
        priority_alpha: Exponent of the priorities.
        priority_beta: Exponent of the importance weights.
        reward_scale: Factor on rewards in the loss.
        max_grad_norm: Gradients are clipped to this norm; None leaves them.
        cuda_graphs: Whether a rollout on CUDA is one replay of a graph; see `training.graphed`.
    """

    def __init__(
        self,
        env: BatchedEnv,
        agent: AgentFactory,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        *,
        rollout_steps: int = 4,
        updates_per_step: int = 8,
        batch_size: int = 128,
        replay_size: int = 100_000,
        warmup_frames: int = 4_000,
        prioritized: bool = False,
        priority_alpha: float = 0.6,
        priority_beta: float = 0.4,
        reward_scale: float = 1.0,
        max_grad_norm: float | None = 10.0,
        cuda_graphs: bool = False,
    ) -> None:
        super().__init__(env, warmup_frames)
        check_counts(
            "QLearning",
            rollout_steps=rollout_steps,
            updates_per_step=updates_per_step,
            batch_size=batch_size,
            replay_size=replay_size,
        )
        needed = max(batch_size, env.num_envs * rollout_steps)
        if replay_size < needed:
            raise ValueError(
                f"QLearning: replay_size must hold a batch and a rollout, {needed} transitions; got {replay_size}"
            )
        self.agent = agent(env)
        self.make_optimizer, self.make_scheduler = optimizer, lr_scheduler
        self.rollout_steps, self.updates_per_step, self.batch_size = rollout_steps, updates_per_step, batch_size
        self.replay_size, self.prioritized = replay_size, prioritized
        self.priority_alpha, self.priority_beta = priority_alpha, priority_beta
        self.reward_scale, self.max_grad_norm, self.cuda_graphs = reward_scale, max_grad_norm, cuda_graphs

    @property
    def learner_name(self) -> str:
        """The agent."""
        return type(self.agent).__name__

    def policy_for(self, env: EnvBase) -> nn.Module:
        """The agent's greedy policy, which is the same in every environment."""
        return self.agent.policy

    def configure_optimizers(self) -> Any:
        """Optimizer and schedule of the online weights."""
        optimizer = self.make_optimizer(self.agent.parameters_to_train)
        if self.make_scheduler is None:
            return optimizer
        return [optimizer], [self.make_scheduler(optimizer)]

    # -- fit --------------------------------------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Starts rollouts and replay, or goes on with those of the checkpoint."""
        self.meter = EpisodeMeter(self.env.device)
        self.rollout = Rollout(self.env, self.env.stored_keys, self.agent.n_steps, self.agent.gamma, self.cuda_graphs)
        self.replay = replay_buffer(
            self.replay_size,
            self.batch_size,
            self.env.device,
            prioritized=self.prioritized,
            alpha=self.priority_alpha,
            beta=self.priority_beta,
        )

    def on_train_start(self) -> None:
        """Fills the replay up to `warmup_frames`; a resumed run has it from beside its checkpoint."""
        self.go_on()
        with set_exploration_type(ExplorationType.RANDOM):
            while self.frames < self.warmup_frames or len(self.replay) < self.batch_size:
                self._play()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Plays, then updates."""
        with set_exploration_type(ExplorationType.RANDOM):
            self._play()
        updates = self.updates_per_step
        if self.trainer.max_steps > 0:
            updates = min(updates, self.trainer.max_steps - self.trainer.global_step)
        losses = [self._update() for _ in range(updates)]
        self.log("train/loss", torch.stack(losses).mean(), prog_bar=True)
        self.log_dict(
            {
                "train/epsilon": self.agent.exploration.epsilon,
                "train/utilization": self.meter.recent_score,
                "train/frames": float(self.frames),
            }
        )

    def _play(self) -> None:
        self.agent.anneal(self.frames)
        transitions, steps = self.rollout.collect(self.agent.acting, self.rollout_steps)
        self.frames += steps.numel()
        self.meter.count(steps["next"])
        if len(transitions):  # none yet, while fewer steps than a return needs have been played
            self.replay.extend(transitions)

    def _update(self) -> Tensor:
        batch = self.replay.sample()
        for part in (batch, batch["next"]):
            self.env.restore(part)
        batch["next", "reward"] = batch["next", "reward"] * self.reward_scale
        loss = self.agent.loss(batch)["loss"]
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        if self.max_grad_norm is not None:
            self.clip_gradients(optimizer, gradient_clip_val=self.max_grad_norm, gradient_clip_algorithm="norm")
        optimizer.step()
        scheduler: Any = self.lr_schedulers()
        if scheduler is not None:
            scheduler.step()
        self.agent.follow(self.trainer.global_step)
        if self.prioritized:  # TorchRL's update_tensordict_priority knows its own sampler only
            self.replay.update_priority(batch["index"], batch["td_error"])
        return loss.detach()
