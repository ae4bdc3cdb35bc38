"""Base of all runs: a LightningModule with an environment.

It plays, resumes exactly, runs in several processes and evaluates.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import NoReturn, cast

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.cli import LRSchedulerCallable
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from tensordict import TensorDictBase
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader
from torchrl.data import TensorDictReplayBuffer
from torchrl.envs import EnvBase

from torchrl_gpu.checkpoints.record import (
    check_fixed,
    check_replay_options,
    describe_changes,
    in_words,
    results_folder,
    run_record,
)
from torchrl_gpu.checkpoints.resume import CheckedRestore
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.evaluation.episodes import score_names
from torchrl_gpu.evaluation.suite import Suite
from torchrl_gpu.policies.generators import random_state, set_random_state
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.system.archives import ENTRY
from torchrl_gpu.system.arguments import number, shown, whole
from torchrl_gpu.system.sections import LOGGING, Clock, in_section, start_clock, stop_clock, summary
from torchrl_gpu.system.threads import keep_to_usable_cores
from torchrl_gpu.training.accelerated.choice import (
    GraphOption,
    against_graphed_steps,
    against_graphed_updates,
    takes_graphs,
)
from torchrl_gpu.training.collect.meter import EpisodeMeter
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.data.episodes import StepLoader, single_batch, suite_of
from torchrl_gpu.training.lightning_callbacks import (
    RunAveraging,
    adapt_callbacks,
    adapt_resumed,
    check_monitors,
    check_trainer,
    tell_idle_stopping,
)
from torchrl_gpu.training.replay.files import replay_state, restore_replay
from torchrl_gpu.training.run_resume import Resumed, RunResume, check_process_state
from torchrl_gpu.training.step_log import StepLog, on_host
from torchrl_gpu.training.trainer_fields import callbacks_of
from torchrl_gpu.training.updates.graphed import GraphedLearning
from torchrl_gpu.training.updates.optimizers import clip_gradients

# Training steps of an epoch without a data module.
STEPS_PER_EPOCH = 500

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")

# The golden ratio of 2**64, so that seeds of processes are far from those that a user tries.
_SEED_STEP = 0x9E3779B97F4A7C15
_MOST_FRAMES = 2**62

_LOG = logging.getLogger(__name__)


EnvFactory = Callable[[], BatchedEnv]
"""Makes the environment of a run.

It is called with `device`, once the process knows its own.
"""


class EnvRun(LightningModule):
    """A Lightning module that plays in an environment on its own device.

    `frames` counts steps of environments over all processes, so that all of them agree on what depends on it.

    The environment is made in `setup`, when the device is known, each process' with episodes of its own; `build` is
    called then, to make what depends on it. A subclass ends its constructor with `take_made_env`, makes `rollout` in
    `on_fit_start`, and plays by `collect` or `play`. Its `space`, if any, is saved: a policy then needs no environment.

    Args:
        env: Makes the environment, called with `device`: in a config the environment itself, in Python a function, a
            `functools.partial` or an environment, which is moved where it must be.
    """

    rollout: Rollout
    meter: EpisodeMeter

    run_config: Mapping[str, object] | None = None
    """The resolved configuration as plain data, where a command line made the module."""

    @property
    def kept_options(self) -> Sequence[str]:
        """Patterns of options of the module that a checkpoint decides.

        A resumed run tells of them as kept.
        """
        return ("optimizer*", "lr_scheduler*", "learning_rates*", "warm_start")

    plays_in_rollout = True
    """Whether steps are played in `rollout`, so that workers can play them."""

    exact_anywhere = False
    """Whether a run that ends within a training step goes on bit for bit.

    See `updates_now`.
    """

    num_envs_on_cuda: int | None = None
    """Environments of `num_envs: auto` on CUDA, where that is more than on a CPU; None for as many as there."""

    leaves_weights_out = False
    """Whether some updates leave some weights out, which DDP must be told."""

    def __init__(self, env: EnvFactory | BatchedEnv) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.frames = 0
        self.resume = RunResume()
        self.step_log = StepLog()
        # Called with every batch of an update.
        self.watch_batch: Callable[[TensorDictBase], None] | None = None
        self._clock: Clock | None = None
        # Updates that the last training step made, and was to make, where it did not make all.
        self._cut: tuple[int, int] | None = None
        # In sequences, so that an environment is no submodule: its state is saved with the rollout.
        self._given_env: tuple[BatchedEnv | Callable[..., BatchedEnv], ...] = (env,)
        self._made_env: list[BatchedEnv] = []
        if isinstance(env, EnvBase):
            self._check_env(env)

    def take_made_env(self) -> None:
        """Take an environment that was given made, so that `build` need not wait."""
        if isinstance(self._given_env[0], EnvBase):
            self.make_env(self._given_env[0].device)

    @property
    def env(self) -> BatchedEnv:
        """The environment that is trained in, once it is made."""
        if not self._made_env:
            raise RuntimeError(f"{type(self).__name__}.env is made in `setup`, when the device is known")
        return self._made_env[0]

    def set_num_envs(self, num_envs: int) -> None:
        """Set how many environments `make_env` makes, in place of their factory."""
        factory = cast("Callable[..., BatchedEnv]", self._given_env[0])
        self._given_env = (partial(factory, num_envs=num_envs),)

    def make_env(self, device: torch.device, rank: int = 0) -> None:
        """Make environment and networks on a device, unless they are there.

        Environments of a process are those from number `first_env + rank · num_envs` on.
        """
        if not self._made_env:
            env = self._given_env[0]
            if not isinstance(env, EnvBase):
                # Configs give a partial, whose device may be another one.
                asked = getattr(env, "keywords", {}).get("device", "auto")
                env = env(device=device) if str(asked) == "auto" else env()
            self._made_env = [self._check_env(env)]
            self._first_env = env.first_env
            self.build()
        if self.env.device != device:
            self._made_env = [self.env.like(self.env.num_envs, device=device)]
        if rank:
            self.env.renumber(self._first_env + rank * self.env.num_envs)

    def _check_env(self, env: object) -> BatchedEnv:
        if isinstance(env, BatchedEnv):
            return env
        kind = type(env)
        raise ValueError(
            f"{type(self).__name__}: env must be a torchrl_gpu.envs.BatchedEnv without transforms, whose resets stay on"
            f" the device; got {kind.__module__}.{kind.__qualname__}"
        )

    def build(self) -> None:
        """Make what depends on the environment, such as an agent.

        Its weights are loaded after that.
        """

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: object, *args: object, **kwargs: object) -> NoReturn:
        """Refuse: a checkpoint of a run has no arguments of its module."""
        raise ValueError(
            f"{cls.__name__}.load_from_checkpoint({checkpoint_path}): use torchrl_gpu.policies.load_policy(path) for"
            " the trained policy, or Trainer.fit(…, ckpt_path=path) to go on with the run"
        )

    # -- what a run is -----------------------------------------------------------------------------------------------

    @abstractmethod
    def policy_for(self, env: BatchedEnv) -> Policy:
        """The greedy policy in an environment, which writes `action`."""

    @property
    @abstractmethod
    def learner_name(self) -> str:
        """Display name of the learner in result tables."""

    @property
    def has_values(self) -> bool:
        """Whether the policy of `policy_for` has a value for each action."""
        return False

    @property
    def policy_name(self) -> str:
        """Display name of the policy in result tables."""
        return self.learner_name + ("" if self.trained else " (untrained)")

    @property
    def trained(self) -> bool:
        """Whether the weights are those of a run."""
        return self.frames > 0 or self.trainer.ckpt_path is not None

    def baselines(self, env: BatchedEnv) -> Mapping[str, Policy] | None:
        """Policies to compare with in an environment, by name, or None for the suite's."""
        return None

    @property
    def episodes(self) -> Tensor:
        """Number of episodes that have ended in training, int64 on the device."""
        return self.meter.finished

    @property
    def outcomes(self) -> Mapping[str, Tensor]:
        """Mean outcomes of recent episodes of training, by name, on the device.

        They are NaN before one has ended.
        """
        return self.meter.outcomes if hasattr(self, "meter") else {}

    # -- playing ----------------------------------------------------------------------------------------------------

    def configure_callbacks(self) -> list[Callback]:
        """No callbacks, but some of Lightning's are adapted, see `adapt_callbacks`."""
        if self.trainer.state.fn == "fit":
            check_trainer(type(self).__name__, self.trainer)
        adapt_callbacks(self.trainer)
        CheckedRestore.install(self.trainer)
        return []

    def setup(self, stage: str) -> None:
        self.check_precision()
        keep_to_usable_cores()
        fits = stage == "fit"
        self.make_env(self.trainer.strategy.root_device, self.global_rank if fits else 0)
        if fits and getattr(self.env, "skip_unplaceable", False):
            raise ValueError(
                f"{type(self).__name__}: skip_unplaceable=True of the environment is for evaluation; in training an"
                " episode ends where nothing is legal"
            )
        if not fits:
            return
        self.check_fit()
        strategy = self.trainer.strategy
        if self.leaves_weights_out and isinstance(strategy, DDPStrategy):
            # DDP would wait for gradients that never come.
            strategy._ddp_kwargs.setdefault("find_unused_parameters", True)
        if self.global_rank:
            # Lightning seeds all processes alike, so that they would draw the same noise and the same batches.
            seed = torch.initial_seed() + self.global_rank * _SEED_STEP
            torch.manual_seed(seed % 2**63)

    def check_fit(self) -> None:
        """ValueError where environment and options cannot be trained with.

        They may still be evaluated.
        """

    def check_precision(self) -> None:
        """ValueError where weights would not be in float32."""
        precision = self.trainer.precision
        if precision in PRECISIONS:
            return
        hint = ": bf16-mixed computes in bfloat16" if precision == "bf16-true" else ""
        raise ValueError(
            f"{type(self).__name__}: trainer.precision must be one of {', '.join(PRECISIONS)}, as observations and"
            f" rewards are float32, not {precision}{hint}"
        )

    def on_fit_start(self) -> None:
        self.step_log.begin()
        self.check_monitors()
        adapt_resumed(self.trainer)
        self._clock = self._cut = None
        self.meter = EpisodeMeter(self.env.device, self.env.outcome_names)

    def on_train_start(self) -> None:
        self.restore_run()

    def check_monitors(self) -> None:
        """ValueError where a callback's `monitor` cannot be logged.

        See `step_names` and `validation_names`.
        """
        # A run of the user's own may log more.
        is_own = type(self).__module__.startswith("torchrl_gpu.")
        check_monitors(self.trainer, self.validation_names(), self.step_names() if is_own else None)
        tell_idle_stopping(self.trainer)

    def may_log(self, name: str) -> bool:
        """Whether a value is known to be logged now and then.

        Not every validation need log it.
        """
        known = [f"val/{each}" for each in self.validation_names() or ()]
        known += [f"train/{each}" for each in self.step_names() or ()]
        return any(fnmatchcase(name, each) for each in known)

    def step_names(self) -> Sequence[str] | None:
        """Patterns of what training steps log behind "train/", if that is known."""
        return None

    def validation_names(self) -> Sequence[str] | None:
        """Patterns of what validation logs behind "val/", if that is known."""
        if type(self).validation_step is not EnvRun.validation_step:
            return None
        return score_names(self.env)

    def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
        if self._clock is None:
            self._clock = start_clock()

    def on_train_end(self) -> None:
        """Log the shares of the time, and take averaged weights, if any.

        The last checkpoint is saved by now.
        """
        if self._clock is not None:
            shares = summary(self._clock.read())
            rank_zero_info(f"{type(self).__name__}: {shares}")
            stop_clock()
        if self._cut is not None:
            made, wanted = self._cut
            before = self.trainer.global_step - made
            rank_zero_info(
                f"{type(self).__name__}: ended within a training step, after {made} of its {wanted} updates, so that a"
                " run that goes on from here is not bit for bit one that never ended here: trainer.max_steps"
                f" {before + wanted} would have ended with that step"
            )
        for callback in callbacks_of(self.trainer):
            if isinstance(callback, RunAveraging):
                callback.finish(self)

    def takes_graphed_steps(self, asked: GraphOption) -> bool:
        """Whether rollouts of this fit are CUDA graphs, by `cuda_graphs`.

        See `takes_graphs`.
        """
        against = against_graphed_steps(self.env.reads_host, callbacks_of(self.trainer))
        return takes_graphs(type(self).__name__, "cuda_graphs", asked, self.env.device, against)

    def takes_graphed_updates(self, asked: GraphOption) -> bool:
        """Whether updates of this fit are CUDA graphs, by `graph_updates`.

        See `takes_graphs`.
        """
        trainer = self.trainer
        precision = str(trainer.precision)
        against = against_graphed_updates(
            precision, self.scales_gradients, trainer.world_size, callbacks_of(trainer), self.parameters()
        )
        return takes_graphs(type(self).__name__, "graph_updates", asked, self.device, against)

    @property
    def scales_gradients(self) -> bool:
        """Whether gradients are scaled, as they are in float16."""
        return getattr(self.trainer.precision_plugin, "scaler", None) is not None

    def collect(self, policy: Policy, steps: int) -> TensorDictBase:
        """Play on and count.

        Returns:
            Transitions (B,), none while fewer steps than a return needs have been played.
        """
        return self._counted(self.rollout.collect, policy, steps)

    def play(self, policy: Policy, steps: int) -> TensorDictBase:
        """Play on and count.

        Returns:
            The steps (N, T) of every trajectory, in order.
        """
        return self._counted(self.rollout.play, policy, steps)

    def _counted(
        self, play: Callable[[Policy, int], tuple[TensorDictBase, TensorDictBase]], policy: Policy, steps: int
    ) -> TensorDictBase:
        """Play on by one of the rollout's methods, and count frames and episodes."""
        self.rollout.set_frames(self.frames)
        learned_from, played = play(policy, steps)
        self.frames += played.numel() * self.trainer.world_size
        after = played["next"]
        outcomes = self.env.episode_outcomes(after)
        self.meter.count({"done": after["done"], **outcomes})
        return learned_from

    def note_batch(self, batch: TensorDictBase) -> None:
        """Pass a batch that an update learns from to `watch_batch`."""
        if self.watch_batch is not None:
            self.watch_batch(batch)

    @property
    def updates_left(self) -> float:
        """Updates before `trainer.max_steps`, infinitely many where that is not set."""
        most = self.trainer.max_steps
        return most - self.trainer.global_step if most > 0 else math.inf

    def learn_in_graph(
        self, learning: GraphedLearning | None, data: TensorDictBase, updates: int
    ) -> list[dict[str, Tensor]] | None:
        """Losses of all updates of a training step, made by one function.

        None where that makes no graph, or fewer updates are left.
        """
        if learning is None or not learning.is_open or self.updates_left < updates:
            return None
        losses = learning(data)
        self.count_updates(updates)
        return losses

    def updates_now(self, most: int) -> int:
        """Updates of this training step, never beyond `trainer.max_steps`."""
        left = self.updates_left
        if left >= most:
            return most
        left = int(left)
        self._cut = None if self.exact_anywhere else (left, most)
        return left

    def scheduled(self, optimizer: Optimizer, make: LRSchedulerCallable | None) -> OptimizerLRScheduler:
        """An optimizer and its schedule, as `configure_optimizers` returns them.

        The schedule is stepped at every update.
        """
        where = type(self).__name__
        for group in optimizer.param_groups:
            number(where, "learning rate", group["lr"], 0)
        if make is None:
            return optimizer
        try:
            schedule = make(optimizer)
        # Torch looks for the rates that an earlier schedule has left.
        except KeyError as error:
            raise ValueError(f"{where}: last_epoch of the lr_scheduler must be -1, as it begins here") from error
        # Torch takes 0 for these, and divides by it at a later step.
        for name in ("total_iters", "step_size", "T_max", "T_0"):
            whole(where, f"lr_scheduler.{name}", getattr(schedule, name, 1), 1)
        if isinstance(schedule, ReduceLROnPlateau):
            name = type(schedule).__name__
            raise ValueError(f"{where}: lr_scheduler must be one that is stepped at every update, not {name}")
        return [optimizer], [schedule]

    @property
    def torch_optimizer(self) -> Optimizer:
        """The optimizer itself, whose steps Lightning does not count."""
        return cast("Optimizer", self.optimizers(use_pl_optimizer=False))

    @property
    def lightning_optimizer(self) -> LightningOptimizer:
        """The optimizer in Lightning's wrapper, whose steps count as updates."""
        return cast("LightningOptimizer", self.optimizers())

    @property
    def rate_schedule(self) -> LRScheduler | None:
        """The schedule of learning rates, if any.

        It is stepped at every update.
        """
        return cast("LRScheduler | None", self.lr_schedulers())

    def descend(self, loss: Tensor, clipped: Iterable[Iterable[Tensor]], max_grad_norm: float | None) -> None:
        """Step the optimizer down a loss, a scalar.

        The gradients of each lot of `clipped` weights are clipped together to `max_grad_norm`, whether or not they are
        scaled. None leaves them.
        """
        optimizer = self.lightning_optimizer
        optimizer.zero_grad()
        self.manual_backward(loss)
        if max_grad_norm is not None:
            scaler = getattr(self.trainer.precision_plugin, "scaler", None)
            for weights in clipped:
                clip_gradients(weights, max_grad_norm, scaler)
        optimizer.step()

    def step_schedule(self) -> None:
        """Step the learning rate schedule, if any."""
        schedule = self.rate_schedule
        if schedule is not None:
            schedule.step()

    # Lightning counts the steps of its own wrapper of the optimizer. A graph steps the optimizer itself, and
    # `global_step` would stand still, with all that goes by it: checkpoints, schedules, `max_steps`.
    def count_updates(self, number: int) -> None:
        """Add updates that Lightning has not made itself to `global_step`."""
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        for _ in range(number):
            progress.increment_ready()
            progress.increment_completed()

    @staticmethod
    def total(values: Tensor) -> Tensor:
        """Sum a tensor over all processes, in its place."""
        torch.distributed.all_reduce(values)
        return values

    def any_process(self, yes: bool) -> bool:
        """Logical or over all processes, which must ask at the same step."""
        if self.trainer.world_size == 1:
            return yes
        return self.trainer.strategy.reduce_boolean_decision(yes, all=False)

    # -- logging ----------------------------------------------------------------------------------------------------

    @property
    def logs_this_step(self) -> bool:
        """Whether values of this training step are wanted, see `StepLog.is_due`."""
        return self.step_log.is_due(self.trainer)

    @in_section(LOGGING)
    def log_step(self, values: Mapping[str, Tensor | float]) -> None:
        """Log values of this training step as `train/…`, see `StepLog.read`."""
        logged = self.step_log.read(self.trainer, values, self.outcomes)
        for name, value, on_bar in logged:
            self.log(f"train/{name}", value, prog_bar=on_bar)

    # -- where no data module is given -------------------------------------------------------------------------------

    def train_dataloader(self) -> StepLoader:
        return StepLoader(STEPS_PER_EPOCH)

    def test_dataloader(self) -> DataLoader[object]:
        return single_batch(suite_of(self))

    def predict_dataloader(self) -> DataLoader[object]:
        return single_batch(suite_of(self, "predict"))

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def rank_state(self) -> dict[str, object]:
        """State of this process for an exact resume, but weights and optimizer."""
        return {
            "frames": self.frames,
            "rollout": self.rollout.state_dict(),
            "meter": self.meter.state_dict(),
            "random": random_state(self.env.device),
        }

    def part_state(self, rank: int, replay: bool) -> dict[str, object] | None:
        """State that a process adds to a checkpoint in a file of its own, if any."""
        return self.rank_state() if rank else None

    def on_save_checkpoint(self, checkpoint: dict[str, object]) -> None:
        checkpoint["frames"] = self.frames
        checkpoint[ENTRY] = run_record(self.run_config, self)
        # A module that has only been evaluated plays in none.
        if hasattr(self, "rollout"):
            checkpoint |= self.rank_state()
        space = getattr(self, "space", None)
        if space is not None:
            checkpoint["agent_space"] = space.to_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, object]) -> None:
        self.frames = whole("checkpoint", "frames", checkpoint.get("frames", 0), 0, _MOST_FRAMES)
        # Environment and replay are made later, so that their states wait until then.
        self.resume.checkpoint = checkpoint

    @property
    def process_name(self) -> str:
        """Name of this process in messages."""
        name = type(self).__name__
        return f"{name}, process {self.global_rank}" if self.global_rank else name

    def restore_run(self) -> None:
        """Restore this process, if the run goes on from a checkpoint.

        Options that have changed are logged.

        Raises:
            ValueError: A part of the checkpoint belongs to another one, or is not as it was written.
        """
        resumed = self.resume.take(self.trainer, self.run_config)
        if resumed is None:
            return
        name = type(self).__name__
        processes = self.trainer.world_size
        if resumed.saved_by != processes:
            rank_zero_info(
                f"{name}: saved by {resumed.saved_by} and going on on {processes} processes:"
                f" {self.begins_anew(resumed.saved_by, processes)}, and an update learns from"
                f" {processes / resumed.saved_by:g} times the rows"
            )
        if "rollout" in resumed.content:
            self._restore_play(resumed)
        for line in describe_changes(resumed.changed, self.kept_options):
            rank_zero_info(f"{name}: {resumed.path} {line}")

    def _restore_play(self, resumed: Resumed) -> None:
        """Restore environments, random numbers and replay.

        Raises:
            ValueError: They are not those of this run.
        """
        check_fixed(resumed.changed, resumed.where)
        # The replay comes first: where it is of other returns, the run must not begin.
        part = resumed.part(self.global_rank)
        self.restore_part(part, resumed.path)
        state = part if self.global_rank else resumed.content
        if state is not None and "rollout" in state:
            self._restore_process(state, resumed)
        elif resumed.saved_by == self.trainer.world_size:
            # With another number of processes, one line has told it of all of them.
            _LOG.warning(
                "%s: %s holds no state of this process: its environments begin anew", self.process_name, resumed.path
            )

    def _restore_process(self, state: Mapping[str, object], resumed: Resumed) -> None:
        where = resumed.where
        saved = check_process_state(state, where)
        self.frames = whole(where, "frames", state.get("frames"), 0, _MOST_FRAMES)
        try:
            self.rollout.load_state_dict(saved.rollout)
            self.meter.load_state_dict(saved.meter)
        except ValueError as error:
            others = {name: pair for name, pair in resumed.changed.items() if name.startswith("model.env.")}
            more = f"; its environment had other options: {in_words(others)}" if others else ""
            raise ValueError(f"{where}: {error}{more}") from error
        set_random_state(saved.random, self.env.device)
        before = "cuda" if "cuda" in saved.random else "cpu"
        now = self.env.device.type
        if before != now:
            rank_zero_info(
                f"{self.process_name}: {where} was saved on {before} and goes on on {now}: what is drawn at random"
                " there begins anew, all else goes on"
            )

    def begins_anew(self, saved: int, now: int) -> str:
        """Message about processes that are new since the run was saved, or are gone."""
        own = f"environments, random numbers and replay, if any, of processes from {min(saved, now)} on"
        return f"{own} begin anew" if now > saved else f"{own} are left out"

    def restore_part(self, part: Mapping[str, object] | None, path: Path) -> None:
        """Restore a subclass's state from this process' part of a checkpoint, if any."""

    # -- evaluation -------------------------------------------------------------------------------------------------

    @in_section("validation")
    def validation_step(self, suite: Suite, batch_idx: int) -> None:
        scores = suite.play(self.policy_for(suite.env)).scores()
        if self.trainer.state.fn == "validate":
            suite.show(self.policy_name, scores)
        for name, score in scores.items():
            is_headline = name == suite.headline
            self.log(f"val/{name}", on_host(score), prog_bar=is_headline, batch_size=1)

    def test_step(self, suite: Suite, batch_idx: int) -> None:
        if self.trainer.is_global_zero:
            for name, score in self.compare(suite).items():
                self.log(f"test/{name}", on_host(score), batch_size=1)

    def compare(self, suite: Suite) -> dict[str, float]:
        """Make the suite's table of the policy and its baselines.

        Returns:
            The policy's scores by name.
        """
        folder, tested = results_folder(self, self.resume.checkpoint)
        policy = self.policy_for(suite.env)
        others = self.baselines(suite.env)
        scores: dict[str, float] = suite.compare(policy, folder, self.policy_name, others, tested)
        return scores

    def predict_step(self, suite: Suite, batch_idx: int) -> object:
        if not self.trainer.is_global_zero:
            return None
        folder, _ = results_folder(self, self.resume.checkpoint)
        return suite.plan(self.policy_for(suite.env), folder)


class ReplayRun(EnvRun):
    """An `EnvRun` that learns from a replay, which a subclass makes in `on_fit_start`.

    `warmup_frames` are played, over all environments, before the first update.
    """

    replay: TensorDictReplayBuffer

    def __init__(self, env: EnvFactory | BatchedEnv, warmup_frames: int) -> None:
        super().__init__(env)
        self.warmup_frames = whole(type(self).__name__, "warmup_frames", warmup_frames, 0)
        # Frames of a checkpoint whose replay is lost.
        self._refilled_from = 0

    @property
    def kept_options(self) -> Sequence[str]:
        """Also `warmup_frames`, once the warm-up is over: changing it has no effect then."""
        is_warm = self.frames >= max(1, self.warmup_frames)
        if not is_warm or self._refilled_from:
            return super().kept_options
        return (*super().kept_options, "warmup_frames")

    def on_fit_start(self) -> None:
        super().on_fit_start()
        self._refilled_from = 0

    def check_replay(self, replay: TensorDictReplayBuffer, needed: int) -> None:
        """ValueError unless a replay can hold a batch, and what is played between updates.

        These are `needed` transitions.
        """
        capacity = replay.storage.max_size
        if capacity < needed:
            where = type(self).__name__
            raise ValueError(f"{where}: replay must hold a batch and a rollout, {needed} transitions; got {capacity}")

    def fill(self, play: Callable[[], None], batch_size: int) -> None:
        """Play until every process has enough for the first update.

        All of them then agree on `frames`. A resumed run has its replay from beside its checkpoint.
        """
        self.restore_run()
        needed = self._refilled_from + self.warmup_frames
        savers = [each for each in callbacks_of(self.trainer) if hasattr(each, "end_if_asked")]
        # All go on until the last one has enough. Whoever stopped before would wait in the first update for the others,
        # and would have played less.
        while self.any_process(self.frames < needed or len(self.replay) < batch_size):
            for saver in savers:
                saver.end_if_asked(self.trainer)
            play()

    def part_state(self, rank: int, replay: bool) -> dict[str, object] | None:
        state = super().part_state(rank, replay) or {}
        if replay:
            state |= {"replay": replay_state(self.replay), "returns": self._returns()}
        return state or None

    def _returns(self) -> dict[str, float]:
        return {"n_steps": self.rollout.n_steps, "gamma": float(self.rollout.gamma)}

    def restore_part(self, part: Mapping[str, object] | None, path: Path) -> None:
        """Take the replay, or fill it again before updates go on.

        Raises:
            ValueError: The replay is of another environment, or of other returns, than this run learns from.
        """
        if part is None or "replay" not in part:
            self._refilled_from = self.frames
            rank_zero_info(f"{self.process_name}: no replay beside {path}: it is filled again before updates go on")
            return
        check_replay_options(self.resume.changed, f"checkpoint {path}")
        returns = part.get("returns", self._returns())
        if returns != self._returns():
            raise ValueError(
                f"checkpoint {path}: its replay holds other returns, {shown(returns)}, than those of now,"
                f" {self._returns()}: go on with the former, or delete the .rank0.pt beside it and name the file in"
                " --ckpt_path, so that replay is filled again"
            )
        entries = self.rollout.transition_entries()
        restore_replay(self.replay, part["replay"], f"replay of {path}", entries)


def check_counts(where: str, **counts: int) -> None:
    """ValueError unless every count is a whole number, at least 1."""
    for name, count in counts.items():
        whole(where, name, count, 1)
