"""The episodes of evaluation of any environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from tests.evaluation.counting_env import CountingEnv
from tests.training.crossing_worlds import marine_env
from tests.training.data.test_navigation import Trained
from tests.training.tiny import packing_env, trainer
from torchrl_gpu.envs.packing.items import CutBoxes
from torchrl_gpu.evaluation.episodes import EpisodeSuite
from torchrl_gpu.evaluation.navigation.suite import NavigationSuite
from torchrl_gpu.evaluation.packing.suite import PackingSuite
from torchrl_gpu.training import Episodes, NavigationWorlds, PackingEpisodes
from torchrl_gpu.training.data.episodes import StepLoader, single_batch, suite_of


def connected(env: Any, data: Episodes | None = None) -> Trained:
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
    assert [(suite.batch_size, suite.env.seed) for suite in suites] == [(2, 5 + 2**29), (2, 5), (2, 5)]
    assert data.suite("test", 4).num_episodes == suite_of(module, "test", 4).num_episodes == 4
    assert data.transfer_batch_to_device(suites[0], torch.device("cpu"), 0) is suites[0]


@pytest.mark.parametrize(
    ("env", "kind"), [(CountingEnv(2), EpisodeSuite), (packing_env(2), PackingSuite), (marine_env(2), NavigationSuite)]
)
def test_each_environment_has_the_suite_of_its_kind(env: Any, kind: type) -> None:
    module = connected(env, Episodes(num_episodes=6))
    suite = suite_of(module)
    assert type(suite) is kind
    assert suite.num_episodes == 6
    assert suite.env.seed != env.seed


@pytest.mark.parametrize("seed", [0, 1_000_003, 1_000_003 + 2**29, 2**63 - 1])
@pytest.mark.parametrize("make", [CountingEnv, packing_env, marine_env])
def test_training_validation_and_test_have_seeds_of_their_own(make: Any, seed: int) -> None:
    env = make(2, seed=seed)
    module = connected(env, Episodes(num_episodes=3, num_val_episodes=3, seed=min(seed, 1_000_003)))
    seeds = [env.seed, *(suite_of(module, stage).env.seed for stage in ("validate", "test"))]
    assert len(set(seeds)) == 3
    assert suite_of(module, "predict").env.seed == seeds[2]
    assert seeds[2] == (1_000_003 if seed > 1_000_003 else seed + 2**30)


@pytest.mark.parametrize("order", ["layers", "stack"])
def test_no_sequence_of_a_pool_is_both_of_validation_and_of_test_or_training(order: str) -> None:
    env = packing_env(2, items=CutBoxes(1, 3, order, pool=5, seed=1_000_003), seed=9)
    module = connected(env, Episodes(num_episodes=3, num_val_episodes=3))
    suites = [suite_of(module, stage) for stage in ("validate", "test")]
    pools = [each.item_sequences.sequences.tolist() for each in (env, *(suite.env for suite in suites))]
    catalogues = [each.catalogue.extent[:, 0].tolist() for each in (env, *(suite.env for suite in suites))]
    told = [
        {tuple(tuple(sizes[row]) for row in sequence if row >= 0) for sequence in pool}
        for pool, sizes in zip(pools, catalogues, strict=True)
    ]
    assert not told[0] & told[1]
    assert not told[0] & told[2]
    assert not told[1] & told[2]


def test_without_a_data_module_there_are_episodes_all_the_same() -> None:
    suite = suite_of(connected(CountingEnv(2)), "validate", 5)
    assert (type(suite), suite.num_episodes) == (EpisodeSuite, 5)
    assert suite_of(connected(CountingEnv(2))).env.seed == 1_000_003
    assert suite_of(connected(CountingEnv(2)), "validate").num_episodes == 200


@pytest.mark.parametrize(
    ("data", "kind"), [(Episodes, "BatchedEnv"), (PackingEpisodes, "PackingEnv"), (NavigationWorlds, "MarineNavEnv")]
)
def test_a_module_without_the_environment_that_it_wants(data: Any, kind: str) -> None:
    with pytest.raises(ValueError, match=f"want a module that trains in a {kind}; got NoneType as its env"):
        suite_of(connected(None, data()))


def test_an_epoch_of_steps() -> None:
    steps = StepLoader(3)
    assert len(steps) == 3
    assert [list(steps) for _ in range(2)] == [[1, 2, 3], [1, 2, 3]]


class Counted(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.automatic_optimization = torch.nn.Linear(1, 1), False
        self.seen: list[tuple[int, int | str]] = []

    def training_step(self, batch: int, batch_idx: int) -> None:
        self.seen.append((self.current_epoch, batch))
        self.optimizers().step()  # type: ignore[union-attr]

    def validation_step(self, batch: str, batch_idx: int) -> None:
        self.seen.append((self.current_epoch, batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize("stop", [None, 2, 4])  # a run that ends in the middle of an epoch has ended that epoch
def test_every_epoch_has_all_of_its_steps(stop: int | None, tmp_path: Path) -> None:
    quiet: dict[str, Any] = {"accelerator": "cpu", "logger": False, "num_sanity_val_steps": 0}
    quiet |= {"enable_progress_bar": False, "enable_model_summary": False}
    seen = []
    if stop is not None:
        first = Counted()
        trainer = Trainer(max_steps=stop, enable_checkpointing=False, **quiet)
        trainer.fit(first, StepLoader(2), single_batch("suite"))
        trainer.save_checkpoint(tmp_path / "stopped.ckpt")
        seen = first.seen
    module, path = Counted(), None if stop is None else tmp_path / "stopped.ckpt"
    trainer = Trainer(max_epochs=3, enable_checkpointing=False, **quiet)
    trainer.fit(module, StepLoader(2), single_batch("suite"), ckpt_path=path)
    steps = [(epoch, batch) for epoch, batch in seen + module.seen if batch != "suite"]
    assert steps == [(epoch, batch) for epoch in range(3) for batch in (1, 2)]
    if stop is None:
        assert [epoch for epoch, batch in module.seen if batch == "suite"] == [0, 1, 2]


@pytest.mark.parametrize("stop", [1, 2])
def test_steps_go_on_in_the_middle_of_an_epoch(stop: int) -> None:
    steps, fresh = iter(started := StepLoader(3)), StepLoader(3)
    for _ in range(stop):
        next(steps)
    fresh.load_state_dict(started.state_dict())
    assert list(fresh) == [1, 2, 3][stop:]
    assert list(fresh) == [1, 2, 3]


def test_a_suite_is_one_batch_as_it_is() -> None:
    suite = object()
    assert [list(loader) for loader in [single_batch(suite)] * 2] == [[suite], [suite]]
    assert len(single_batch(suite)) == 1


def test_to_evaluate_draws_nothing_from_the_generator_of_training() -> None:
    before = torch.get_rng_state()
    assert list(single_batch(1, 2)) == [1, 2]
    assert torch.equal(torch.get_rng_state(), before)
