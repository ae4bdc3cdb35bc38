"""The episodes of evaluation of any environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.evaluation.counting_env import CountingEnv
from tests.training.crossing_worlds import marine_env
from tests.training.test_navigation_data import Trained
from tests.training.tiny import packing_env, trainer
from torchrl_gpu.evaluation.episodes import EpisodeSuite
from torchrl_gpu.evaluation.navigation.suite import NavigationSuite
from torchrl_gpu.evaluation.packing.suite import PackingSuite
from torchrl_gpu.training import Episodes
from torchrl_gpu.training.data import suite_of


def connected(env: Any, data: Episodes | None = None) -> Trained:
    """A module and, where there is one, a data module, as the Trainer connects them."""
    runner, module = trainer(Path("unused")), Trained(env)
    runner.strategy.connect(module)
    module.trainer = runner
    if data is not None:
        data.trainer, runner.datamodule = runner, data  # type: ignore[attr-defined]
    return module


def test_every_stage_has_its_episodes() -> None:
    data = Episodes(steps_per_epoch=11, num_episodes=7, num_val_episodes=3, batch_size=2, seed=5)
    module = connected(CountingEnv(4, seed=1), data)
    assert len(data.train_dataloader()) == 11
    loaders = data.val_dataloader(), data.test_dataloader(), data.predict_dataloader()
    suites = [suite for loader in loaders for suite in loader]
    assert [suite.num_episodes for suite in suites] == [3, 7, 7]
    assert {(suite.batch_size, suite.env.seed) for suite in suites} == {(2, 5)}
    assert data.suite("test", 4).num_episodes == suite_of(module, "test", 4).num_episodes == 4
    assert data.transfer_batch_to_device(suites[0], torch.device("cpu"), 0) is suites[0]


@pytest.mark.parametrize(
    ("env", "kind"),
    [(CountingEnv(2), EpisodeSuite), (packing_env(2), PackingSuite), (marine_env(2), NavigationSuite)],
)
def test_each_environment_has_the_suite_of_its_kind(env: Any, kind: type) -> None:
    module = connected(env, Episodes(num_episodes=6))
    suite = suite_of(module)
    assert type(suite) is kind
    assert suite.num_episodes == 6
    assert suite.env.seed != env.seed


def test_without_a_data_module_there_are_episodes_all_the_same() -> None:
    suite = suite_of(connected(CountingEnv(2)), "validate", 5)
    assert (type(suite), suite.num_episodes, suite.env.seed) == (EpisodeSuite, 5, 1_000_003)
    assert suite_of(connected(CountingEnv(2)), "validate").num_episodes == 200


@pytest.mark.parametrize("name", ["steps_per_epoch", "num_episodes", "num_val_episodes", "batch_size"])
def test_numbers_that_cannot_work(name: str) -> None:
    with pytest.raises(ValueError, match=f"Episodes: {name} must be at least 1; got 0"):
        Episodes(**{name: 0})


def test_a_module_without_an_environment() -> None:
    with pytest.raises(ValueError, match="want a module that trains in a BatchedEnv; got NoneType as its env"):
        suite_of(connected(None))
