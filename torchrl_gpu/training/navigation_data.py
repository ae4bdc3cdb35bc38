"""The data side of a navigation run: a clock for training, worlds for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningDataModule

from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.evaluation.navigation.suite import NavigationSuite
from torchrl_gpu.training.loaders import Ticks, once

Rows = str | Sequence[Sequence[float]]


@dataclass(frozen=True)
class _Plan:
    """How the papers evaluate."""

    levels: str
    worlds_per_level: int
    seed: int
    max_steps: int
    end_on_collision: bool


_TESTS = {"v2": _Plan("test", 100, 3, 360, False), "v3": _Plan("evaluation", 100, 3, 1000, True)}
_VALIDATION = _Plan("evaluation", 10, 253, 1000, True)


class NavigationWorlds(LightningDataModule):
    """Worlds that the policy never trained in, in environments like the one that it trains in.

    What is None is what the papers evaluate with. v2 (Lin et al., ICRA 2024): 100 worlds of each row of the curriculum
    "test", 360 steps, which collisions do not end. v3 (RA-L 2025), and validation of both: the rows of "evaluation",
    1000 steps, over at the first collision; 10 worlds of each in validation, 100 others in the test of v3.

    Args:
        steps_per_epoch: Training steps of an epoch.
        worlds_per_level: Worlds of each row, of `test` and `predict`.
        val_worlds_per_level: Of `validate` and of validation in between.
        seed: Decides the worlds of `test` and `predict`; 3 by default.
        val_seed: Decides those of validation; no seed may be that of the environment that is trained in.
        test_levels: Rows of a curriculum, or a word as in `MarineNavEnv`; "own" stands for those that are
            trained on, "auto" for the paper's, which an environment with one robot (`flat`) takes its own for.
        val_levels: The same for validation.
        max_steps: Actions after which an episode is cut off.
        pictures: Whether `test` writes pictures.
    """

    shows_own_table = True  # so that Lightning's own table of metrics is left out

    def __init__(
        self,
        steps_per_epoch: int = 100,
        worlds_per_level: int | None = None,
        val_worlds_per_level: int = 10,
        seed: int | None = None,
        val_seed: int = 253,
        test_levels: Rows = "auto",
        val_levels: Rows = "auto",
        max_steps: int | None = None,
        pictures: bool = True,
    ) -> None:
        super().__init__()
        counts = {"steps_per_epoch": steps_per_epoch, "worlds_per_level": worlds_per_level}
        counts |= {"val_worlds_per_level": val_worlds_per_level, "max_steps": max_steps}
        for name, count in counts.items():
            if count is not None and count < 1:
                raise ValueError(f"NavigationWorlds: {name} must be at least 1; got {count}")
        self.steps_per_epoch, self.max_steps, self.pictures = steps_per_epoch, max_steps, pictures
        self.worlds_per_level, self.val_worlds_per_level = worlds_per_level, val_worlds_per_level
        self.seed, self.val_seed, self.test_levels, self.val_levels = seed, val_seed, test_levels, val_levels
        self._suites: dict[str, tuple[MarineNavEnv, NavigationSuite]] = {}

    def test_suite(self) -> NavigationSuite:
        """Worlds of `test` and `predict`, on the device of the training module's; made once."""
        env = self._trained_env()
        return self._suite("test", _TESTS[env.version], self.test_levels, self.worlds_per_level)

    def val_suite(self) -> NavigationSuite:
        """Worlds of validation; made once."""
        return self._suite("val", _VALIDATION, self.val_levels, self.val_worlds_per_level)

    def _suite(self, name: str, plan: _Plan, levels: Rows, worlds: int | None) -> NavigationSuite:
        """The suite of a name, made once for the environment that is trained in."""
        env = self._trained_env()
        seeds, (made_for, suite) = self._seeds(env), self._suites.get(name, (None, None))
        if suite is None or made_for is not env:
            suite = NavigationSuite.of_rows(
                env,
                plan.worlds_per_level if worlds is None else worlds,
                self.pictures,
                curriculum=_rows(env, levels, plan),
                seed=seeds[name],
                max_steps=self.max_steps or plan.max_steps,
                end_on_collision=plan.end_on_collision,
            )
            self._suites[name] = env, suite
        return suite

    def _seeds(self, env: MarineNavEnv) -> dict[str, int]:
        """Of test and validation; both are looked at before either is played, so that no run is in vain."""
        seeds = {"test": _TESTS[env.version].seed if self.seed is None else self.seed, "val": self.val_seed}
        if env.seed in seeds.values():
            raise ValueError(f"NavigationWorlds: want seeds other than that of training, {env.seed}; got {seeds}")
        return seeds

    def _trained_env(self) -> MarineNavEnv:
        assert self.trainer is not None
        env = getattr(self.trainer.lightning_module, "env", None)
        if not isinstance(env, MarineNavEnv):
            raise ValueError(
                f"NavigationWorlds: want a module that trains in a MarineNavEnv; got {type(env).__name__} as its env"
            )
        return env

    def train_dataloader(self) -> Ticks:
        """Ticks of an epoch."""
        return Ticks(self.steps_per_epoch)

    def val_dataloader(self) -> Any:
        """One batch: the suite of validation."""
        return once(self.val_suite())

    def test_dataloader(self) -> Any:
        """One batch: the suite of `test`."""
        return once(self.test_suite())

    def predict_dataloader(self) -> Any:
        """One batch: the suite of `predict`."""
        return once(self.test_suite())

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Suites are on their device already."""
        return batch


def _rows(env: MarineNavEnv, levels: Rows, plan: _Plan) -> Rows:
    if levels == "own" or (levels == "auto" and env.flat):
        return env.levels
    return plan.levels if levels == "auto" else levels
