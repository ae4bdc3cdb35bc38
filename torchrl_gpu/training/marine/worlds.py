"""Data module of runs that navigate: worlds to evaluate in."""

from __future__ import annotations

from collections.abc import Sequence

from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.evaluation.marine.suite import NavigationSuite
from torchrl_gpu.system import arguments
from torchrl_gpu.training.data.episodes import Episodes

Rows = str | Sequence[Sequence[float]]


# What the papers evaluate with, as arguments of `MarineNavEnv`.
_VALIDATION: dict[str, object] = {"curriculum": "evaluation", "max_steps": 1000, "end_on_collision": True}
_TEST_V2: dict[str, object] = {"curriculum": "test", "max_steps": 360, "end_on_collision": False}
_TESTS = {"v2": _TEST_V2, "v3": _VALIDATION}


class NavigationWorlds(Episodes):
    """Worlds that the policy never trained in, in environments like its own.

    By default those that the papers evaluate with. v2 (Lin et al., ICRA 2024): 100 worlds of each row of the curriculum
    "test", 360 steps, which collisions do not end. v3 (RA-L 2025), and validation of both: the rows of "evaluation",
    1000 steps, over at the first collision; 10 worlds of each in validation, 100 others in the test of v3.

    Args:
        steps_per_epoch: Training steps of an epoch.
        worlds_per_level: Worlds of each row, of `test` and `predict`.
        val_worlds_per_level: Of `validate` and of validation in between.
        seed: Decides the worlds of `test` and `predict`.
        val_seed: Decides those of validation; no seed may be that of the environment that is trained in.
        test_levels: Rows of a curriculum, or a word as in `MarineNavEnv`; "own" stands for those that are
            trained on, "auto" for the paper's, which an environment with one robot (`flat`) takes its own for.
        val_levels: The same for validation.
        max_steps: Actions after which an episode is cut off; the paper's by default.
        pictures: Whether `test` writes pictures.
        batch_size: Worlds that are evaluated side by side; None takes as many as there is memory for.
    """

    env_class = MarineNavEnv

    def __init__(
        self,
        steps_per_epoch: int = 100,
        worlds_per_level: int = 100,
        val_worlds_per_level: int = 10,
        seed: int = 3,
        val_seed: int = 253,
        test_levels: Rows = "auto",
        val_levels: Rows = "auto",
        max_steps: int | None = None,
        pictures: bool = True,
        batch_size: int | None = None,
    ) -> None:
        super().__init__(steps_per_epoch, seed=seed, pictures=pictures, batch_size=batch_size)
        self.check(worlds_per_level=worlds_per_level, val_worlds_per_level=val_worlds_per_level, max_steps=max_steps)
        # The same rows may be asked for.
        if seed == val_seed:
            raise ValueError(f"NavigationWorlds: val_seed must be another than seed, and both are {val_seed}")
        self.val_seed = arguments.seed(type(self).__name__, "val_seed", val_seed, 0)
        self.changes = {} if max_steps is None else {"max_steps": max_steps}
        self.worlds = {"test": (worlds_per_level, test_levels), "validate": (val_worlds_per_level, val_levels)}

    def suite(self, stage: str = "test", num_episodes: int | None = None) -> NavigationSuite:
        """Worlds of a stage.

        `num_episodes` are spread evenly over the rows, the first of which have one more.
        """
        env = self.env
        assert isinstance(env, MarineNavEnv), "`env_class` says so"
        seeds = {"test": self.seed, "validate": self.val_seed}
        # Both are checked before either is played, so that no run is in vain.
        if env.seed in seeds.values():
            raise ValueError(f"NavigationWorlds: seeds must differ from {env.seed}, that of training, and are {seeds}")
        kind = "validate" if stage == "validate" else "test"
        published = _VALIDATION if kind == "validate" else _TESTS[env.version]
        changes = {**published, **self.changes, "seed": seeds[kind]}
        each, levels = self.worlds[kind]
        if levels == "own" or (levels == "auto" and env.flat):
            changes["curriculum"] = env.levels
        elif levels != "auto":
            changes["curriculum"] = levels
        suite = NavigationSuite.of_rows(env, each, self.pictures, self.batch_size, None, **changes)
        if num_episodes is None:
            return suite
        each = -(-num_episodes // len(suite.env.levels))
        return NavigationSuite.of_rows(suite.env, each, self.pictures, self.batch_size, num_episodes)
