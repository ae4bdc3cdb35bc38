"""Lightning's counts of epochs and batches, corrected for an exact resume.

Lightning counts an epoch as over when a run ends in the middle of it, forgets a validation that was still to come, and
steps its curves once more where a run ended with an epoch. Here a run that ends within an epoch is saved as within it,
one that ends with an epoch as before the next, and a validation that is due is saved as begun.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from lightning.pytorch import Trainer

State: TypeAlias = dict[str, Any]
"""What Lightning saves of its loops: nested counts and flags by name, which it gives no types."""

_OVER = ("processed", "completed")


def settle(checkpoint: State, trainer: Trainer) -> None:
    """Correct the counts in what the `dump_checkpoint` of `trainer` gave, in place."""
    fit = checkpoint["loops"]["fit_loop"]
    epoch = fit["epoch_progress"]
    batch = fit["epoch_loop.batch_progress"]
    complete = trainer.fit_loop.epoch_loop._num_ready_batches_reached()
    has_ended = epoch["total"]["processed"] == epoch["total"]["started"]
    in_step = batch["total"]["completed"] < batch["total"]["processed"]
    if complete:
        for state in fit["state_dict"].get("combined_loader", ()):
            # Only the state of a `StepLoader` is this one count.
            if set(state) == {"done"}:
                state["done"] = 0
    if has_ended and not complete:
        _go_on_within_epoch(fit, trainer)
    elif in_step and validates_next(trainer):
        _begin_validation(fit)
    elif complete and (has_ended or in_step):
        _begin_next_epoch(fit, in_step=in_step)
    checkpoint["epoch"] = epoch["current"]["completed"]


def _go_on_within_epoch(fit: State, trainer: Trainer) -> None:
    """Count an epoch as running that Lightning counts as over.

    It does so whenever training ends.
    """
    _add(fit["epoch_progress"], -1, *_OVER)
    # Lightning would take a validation that is due for one that was made, and step its curves for it.
    if _is_due(trainer):
        fit["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1


def _begin_validation(fit: State) -> None:
    """Count a training step as done and its validation as begun.

    A resumed run then makes that validation first.
    """
    _add(fit["epoch_loop.batch_progress"], 1, "completed")
    progress = fit["epoch_loop.val_loop.batch_progress"]
    progress["total"] = {"ready": 1, "completed": 0, "started": 1, "processed": 0}
    progress["current"] = dict.fromkeys(progress["current"], 0)


def _begin_next_epoch(fit: State, *, in_step: bool) -> None:
    """Count an epoch as over, and what is counted within an epoch as not begun.

    `in_step` says that Lightning has not counted the last step yet.
    """
    batch = fit["epoch_loop.batch_progress"]
    if in_step:
        _add(fit["epoch_progress"], 1, *_OVER)
        fit["epoch_loop.state_dict"]["_batches_that_stepped"] += 1
        batch["total"]["completed"] += 1
    optimizer = fit["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
    for progress in (batch, fit["epoch_loop.scheduler_progress"], *optimizer.values()):
        progress["current"] = dict.fromkeys(progress["current"], 0)
    batch["is_last_batch"] = False
    validation = fit["epoch_loop.val_loop.batch_progress"]
    validation["total"] = dict.fromkeys(validation["total"], 0)


def go_on(trainer: Trainer) -> None:
    """Make a run that was saved between two epochs begin the next one.

    Called once its counts are restored.
    """
    loop = trainer.fit_loop.epoch_loop
    progress = loop.batch_progress
    if loop.restarting and progress.total.ready and not progress.current.ready:
        loop.restarting = False


def validates_next(trainer: Trainer) -> bool:
    """Return whether validation follows the training step that was just made."""
    fetcher = trainer.fit_loop._data_fetcher
    return fetcher is not None and trainer.fit_loop.epoch_loop._should_check_val_fx(fetcher)


def _is_due(trainer: Trainer) -> bool:
    """Return whether a run that goes on within an epoch has a validation to come."""
    loop = trainer.fit_loop.epoch_loop
    every = trainer.check_val_every_n_epoch
    batches = trainer.val_check_batch
    if not trainer.enable_validation or batches is None or batches == math.inf:
        return False
    if every is None:
        return (loop.total_batch_idx + 1) % batches == 0
    if trainer.current_epoch % every != 0:
        return False
    return (loop.batch_idx + 1) % batches == 0


def _add(progress: dict[str, dict[str, int]], number: int, *names: str) -> None:
    for counts in (progress["total"], progress["current"]):
        for name in names:
            counts[name] += number
