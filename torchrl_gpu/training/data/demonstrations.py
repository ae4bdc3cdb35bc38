"""Data module of behaviour cloning: demonstrations, some of them held back."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from torchrl_gpu.demonstrations import Demonstrations, read_demonstrations
from torchrl_gpu.demonstrations.recordings import OnBad
from torchrl_gpu.demonstrations.untrusted import refuse
from torchrl_gpu.evaluation.suite import UNSEEN_SEED
from torchrl_gpu.system import arguments
from torchrl_gpu.system.arguments import shown
from torchrl_gpu.training.data.episodes import Episodes, StepLoader, single_batch

_LOG = logging.getLogger(__name__)


class _Cloning(Protocol):
    """Module that says how many training steps a pass over some rows takes."""

    def steps_of(self, rows: int) -> int: ...


@dataclass(frozen=True)
class HeldOut:
    """Rows of demonstrations that are not learned from, on the device.

    Attributes:
        demonstrations: All of them.
        index: Numbers of the rows, (M,) int64.
    """

    demonstrations: Demonstrations
    index: Tensor


class DemonstrationEpisodes(Episodes):
    """Demonstrations to learn from, and episodes to evaluate on.

    There are episodes where the module has an environment. The demonstrations lie on the device whole, and batches are
    drawn there by index. Validation is on whole episodes that are held back, drawn by a seed; those that are alike to
    the last bit are held back together.

    Args:
        demonstrations: What `read_demonstrations` reads: a folder or a file. Of observations, those that the module
            takes are looked at.
        held_out: Share of the rows that is held back for validation, in whole episodes.
        split_seed: Decides which.
        masks: Two groups of episodes that an HDF5 file of robomimic names in `mask`, such as [train, valid]: those to
            learn from, and those that are held back; others are left out. None for `held_out`.
        on_bad: "raise" what is wrong with an episode, or "skip" it and log a line.
        steps_per_epoch: Training steps between validations; None for a pass over the demonstrations.
        num_episodes: Episodes of `test` and `predict` in the environment.
        num_val_episodes: Episodes of validation in the environment; 0 for none.
        seed, pictures, batch_size: Of the episodes in the environment, as in `Episodes`.
    """

    def __init__(
        self,
        demonstrations: str,
        held_out: float = 0.1,
        split_seed: int = 0,
        *,
        masks: list[str] | None = None,
        on_bad: OnBad = "raise",
        steps_per_epoch: int | None = None,
        num_episodes: int = 1000,
        num_val_episodes: int = 200,
        seed: int = UNSEEN_SEED,
        pictures: bool = True,
        batch_size: int | None = None,
    ) -> None:
        where = type(self).__name__
        played = arguments.whole(where, "num_val_episodes", num_val_episodes, 0)
        self.check(steps_per_epoch=steps_per_epoch)
        super().__init__(steps_per_epoch or 1, num_episodes, max(1, played), seed, pictures, batch_size)
        if not 0 < held_out < 1:
            raise ValueError(f"{where}: held_out must lie between 0 and 1, not {held_out}")
        if masks is not None and (len(masks) != 2 or masks[0] == masks[1]):
            raise ValueError(f"{where}: masks must be two names, such as [train, valid], not {masks}")
        arguments.choice(where, "on_bad", on_bad, ("raise", "skip"))
        self.path = demonstrations
        self.held_out = held_out
        self.masks = masks
        self.on_bad = on_bad
        self.split_seed = arguments.seed(where, "split_seed", split_seed, 0)
        self.asked_steps = steps_per_epoch
        self.plays = played > 0
        self.demonstrations: Demonstrations | None = None
        self.train_rows = torch.empty(0, dtype=torch.int64, device="cpu")
        self.held_rows = self.train_rows

    def setup(self, stage: str) -> None:
        if self.demonstrations is not None or (stage in ("test", "predict") and self._has_env()):
            return
        observed = None if self.trainer is None else getattr(self.trainer.lightning_module, "observed", None)
        self.demonstrations = read_demonstrations(self.path, entries=observed, on_bad=self.on_bad)
        train, held = self._split(self.demonstrations)
        self.train_rows = self.demonstrations.rows_of(train)
        self.held_rows = self.demonstrations.rows_of(held)
        rows = f"{len(self.demonstrations):,} rows of {self.demonstrations.num_episodes:,} episodes"
        _LOG.info("demonstrations: %s: %s, %s of them held back", self.path, rows, f"{len(held):,}")

    def _split(self, found: Demonstrations) -> tuple[Tensor, Tensor]:
        there = cast("dict[str, list[int]]", found.about.get("masks", {}))
        if self.masks is None:
            if there.get("train") and there.get("valid"):
                _LOG.warning(
                    "demonstrations: %s: mask/train (%d episodes) and mask/valid (%d) are not used; data.masks [train,"
                    " valid] learns from the one and validates on the other",
                    self.path,
                    len(there["train"]),
                    len(there["valid"]),
                )
            return found.split(self.held_out, self.split_seed)
        for name in self.masks:
            if not there.get(name):
                known = f"masks {shown(sorted(there))}" if there else "no masks"
                refuse(self.path, f"episodes of mask/{name}", known)
        # Episodes that are in both would be learned by heart, and validation would praise that.
        train = set(there[self.masks[0]])
        held = set(there[self.masks[1]])
        both = train & held
        if both:
            wanted = f"other episodes in mask/{self.masks[0]} than in mask/{self.masks[1]}"
            refuse(self.path, wanted, f"{len(both)} in both")
        learned_from = torch.tensor(sorted(train), dtype=torch.int64, device="cpu")
        held_back = torch.tensor(sorted(held), dtype=torch.int64, device="cpu")
        return learned_from, held_back

    def put_on(self, device: torch.device) -> Demonstrations:
        """Move the demonstrations, and the numbers of rows of both parts, to a device."""
        assert self.demonstrations is not None, "setup reads them"
        self.demonstrations = self.demonstrations.to(device)
        self.train_rows = self.train_rows.to(device)
        self.held_rows = self.held_rows.to(device)
        return self.demonstrations

    def _has_env(self) -> bool:
        return self.trainer is not None and bool(getattr(self.trainer.lightning_module, "has_env", False))

    # -- loaders ----------------------------------------------------------------------------------------------------

    def train_dataloader(self) -> StepLoader:
        assert self.trainer is not None
        module = cast("_Cloning", self.trainer.lightning_module)
        return StepLoader(self.asked_steps or module.steps_of(len(self.train_rows)))

    def val_dataloader(self) -> DataLoader[object]:
        if not self._has_env() or not self.plays:
            return single_batch(self._held())
        return single_batch(self._held(), self.suite("validate"))

    def test_dataloader(self) -> DataLoader[object]:
        return single_batch(self.suite("test") if self._has_env() else self._held())

    def _held(self) -> HeldOut:
        assert self.demonstrations is not None, "setup reads them"
        return HeldOut(self.demonstrations, self.held_rows)
