"""Reactions to NaN or infinity in weights.

They end the run, skip the update, or go back to a checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from tensordict import TensorDictBase
from torch import Tensor
from torch.optim import Optimizer

from torchrl_gpu.callbacks.checkpoint import EpisodeCheckpoint
from torchrl_gpu.callbacks.device_count import DeviceCount
from torchrl_gpu.checkpoints.files import write_whole
from torchrl_gpu.system import arguments
from torchrl_gpu.training.divergence import Diverged, drop_broken, not_finite
from torchrl_gpu.training.run import EnvRun

# The last batches that are kept for the error: their number and their bytes.
_BATCHES = 16
_BATCHES_BYTES = 256 * 2**20
# Skipped updates in a row that end a run.
_IN_A_ROW = 100
# A run that goes back has its learning rates multiplied by this factor, and does so at most this often.
_LOWER = 0.5
_MOST = 3

_GROUP_RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
_SCHEDULE_RATES = ("base_lrs", "max_lrs", "eta_min", "_last_lr")


def lower_rates(optimizers: Iterable[Optimizer], schedules: Iterable[object], factor: float) -> None:
    """Multiply learning rates, and those that schedules will set, by a factor.

    The schedules of torch are linear in the rates that they were given: in that of each group, and in their own first,
    largest and least ones, some of which they keep in the groups. With all of them multiplied, so is what follows.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if "lr" in group:
                group.setdefault("initial_lr", group["lr"])
            for name in _GROUP_RATES:
                if name in group:
                    group[name] = group[name] * factor
    for schedule in _with_inner(schedules):
        for name in _SCHEDULE_RATES:
            rates = getattr(schedule, name, None)
            if isinstance(rates, list):
                setattr(schedule, name, [rate * factor for rate in rates])
            elif rates is not None:
                setattr(schedule, name, rates * factor)


def _with_inner(schedules: Iterable[object]) -> Iterator[object]:
    """Yield schedules, and those that they are made of."""
    for schedule in schedules:
        yield schedule
        yield from _with_inner(getattr(schedule, "_schedulers", ()))


def _check_rates(module: LightningModule, optimizers: Sequence[Optimizer], schedules: Sequence[object]) -> None:
    """Refuse what has no learning rates to lower, or a schedule that may set any."""
    # Lightning puts an optimizer without rates where a module has none.
    groups = chain.from_iterable(optimizer.param_groups for optimizer in optimizers)
    if not any("lr" in group for group in groups):
        name = type(module).__name__
        raise ValueError(
            f"Divergence: action back lowers learning rates, and {name} has no optimizer. Use action stop, and begin"
            " anew with other options"
        )
    for schedule in _with_inner(schedules):
        name = type(schedule).__name__
        if type(schedule).__module__ != "torch.optim.lr_scheduler":
            raise ValueError(
                f"Divergence: action back lowers the rates of an lr_scheduler of torch, and {name} is none. Use one of"
                " torch, or action stop"
            )


# Which batch broke the weights is known only some updates later. To keep all would fill the device, so that the last
# few are kept as they are, without a copy.
class RecentBatches(deque[TensorDictBase]):
    """The last 16 batches of updates, or fewer that fill 256 MiB.

    The last one is always among them.
    """

    _numel = 0
    _most = 0

    def append(self, batch: TensorDictBase) -> None:
        """Add a batch, and forget the oldest where there are too many."""
        # To count bytes takes time, and most batches are as large as the one before.
        if batch.numel() != self._numel:
            self._numel = batch.numel()
            self._most = min(_BATCHES, _BATCHES_BYTES // max(1, batch.bytes()))
        while len(self) >= max(1, self._most):
            self.popleft()
        super().append(batch)


class Divergence(Callback):
    """Ends a run whose weights contain NaN or infinity, and keeps its last batches.

    `lightning fit` adds one to every run that has none. The loss is looked at after every training step, on a GPU a
    step or a few late, without waiting for it; where it is not finite, so are the weights. The last batches are written
    to `diverged/update-N.pt` in the Trainer's `default_root_dir`, to be read with `torch.load(…, weights_only=True)`.

    Args:
        action: "stop" ends the run. "skip" makes the gradients of an update zero where one of them is not finite, so
            that weights stay; it goes on, unless 100 updates are skipped in a row, and the end says how often. "back"
            ends it as well, and `lightning fit` then goes on from the newest checkpoint, with half the learning rates,
            up to three times.
    """

    def __init__(self, action: Literal["stop", "skip", "back"] = "stop") -> None:
        self.action = arguments.choice("Divergence", "action", action, ("stop", "skip", "back"))
        # How often `lightning fit` has gone back, and for how many of these times the rates were lowered.
        self.times = 0
        self._rates_taken = 0
        self._batches: RecentBatches | None = None
        # Updates that were skipped: in all, and in a row.
        self._skipped: tuple[Tensor, Tensor] | None = None

    @property
    def watches_updates(self) -> bool:
        """Whether it changes gradients within updates, which no graph lets it."""
        return self.action == "skip"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        found = not_finite(pl_module)
        if found is not None:
            raise ValueError(
                f"Divergence: the weights to begin with are not finite: {found}. Load others, or begin without them"
            )
        self._skipped = None
        self._told = False
        self._loss_count = DeviceCount()
        self._skipped_count = DeviceCount()
        self._in_a_row_count = DeviceCount()
        self._batches = RecentBatches() if isinstance(pl_module, EnvRun) else None
        if self._batches is not None:
            cast("EnvRun", pl_module).watch_batch = self._batches.append
        schedules = [each.scheduler for each in trainer.lr_scheduler_configs]
        if self.action == "back":
            _check_rates(pl_module, trainer.optimizers, schedules)
        lower = _LOWER ** (self.times - self._rates_taken)
        self._rates_taken = self.times
        if lower != 1:
            lower_rates(trainer.optimizers, schedules, lower)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if self.action != "skip":
            return
        weights = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        broken = drop_broken(gradients).long()
        # Both counts stay on the device: to count on the host, every update would have to wait for it.
        if self._skipped is None:
            zero = torch.zeros_like(broken)
            self._skipped = (zero, zero)
        in_all, in_a_row = self._skipped
        self._skipped = in_all + broken, (in_a_row + 1) * broken

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: object, *args: object) -> None:
        if self._skipped is not None:
            self._look_at_skipped(trainer, *self._skipped)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
        if loss is None:
            return
        # A look at the loss costs next to nothing. All weights are looked at only where it is broken, which names them.
        is_broken = ~loss.detach().isfinite().all()
        if self._agreed(trainer, is_broken):
            found = not_finite(pl_module)
            has_found = torch.tensor(found is not None, dtype=torch.bool, device="cpu")
            if self._agreed(trainer, has_found):
                raise self.make_error(trainer, found or "NaN or infinity in another process")

    def _agreed(self, trainer: Trainer, broken: Tensor) -> bool:
        if trainer.world_size == 1:
            return bool(self._loss_count(broken.long()))
        return trainer.strategy.reduce_boolean_decision(bool(broken), all=False)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Complete the message of a divergence that was found while saving."""
        if isinstance(exception, Diverged) and not exception.complete:
            diverged = self.make_error(trainer, str(exception))
            exception.args = diverged.args
            exception.checkpoint = diverged.checkpoint
            exception.times = diverged.times
            exception.complete = True
        # Lightning tears nothing down after an error.
        self._release(pl_module)

    def make_error(self, trainer: Trainer, found: str) -> Diverged:
        where = type(trainer.lightning_module).__name__
        text = f"{where}: the run diverged by update {trainer.global_step}: {found}"
        if self._batches and trainer.is_global_zero:
            path = Path(trainer.default_root_dir) / "diverged" / f"update-{trainer.global_step}.pt"
            batches = [each.detach().to_dict() for each in self._batches]
            try:
                write_whole({"update": trainer.global_step, "batches": batches}, path)
            except OSError as error:
                # What diverged matters more than its batches.
                text += f"; the last {len(batches)} batches could not be written to {path} ({error.strerror})"
            else:
                text += f"; the last {len(batches)} batches are in {path}"
        savers = [each for each in trainer.checkpoint_callbacks if isinstance(each, EpisodeCheckpoint)]
        saved = savers[0].newest(trainer) if savers and trainer.is_global_zero else None
        if saved is None:
            return Diverged(f"{text}; no checkpoint was saved before. Lower the learning rate", complete=True)
        can_go_back = self.action == "back" and trainer.world_size == 1
        if can_go_back and self.times < _MOST:
            text += f"; goes back to {saved}, learning rate times {_LOWER:g}"
            return Diverged(text, saved, complete=True, times=self.times + 1)
        return Diverged(f"{text}; {saved} is finite. Lower the learning rate, and use --ckpt_path last", complete=True)

    def _look_at_skipped(self, trainer: Trainer, in_all: Tensor, in_a_row: Tensor) -> None:
        if not self._told and self._skipped_count(in_all):
            self._told = True
            rank_zero_warn(
                f"Divergence: gradients with NaN or infinity by update {trainer.global_step}: the update is skipped,"
                " and so are others like it; the end says how many"
            )
        if self._in_a_row_count(in_a_row) >= _IN_A_ROW:
            raise self.make_error(trainer, f"gradients with NaN or infinity in {_IN_A_ROW} updates in a row")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._skipped is None:
            return
        skipped = int(self._skipped[0])
        if skipped:
            rank_zero_warn(f"Divergence: {skipped} of {trainer.global_step} updates skipped")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._release(pl_module)

    def _release(self, pl_module: LightningModule) -> None:
        """Forget the last batches, and look at no more."""
        self._batches = None
        if isinstance(pl_module, EnvRun):
            pl_module.watch_batch = None

    def state_dict(self) -> dict[str, object]:
        """Return for how many rollbacks learning rates were lowered, empty for none."""
        return {"rates_taken": self._rates_taken} if self._rates_taken else {}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        taken = state_dict.get("rates_taken")
        self._rates_taken = taken if isinstance(taken, int) and 0 <= taken <= _MOST else 0
        self.times = max(self.times, self._rates_taken)
