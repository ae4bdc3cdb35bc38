"""Data module of runs that pack: bins to evaluate on, drawn or from a file."""

from __future__ import annotations

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import BoxSequences
from torchrl_gpu.envs.packing.items.sequences import MISFITS
from torchrl_gpu.evaluation.packing.suite import PackingSuite
from torchrl_gpu.evaluation.suite import UNSEEN_SEED
from torchrl_gpu.training.data.episodes import Episodes


class PackingEpisodes(Episodes):
    """Bins that the policy never trained on, or the sequences of a file.

    Args:
        steps_per_epoch: Training steps of an epoch.
        num_episodes: Episodes of `test` and `predict`.
        num_val_episodes: Episodes of `validate` and of validation in between.
        seed: Decides the episodes; training has other ones whatever its seed, and validation others than `test`.
        sequences: File of box sequences to evaluate on instead, every sequence once; see `BoxSequences`.
        unit: Of the sizes in `sequences`: "cells", "m", "cm" or "mm"; None takes what the file says, or else that of
            the environment's own items.
        misfits: Of boxes in `sequences` that fit the bin in no orientation: "refuse" (the default), "skip_boxes" or
            "skip_orders".
        columns: Of `sequences` that are a list, as in `BoxSequences`.
        pictures: Whether `test` writes pictures.
        batch_size: Episodes that are evaluated side by side; None takes as many as there is memory for.
    """

    env_class = PackingEnv

    def __init__(
        self,
        steps_per_epoch: int = 100,
        num_episodes: int = 1000,
        num_val_episodes: int = 200,
        seed: int = UNSEEN_SEED,
        sequences: str | None = None,
        unit: str | None = None,
        misfits: str | None = None,
        columns: dict[str, str] | None = None,
        pictures: bool = True,
        batch_size: int | None = None,
    ) -> None:
        super().__init__(steps_per_epoch, num_episodes, num_val_episodes, seed, pictures, batch_size)
        for name, value in (("unit", unit), ("misfits", misfits), ("columns", columns)):
            if sequences is None and value is not None:
                raise ValueError(f"PackingEpisodes: {name} {value} has no effect without sequences, a file of boxes")
        self.unit = unit
        self.items = None
        if sequences is not None:
            self.items = BoxSequences(sequences, unit or "cells", True, misfits or MISFITS[0], columns)

    def suite(self, stage: str = "test", num_episodes: int | None = None) -> PackingSuite:
        if self.items is None:
            return super().suite(stage, num_episodes)  # type: ignore[return-value]
        if self.unit is None and not self.items.names_unit:
            self.items.unit = self.env.items.unit
        longest = max(len(episode) for episode in self.items.episodes)
        env = self.env.like(1, items=self.items, num_items=longest, seed=self.seed, first_env=0)
        return PackingSuite(env, self.pictures, env.item_sequences.num_keys, self.batch_size)
