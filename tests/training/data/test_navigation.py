"""The worlds of evaluation, made for the environment of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule

from tests.training.crossing_worlds import always, marine_env
from tests.training.tiny import trainer
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.evaluation.navigation.published import V2_TEST, V3_TEST, published_for
from torchrl_gpu.evaluation.navigation.suite import NavigationSuite
from torchrl_gpu.training.data.episodes import NavigationWorlds

SMALL = {"worlds_per_level": 2, "val_worlds_per_level": 1}


class Trained(LightningModule):
    def __init__(self, env: Any) -> None:
        super().__init__()
        self.__dict__["env"] = env


def connected(worlds: NavigationWorlds, env: Any) -> NavigationWorlds:
    runner = trainer(Path("unused"))
    runner.strategy.connect(Trained(env))
    worlds.trainer = runner
    return worlds


def only(loader: Any) -> NavigationSuite:
    (suite,) = loader
    return suite


def trained(version: str = "v2", **changes: Any) -> MarineNavEnv:
    arguments = {"device": "cpu", "seed": 0, "pool": 2, "curriculum": "paper"} | changes
    return MarineNavEnv(2, version=version, **arguments)


@pytest.mark.parametrize(("version", "test"), [("v2", V2_TEST), ("v3", V3_TEST)])
def test_what_the_papers_evaluate_with(version: str, test: Any) -> None:
    worlds = connected(NavigationWorlds(**SMALL), trained(version))
    loaders = worlds.test_dataloader(), worlds.val_dataloader(), worlds.predict_dataloader()
    suites = [only(loader) for loader in loaders]
    tested, validated, predicted = (suite.env for suite in suites)
    assert published_for(tested) is test
    assert [suite.num_episodes for suite in suites] == [2 * len(test.levels), 6, 2 * len(test.levels)]
    assert (validated.max_steps, validated.end_on_collision) == (1000, True)
    assert validated.levels[5] == (0, 7, 8, 10, 40.0) if version == "v2" else validated.levels == V3_TEST.levels
    assert (tested.seed, validated.seed) == (3, 253)
    assert (predicted.seed, predicted.levels) == (tested.seed, tested.levels)


@pytest.mark.parametrize(("version", "number"), [("v2", 500), ("v3", 600)])
def test_numbers_of_worlds(version: str, number: int) -> None:
    worlds = connected(NavigationWorlds(), trained(version))
    assert (worlds.suite("test").num_episodes, worlds.suite("validate").num_episodes) == (number, 60)


def test_fewer_worlds_are_the_first_of_every_row() -> None:
    worlds = connected(NavigationWorlds(**SMALL | {"worlds_per_level": 3}, max_steps=2), trained())
    every, some = (worlds.suite("test", number) for number in (None, 10))
    assert [suite.num_episodes for suite in (every, some)] == [15, 10]
    starts = [suite.play(always(4)).start for suite in (every, some)]
    assert all(start is not None for start in starts)
    assert torch.equal(starts[0].unflatten(0, (5, 3))[:, :2].flatten(0, 1), starts[1])  # type: ignore[union-attr]


@pytest.mark.parametrize(("number", "rows"), [(13, [3, 3, 3, 2, 2]), (3, [1, 1, 1, 0, 0]), (16, [4, 3, 3, 3, 3])])
def test_as_many_worlds_are_played_as_are_asked_for(tmp_path: Path, number: int, rows: list[int]) -> None:
    worlds = connected(NavigationWorlds(**SMALL | {"worlds_per_level": 3, "batch_size": 4}, max_steps=2), trained())
    suite = worlds.suite("test", number)
    played = suite.play(always(4))
    assert played.level.bincount(minlength=5).tolist() == rows
    assert played.start is not None
    assert len(played.start.flatten(1).unique(dim=0)) == number  # no world twice
    every = NavigationSuite.of_rows(suite.env, 4, False).play(always(4)).start
    assert every is not None
    assert all((every == start).flatten(1).all(1).any() for start in played.start)
    assert suite.pictures(9, 32).shape[0] == len([row for row in rows if row])
    suite.draw(tmp_path)
    assert (tmp_path / "crossing.png").exists()


def test_the_environment_is_like_the_one_of_training() -> None:
    env = trained("v3", actions="discrete", sensor_noise=False, first_env=64)
    like = only(connected(NavigationWorlds(**SMALL), env).val_dataloader()).env
    assert (like.version, like.actions, like.sensor_noise, like.first_env) == ("v3", "discrete", False, 0)
    assert like.observation_spec["robots", "observation"].shape[-1] == 32


def test_own_rows() -> None:
    changes: dict[str, Any] = {"val_levels": "own", "test_levels": [[0, 2, 1, 0, 25]], "max_steps": 7}
    worlds = connected(NavigationWorlds(**SMALL, **changes), marine_env())
    assert worlds.suite("validate").env.levels == ((0, 1, 0, 0, 20.0),)
    assert worlds.suite("test").env.levels == ((0, 2, 1, 0, 25.0),)
    assert worlds.suite("test").env.max_steps == 7


def test_one_robot_without_its_group_has_its_own_rows() -> None:
    worlds = connected(NavigationWorlds(**SMALL), marine_env(flat=True))
    assert worlds.suite("validate").env.levels == ((0, 1, 0, 0, 20.0),)
    assert worlds.suite("test").env.flat


def test_another_seed_gives_other_worlds() -> None:
    goals = []
    for seed in (1, 2, 1):
        suite = connected(NavigationWorlds(val_seed=seed, **SMALL), trained()).suite("validate")
        suite.env.reset()
        goals.append(suite.env.scene.goal)
    assert torch.equal(goals[0], goals[2])
    assert not torch.equal(goals[0], goals[1])


def test_scores_of_a_suite() -> None:
    worlds = connected(NavigationWorlds(val_levels="own", max_steps=2, **SMALL), marine_env())
    suite = worlds.suite("validate")
    assert suite.play(always(4)).scores()[suite.headline] == 0


def test_the_worlds_of_training_are_refused() -> None:
    worlds = connected(NavigationWorlds(seed=9, **SMALL), trained(seed=9))
    with pytest.raises(ValueError, match=r"want seeds other than that of training, 9; got .'test': 9, 'validate': 253"):
        worlds.val_dataloader()
