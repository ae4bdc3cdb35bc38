"""What every module that trains in an environment shares: environment, frames, exact resume, ranks, evaluation."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.cli import LRSchedulerCallable
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import rank_zero_info
from tensordict import TensorDictBase
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torchrl.data import TensorDictReplayBuffer
from torchrl.envs import EnvBase

from torchrl_gpu.archives import ENTRY, read_archive
from torchrl_gpu.arguments import number, shown, whole
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.evaluation.episodes import score_names
from torchrl_gpu.policies.generators import random_state, set_random_state
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.sections import LOGGING, Clock, in_section, section, start_clock, stop_clock, summary
from torchrl_gpu.training.averaging import RunAveraging
from torchrl_gpu.training.checkpoint_files import read_entry, read_part
from torchrl_gpu.training.collect.episodes import EpisodeMeter
from torchrl_gpu.training.collect.rollout import Rollout
from torchrl_gpu.training.data import suite_of
from torchrl_gpu.training.lightning_callbacks import adapt_callbacks, adapt_resumed, check_monitors, check_trainer
from torchrl_gpu.training.loaders import StepLoader, single_batch
from torchrl_gpu.training.loop_counts import go_on
from torchrl_gpu.training.replay.files import replay_state, restore_replay
from torchrl_gpu.training.results_folder import results_folder
from torchrl_gpu.training.resumed_options import changed_options, check_replay_options, news
from torchrl_gpu.training.run_record import run_record
from torchrl_gpu.training.updates.clipping import clip_gradients

_LOG = logging.getLogger(__name__)

STEPS_PER_EPOCH = 500  # where nobody says
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")

EnvFactory = Callable[[], BatchedEnv]
"""Makes the environment of a run; called with `device`, once the process knows its own."""


class EnvRun(LightningModule):
    """A Lightning module that plays in an environment on its own device, and resumes where it was saved.

    `frames` counts steps of environments over all processes, so that all of them agree on what depends on it.

    The environment is made in `setup`, when the device is known, each process' with episodes of its own; `build` is
    called then, to make what depends on it. A subclass ends its constructor with `take_made_env`, makes `rollout` in
    `on_fit_start`, calls `restore_run` in `on_train_start`, and plays by `collect` or `play`.

    Args:
        env: Makes the environment, called with `device`: in a config the environment itself, in Python a function, a
            `functools.partial` or an environment, which is moved where it must be.
    """

    rollout: Rollout
    meter: EpisodeMeter

    recent_batches: deque[TensorDictBase] | None = None
    """What the last updates learned from, where a callback wants to know; see `callbacks.Divergence`."""

    _changed: Mapping[str, tuple[Any, Any]] = {}
    run_config: dict[str, Any] | None = None
    """The resolved configuration as plain data, where the command line made this module."""

    _clock: Clock | None = None
    leaves_weights_out = False
    """Whether there are updates in which some weights have no part, which DDP must be told."""

    def __init__(self, env: EnvFactory | BatchedEnv) -> None:
        super().__init__()
        if isinstance(env, EnvBase) and not isinstance(env, BatchedEnv):
            raise ValueError(self._refused(env))
        self.automatic_optimization = False
        self.frames = 0
        self._has_logged = False
        self._resumed: dict[str, Any] | None = None
        self.__dict__["_env_factory"] = env
        self.__dict__["_env"] = None  # not a submodule: its state is saved with the rollout, and only for training

    def take_made_env(self) -> None:
        """Takes an environment that was given made, and not as a factory, so that `build` need not wait."""
        if isinstance(self._env_factory, EnvBase):
            self._take_env(self._env_factory)

    @property
    def env(self) -> BatchedEnv:
        """The environment that is trained in, once it is made."""
        if self.__dict__["_env"] is None:
            raise RuntimeError(f"{type(self).__name__}.env: it is made in `setup`, when the device is known")
        return self.__dict__["_env"]

    def _take_env(self, env: EnvBase) -> None:
        if not isinstance(env, BatchedEnv):
            raise ValueError(self._refused(env))
        self.__dict__["_env"], self.__dict__["_first_env"] = env, env.first_env
        self.build()

    def _refused(self, env: Any) -> str:
        return (
            f"{type(self).__name__}: env must be a torchrl_gpu.envs.BatchedEnv without transforms, whose resets stay on"
            f" the device; got {type(env).__module__}.{type(env).__qualname__}"
        )

    def make_env(self, device: torch.device, rank: int = 0) -> None:
        """Makes environment and networks on a device, unless they are there.

        Args:
            device: Of the process.
            rank: Of the process: its environments are those from number `first_env + rank · num_envs` on.
        """
        if self.__dict__["_env"] is None:
            make: Any = self._env_factory
            asked = getattr(make, "keywords", {}).get("device", "auto")  # of a partial, as configs give it
            self._take_env(make(device=device) if str(asked) == "auto" else make())
        if self.env.device != device:
            self.__dict__["_env"] = self.env.like(self.env.num_envs, device=device)
        if rank:
            self.env.renumber(self.__dict__["_first_env"] + rank * self.env.num_envs)

    def build(self) -> None:
        """Makes what depends on the environment, such as an agent; its weights are loaded after that."""

    # -- what is told of a run --------------------------------------------------------------------------------------

    @abstractmethod
    def policy_for(self, env: BatchedEnv) -> Policy:
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

    def baselines(self, env: BatchedEnv) -> Mapping[str, Policy] | None:
        """What the policy is compared with in an environment, by name; None stands for the suite's own."""
        return None

    @property
    def episodes(self) -> Tensor:
        """How many episodes have ended in training, int64 on the device."""
        return self.meter.finished

    @property
    def outcomes(self) -> Mapping[str, Tensor]:
        """What recent episodes of training came to, by name, on the device; NaN before one has ended."""
        return self.meter.outcomes if hasattr(self, "meter") else {}

    # -- playing ----------------------------------------------------------------------------------------------------

    def configure_callbacks(self) -> list[Callback]:
        """None of its own; some of Lightning's are made to fit, see `adapt_callbacks`.

        Raises:
            ValueError: The Trainer has something that cannot work with this module.
        """
        if self.trainer.state.fn == "fit":
            check_trainer(type(self).__name__, self.trainer)
        adapt_callbacks(self.trainer)
        return []

    def setup(self, stage: str) -> None:
        """Makes the environment on the device that the Trainer chose, each process' with episodes of its own.

        Raises:
            ValueError: It would train in states in which nothing is legal; or weights would not be in float32.
        """
        if (precision := self.trainer.precision) not in PRECISIONS:
            raise ValueError(
                f"{type(self).__name__}: want trainer.precision {', '.join(PRECISIONS)}, as observations and rewards"
                f" are float32, which weights of another type cannot take; got {precision}"
                + (": bf16-mixed computes in bfloat16" if precision == "bf16-true" else "")
            )
        fits = stage == "fit"
        self.make_env(self.trainer.strategy.root_device, self.global_rank if fits else 0)
        if fits and getattr(self.env, "skip_unplaceable", False):
            raise ValueError(
                f"{type(self).__name__}: want an environment whose episodes end where nothing is legal; got"
                " skip_unplaceable=True, which is for evaluation"
            )
        if fits and self.leaves_weights_out and isinstance(strategy := self.trainer.strategy, DDPStrategy):
            strategy._ddp_kwargs.setdefault("find_unused_parameters", True)
        if fits and self.global_rank:
            torch.manual_seed(fold_rank(torch.initial_seed(), self.global_rank))

    def on_fit_start(self) -> None:
        """Begins to count episodes; a subclass makes its `rollout` besides."""
        self._has_logged = False
        check_monitors(self.trainer, self.validated_names())
        adapt_resumed(self.trainer)
        self._clock = None
        self.meter = EpisodeMeter(self.env.device, self.env.outcome_names)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Starts the clock of the run, behind what fills the replay."""
        if self._clock is None:
            self._clock = start_clock()

    def on_train_end(self) -> None:
        """Says what the time went to, and takes averaged weights, if any: the last checkpoint is saved by now."""
        if self._clock is not None:
            rank_zero_info(f"{type(self).__name__}: {summary(self._clock.read())}")
            stop_clock()
        for callback in cast("Any", self.trainer).callbacks:
            if isinstance(callback, RunAveraging):
                callback.finish(self)

    def collect(self, policy: Policy, steps: int) -> TensorDictBase:
        """Plays on and counts; transitions (B,), none while fewer steps than a return needs have been played."""
        self.rollout.set_frames(self.frames)
        transitions, played = self.rollout.collect(policy, steps)
        self._count(played)
        return transitions

    def play(self, policy: Policy, steps: int) -> TensorDictBase:
        """Plays on and counts; the steps (N, T) of every trajectory, in order."""
        self.rollout.set_frames(self.frames)
        trajectories, played = self.rollout.play(policy, steps)
        self._count(played)
        return trajectories

    def _count(self, played: TensorDictBase) -> None:
        self.frames += played.numel() * self.trainer.world_size
        after = played["next"]
        self.meter.count({"done": after["done"], **self.env.episode_outcomes(after)})

    @property
    def logs_now(self) -> bool:
        """Whether somebody looks at what this training step logs.

        That is: where the loggers are given it, see `trainer.log_every_n_steps`, in the first and the last step of a
        run, and in the last one of an epoch; never where the Trainer is `barebones`.
        """
        trainer = self.trainer
        if trainer.barebones:
            return False
        to_loggers = trainer._logger_connector.should_update_logs or trainer.fast_dev_run  # type: ignore[attr-defined]
        ends = trainer.is_last_batch or 0 < trainer.max_steps <= trainer.global_step
        return bool(to_loggers or ends or not self._has_logged)

    def log_step(self, values: Mapping[str, Tensor | float]) -> None:
        """Logs values of this training step as `train/…`; tensors are means over all processes.

        Of `outcomes` over those in which an episode has ended; until one has, they are left out.
        The device is waited for once, and not once for each value, as Lightning would: it is given what is on the host.
        Called where `logs_now`.
        """
        with section(LOGGING):
            self._log_step(values)

    def _log_step(self, values: Mapping[str, Tensor | float]) -> None:
        self._has_logged = True
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        together = torch.stack([value.detach() for value in tensors.values()])
        outcomes = self.outcomes
        told = [name in outcomes for name in tensors]
        if self.trainer.world_size > 1:
            absent = together.isnan() & torch.tensor(told, dtype=torch.bool, device=together.device)
            both = torch.stack([torch.where(absent, 0.0, together), (~absent).to(together.dtype)])
            total, number = cast("Tensor", self.trainer.strategy.reduce(both, reduce_op="sum"))
            together = total / number
        with section("transfer"):
            on_cpu = together.cpu()
        read = dict(zip(tensors, on_cpu, strict=True))
        unknown = {name for name, is_told in zip(tensors, told, strict=True) if is_told and math.isnan(read[name])}
        for name, value in values.items():
            if name in unknown:
                continue
            on_host = read[name] if name in read else torch.tensor(float(value), dtype=torch.float32, device="cpu")
            self.log(f"train/{name}", on_host, prog_bar=name == "loss")

    def note_batch(self, batch: TensorDictBase) -> None:
        """Keeps what an update learns from, where somebody wants to know."""
        if self.recent_batches is not None:
            self.recent_batches.append(batch)

    def updates_now(self, most: int) -> int:
        """Updates of this training step: so many, but never beyond `trainer.max_steps`."""
        left = self.trainer.max_steps - self.trainer.global_step
        return min(most, left) if self.trainer.max_steps > 0 else most

    def scheduled(self, optimizer: torch.optim.Optimizer, make: LRSchedulerCallable | None) -> Any:
        """An optimizer and its schedule, which is stepped at every update, as `configure_optimizers` returns them.

        Raises:
            ValueError: A learning rate is no finite number, or the schedule waits for a metric or goes on with another.
        """
        where = type(self).__name__
        for group in optimizer.param_groups:
            number(where, "learning rate", group["lr"], 0)
        if make is None:
            return optimizer
        try:
            schedule = make(optimizer)
        except KeyError as error:  # torch looks for the rates that a schedule before has left
            raise ValueError(
                f"{where}: want an lr_scheduler that begins here, last_epoch -1; got another one"
            ) from error
        for name in ("total_iters", "step_size", "T_max", "T_0"):
            whole(where, f"lr_scheduler.{name}", getattr(schedule, name, 1), 1)
        if isinstance(schedule, ReduceLROnPlateau):
            name = type(schedule).__name__
            raise ValueError(f"{where}: want an lr_scheduler that is stepped at every update; got {name}")
        return [optimizer], [schedule]

    def descend(self, loss: Tensor, clipped: Iterable[Iterable[Tensor]], max_grad_norm: float | None) -> None:
        """A step of the optimizer down a loss.

        Args:
            loss: A scalar.
            clipped: Weights whose gradients are clipped together, each lot by itself.
            max_grad_norm: Of the gradients of a lot, whether or not they are scaled; None leaves them.
        """
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        if max_grad_norm is not None:
            scaler = getattr(self.trainer.precision_plugin, "scaler", None)
            for weights in clipped:
                clip_gradients(weights, max_grad_norm, scaler)
        optimizer.step()

    @staticmethod
    def total(values: Tensor) -> Tensor:
        """The sum of a tensor over all processes, in its place."""
        torch.distributed.all_reduce(values)
        return values

    def any_process(self, yes: bool) -> bool:
        """Whether any of the processes says so; each must ask at the same step, and waits for the others."""
        return self.trainer.strategy.reduce_boolean_decision(yes, all=False) if self.trainer.world_size > 1 else yes

    # -- where no data module is given -------------------------------------------------------------------------------

    def train_dataloader(self) -> StepLoader:
        """Training steps, until `trainer.max_steps` ends the run."""
        return StepLoader(STEPS_PER_EPOCH)

    def test_dataloader(self) -> Any:
        """One batch: the suite of `test`, with the defaults of `Episodes`."""
        return single_batch(suite_of(self))

    def predict_dataloader(self) -> Any:
        """One batch: the suite of `predict`, likewise."""
        return single_batch(suite_of(self, "predict"))

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def rank_state(self) -> dict[str, Any]:
        """All that this process needs to go on as if it had never stopped, but weights and optimizer."""
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
            replay: Whether what is large is saved too, such as a replay.
        """
        return self.rank_state() if rank else None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what the first process needs to go on, see `part_state` for the others, and what the run was.

        `EpisodeCheckpoint` has added the latter by then, with what binds its files together.
        """
        checkpoint["frames"] = self.frames
        checkpoint.setdefault(ENTRY, run_record(self.run_config, self))
        if hasattr(self, "rollout"):
            checkpoint |= self.rank_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps what `restore_run` will go on with."""
        self.frames = whole("checkpoint", "frames", checkpoint.get("frames", 0), 0, 2**62)
        self._resumed = checkpoint

    def restore_run(self) -> None:
        """Takes what the checkpoint held, where there is one, and tells of what is not as it was.

        Raises:
            ValueError: A part of the checkpoint belongs to another one, or is no such thing; or bytes of its files are
                not those that were written.
        """
        checkpoint, self._resumed = self._resumed, None
        if checkpoint is None or self.trainer.ckpt_path is None:
            return
        go_on(self.trainer)
        path, rank = Path(str(self.trainer.ckpt_path)), self.global_rank
        if path.is_file():
            read_archive(path, "checkpoint", every_byte=True)
        entry = read_entry(checkpoint, f"checkpoint {path}")
        if entry is not None:
            self._say_processes(entry["world_size"], self.trainer.world_size)
        self._changed = changed_options((checkpoint.get(ENTRY) or {}).get("config"), self.run_config)
        for line in news(self._changed):
            rank_zero_info(f"{type(self).__name__}: {path} {line}")
        if "rollout" not in checkpoint:
            return
        part = None if entry is None else read_part(path, entry, rank)
        if part is not None:
            self.check_part(part, path)
        state = checkpoint if rank == 0 else part
        if state is not None and "rollout" in state:
            self._take_rank_state(state, f"checkpoint {path}")
        elif entry is None or entry["world_size"] == self.trainer.world_size:  # else it is said of all of them
            _LOG.warning("%s: %s holds no state of this process: its environments begin anew", self._process, path)
        self.restore_part(part, path)

    def check_part(self, part: Mapping[str, Any], path: Path) -> None:
        """ValueError where what a subclass added to this process' part means something else in this run."""

    def _say_processes(self, saved: int, now: int) -> None:
        if saved != now:
            rank_zero_info(
                f"{type(self).__name__}: saved by {saved} and going on on {now} processes:"
                f" {self.begins_anew(saved, now)}, and an update learns from {now / saved:g} times the rows"
            )

    def begins_anew(self, saved: int, now: int) -> str:
        """What becomes of processes that were not there when the run was saved, or are not there any more."""
        own = f"environments, random numbers and replay, if any, of processes from {min(saved, now)} on"
        return f"{own} begin anew" if now > saved else f"{own} are left out"

    def restore_part(self, part: Mapping[str, Any] | None, path: Path) -> None:
        """Takes what a subclass added to this process' part of a checkpoint.

        Args:
            part: The part; None where there is none.
            path: The checkpoint.
        """

    @property
    def _process(self) -> str:
        name, rank = type(self).__name__, self.global_rank
        return f"{name}, process {rank}" if rank else name

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
        saved, now = "cuda" if "cuda" in state["random"] else "cpu", self.env.device.type
        if saved != now:
            rank_zero_info(
                f"{self._process}: {where} was saved on {saved} and goes on on {now}: what is drawn at random there"
                " begins anew, all else goes on"
            )

    # -- evaluation -------------------------------------------------------------------------------------------------

    def validated_names(self) -> set[str] | None:
        """Patterns of the names that validation may log; None where they cannot be told before it."""
        names = score_names(self.env) if type(self).validation_step is EnvRun.validation_step else None
        return None if names is None else {f"val/{name}" for name in names}

    @in_section("validation")
    def validation_step(self, suite: Any, batch_idx: int) -> None:
        """Plays the suite's episodes greedily and logs its scores."""
        scores = suite.play(self.policy_for(suite.env)).scores()
        if self.trainer.state.fn == "validate":
            suite.show(self.policy_name, scores)
        for name, score in scores.items():  # as tensors of the host: Lightning would copy a float to the device
            self.log(
                f"val/{name}",
                torch.tensor(score, dtype=torch.float32, device="cpu"),
                prog_bar=name == suite.headline,
                batch_size=1,
            )

    def test_step(self, suite: Any, batch_idx: int) -> None:
        """Plays policy and baselines on the same episodes; the suite prints and writes the table, in one process."""
        if self.trainer.is_global_zero:
            scores = self.compare(suite)
            self.log_dict(
                {
                    f"test/{name}": torch.tensor(score, dtype=torch.float32, device="cpu")
                    for name, score in scores.items()
                },
                batch_size=1,
            )

    def compare(self, suite: Any) -> dict[str, float]:
        """The suite's table of the policy and what it is compared with; the policy's scores by name."""
        folder, tested = results_folder(self, self._resumed)
        policy, others = self.policy_for(suite.env), self.baselines(suite.env)
        scores: dict[str, float] = suite.compare(policy, folder, self.policy_name, others, tested)
        return scores

    def predict_step(self, suite: Any, batch_idx: int) -> Any:
        """Plans of every episode; the suite writes them, in one process."""
        if not self.trainer.is_global_zero:
            return None
        return suite.plan(self.policy_for(suite.env), results_folder(self, self._resumed)[0])


class ReplayRun(EnvRun):
    """An `EnvRun` that learns from a replay, which a subclass makes in `on_fit_start`.

    Args:
        env: As in `EnvRun`.
        warmup_frames: Frames, over all environments, played before the first update.
    """

    replay: TensorDictReplayBuffer

    def __init__(self, env: EnvFactory | BatchedEnv, warmup_frames: int) -> None:
        super().__init__(env)
        self.warmup_frames = whole(type(self).__name__, "warmup_frames", warmup_frames, 0)

    def check_replay(self, replay: TensorDictReplayBuffer, needed: int) -> None:
        """ValueError unless a replay can hold so many transitions: a batch, and what is played between two updates."""
        if (capacity := replay.storage.max_size) < needed:
            raise ValueError(
                f"{type(self).__name__}: replay must hold a batch and a rollout, {needed} transitions; got {capacity}"
            )

    def fill(self, play: Callable[[], None], batch_size: int) -> None:
        """Plays until every process has enough for the first update, so that all of them agree on `frames`.

        A resumed run has its replay from beside its checkpoint.
        """
        self.restore_run()
        callbacks: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]
        while self.any_process(self.frames < self.warmup_frames or len(self.replay) < batch_size):
            for saver in [each for each in callbacks if hasattr(each, "end_if_asked")]:
                saver.end_if_asked(self.trainer)
            play()

    def part_state(self, rank: int, replay: bool) -> dict[str, Any] | None:
        """As in `EnvRun`, and the replay."""
        state = super().part_state(rank, replay) or {}
        if replay:
            state |= {"replay": replay_state(self.replay), "returns": self._returns()}
        return state or None

    def _returns(self) -> dict[str, float]:
        """What the rewards in replay are sums of."""
        return {"n_steps": self.rollout.n_steps, "gamma": float(self.rollout.gamma)}

    def check_part(self, part: Mapping[str, Any], path: Path) -> None:
        """ValueError where the replay is of another environment, or of other returns, than this run learns from."""
        if "replay" in part:
            check_replay_options(self._changed, f"checkpoint {path}")
            if (returns := part.get("returns", self._returns())) != self._returns():
                raise ValueError(
                    f"checkpoint {path}: want the returns that its replay holds, {shown(returns)}; got"
                    f" {self._returns()}: go on with those, or delete the .rank0.pt beside it and name the file in"
                    " --ckpt_path, so that replay is filled again"
                )

    def restore_part(self, part: Mapping[str, Any] | None, path: Path) -> None:
        """Takes the replay; where there is none it is filled again before updates go on."""
        if part is not None and "replay" in part:
            restore_replay(self.replay, part["replay"], f"replay of {path}", self.rollout.transition_entries())
        else:
            self.warmup_frames += self.frames
            rank_zero_info(f"{self._process}: no replay beside {path}: it is filled again before updates go on")


def check_counts(where: str, **counts: int) -> None:
    """ValueError unless every count is a whole number, at least 1."""
    for name, count in counts.items():
        whole(where, name, count, 1)


def fold_rank(seed: int, rank: int) -> int:
    """A seed of its own for each process of a run, from the one that all of them were given."""
    return (seed + rank * 0x9E3779B97F4A7C15) % 2**63  # the golden ratio: far from the seeds that a user tries
