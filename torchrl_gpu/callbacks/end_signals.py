"""Signals that end a run, noted at once and acted upon between training steps."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from types import FrameType

from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

_Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None
"""What Python calls at a signal, or what it does instead."""


class EndSignals:
    """Requests to end a run since `begin`.

    `interrupt` is SIGINT, of which a second one raises KeyboardInterrupt at once; `terminate` SIGTERM, with several
    processes only, as Lightning's handler does it with one; `requeue` SLURM's signal before the time limit. Lightning's
    own handlers act in the middle of a step, and with several processes leave some waiting for others; they are
    replaced while training goes on. On other threads than the main one no signal can be taken.
    """

    def __init__(self) -> None:
        self._before: dict[int, _Handler] = {}
        self._forget()

    def begin(self) -> None:
        """Take interrupts, unless another handler does already."""
        self._forget()
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._take(signal.SIGINT, self._note_interrupt)

    def _forget(self) -> None:
        self.interrupt = False
        self.terminate = False
        self.requeue = False

    def replace_handlers(self, trainer: Trainer) -> None:
        """Take the other signals, once Lightning has."""
        if threading.current_thread() is not threading.main_thread():
            return
        if trainer.world_size > 1:
            self._take(signal.SIGTERM, lambda *_: setattr(self, "terminate", True))
        cluster = trainer._accelerator_connector.cluster_environment
        if isinstance(cluster, SLURMEnvironment) and cluster.auto_requeue and cluster.requeue_signal is not None:
            self._take(cluster.requeue_signal, lambda *_: setattr(self, "requeue", True))

    def end(self) -> None:
        """Restore the handlers from before."""
        interrupts = self._before.pop(signal.SIGINT, None)
        # Where the handler is another by now, Lightning ignores further interrupts, and that stays.
        if interrupts is not None and signal.getsignal(signal.SIGINT) == self._note_interrupt:
            signal.signal(signal.SIGINT, interrupts)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _take(self, number: int, handler: _Handler) -> None:
        before = signal.signal(number, handler)
        self._before.setdefault(number, before)

    def _note_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.interrupt:
            raise KeyboardInterrupt
        self.interrupt = True
        # A handler must not print: it may interrupt another print.
        os.write(2, b"\ninterrupt: ending after this step; once more to end at once\n")

    def __getstate__(self) -> dict[str, object]:
        # Handlers belong to a process, so that a copy begins with none.
        return EndSignals().__dict__


def requeue_job() -> str | None:
    """Ask SLURM to start this job again, and return an error message or None."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ.get('SLURM_ARRAY_TASK_ID', '')}"
    try:
        asked = subprocess.run(
            ["scontrol", "requeue", job],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"scontrol requeue {job}: {error}"
    if asked.returncode == 0:
        return None
    return f"scontrol requeue {job}: status {asked.returncode}, {asked.stderr.strip()}"


def requeue_from(trainer: Trainer) -> bool:
    """Requeue the job from the first process, and return in all whether it succeeded."""
    problem = requeue_job() if trainer.is_global_zero else None
    problem = trainer.strategy.broadcast(problem)
    if problem is not None:
        rank_zero_warn(f"EpisodeCheckpoint: SLURM does not start this job again ({problem}); the run goes on")
    return problem is None


def is_restart() -> bool:
    """Return whether SLURM or torchrun has started this job before.

    They do after a requeue, a preemption or a failure.
    """
    counts = [os.environ.get(name, "0") for name in ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT")]
    return any(count.isdigit() and int(count) > 0 for count in counts)
