"""The data side of a navigation run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.evaluation.navigation.suite import NavigationSuite
from torchrl_gpu.training.data import Episodes

Rows = str | Sequence[Sequence[float]]


@dataclass(frozen=True)
class _Setting:
    """What the papers evaluate with."""

    levels: str
    worlds_per_level: int
    seed: int
    max_steps: int
    end_on_collision: bool


_TESTS = {"v2": _Setting("test", 100, 3, 360, False), "v3": _Setting("evaluation", 100, 3, 1000, True)}
_VALIDATION = _Setting("evaluation", 10, 253, 1000, True)


class NavigationWorlds(Episodes):
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
        batch_size: Worlds that are evaluated side by side; None takes as many as there is memory for.
    """

    env_class = MarineNavEnv

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
        batch_size: int | None = None,
    ) -> None:
        super().__init__(steps_per_epoch, pictures=pictures, batch_size=batch_size)
        self.check(worlds_per_level=worlds_per_level, val_worlds_per_level=val_worlds_per_level, max_steps=max_steps)
        self.worlds_per_level, self.val_worlds_per_level = worlds_per_level, val_worlds_per_level
        self.test_seed, self.val_seed, self.max_steps = seed, val_seed, max_steps
        self.test_levels, self.val_levels = test_levels, val_levels

    def suite(self, stage: str = "test", num_episodes: int | None = None) -> NavigationSuite:
        """As in the base class; `num_episodes` are spread evenly over the rows, of which each has one at least."""
        env: MarineNavEnv = self.env
        validates = stage == "validate"
        setting = _VALIDATION if validates else _TESTS[env.version]
        asked = self.val_worlds_per_level if validates else self.worlds_per_level
        suite = NavigationSuite.of_rows(
            env,
            asked or setting.worlds_per_level,
            self.pictures,
            self.batch_size,
            curriculum=_rows(env, self.val_levels if validates else self.test_levels, setting),
            seed=self._seeds(env)["val" if validates else "test"],
            max_steps=self.max_steps or setting.max_steps,
            end_on_collision=setting.end_on_collision,
        )
        if num_episodes is None:
            return suite
        each = min(suite.env.pool, max(1, num_episodes // len(suite.env.levels)))
        return NavigationSuite.of_rows(suite.env, each, self.pictures, self.batch_size)

    def _seeds(self, env: MarineNavEnv) -> dict[str, int]:
        """Of test and validation; both are looked at before either is played, so that no run is in vain."""
        seeds = {"test": _TESTS[env.version].seed if self.test_seed is None else self.test_seed, "val": self.val_seed}
        if env.seed in seeds.values():
            raise ValueError(f"NavigationWorlds: want seeds other than that of training, {env.seed}; got {seeds}")
        return seeds


def _rows(env: MarineNavEnv, levels: Rows, setting: _Setting) -> Rows:
    if levels == "own" or (levels == "auto" and env.flat):
        return env.levels
    return setting.levels if levels == "auto" else levels
