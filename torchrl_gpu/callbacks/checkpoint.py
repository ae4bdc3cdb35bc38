"""Checkpoints by updates, minutes and episodes, and the best one, with the replay beside them."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.exceptions import SIGTERMException

from torchrl_gpu import arguments
from torchrl_gpu.callbacks.device_count import DeviceCount
from torchrl_gpu.callbacks.end_signals import EndSignals, Interrupts, any_of_all, is_restart, requeue_from
from torchrl_gpu.sections import in_section
from torchrl_gpu.training.checkpoint_files import (
    ENTRY,
    bytes_of,
    checkpoint_entry,
    copied_to_host,
    copy_checkpoint,
    find_checkpoints,
    new_id,
    newest_checkpoint,
    order_of,
    part_path,
    parts_of,
    publish,
    remove_checkpoint,
    write_whole,
)
from torchrl_gpu.training.finite import Diverged, not_finite
from torchrl_gpu.training.loop_counts import settle, validates_next
from torchrl_gpu.training.run_record import run_record

BEST, LAST = "best.ckpt", "last.ckpt"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_RUN = re.compile(r"[0-9a-f]{12}")


class _Held(NamedTuple):
    """A `best.ckpt` that is not written yet: its content in memory of the host, and the best value on the disk."""

    content: dict[str, Any]
    on_disk: float | None


class EpisodeCheckpoint(Checkpoint):
    """Saves a run so that it can go on as if it had never stopped: now and then, at its end, and where it is best.

    `last.ckpt` is saved at the end of training, `episodes-N.ckpt` or `updates-N.ckpt` where a multiple of episodes,
    updates or minutes has been passed (environments finish in clumps, so multiples are passed rather than met), and
    `best.ckpt`, without replay, where validation found a better value than before. Each is committed by one rename,
    after its parts: the replay, and what other processes than the first add. Whoever is killed on the way leaves the
    one before. All processes save at the same step: the first one decides.

    Where `most_share` has a better `best.ckpt` wait, a copy of it is held in memory. It is written once the others are
    paid for, before the next checkpoint, or at the end of the run, whatever ends it but a kill. Several processes do
    not hold one: they write it at once.

    SIGTERM and an interrupt (Ctrl-C) end the run after the training step that they come in, with a `last.ckpt` from
    which it goes on as if nothing had been; a second interrupt ends it at once. While the run is validated the next
    training step is waited for by an interrupt, and SIGTERM ends it with the checkpoints that are there. Of several
    processes it is enough that one is told.

    SLURM's signal before the time limit (`#SBATCH --signal=SIGUSR1@90`) does the same and requeues the job, in place of
    Lightning's own handler, which would save in the middle of a step. What `lightning fit` does when SLURM or torchrun
    starts a job again is said at `find_restart`.

    Where a checkpoint stands at `max_steps` already, a run that goes on from it trains nothing: a line says so, and the
    checkpoint becomes its `last.ckpt`, unless that stands there, too.

    A new run never overwrites the checkpoints of another: where the folder holds some, they are moved to a folder
    `earlier-N` in it. Two runs that save to one folder at a time are refused.

    What has diverged is not saved: a checkpoint whose weights are not finite never takes the place of one whose are.
    What cannot be written, as on a full disk, costs a warning; at the end of training it is an error.

    Args:
        dirpath: Folder; None stands for `checkpoints` in the Trainer's `default_root_dir`.
        every_n_episodes: Episodes, over all environments of the first process, between checkpoints; None for none. On
            CUDA their count is a training step or a few late, see `DeviceCount`, so that nobody waits for it.
        keep: Checkpoints by episodes, updates or minutes that are kept; older ones go.
        save_replay: Whether the replay is saved too; without it a resumed run fills it anew.
        every_n_updates: Updates between checkpoints.
        every_n_minutes: Minutes between checkpoints.
        monitor: Name of a logged value, such as "val/utilization", of which the best checkpoint is kept.
        mode: Whether the largest ("max") or the smallest ("min") value is best.
        most_share: Of the time of training that saving may take: a checkpoint that is due waits until those before it
            have paid for themselves. None saves whenever it is due. The first and the last never wait.
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
        most_share: float | None = 0.01,
        name: str | None = None,
    ) -> None:
        where = "EpisodeCheckpoint"
        for period, count in (("every_n_episodes", every_n_episodes), ("every_n_updates", every_n_updates)):
            arguments.optional(arguments.whole, where, period, count, 1)
        arguments.optional(arguments.number, where, "every_n_minutes", every_n_minutes, above=0)
        arguments.whole(where, "keep", keep, 1)
        arguments.choice(where, "mode", mode, ("max", "min"))
        arguments.optional(arguments.number, where, "most_share", most_share, 0, 1, above=0)
        if monitor is None:
            arguments.check_effect(where, "monitor", mode=(mode, "max"))
        if name is not None and not _NAME.fullmatch(name):
            raise ValueError(
                f"EpisodeCheckpoint: name must be 1 to 40 letters, digits, hyphens and underscores; got {name!r}"
            )
        self.name = name
        self._kinds = ("episodes-", "updates-") if name is None else (f"{name}_ep", f"{name}_up")
        self.dirpath, self.every_n_episodes, self.keep, self.save_replay = dirpath, every_n_episodes, keep, save_replay
        self.every_n_updates, self.every_n_minutes = every_n_updates, every_n_minutes
        self.monitor, self.mode, self.most_share = monitor, mode, most_share
        self._passed: tuple[int, ...] | None = None  # multiples of each period so far
        self._saved: list[str] = []  # names in the folder, oldest first
        self._best: float | None = None
        self._came_from: tuple[int, int, int] | None = None  # order of the checkpoint that is resumed
        self._generation = 0
        self._waits = False  # for a validation
        self._trains = False  # whether a training step has begun
        self._run: str | None = None
        self._held: _Held | None = None
        self._entry: dict[str, Any] | None = None  # of the checkpoint that is being saved
        self._lock: int | None = None  # descriptor of the folder
        self._owed_until = self._begun = 0.0
        self._episodes = DeviceCount()
        self._interrupts = Interrupts()
        # Who is told of each checkpoint, and who is waited for at the end of a run: see the mirror.
        self.committed: Callable[[dict[str, Any], Path, list[Path]], None] | None = None
        self.ended: Callable[[], None] | None = None
        self._signals = EndSignals()

    # -- the run that these checkpoints belong to -------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Makes the folder this run's own.

        Raises:
            ValueError: Another run is saving there.
        """
        if _only_tries(trainer):
            return
        self._passed, self._begun, self._owed_until, self._waits = None, time.monotonic(), 0.0, False
        self._trains, self._held = False, None
        self._episodes = DeviceCount()
        problem = None
        if trainer.is_global_zero:
            problem = self._claim(self.folder(trainer))
        if (problem := trainer.strategy.broadcast(problem)) is not None:
            raise ValueError(problem)
        self._run = trainer.strategy.broadcast(self._run or new_id())
        here: Any = self._look_at(self.folder(trainer), trainer.ckpt_path) if trainer.is_global_zero else None
        self._saved, self._best, self._generation = trainer.strategy.broadcast(here)
        self._interrupts.begin()

    def folder(self, trainer: Trainer) -> Path:
        """Where the checkpoints of a Trainer's run are."""
        return Path(self.dirpath or Path(trainer.default_root_dir) / "checkpoints")

    def find(self, trainer: Trainer, word: str = "last") -> Path:
        """The checkpoint to go on from, for `ckpt_path`.

        Args:
            trainer: Whose run it is.
            word: "last" or "latest" for the newest whole one; what is torn is passed over, with a line that says so.
                Or "best".

        Raises:
            ValueError: There is none.
        """
        folder = self.folder(trainer)
        if word == "best":
            found, torn = (folder / BEST if (folder / BEST).is_file() else None), list[str]()
        else:
            found, torn = newest_checkpoint(folder)
        for line in torn:
            rank_zero_info(f"EpisodeCheckpoint: passed over {line}")
        if found is None:
            never = f" ({BEST} is saved by validation, where `monitor` names what it logs)" if word == "best" else ""
            raise ValueError(
                f"EpisodeCheckpoint: ckpt_path {word!r} wants a whole checkpoint in {folder}; got none{never}"
            )
        return found

    def find_restart(self, trainer: Trainer) -> Path | None:
        """The checkpoint to go on from where SLURM or torchrun has started this job again; None where there is none."""
        try:
            return self.find(trainer) if is_restart() else None
        except ValueError:  # it ended before it had saved anything
            return None

    def _claim(self, folder: Path) -> str | None:
        """Holds a lock on the folder until training ends; what is wrong, if another process has it.

        Raises:
            OSError: Nothing can be written there, so that all that is learned would be lost at the end.
        """
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(folder)) from error
        with contextlib.suppress(ImportError):  # where files cannot be locked, nobody is refused
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return f"EpisodeCheckpoint: want a folder that no other run saves to at this moment; got {folder}"
            except OSError:  # a file system without locks
                os.close(descriptor)
            else:
                self._lock = descriptor
        return None

    def _release(self) -> None:
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            os.close(descriptor)

    def _look_at(self, folder: Path, resumed: Any) -> tuple[list[str], float | None, int]:
        """Moves checkpoints of other runs out of the way; one that this run goes on from, too, is read by then.

        Returns:
            Names of this run's own ones by number, oldest first; the value of its `best.ckpt`; how often the run has
            gone back by now.
        """
        own, others = dict[Path, tuple[int, int, int]](), list[Path]()
        best = None
        for path, content in find_checkpoints(folder):
            entry = None if isinstance(content, str) else content.get(ENTRY)
            if isinstance(content, str) or entry is None or entry.get("run") != self._run:
                others.append(path)
            elif path.name == BEST:
                best = self._value_of(content)
            else:
                own[path] = order_of(content, f"checkpoint {path}")
        if resumed is None or Path(str(resumed)).resolve() not in {path.resolve() for path in others}:
            self._move(others, folder)  # else it was saved without this callback: it stays where it was asked for
        here = (0, 0, 0) if resumed is None or self._came_from is None else self._came_from
        later = [order[0] for order in own.values() if order > here]
        generation = 1 + max(later) if later else here[0]
        numbered = re.compile(rf"({'|'.join(map(re.escape, self._kinds))})\d{{1,20}}")
        saved = [path.name for path in sorted(own, key=lambda each: own[each]) if numbered.fullmatch(path.stem)]
        return saved, best, generation

    def _move(self, others: list[Path], folder: Path) -> None:
        if others:
            aside = next(folder / f"earlier-{n}" for n in range(1, 1_000_000) if not (folder / f"earlier-{n}").exists())
            aside.mkdir()
            for path in [*others, *(part for each in others for part in parts_of(each))]:
                path.replace(aside / path.name)
            rank_zero_info(f"EpisodeCheckpoint: {len(others)} checkpoints of another run moved to {aside}")

    def _value_of(self, checkpoint: Mapping[str, Any]) -> float | None:
        """The value of this run's `best.ckpt`; None where it is of something else than `monitor`."""
        states = checkpoint.get("callbacks")
        state = states.get(self.state_key) if isinstance(states, Mapping) else None
        best = state.get("best") if isinstance(state, Mapping) else None
        measure = checkpoint[ENTRY].get("monitor", self._measure)
        return best if isinstance(best, float) and math.isfinite(best) and measure == self._measure else None

    @property
    def _measure(self) -> str:
        return f"{self.mode} {self.monitor}"

    # -- when -------------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes signals, now that Lightning has."""
        if not _only_tries(trainer):
            self._signals.begin(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Counts from where the run is: only now has the module filled its replay or gone back to its checkpoint."""
        self._trains = True
        if self._passed is None:
            self._passed = self._multiples(trainer, pl_module)

    def end_if_asked(self, trainer: Trainer) -> None:
        """Ends a run where somebody wants that before its first training step, so that there is nothing to save.

        Raises:
            SIGTERMException, KeyboardInterrupt: It was to end.
        """
        asked = self._signals.terminate or trainer.received_sigterm
        interrupted, asked = any_of_all(trainer, self._interrupts.come, asked)
        if interrupted:
            raise KeyboardInterrupt
        if asked:
            raise SIGTERMException

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        """Saves where a multiple has been passed, and where somebody wants the run to end.

        Raises:
            SIGTERMException, KeyboardInterrupt: It was to end, and is saved.
        """
        if _only_tries(trainer) or self._passed is None:
            return
        passed = self._multiples(trainer, pl_module)
        due = trainer.is_global_zero and time.monotonic() >= self._owed_until
        due = due and any(new > old for new, old in zip(passed, self._passed, strict=True))
        asked = self._signals.terminate or trainer.received_sigterm
        interrupted, asked, requeue, due = any_of_all(trainer, self._interrupts.come, asked, self._signals.requeue, due)
        if interrupted or asked or requeue:
            if saved := self._save(trainer, pl_module, LAST, self.save_replay):
                path = self.folder(trainer) / LAST
                rank_zero_info(f"EpisodeCheckpoint: asked to end; saved {path}, go on with --ckpt_path last")
            self._signals.requeue = False
            if interrupted:
                raise KeyboardInterrupt
            if asked or (saved and requeue_from(trainer)):
                raise SIGTERMException
        if self._held is not None and time.monotonic() >= self._owed_until:
            self._write_held(trainer)
            due = False  # as that is to be paid for first
        if not due:
            return
        self._passed = passed
        if validates_next(trainer):
            self._waits = True  # a run that resumed from here would leave that validation out
        else:
            self._save_numbered(trainer, pl_module)

    def _save_numbered(self, trainer: Trainer, pl_module: Any) -> None:
        by_episodes = self.every_n_episodes is not None
        number = int(pl_module.episodes) if by_episodes else trainer.global_step
        kind = self._kinds[0 if by_episodes else 1]
        name = trainer.strategy.broadcast(f"{kind}{number}.ckpt")
        before, self._saved = self._saved, [*(each for each in self._saved if each != name), name]
        if self._save(trainer, pl_module, name, self.save_replay):  # which knows of itself by then
            self._drop_old(trainer)
        else:
            self._saved = before

    def _multiples(self, trainer: Trainer, pl_module: Any) -> tuple[int, ...]:
        minutes = (time.monotonic() - self._begun) / 60
        counts: list[tuple[float | None, Callable[[], float]]] = [
            (self.every_n_episodes, lambda: self._episodes(pl_module.episodes)),
            (self.every_n_updates, lambda: trainer.global_step),
            (self.every_n_minutes, lambda: minutes),
        ]
        return tuple(int(count() // period) if period else 0 for period, count in counts)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves `best.ckpt` where the monitored value is better than ever, and what was due before the validation.

        Raises:
            ValueError: Validation logged no such value.
        """
        if _only_tries(trainer) or trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if self.monitor is not None:
            self._save_if_best(trainer, pl_module)
        if self._waits:
            self._waits = False
            self._save_numbered(trainer, pl_module)

    def _save_if_best(self, trainer: Trainer, pl_module: LightningModule) -> None:
        metrics = trainer.callback_metrics
        if self.monitor not in metrics:
            raise ValueError(
                f"EpisodeCheckpoint: monitor must be one of {', '.join(sorted(metrics))}; got {self.monitor}"
            )
        value = float(trainer.strategy.broadcast(float(metrics[self.monitor])))
        sign = 1 if self.mode == "max" else -1
        if math.isfinite(value) and (self._best is None or sign * value > sign * self._best):
            on_disk = self._best if self._held is None else self._held.on_disk
            self._best, self._held = value, None
            if trainer.world_size == 1 and time.monotonic() < self._owed_until:
                self._held = _Held(self._best_content(trainer, pl_module), on_disk)
            elif not self._save(trainer, pl_module, BEST, replay=False):
                self._best = on_disk

    @in_section("saving")
    def _best_content(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """A copy of what `best.ckpt` would hold now, in one process."""
        begun = time.monotonic()
        self._check_finite(trainer, pl_module, self.folder(trainer) / BEST)
        self._entry = checkpoint_entry(self._run or new_id(), new_id(), [], 1, self._generation)
        try:
            return copied_to_host(_dumped(trainer))
        finally:
            self._entry = None
            self._owe(begun)

    @in_section("saving")
    def _write_held(self, trainer: Trainer) -> None:
        """Writes the `best.ckpt` that is held, if any; where that cannot be done, says so."""
        held, self._held = self._held, None
        if held is None:
            return
        begun, path = time.monotonic(), self.folder(trainer) / BEST
        try:
            self._write(trainer, path, held.content)
        except OSError as error:
            self._best = held.on_disk
            rank_zero_warn(_not_written(path, bytes_of(held.content), error))
        else:
            if self.committed is not None:
                self.committed(held.content[ENTRY], path, [])
        self._owe(begun)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves `last.ckpt`.

        Raises:
            OSError: It cannot be written.
        """
        if self._trains and not _only_tries(trainer) and not self._save(trainer, pl_module, LAST, self.save_replay):
            path = self.folder(trainer) / LAST
            raise OSError(errno.EIO, "the run is over, and its last checkpoint could not be written", str(path))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Where nothing was left to train, says so, and makes the checkpoint that the run came from its `last.ckpt`."""
        if self._trains or _only_tries(trainer) or trainer.ckpt_path is None or not trainer.is_global_zero:
            return
        path, last = Path(str(trainer.ckpt_path)), self.folder(trainer) / LAST
        step = trainer.global_step
        rank_zero_info(
            f"EpisodeCheckpoint: nothing was left to train, as {path} stands at step {step}; go on with a larger"
            " --trainer.max_steps"
        )
        if path.is_file() and not _stands_at(last, step):
            entry, parts = copy_checkpoint(path, last)
            rank_zero_info(f"EpisodeCheckpoint: saved it as {last}")
            if self.committed is not None and entry is not None:
                self.committed(entry, last, parts)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Gives the folder free."""
        self._end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Writes the best checkpoint if it is still held, and gives the folder free."""
        self._write_held(trainer)
        self._end()

    def _end(self) -> None:
        if self.ended is not None:
            self.ended()
        self._interrupts.end()
        self._signals.end()
        self._release()

    # -- what -------------------------------------------------------------------------------------------------------

    @in_section("saving")
    def _save(self, trainer: Trainer, pl_module: Any, name: str, replay: bool) -> bool:
        """Saves; where that cannot be written, says so, and leaves what was there. Whether it is saved."""
        self._write_held(trainer)  # so that this one knows which value is on the disk
        begun = time.monotonic()
        path = self.folder(trainer) / name
        self._check_finite(trainer, pl_module, path)
        checkpoint_id, rank, world = trainer.strategy.broadcast(new_id()), trainer.global_rank, trainer.world_size
        mine = part_path(path, checkpoint_id, rank)
        problem: Exception | None = None
        size = 0
        try:
            part = pl_module.part_state(rank, replay) if hasattr(pl_module, "part_state") else None
            size = bytes_of(part)
            if part is not None:
                write_whole({"id": checkpoint_id, "rank": rank, "world_size": world, **part}, mine)
        except Exception as error:  # whatever it is, the other processes wait for word of this one
            problem = error
        if self._all_wrote(trainer, problem):
            ranks = range(world) if replay else range(1, world)
            parts = [part_path(path, checkpoint_id, each) for each in ranks] if hasattr(pl_module, "part_state") else []
            self._entry = checkpoint_entry(self._run or new_id(), checkpoint_id, parts, world, self._generation)
            entry = self._entry
            try:
                content = _dumped(trainer)
                size += bytes_of(content)
                self._write(trainer, path, content)
            except Exception as error:  # the same
                problem = error
            finally:
                self._entry = None
        saved = self._all_wrote(trainer, problem)
        if not saved:
            mine.unlink(missing_ok=True)
            rank_zero_warn(_not_written(path, size, problem))
        elif trainer.is_global_zero:
            for old in set(parts_of(path)) - set(parts):
                old.unlink(missing_ok=True)
            if self.committed is not None:
                self.committed(entry, path, parts)
        self._owe(begun)
        return saved

    def _owe(self, begun: float) -> None:
        """Has later ones wait for what this one took, on top of what is owed; the first pays for the last, too."""
        if self.most_share is not None:
            took = (time.monotonic() - begun) * (1 if self._owed_until else 2)
            self._owed_until = max(self._owed_until, begun) + took / self.most_share

    def _check_finite(self, trainer: Trainer, pl_module: LightningModule, path: Path) -> None:
        """Raises Diverged where a process would save weights that are not finite."""
        broken = not_finite(pl_module)
        if any(any_of_all(trainer, broken is not None)):
            found = broken or "NaN or infinity in another process"
            raise Diverged(f"{found}; EpisodeCheckpoint does not save that as {path}")

    def _all_wrote(self, trainer: Trainer, problem: Exception | None) -> bool:
        """Whether all processes could; each waits for the others.

        Raises:
            Exception: One of them failed by more than its disk, which ends all.
        """
        more = problem is not None and not isinstance(problem, OSError)
        failed, ends = any_of_all(trainer, problem is not None, more)
        if problem is not None and more:
            raise problem
        if ends:
            raise RuntimeError(
                "EpisodeCheckpoint: want all processes to save; got another one that failed, see what it says"
            )
        return not failed

    def _write(self, trainer: Trainer, path: Path, content: dict[str, Any]) -> None:
        """Writes a checkpoint's content as Lightning's own `save_checkpoint` would.

        Raises:
            OSError: It cannot be written; nothing is left of it then.
        """
        fresh = path.with_suffix(".ckpt-new")
        try:
            trainer.strategy.save_checkpoint(content, fresh)
            if trainer.is_global_zero:
                publish(fresh, path)
        except OSError as error:
            if trainer.is_global_zero:
                fresh.unlink(missing_ok=True)
            raise OSError(error.errno or errno.EIO, f"{error.strerror or error}", str(path)) from error

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Adds which files belong together, and what the run was."""
        if self._entry is not None:
            record = run_record(getattr(pl_module, "run_config", None), pl_module)
            checkpoint[ENTRY] = {**self._entry, **record, "monitor": self._measure}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Notes where in its run the checkpoint stands that this one goes on from."""
        self._came_from = order_of(checkpoint, f"checkpoint {trainer.ckpt_path}")

    def _drop_old(self, trainer: Trainer) -> None:
        dropped, self._saved = self._saved[: -self.keep], self._saved[-self.keep :]
        if trainer.is_global_zero:
            for name in dropped:
                remove_checkpoint(self.folder(trainer) / name)

    def state_dict(self) -> dict[str, Any]:
        """The run, and the value of its `best.ckpt`, which is read from there alone."""
        return {"run": self._run, "best": self._best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with the run."""
        run = state_dict.get("run")
        self._run = run if isinstance(run, str) and _RUN.fullmatch(run) else None


def _not_written(path: Path, size: int, problem: Exception | None) -> str:
    """What is told where a checkpoint cannot be written."""
    free = shutil.disk_usage(path.parent).free
    why = "another process could not write" if problem is None else getattr(problem, "strerror", None) or problem
    return (
        f"EpisodeCheckpoint: want {_mib(size)} MiB for {path}; got {_mib(free)} MiB free on that disk"
        f" ({'no space left' if free < size else why}). It is not saved, what was saved before stays, and the run goes"
        " on: make room, or keep less there (--trainer.callbacks.keep 1, save_replay false, another dirpath)"
    )


def _mib(num_bytes: int) -> str:
    """Bytes as MiB, with digits enough that a few are not none."""
    return f"{num_bytes / 2**20:,.1f}" if num_bytes >= 2**20 else f"{math.ceil(num_bytes / 2**20 * 1000) / 1000:g}"


def _stands_at(path: Path, step: int) -> bool:
    """Whether there is a whole checkpoint of that step."""
    found = [content for each, content in find_checkpoints(path.parent) if each == path]
    return bool(found) and not isinstance(found[0], str) and found[0].get("global_step") == step


def _only_tries(trainer: Any) -> bool:
    return bool(trainer.fast_dev_run)


def _dumped(trainer: Trainer) -> dict[str, Any]:
    """What Lightning would save now, with counts of its loops that a run can go on from."""
    content: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    settle(content, trainer)
    return content
