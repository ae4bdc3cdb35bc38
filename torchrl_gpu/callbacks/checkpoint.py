"""Checkpoints by episodes, updates and minutes, and the best one."""

from __future__ import annotations

import errno
import math
import re
import time
from functools import wraps
from pathlib import Path
from typing import Literal, cast

from lightning.fabric.utilities.types import _PATH
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, Timer
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from torchrl_gpu.callbacks.checkpoint_listener import listeners
from torchrl_gpu.callbacks.closing import ClosingCallback
from torchrl_gpu.callbacks.device_count import DeviceCount
from torchrl_gpu.callbacks.end_signals import EndSignals, is_restart, requeue_from
from torchrl_gpu.checkpoints.files import BEST, LAST, Order, order_of
from torchrl_gpu.checkpoints.loops import validates_next
from torchrl_gpu.checkpoints.processes import any_of_all
from torchrl_gpu.checkpoints.run_folder import RunFolder
from torchrl_gpu.system import arguments
from torchrl_gpu.system.sections import in_section
from torchrl_gpu.training.divergence import Diverged, not_finite
from torchrl_gpu.training.trainer_fields import callbacks_of, is_trial

_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_RUN = re.compile(r"[0-9a-f]{12}")
# Saving that takes more than this share of the time, and more than these seconds in all, is a warning.
_SHARE = 0.05
_NOTICEABLE_S = 10.0


class EpisodeCheckpoint(ClosingCallback, Checkpoint):
    """Saves a run so that it can go on as if it had never stopped.

    `last.ckpt` is saved at the end of training, `episodes-N.ckpt` or `updates-N.ckpt` once a multiple of episodes,
    updates or minutes has been passed, and `best.ckpt`, without replay, where validation found a better value than
    before. Each is committed by one rename, after its parts; all processes save at the same step. Weights that are not
    finite are never saved. What cannot be written costs a warning, and at the end of training an error.

    SIGTERM, an interrupt (Ctrl-C) and SLURM's signal before the time limit end the run after the training step that
    they come in, with a `last.ckpt`; SLURM's also requeues the job, and a second interrupt ends the run at once.
    Checkpoints of another run in the folder are moved to `earlier-N` in it once the first update is done.

    `ckpt_path` of `fit`, `validate`, `test` and `predict` may be "last" (or "latest") and "best" in Python, too. A job
    that SLURM or torchrun has started again goes on from its newest checkpoint, whatever `ckpt_path` is.

    Args:
        dirpath: Folder; None stands for `checkpoints` in the Trainer's `default_root_dir`.
        every_n_episodes: Episodes, over all environments of the first process, between checkpoints; None for none. On
            CUDA their count is a training step or a few late, see `DeviceCount`, so that the host does not wait for it.
        keep: Checkpoints by episodes, updates or minutes that are kept; older ones go.
        save_replay: Whether the replay is saved too; without it a resumed run fills it anew.
        every_n_updates: Updates between checkpoints.
        every_n_minutes: Minutes between checkpoints.
        monitor: Name of a logged value, such as "val/utilization", of which the best checkpoint is kept.
        mode: Whether the largest ("max") or the smallest ("min") value is best.
        name: Of checkpoints by episodes, updates or minutes: "sac_video" makes them `sac_video_epN.ckpt`, or
            `sac_video_upN.ckpt` by updates. None calls them `episodes-N.ckpt` or `updates-N.ckpt`.
    """

    def __init__(
        self,
        dirpath: str | None = None,
        every_n_episodes: int | None = None,
        keep: int = 2,
        save_replay: bool = True,
        *,
        every_n_updates: int | None = None,
        every_n_minutes: float | None = None,
        monitor: str | None = None,
        mode: Literal["max", "min"] = "max",
        name: str | None = None,
    ) -> None:
        where = "EpisodeCheckpoint"
        for period, count in (("every_n_episodes", every_n_episodes), ("every_n_updates", every_n_updates)):
            arguments.optional(arguments.whole, where, period, count, 1)
        arguments.optional(arguments.number, where, "every_n_minutes", every_n_minutes, above=0)
        arguments.whole(where, "keep", keep, 1)
        arguments.choice(where, "mode", mode, ("max", "min"))
        if monitor is None:
            arguments.check_effect(where, "monitor", mode=(mode, "max"))
        if name is not None and not _NAME.fullmatch(name):
            arguments.refuse(where, "name", "1 to 40 letters, digits, hyphens and underscores", name)
        # How names of checkpoints begin, by episodes and by updates.
        self._prefixes = ("episodes-", "updates-") if name is None else (f"{name}_ep", f"{name}_up")
        self.dirpath = dirpath
        self.every_n_episodes = every_n_episodes
        self.every_n_updates = every_n_updates
        self.every_n_minutes = every_n_minutes
        self.keep = keep
        self.save_replay = save_replay
        self.monitor = monitor
        self.mode = mode
        # Id of the run, and the position of the checkpoint that is resumed.
        self._run: str | None = None
        self._came_from: Order = (0, 0, 0)
        # The folder of the last run that began; None before the first.
        self._folder: RunFolder | None = None
        self._first_update = 0
        self._signals = EndSignals()
        self._begin()

    def _begin(self) -> None:
        # Multiples of each period so far.
        self._passed: tuple[int, ...] | None = None
        # Whether a checkpoint waits for a validation, and whether a training step has begun.
        self._waits = False
        self._trains = False
        # Whether the warnings of slow saving and of a missing value were given.
        self._warned = False
        self._told_absent = False
        self._begun = time.monotonic()
        self._saving_s = 0.0
        self._episodes = DeviceCount()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_trial(trainer):
            return
        self._begin()
        if trainer.ckpt_path is None and trainer.global_step == 0:
            # A run begins, though this object may have saved another before.
            self._run = None
        resumed = None if trainer.ckpt_path is None else Path(str(trainer.ckpt_path))
        self._folder = self._folder_of(trainer)
        self._folder.open(trainer, resumed, self._came_from)
        self._run = self._folder.run
        self._signals.begin()
        if self.monitor is not None and self.monitor.startswith("val/") and not trainer.enable_validation:
            self._told_absent = True
            rank_zero_info(
                f"EpisodeCheckpoint: this run has no validation (limit_val_batches, val_dataloader), which logs"
                f" {self.monitor}, so that it saves no {BEST}"
            )

    def folder(self, trainer: Trainer) -> Path:
        return Path(self.dirpath or Path(trainer.default_root_dir) / "checkpoints")

    def _folder_of(self, trainer: Trainer) -> RunFolder:
        """Return the folder of a Trainer's run, which may not have begun."""
        return RunFolder(
            self.folder(trainer), self._run, prefixes=self._prefixes, measure=self._measure, state_key=self.state_key
        )

    @property
    def _open_folder(self) -> RunFolder:
        """The folder of the run that trains."""
        assert self._folder is not None, "`on_fit_start` opens it"
        return self._folder

    def find(self, trainer: Trainer, word: str = "last") -> Path:
        """Find the checkpoint to go on from, see `RunFolder.find`."""
        return self._folder_of(trainer).find(word)

    def newest(self, trainer: Trainer) -> Path | None:
        """Find the newest whole checkpoint that this run has saved, or comes from."""
        return self._folder_of(trainer).newest()

    def find_restart(self, trainer: Trainer) -> Path | None:
        """Find the checkpoint of a job that SLURM or torchrun has started again, if any."""
        if not is_restart():
            return None
        try:
            return self.find(trainer)
        except ValueError:
            # It ended before it had saved anything.
            return None

    @property
    def _measure(self) -> str:
        return f"{self.mode} {self.monitor}"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace Lightning's signal handlers, which are installed by now."""
        self._first_update = trainer.global_step
        if not is_trial(trainer):
            self._signals.replace_handlers(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        """Begin to count from where the run is.

        Only now has the module filled its replay or gone back to its checkpoint.
        """
        self._trains = True
        if self._passed is None:
            self._passed = self._multiples(trainer, pl_module)

    def end_if_asked(self, trainer: Trainer) -> None:
        """End a run that is asked to end before its first training step.

        There is nothing to save by then.
        """
        asked = self._signals.terminate or trainer.received_sigterm
        interrupted, asked = any_of_all(trainer, self._signals.interrupt, asked)
        if interrupted:
            raise KeyboardInterrupt
        if asked:
            raise SIGTERMException

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        if is_trial(trainer) or self._passed is None:
            return
        if trainer.global_step > self._first_update:
            self._open_folder.set_others_aside()
        signals = self._signals
        passed = self._multiples(trainer, pl_module)
        due = trainer.is_global_zero and any(new > old for new, old in zip(passed, self._passed, strict=True))
        asked = signals.terminate or trainer.received_sigterm
        interrupted, asked, requeue, due = any_of_all(trainer, signals.interrupt, asked, signals.requeue, due)
        if interrupted or asked or requeue:
            self._save_and_end(trainer, pl_module, interrupted=interrupted, asked=asked)
        if not due:
            return
        self._passed = passed
        if validates_next(trainer):
            # A run that resumed from here would leave that validation out.
            self._waits = True
        else:
            self.save_numbered(trainer, pl_module)

    def _save_and_end(self, trainer: Trainer, pl_module: LightningModule, *, interrupted: bool, asked: bool) -> None:
        """Save `last.ckpt` and end the run, in all processes.

        A job that was to be requeued goes on where it could not be saved, or SLURM does not start it again.
        """
        saved = self._save(trainer, pl_module, LAST, self.save_replay)
        if saved:
            path = self._open_folder.path / LAST
            rank_zero_info(f"EpisodeCheckpoint: asked to end; saved {path}, go on with --ckpt_path last")
        self._signals.requeue = False
        if interrupted:
            raise KeyboardInterrupt
        if asked or (saved and requeue_from(trainer)):
            raise SIGTERMException

    def _multiples(self, trainer: Trainer, pl_module: LightningModule) -> tuple[int, ...]:
        episodes = self._episodes(cast("Tensor", pl_module.episodes)) if self.every_n_episodes else 0
        minutes = (time.monotonic() - self._begun) / 60
        counts: list[tuple[float | None, float]] = [
            (self.every_n_episodes, episodes),
            (self.every_n_updates, trainer.global_step),
            (self.every_n_minutes, minutes),
        ]
        return tuple(int(count // period) if period else 0 for period, count in counts)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_trial(trainer) or trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if self.monitor is not None:
            self._save_if_best(trainer, pl_module)
        if self._waits:
            self._waits = False
            self.save_numbered(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        best = None if self._folder is None else self._folder.best
        has_no_best = self.monitor is not None and best is None
        if has_no_best and self._trains and not self._told_absent:
            rank_zero_info(
                f"EpisodeCheckpoint: no {BEST} was saved, as no validation has logged a finite {self.monitor}: it comes"
                " every trainer.check_val_every_n_epoch epochs"
            )
        if self._trains and not is_trial(trainer) and not self._save(trainer, pl_module, LAST, self.save_replay):
            path = self._open_folder.path / LAST
            raise OSError(errno.EIO, "the run is over, and its last checkpoint could not be written", str(path))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._trains and not is_trial(trainer) and trainer.ckpt_path is not None:
            rank_zero_info(
                f"EpisodeCheckpoint: nothing was left to train, as {trainer.ckpt_path} stands at step"
                f" {trainer.global_step}; go on with a larger --trainer.{_limit(trainer)}"
            )

    def close(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for listener in listeners(trainer):
            listener.flush()
        self._signals.end()
        if self._folder is not None:
            self._folder.close()

    def save_numbered(self, trainer: Trainer, pl_module: LightningModule) -> None:
        by_episodes = self.every_n_episodes is not None
        number = int(cast("Tensor", pl_module.episodes)) if by_episodes else trainer.global_step
        prefix = self._prefixes[0 if by_episodes else 1]
        name = trainer.strategy.broadcast(f"{prefix}{number}.ckpt")
        if self._save(trainer, pl_module, name, self.save_replay):
            self._open_folder.keep_newest(name, self.keep)

    def _note_absent(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn once of a value that was not logged yet, such as a mean over no episode.

        ValueError for one that nothing logs.
        """
        may_log = getattr(pl_module, "may_log", None)
        if may_log is None or not may_log(self.monitor):
            known = ", ".join(sorted(trainer.callback_metrics))
            raise ValueError(f"EpisodeCheckpoint: monitor must be one of {known}; got {self.monitor}")
        if not self._told_absent:
            self._told_absent = True
            rank_zero_warn(
                f"EpisodeCheckpoint: there is no value of {self.monitor} at update {trainer.global_step}, so that"
                f" {BEST} stays as it is until there is one"
            )

    def _save_if_best(self, trainer: Trainer, pl_module: LightningModule) -> None:
        metrics = trainer.callback_metrics
        if self.monitor not in metrics:
            self._note_absent(trainer, pl_module)
            return
        # All processes save or none does: a value of its own would let one wait for the others in vain.
        value = float(trainer.strategy.broadcast(float(metrics[self.monitor])))
        sign = 1 if self.mode == "max" else -1
        folder = self._open_folder
        before = folder.best
        if math.isfinite(value) and (before is None or sign * value > sign * before):
            # The checkpoint holds its own value, so that it is set before it is saved.
            folder.best = value
            if not self._save(trainer, pl_module, BEST, replay=False):
                folder.best = before

    @in_section("saving")
    def _save(self, trainer: Trainer, pl_module: LightningModule, name: str, replay: bool) -> bool:
        """Save, and return whether that could be written.

        All processes must call it at the same step. Raises `Diverged` where one would save weights that are not finite.
        """
        begun = time.monotonic()
        folder = self._open_folder
        folder.set_others_aside()
        _refuse_broken(trainer, pl_module, folder.path / name)
        written = folder.write(trainer, pl_module, name, replay=replay)
        if written is not None and trainer.is_global_zero:
            for listener in listeners(trainer):
                listener.on_checkpoint(*written)
        self._warn_if_slow(begun)
        return written is not None

    def _warn_if_slow(self, begun: float) -> None:
        """Add the time since `begun`, and warn once where saving takes too much of all."""
        now = time.monotonic()
        self._saving_s += now - begun
        share = self._saving_s / max(now - self._begun, 1e-9)
        if self._saving_s > _NOTICEABLE_S and share > _SHARE and not self._warned:
            self._warned = True
            rank_zero_warn(
                f"EpisodeCheckpoint: saving takes {share:.1%} of the time, more than {_SHARE:.0%}: set a longer"
                " every_n_minutes, every_n_updates or every_n_episodes, or save_replay false"
            )

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, object]) -> None:
        self._came_from = order_of(checkpoint, f"checkpoint {trainer.ckpt_path}")
        # The id of the run comes from the checkpoint: `load_state_dict` takes it next, where there is one.
        self._run = None

    def state_dict(self) -> dict[str, object]:
        """Return the id of the run, and the value of its `best.ckpt`."""
        return {"run": self._run, "best": None if self._folder is None else self._folder.best}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        run = state_dict.get("run")
        self._run = run if isinstance(run, str) and _RUN.fullmatch(run) else None


def _refuse_broken(trainer: Trainer, module: LightningModule, path: Path) -> None:
    """Raise `Diverged` where a process would save weights that are not finite."""
    broken = not_finite(module)
    if any(any_of_all(trainer, broken is not None)):
        found = broken or "NaN or infinity in another process"
        raise Diverged(f"{found}; EpisodeCheckpoint does not save that as {path}")


def _limit(trainer: Trainer) -> str:
    """Name the option of the Trainer that ended a run before it began."""
    left = [each.time_remaining() for each in callbacks_of(trainer) if isinstance(each, Timer)]
    if any(each is not None and each <= 0 for each in left):
        return "max_time"
    return "max_steps" if 0 <= trainer.max_steps <= trainer.global_step else "max_epochs"


def find_checkpoint(trainer: Trainer, word: object, *, fits: bool) -> Path | None:
    """Find the file that `ckpt_path` stands for where an `EpisodeCheckpoint` saves.

    None where Lightning decides. ValueError where there is none: a run that was meant to go on must not begin anew.
    """
    savers = [each for each in callbacks_of(trainer) if isinstance(each, EpisodeCheckpoint)]
    restarts = fits and is_restart()
    named = word in ("last", "latest", "best")
    if not savers or not (restarts or named):
        return None
    for listener in listeners(trainer):
        listener.fetch(savers[0].folder(trainer))
    restart = savers[0].find_restart(trainer) if restarts else None
    if restart is not None:
        rank_zero_info(f"EpisodeCheckpoint: this job was started again; it goes on from {restart}")
        return restart
    return savers[0].find(trainer, str(word)) if named else None


# Lightning looks for "last" and "best" at its own `ModelCheckpoint` alone, before any hook of a callback or a module is
# called, and begins anew where it finds none. There is no way to tell it of another callback's files but to take the
# place of this method, for every Trainer; one without an `EpisodeCheckpoint` finds Lightning's own behaviour.
_lightnings_own = _CheckpointConnector._parse_ckpt_path


@wraps(_lightnings_own)
def _parse_ckpt_path(
    self: _CheckpointConnector,
    state_fn: TrainerFn,
    ckpt_path: _PATH | None,
    model_provided: bool,
    model_connected: bool,
) -> _PATH | None:
    word = ckpt_path
    if ckpt_path is None and model_connected and not model_provided:
        # The best checkpoint of the fit before, which is what Lightning takes.
        word = "best"
    found = find_checkpoint(self.trainer, word, fits=state_fn == TrainerFn.FITTING)
    if found is not None:
        return str(found)
    return _lightnings_own(self, state_fn, ckpt_path, model_provided, model_connected)


_CheckpointConnector._parse_ckpt_path = _parse_ckpt_path  # type: ignore[method-assign]
