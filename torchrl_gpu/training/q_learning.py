"""Q-learning as a Lightning module: rollouts and updates take turns inside a training step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, set_exploration_type

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.agents.dqn import DQN
from torchrl_gpu.training.episodes import EpisodeMeter
from torchrl_gpu.training.replay import load_replay, replay_buffer, replay_file, save_replay
from torchrl_gpu.training.rollout import Rollout

AgentFactory = Callable[[EnvBase], DQN]


class QLearning(LightningModule):
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
        super().__init__()
        counts = {
            "rollout_steps": rollout_steps,
            "updates_per_step": updates_per_step,
            "batch_size": batch_size,
            "replay_size": replay_size,
        }
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"QLearning: {name} must be at least 1; got {count}")
        needed = max(batch_size, env.num_envs * rollout_steps)
        if replay_size < needed:
            raise ValueError(
                f"QLearning: replay_size must hold a batch and a rollout, {needed} transitions; got {replay_size}"
            )
        self.automatic_optimization = False
        self.__dict__["env"] = env  # not a submodule: its state is saved with the rollout, and only for training
        self.agent = agent(env)
        self.make_optimizer, self.make_scheduler = optimizer, lr_scheduler
        self.rollout_steps, self.updates_per_step, self.batch_size = rollout_steps, updates_per_step, batch_size
        self.replay_size, self.warmup_frames, self.prioritized = replay_size, warmup_frames, prioritized
        self.priority_alpha, self.priority_beta = priority_alpha, priority_beta
        self.reward_scale, self.max_grad_norm, self.cuda_graphs = reward_scale, max_grad_norm, cuda_graphs
        self.frames = 0
        self._resumed: dict[str, Any] | None = None

    @property
    def env(self) -> BatchedEnv:
        """The environment that is trained in."""
        return self.__dict__["env"]

    @property
    def policy_name(self) -> str:
        """What tables call the policy."""
        trained = self.frames > 0 or self.trainer.ckpt_path is not None
        return type(self.agent).__name__ + ("" if trained else " (untrained)")

    @property
    def policy(self) -> nn.Module:
        """The greedy policy: writes `action`."""
        return self.agent.policy

    def configure_optimizers(self) -> Any:
        """Optimizer and schedule of the online weights."""
        optimizer = self.make_optimizer(self.agent.parameters_to_train)
        if self.make_scheduler is None:
            return optimizer
        return [optimizer], [self.make_scheduler(optimizer)]

    # -- fit --------------------------------------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Moves the environment to the device that the Trainer chose, each rank to episodes of its own."""
        device, first = self.trainer.strategy.root_device, self.global_rank * self.env.num_envs
        if self.env.device != device or (first and stage == "fit"):
            self.__dict__["env"] = self.env.like(self.env.num_envs, device=device, first_env=first)

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
        if self._resumed is not None:
            self._resume(self._resumed)
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

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds all that the run needs to go on as if it had never stopped, but the replay: see `save_replay`."""
        checkpoint["frames"] = self.frames
        if hasattr(self, "rollout"):
            checkpoint["rollout"] = self.rollout.state_dict()
            checkpoint["meter"] = self.meter.state_dict()
            checkpoint["random"] = random_state(self.env.device)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps what `on_train_start` will go on with."""
        self.frames = checkpoint.get("frames", 0)
        self._resumed = checkpoint if "rollout" in checkpoint else None

    def save_replay(self, checkpoint: Path) -> None:
        """Writes the replay beside a checkpoint, as `replay_file(checkpoint)`."""
        save_replay(self.replay, checkpoint)

    def _resume(self, checkpoint: dict[str, Any]) -> None:
        self.rollout.load_state_dict(checkpoint["rollout"])
        self.meter.load_state_dict(checkpoint["meter"])
        path = Path(str(self.trainer.ckpt_path))
        if not load_replay(self.replay, path):
            self.warmup_frames += self.frames
            rank_zero_info(f"QLearning: no replay at {replay_file(path)}: it is filled again before updates go on")
        set_random_state(checkpoint["random"], self.env.device)
        self._resumed = None

    # -- evaluation -------------------------------------------------------------------------------------------------

    def validation_step(self, suite: Any, batch_idx: int) -> None:
        """Plays the suite's episodes greedily and logs its scores."""
        scores = suite.play(self.policy).scores()
        if self.trainer.state.fn == "validate":
            suite.show(self.policy_name, scores)
        self.log("val/utilization", scores.pop("utilization"), prog_bar=True, batch_size=1)
        self.log_dict({f"val/{k}": v for k, v in scores.items()}, batch_size=1)

    def test_step(self, suite: Any, batch_idx: int) -> None:
        """Plays policy and baselines on the same episodes; the suite prints and writes the table."""
        scores = suite.compare(self.policy, Path(self.trainer.default_root_dir), self.policy_name)
        self.log_dict({f"test/{k}": v for k, v in scores.items()}, batch_size=1)

    def predict_step(self, suite: Any, batch_idx: int) -> Any:
        """Plans of every episode; the suite writes them."""
        return suite.plan(self.policy, Path(self.trainer.default_root_dir))


def random_state(device: torch.device) -> dict[str, Tensor]:
    """State of torch's global generators."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Takes what `random_state` gave."""
    torch.set_rng_state(state["cpu"].cpu())
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
