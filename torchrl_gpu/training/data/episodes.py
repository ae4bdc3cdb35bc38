"""Data modules of runs: numbers of training steps, and episodes to evaluate on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.evaluation.episodes import suite_for
from torchrl_gpu.evaluation.suite import UNSEEN_SEED, Suite, unseen_seed
from torchrl_gpu.system import arguments
from torchrl_gpu.system.arguments import whole
from torchrl_gpu.training.trainer_fields import datamodule_of


class StepLoader:
    """Numbers of the training steps of an epoch, which has `length` of them.

    It resumes in the middle of an epoch. Experience is made inside the training step, so that a loader has nothing else
    to give.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.done = 0
        self._goes_on = False

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        # Lightning may ask for fewer, and never asks for the end.
        if not self._goes_on or self.done >= self.length:
            self.done = 0
        self._goes_on = False
        while self.done < self.length:
            self.done += 1
            yield self.done

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        done = whole("checkpoint", "done", state.get("done"), 0)
        if done > self.length:
            raise ValueError(
                f"data.steps_per_epoch must be at least {done}, the training steps that are done of the epoch that goes"
                f" on, not {self.length}"
            )
        self.done = done
        self._goes_on = True


def single_batch(*suites: object) -> DataLoader[object]:
    """A loader whose batches are suites.

    It has a generator of its own: a loader draws a seed whenever it begins, and training must not depend on how often
    it is validated. Every process gets all suites, so that all log the same and stop at the same step: Lightning would
    give each a share of the suites by a sampler of its own, if there were no such sampler here.
    """
    # A list is a data set for a loader, though torch's types do not say so.
    data = cast("Dataset[object]", list(suites))
    everyone_all: DistributedSampler[object] = DistributedSampler(data, num_replicas=1, rank=0, shuffle=False)
    return DataLoader(data, batch_size=None, num_workers=0, generator=torch.Generator(), sampler=everyone_all)


class Episodes(LightningDataModule):
    """Episodes that the policy never trained on, in environments like its own.

    Args:
        steps_per_epoch: Training steps of an epoch.
        num_episodes: Episodes of `test` and `predict`.
        num_val_episodes: Episodes of `validate` and of validation in between.
        seed: Decides the episodes; training has other ones whatever its seed, and validation others than `test`.
        pictures: Whether `test` writes pictures.
        batch_size: Episodes that are evaluated side by side; None takes as many as there is memory for.
    """

    env_class: type = BatchedEnv
    # Lightning's table of metrics is left out.
    shows_own_table = True

    def __init__(
        self,
        steps_per_epoch: int = 100,
        num_episodes: int = 1000,
        num_val_episodes: int = 200,
        seed: int = UNSEEN_SEED,
        pictures: bool = True,
        batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self.check(steps_per_epoch=steps_per_epoch, num_episodes=num_episodes, num_val_episodes=num_val_episodes)
        self.check(batch_size=batch_size)
        self.steps_per_epoch = steps_per_epoch
        self.batch_size = batch_size
        self.seed = arguments.seed(type(self).__name__, "seed", seed, 0)
        self.pictures = arguments.flag(type(self).__name__, "pictures", pictures)
        self.num_episodes = num_episodes
        self.num_val_episodes = num_val_episodes

    def check(self, **counts: int | None) -> None:
        """ValueError unless every count is a whole number, at least 1, or None."""
        for name, count in counts.items():
            arguments.optional(arguments.whole, type(self).__name__, name, count, 1)

    @property
    def env(self) -> BatchedEnv:
        """The environment that the module trains in."""
        assert self.trainer is not None
        env: BatchedEnv | None = getattr(self.trainer.lightning_module, "env", None)
        if env is None or not isinstance(env, self.env_class):
            raise ValueError(
                f"{type(self).__name__}: the model must train in a {self.env_class.__name__}, and its env is a"
                f" {type(env).__name__}"
            )
        return env

    def suite(self, stage: str = "test", num_episodes: int | None = None) -> Suite:
        """Episodes of "validate", "test" or "predict", on the environment's device."""
        of_stage = self.num_val_episodes if stage == "validate" else self.num_episodes
        number = num_episodes or of_stage
        seed = self.seed_of(stage)
        return suite_for(self.env, number, seed=seed, pictures=self.pictures, batch_size=self.batch_size)

    def seed_of(self, stage: str) -> int:
        """Seed of the episodes of a stage.

        Those of "record" are to be trained on, and may be of any seed.
        """
        if stage == "record":
            return self.seed
        # A pool of items has a seed of its own.
        items = getattr(self.env, "items", None)
        seeds = [self.env.seed, getattr(items, "seed", None)]
        trained = {seed for seed in seeds if seed is not None}
        return unseen_seed(self.seed, trained, validation=stage == "validate")

    def train_dataloader(self) -> StepLoader:
        return StepLoader(self.steps_per_epoch)

    def val_dataloader(self) -> DataLoader[object]:
        return single_batch(self.suite("validate"))

    def test_dataloader(self) -> DataLoader[object]:
        return single_batch(self.suite("test"))

    def predict_dataloader(self) -> DataLoader[object]:
        return single_batch(self.suite("predict"))

    def transfer_batch_to_device(self, batch: object, device: torch.device, dataloader_idx: int) -> object:
        """Leave suites, which are on their device already."""
        return batch


def suite_of(module: LightningModule, stage: str = "test", num_episodes: int | None = None) -> Suite:
    """Suite of a stage, of the Trainer's data module or else of default `Episodes`."""
    data = datamodule_of(module.trainer)
    make = getattr(data, "suite", None)
    if make is None:
        episodes = Episodes()
        episodes.trainer = module.trainer
        make = episodes.suite
    suite: Suite = make(stage, num_episodes)
    return suite
