"""Small stand-ins for the package's own module, environment and data.

With them the CLI is tested in a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from torchrl.envs import EnvBase


class Env:
    """Base class of the stand-in environments."""


class TinyEnv(Env):
    """Something that can be built with arguments, as an environment is."""

    def __init__(
        self, num_envs: int = 4, *, bin_size: tuple[int, int, int] = (10, 10, 10), device: str = "cpu"
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"TinyEnv: num_envs must be at least 1; got {num_envs}")
        self.num_envs = num_envs
        self.bin_size = bin_size


class OtherEnv(Env):
    """A second environment, so that a class path has to be chosen."""

    def __init__(self, depth: int = 1) -> None:
        self.depth = depth


class UntypedEnv(Env):
    """An environment of one argument without a type."""

    def __init__(self, inner=None) -> None:  # type: ignore[no-untyped-def]
        self.inner = inner


class TinyModule(LightningModule):
    """One linear layer, an environment as a nested class, manual size."""

    def __init__(self, env: Env, width: int = 3, learning_rate: float = 0.1) -> None:
        super().__init__()
        self.env = env
        self.layer = nn.Linear(2, width)
        self.learning_rate = learning_rate

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch).square().mean()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.layer(batch).square().mean())

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("test_loss", self.layer(batch).square().mean())

    def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


class EnvModule(LightningModule):
    """A module that takes a real environment."""

    def __init__(self, env: EnvBase) -> None:
        super().__init__()
        self.env = env


class Rows(IterableDataset):
    """Eight rows of two numbers."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(16.0).view(8, 1, 2) / 16)

    def __len__(self) -> int:
        return 8


class TinyData(LightningDataModule):
    """The same rows for every stage."""

    def __init__(self, sequences: str | None = None) -> None:
        super().__init__()
        self.sequences = sequences

    def _loader(self) -> DataLoader:
        return DataLoader(Rows(), batch_size=None)

    train_dataloader = val_dataloader = _loader
    test_dataloader = predict_dataloader = _loader


class Note(Callback):
    """A callback with one argument.

    The last one built is `Note.built`.
    """

    built: ClassVar[list[str]] = []

    def __init__(self, text: str = "hello") -> None:
        Note.built.append(text)
