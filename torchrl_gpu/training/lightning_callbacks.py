"""Lightning's callbacks and flags, refused, adapted or replaced.

That is over a module that trains in an environment.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Protocol, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BaseFinetuning,
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    SpikeDetection,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from torchrl_gpu.training.trainer_fields import callbacks_of


class WeightCopy(nn.Module):
    """A copy of a module's parameters and buffers, saved under the module's names.

    A deep copy would take the environment along, and networks that an agent's policy and loss share would be two.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        places: dict[int, str] = {}
        for number, weight in enumerate(module.parameters()):
            copied = nn.Parameter(weight.detach().clone(), requires_grad=False)
            self.register_parameter(f"parameter{number}", copied)
            places[id(weight)] = f"parameter{number}"
        for number, value in enumerate(module.buffers()):
            self.register_buffer(f"buffer{number}", value.detach().clone())
            places[id(value)] = f"buffer{number}"
        self._places = {name: places[id(value)] for name, value in module.state_dict(keep_vars=True).items()}

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        for name, place in self._places.items():
            destination[prefix + name] = getattr(self, place).detach()

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        for name, place in self._places.items():
            value = state_dict.get(prefix + name)
            if value is not None:
                getattr(self, place).data.copy_(value)


class _MakesEnv(Protocol):
    """What averaging needs of a module: networks that it makes with its environment."""

    def make_env(self, device: torch.device, rank: int) -> None: ...


class RunAveraging(WeightAveraging):
    """Weight averaging with exact resume, in place of Lightning's `WeightAveraging`.

    The `should_update` of that one decides.

    Departs from Lightning's: only weights and buffers are copied, see `WeightCopy`; a training step of several updates,
    one of which is asked for, counts as one; checkpoints hold the average as their weights and the current ones beside,
    and the module takes the average once the last checkpoint is saved.
    """

    def __init__(self, asked: WeightAveraging) -> None:
        super().__init__(asked._device, asked._use_buffers, **asked._kwargs)
        self.asked = asked
        self._step = 0

    @property
    def state_key(self) -> str:
        return self.asked.state_key

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return self.asked.should_update(step_idx, epoch_idx)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._average_model = None
        if stage == "fit":
            # Networks are made in the module's own setup, which comes later.
            cast("_MakesEnv", pl_module).make_env(trainer.strategy.root_device, pl_module.global_rank)
            device = self._device or trainer.strategy.root_device
            copied = WeightCopy(pl_module)
            self._average_model = AveragedModel(copied, device=device, use_buffers=self._use_buffers, **self._kwargs)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, object]) -> None:
        """Go on with both averages and weights.

        Evaluation has the average from the checkpoint's weights.
        """
        if self._average_model is not None:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    def on_train_batch_start(self, trainer: Trainer, *args: object) -> None:
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        """Take the weights into the average, if it is due after one of the updates."""
        # Lightning asks once for each batch, and a training step here makes several updates.
        updates = range(self._step, trainer.global_step)
        if any(self.should_update(step_idx=step) for step in updates):
            assert self._average_model is not None
            self._average_model.update_parameters(pl_module)
            self._latest_update_step = trainer.global_step

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the module as it is for the last checkpoint, see `finish`."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.finish(pl_module)

    def finish(self, pl_module: LightningModule) -> None:
        """Give the module the average."""
        if self._average_model is not None:
            self._copy_average_to_current(pl_module)


_OWN_STEPS = "as the module steps its own optimizer"
# What to use in place of a callback.
_INSTEAD: dict[type[Callback], str] = {
    BackboneFinetuning: "--model.learning_rates, which sets rates by loss, as agents have no `backbone`",
    BatchSizeFinder: "--model.batch_size, as batches are drawn on the device and no loader gives any",
    GradientAccumulationScheduler: f"--model.batch_size, {_OWN_STEPS}",
    LearningRateFinder: "--model.optimizer.lr, as the loss of an agent does not tell which rate is good",
    ModelPruning: "weights under their own names, which targets and checkpoints go by; the policy can be pruned once"
    " it is exported",
    StochasticWeightAveraging: "lightning.pytorch.callbacks.WeightAveraging, which averages by updates, leaves the"
    " schedule alone and resumes exactly",
}


def check_trainer(where: str, trainer: Trainer) -> None:
    """ValueError where a Trainer has something that cannot work with such a module."""
    for instead, found in _problems(trainer):
        raise ValueError(f"{where}: {found} cannot work here; use {instead}")


# Lightning notices a wrong name when it first looks for the value: after the first validation, which may be an hour
# into the run.
def check_monitors(trainer: Trainer, validation: Sequence[str] | None, steps: Sequence[str] | None) -> None:
    """ValueError where a callback's `monitor` is the name of nothing that is logged.

    Args:
        trainer: Has the callbacks.
        validation: Patterns of what is logged behind "val/"; None where that is not known before.
        steps: Patterns of what is logged behind "train/"; likewise.
    """
    callbacks = callbacks_of(trainer)
    ours = all(type(each).__module__.startswith(("torchrl_gpu.", "lightning.")) for each in callbacks)
    # A callback of the user's own may log more.
    if not ours:
        return
    known = [f"val/{name}" for name in validation or ("*",)] + [f"train/{name}" for name in steps or ()]
    of_callbacks = ["machine/*", "throughput/*", "lr-*"]
    for callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        name = monitor.partition("/dataloader_idx_")[0] if isinstance(monitor, str) else ""
        if not name or (steps is None and not name.startswith("val/")):
            continue
        if not any(fnmatchcase(name, each) for each in known + of_callbacks):
            where = type(callback).__name__
            raise ValueError(f"{where}: monitor must be one of {', '.join(_nearest(name, known))}; got {monitor}")


def tell_idle_stopping(trainer: Trainer) -> None:
    """Log a line for each `EarlyStopping` that never stops the run.

    It does not by a value of validation, where the run has none.
    """
    if trainer.enable_validation:
        return
    for callback in callbacks_of(trainer):
        if isinstance(callback, EarlyStopping) and callback.monitor.startswith("val/"):
            rank_zero_info(
                "EarlyStopping: this run has no validation (limit_val_batches, val_dataloader), which logs"
                f" {callback.monitor}, so that it never stops"
            )


def _nearest(name: str, known: Sequence[str]) -> list[str]:
    """Names of `known`, the most alike first.

    Those that differ in their beginning alone come before those that are spelt alike.
    """
    last = name.rpartition("/")[2]
    alike = [each for each in known if each.rpartition("/")[2] == last]
    alike += difflib.get_close_matches(name, known, n=5, cutoff=0.5)
    of_validation = sorted(each for each in known if each.startswith("val/"))
    return list(dict.fromkeys([*alike, *of_validation]))


def adapt_callbacks(trainer: Trainer) -> None:
    """Adapt callbacks of Lightning's to such a module.

    They are averages of weights, and callbacks with state that a resume would lose.
    """
    for place, callback in enumerate(callbacks_of(trainer)):
        if isinstance(callback, WeightAveraging) and not isinstance(callback, RunAveraging):
            callbacks_of(trainer)[place] = RunAveraging(callback)
        elif isinstance(callback, SpikeDetection):
            # Lightning 2.6 restores into a name that it never sets.
            callback.__dict__["running"] = callback.running_mean
        elif isinstance(callback, EarlyStopping):
            # A checkpoint's takes its place later.
            callback.__dict__["_asked_patience"] = callback.patience


def adapt_resumed(trainer: Trainer) -> None:
    """`adapt_callbacks` for a run that goes on from a checkpoint, once that is known."""
    if trainer.ckpt_path is None:
        return
    for callback in callbacks_of(trainer):
        if isinstance(callback, EarlyStopping):
            # An epoch whose end was saved ends once more, without a validation.
            callback.strict = False
            callback.patience = callback.__dict__.get("_asked_patience", callback.patience)


def _problems(trainer: Trainer) -> Iterator[tuple[str, str]]:
    """What to use instead, and what cannot work."""
    for callback in callbacks_of(trainer):
        if type(callback) is BaseFinetuning:
            yield "a class of your own that is made from it", "BaseFinetuning"
        if isinstance(callback, GradientAccumulationScheduler) and callback.scheduling == {0: 1}:
            # Lightning's own, wherever nothing is accumulated.
            continue
        for kind, wanted in _INSTEAD.items():
            if isinstance(callback, kind):
                yield wanted, type(callback).__name__
    batches = trainer.accumulate_grad_batches
    if batches != 1:
        yield f"--model.batch_size, {_OWN_STEPS}", f"trainer.accumulate_grad_batches {batches}"
    norm = trainer.gradient_clip_val
    if norm:
        yield f"--model.max_grad_norm, {_OWN_STEPS}", f"trainer.gradient_clip_val {norm}"
