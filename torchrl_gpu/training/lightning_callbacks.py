"""Lightning's own callbacks and flags over a module that trains in an environment: refused or adapted."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from typing import Any

from lightning.pytorch import Callback, Trainer
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

from torchrl_gpu.training.averaging import RunAveraging

_OWN_STEPS = "as the module steps its own optimizer"
_WANTED: dict[type[Callback], str] = {
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
    """ValueError, before anything runs, where a Trainer has something that cannot work with such a module."""
    for wanted, came in _problems(trainer):
        raise ValueError(f"{where}: want {wanted}; got {came}")


def check_monitors(trainer: Any, known: Collection[str] | None) -> None:
    """ValueError, before anything runs, where a callback's `monitor` is not logged by the validation."""
    ours = all(type(each).__module__.startswith(("torchrl_gpu.", "lightning.")) for each in trainer.callbacks)
    if known is None or not ours:  # one of the user's own may log more
        return
    for callback in trainer.callbacks:
        monitor = getattr(callback, "monitor", None)
        name = monitor.partition("/dataloader_idx_")[0] if isinstance(monitor, str) else ""
        if name.startswith("val/") and not any(fnmatchcase(name, each) for each in known):
            where = type(callback).__name__
            raise ValueError(f"{where}: monitor must be one of {', '.join(sorted(known))}; got {monitor}")


def adapt_callbacks(trainer: Any) -> None:
    """Adapts callbacks of Lightning's to such a module: averages of weights, and state that a resume would lose."""
    for place, callback in enumerate(trainer.callbacks):
        if isinstance(callback, WeightAveraging) and not isinstance(callback, RunAveraging):
            trainer.callbacks[place] = RunAveraging(callback)
        elif isinstance(callback, SpikeDetection):
            callback.__dict__["running"] = callback.running_mean  # lightning 2.6 restores into a name it never sets


def adapt_resumed(trainer: Any) -> None:
    """`adapt_callbacks` for a run that goes on from a checkpoint, once that is known."""
    for callback in trainer.callbacks if trainer.ckpt_path is not None else ():
        if isinstance(callback, EarlyStopping):
            callback.strict = False  # an epoch whose end was saved ends once more, without a validation


def _problems(trainer: Any) -> Iterator[tuple[str, str]]:
    for callback in trainer.callbacks:
        if type(callback) is BaseFinetuning:
            yield "a class of your own that is made from it", "BaseFinetuning"
        if isinstance(callback, GradientAccumulationScheduler) and callback.scheduling == {0: 1}:
            continue  # Lightning's own, wherever nothing is accumulated
        for kind, wanted in _WANTED.items():
            if isinstance(callback, kind):
                yield wanted, type(callback).__name__
    if (batches := trainer.accumulate_grad_batches) != 1:
        yield f"--model.batch_size, {_OWN_STEPS}", f"trainer.accumulate_grad_batches {batches}"
    if norm := trainer.gradient_clip_val:
        yield f"--model.max_grad_norm, {_OWN_STEPS}", f"trainer.gradient_clip_val {norm}"
