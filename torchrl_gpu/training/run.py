"""What every module that trains from replay shares: its environment, exact resume, evaluation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from torchrl.data import TensorDictReplayBuffer
from torchrl.envs import EnvBase

from torchrl_gpu.arguments import shown, whole
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.generators import random_state, set_random_state
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.training.checkpoint_files import read_entry, read_part
from torchrl_gpu.training.episodes import EpisodeMeter
from torchrl_gpu.training.loaders import StepLoader as Ticks
from torchrl_gpu.training.replay import replay_state, restore_replay
from torchrl_gpu.training.rollout import Rollout

STEPS_PER_EPOCH = 500  # where nobody says


class ReplayRun(LightningModule):
    """A Lightning module that plays in an environment and learns from a replay, all on one device.

    A subclass makes `rollout`, `replay` and `meter` in `on_fit_start`, calls `go_on` in `on_train_start`, and counts
    `frames` as it plays.

    Args:
        env: The environment.
        warmup_frames: Frames, over all environments, played before the first update.
    """

    rollout: Rollout
    replay: TensorDictReplayBuffer
    meter: EpisodeMeter

    def __init__(self, env: BatchedEnv, warmup_frames: int) -> None:
        super().__init__()
        if not isinstance(env, BatchedEnv):
            raise ValueError(
                f"{type(self).__name__}: env must be a torchrl_gpu.envs.BatchedEnv, whose resets stay on the device;"
                f" got {type(env).__module__}.{type(env).__qualname__}"
            )
        self.automatic_optimization = False
        self.__dict__["env"] = env  # not a submodule: its state is saved with the rollout, and only for training
        self.warmup_frames = warmup_frames
        self.frames = 0
        self._resumed: dict[str, Any] | None = None

    @property
    def env(self) -> BatchedEnv:
        """The environment that is trained in."""
        return self.__dict__["env"]

    @abstractmethod
    def policy_for(self, env: EnvBase) -> Policy:
        """The greedy policy in an environment: writes `action`."""

    @property
    @abstractmethod
    def learner_name(self) -> str:
        """What learns, in tables."""

    @property
    def has_values(self) -> bool:
        """Whether `policy_for` gives a policy that says what it expects of each action."""
        return False

    @property
    def policy_name(self) -> str:
        """What tables call the policy."""
        return self.learner_name + ("" if self.trained else " (untrained)")

    @property
    def trained(self) -> bool:
        """Whether the weights are those of a run."""
        return self.frames > 0 or self.trainer.ckpt_path is not None

    def contestants(self, env: EnvBase) -> Mapping[str, Policy] | None:
        """What the policy is compared with in an environment, by name; None stands for every baseline."""
        return None

    def setup(self, stage: str) -> None:
        """Moves the environment to the device that the Trainer chose, each rank to episodes of its own.

        Raises:
            ValueError: It would train in states in which nothing is legal.
        """
        if stage == "fit" and getattr(self.env, "skip_unplaceable", False):
            raise ValueError(
                f"{type(self).__name__}: want an environment whose episodes end where nothing is legal; got"
                " skip_unplaceable=True, which is for evaluation"
            )
        device, first = self.trainer.strategy.root_device, self.global_rank * self.env.num_envs
        if self.env.device != device or (first and stage == "fit"):
            self.__dict__["env"] = self.env.like(self.env.num_envs, device=device, first_env=first)
        if stage == "fit" and self.global_rank:
            torch.manual_seed(fold_rank(torch.initial_seed(), self.global_rank))

    def train_dataloader(self) -> Ticks:
        """Where no data module is given: training steps, until `trainer.max_steps` ends the run."""
        return Ticks(STEPS_PER_EPOCH)

    # -- checkpoints ------------------------------------------------------------------------------------------------

    run_config: dict[str, Any] | None = None
    """The resolved configuration as plain data, where the command line made this module."""

    def rank_state(self) -> dict[str, Any]:
        """All that this process needs to go on as if it had never stopped, but weights, optimizer and replay."""
        return {
            "frames": self.frames,
            "rollout": self.rollout.state_dict(),
            "meter": self.meter.state_dict(),
            "random": random_state(self.env.device),
        }

    def part_state(self, rank: int, replay: bool) -> dict[str, Any] | None:
        """What a process adds to a checkpoint in a file of its own; None if nothing.

        Args:
            rank: Of the process; the state of the first one is in the checkpoint itself.
            replay: Whether its replay is saved.
        """
        state = self.rank_state() if rank else {}
        if replay:
            state["replay"] = replay_state(self.replay)
        return state or None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what the first process needs to go on; see `part_state` for the others and for the replay."""
        checkpoint["frames"] = self.frames
        if hasattr(self, "rollout"):
            checkpoint |= self.rank_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps what `go_on` will go on with."""
        self.frames = whole("checkpoint", "frames", checkpoint.get("frames", 0), 0, 2**62)
        self._resumed = checkpoint if "rollout" in checkpoint else None

    def go_on(self) -> None:
        """Takes what the checkpoint held, where there is one; a missing replay is filled again.

        Raises:
            ValueError: A part of the checkpoint belongs to another one, or is no such thing.
        """
        if self._resumed is None:
            return
        checkpoint, path, rank = self._resumed, Path(str(self.trainer.ckpt_path)), self.global_rank
        self._resumed = None
        entry = read_entry(checkpoint, f"checkpoint {path}")
        part = None if entry is None else read_part(path, entry, rank)
        state = checkpoint if rank == 0 else part
        name = f"{type(self).__name__}, process {rank}" if rank else type(self).__name__
        if state is not None and "rollout" in state:
            self._take_rank_state(state, f"checkpoint {path}")
        else:
            rank_zero_info(f"{name}: {path} holds no state of this process: its environments begin anew")
        if part is not None and "replay" in part:
            restore_replay(self.replay, part["replay"], f"replay of {path}", self.rollout.transition_entries())
        else:
            self.warmup_frames += self.frames
            rank_zero_info(f"{name}: no replay beside {path}: it is filled again before updates go on")

    def _take_rank_state(self, state: Mapping[str, Any], where: str) -> None:
        """Takes what `rank_state` gave, looked at before it is trusted."""
        for name in ("meter", "random"):
            if not isinstance(state.get(name), Mapping):
                raise ValueError(f"{where}: want a mapping named {name}; got {shown(state.get(name))}")
        self.frames = whole(where, "frames", state.get("frames"), 0, 2**62)
        try:
            self.rollout.load_state_dict(state["rollout"])
            self.meter.load_state_dict(state["meter"])
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        set_random_state(state["random"], self.env.device)

    # -- evaluation -------------------------------------------------------------------------------------------------

    def validation_step(self, suite: Any, batch_idx: int) -> None:
        """Plays the suite's episodes greedily and logs its scores."""
        scores = suite.play(self.policy_for(suite.env)).scores()
        if self.trainer.state.fn == "validate":
            suite.show(self.policy_name, scores)
        headline: str = suite.headline
        self.log(f"val/{headline}", scores.pop(headline), prog_bar=True, batch_size=1)
        self.log_dict({f"val/{k}": v for k, v in scores.items()}, batch_size=1)

    def test_step(self, suite: Any, batch_idx: int) -> None:
        """Plays policy and baselines on the same episodes; the suite prints and writes the table."""
        self.log_dict({f"test/{k}": v for k, v in self.compare(suite).items()}, batch_size=1)

    def compare(self, suite: Any) -> dict[str, float]:
        """The suite's table of the policy and what it is compared with; the policy's scores by name."""
        folder, others = Path(self.trainer.default_root_dir), self.contestants(suite.env)
        scores: dict[str, float] = suite.compare(self.policy_for(suite.env), folder, self.policy_name, others)
        return scores

    def predict_step(self, suite: Any, batch_idx: int) -> Any:
        """Plans of every episode; the suite writes them."""
        return suite.plan(self.policy_for(suite.env), Path(self.trainer.default_root_dir))


def check_counts(where: str, **counts: int) -> None:
    """ValueError unless every count is at least 1."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{where}: {name} must be at least 1; got {count}")


def fold_rank(seed: int, rank: int) -> int:
    """A seed of its own for each process of a run, from the one that all of them were given."""
    return (seed + rank * 0x9E3779B97F4A7C15) % 2**63  # the golden ratio: far from the seeds that a user tries
