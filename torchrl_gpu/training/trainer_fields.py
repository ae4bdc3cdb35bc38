"""Fields that Lightning sets on a Trainer without declaring them."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningDataModule, Trainer


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """Return the callbacks of a Trainer.

    It is the list itself, in which some may be replaced.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return callbacks


def datamodule_of(trainer: Trainer) -> LightningDataModule | None:
    """Return the data module of a Trainer, if it was given one."""
    data: LightningDataModule | None = getattr(trainer, "datamodule", None)
    return data


def is_trial(trainer: Trainer) -> bool:
    """Return whether a Trainer only tries a few batches (`fast_dev_run`)."""
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
