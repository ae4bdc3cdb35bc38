"""The data side of a packing run: a clock for training, episodes for evaluation."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningDataModule

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences
from torchrl_gpu.evaluation.packing.suite import PackingSuite
from torchrl_gpu.training.loaders import Ticks, once


class PackingEpisodes(LightningDataModule):
    """Episodes that the policy never trained on, in environments like the one that it trains in.

    Args:
        steps_per_epoch: Training steps of an epoch.
        num_episodes: Episodes of `test` and `predict`.
        num_val_episodes: Episodes of `validate` and of validation in between.
        seed: Decides the episodes; training has other ones whatever its seed.
        sequences: File of box sequences to evaluate on instead, every sequence once; see `BoxSequences`.
        unit: Of the sizes in `sequences`: "cells", "m" or "mm".
        pictures: Whether `test` writes pictures.
        batch_size: Episodes that are evaluated side by side; None takes as many as there is memory for.
    """

    shows_own_table = True  # so that Lightning's own table of metrics is left out

    def __init__(
        self,
        steps_per_epoch: int = 100,
        num_episodes: int = 1000,
        num_val_episodes: int = 200,
        seed: int = 1_000_003,
        sequences: str | None = None,
        unit: str = "cells",
        pictures: bool = True,
        batch_size: int | None = None,
    ) -> None:
        super().__init__()
        if min(steps_per_epoch, num_episodes, num_val_episodes) < 1:
            raise ValueError(
                "PackingEpisodes: steps_per_epoch, num_episodes and num_val_episodes must be at least 1;"
                f" got {steps_per_epoch}, {num_episodes} and {num_val_episodes}"
            )
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"PackingEpisodes: batch_size must be at least 1, or None; got {batch_size}")
        self.steps_per_epoch, self.seed, self.pictures = steps_per_epoch, seed, pictures
        self.batch_size = batch_size
        self.num_episodes, self.num_val_episodes = num_episodes, num_val_episodes
        self.items = None if sequences is None else BoxSequences(sequences, unit, in_order=True)

    def suite(self, num_episodes: int) -> PackingSuite:
        """Episodes on the device of the training module's environment; those of a file are all of its sequences."""
        env = self._trained_env()
        if self.items is None:
            judge = "rule" if env.catalogue.flat and env.stability_judge == "rule" else "com"
            items = env.items.reseeded(self.seed)
            like = env.like(1, items=items, seed=self.seed, first_env=0, stability_judge=judge)
        else:
            longest = max(len(episode) for episode in self.items.episodes)
            like = env.like(1, items=self.items, num_items=longest, seed=self.seed, first_env=0)
            num_episodes = self.items.num_sequences
        return PackingSuite(like, self.pictures, num_episodes, self.batch_size)

    def _trained_env(self) -> PackingEnv:
        assert self.trainer is not None
        env = getattr(self.trainer.lightning_module, "env", None)
        if not isinstance(env, PackingEnv):
            raise ValueError(
                f"PackingEpisodes: want a module that trains in a PackingEnv; got {type(env).__name__} as its env"
            )
        return env

    def train_dataloader(self) -> Ticks:
        """Ticks of an epoch."""
        return Ticks(self.steps_per_epoch)

    def val_dataloader(self) -> Any:
        """One batch: the suite of validation."""
        return once(self.suite(self.num_val_episodes))

    def test_dataloader(self) -> Any:
        """One batch: the suite of `test`."""
        return once(self.suite(self.num_episodes))

    def predict_dataloader(self) -> Any:
        """One batch: the suite of `predict`."""
        return once(self.suite(self.num_episodes))

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Suites are on their device already."""
        return batch
