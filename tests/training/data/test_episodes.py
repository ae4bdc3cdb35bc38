"""The episodes of evaluation of any environment."""

from __future__ import annotations

import json
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from tests.evaluation.counting_env import CountingEnv
from tests.training.crossing_worlds import always, marine_env
from tests.training.tiny import data, packing_env, trainer
from torchrl_gpu.envs import MarineNavEnv, PackingEnv
from torchrl_gpu.envs.packing.items import CutBoxes, OrderBoxes
from torchrl_gpu.evaluation.episodes import EpisodeSuite
from torchrl_gpu.evaluation.marine.published import V2_TEST, V3_TEST, published_for
from torchrl_gpu.evaluation.marine.suite import NavigationSuite
from torchrl_gpu.evaluation.packing.suite import PackingSuite
from torchrl_gpu.training import Episodes, NavigationWorlds, PackingEpisodes
from torchrl_gpu.training.data.episodes import StepLoader, single_batch, suite_of


class Trained(LightningModule):
    def __init__(self, env: Any) -> None:
        super().__init__()
        self.__dict__["env"] = env


def connected(env: Any, data: Episodes | None = None) -> Trained:
    runner, module = trainer(Path("unused")), Trained(env)
    runner.strategy.connect(module)
    module.trainer = runner
    if data is not None:
        data.trainer, runner.datamodule = runner, data  # type: ignore[attr-defined]
    return module


def attached(data: Any, env: Any) -> Any:
    connected(env, data)
    return data


def test_every_stage_has_its_episodes() -> None:
    data = Episodes(steps_per_epoch=11, num_episodes=7, num_val_episodes=3, batch_size=2, seed=5)
    module = connected(CountingEnv(4, seed=1), data)
    assert len(data.train_dataloader()) == 11
    loaders = data.val_dataloader(), data.test_dataloader(), data.predict_dataloader()
    suites = list(chain.from_iterable(loaders))
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
def test_training_validation_and_test_have_seeds_of_their_own(seed: int) -> None:
    env = CountingEnv(2, seed=seed)
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
    envs = [env] + [suite.env for suite in suites]
    told = [orders_of(each) for each in envs]
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
    with pytest.raises(ValueError, match=rf"{kind}\b.*NoneType"):
        suite_of(connected(None, data()))


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


# A run that ends in the middle of an epoch has ended that epoch.
@pytest.mark.parametrize("stop", [None, 2, 4])
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
    assert steps == list(product(range(3), (1, 2)))
    if stop is None:
        assert [epoch for epoch, batch in module.seen if batch == "suite"] == [0, 1, 2]


def test_a_suite_is_one_batch_as_it_is() -> None:
    suite = object()
    assert [list(loader) for loader in [single_batch(suite)] * 2] == [[suite], [suite]]
    assert len(single_batch(suite)) == 1


def test_to_evaluate_draws_nothing_from_the_generator_of_training() -> None:
    before = torch.get_rng_state()
    assert list(single_batch(1, 2)) == [1, 2]
    assert torch.equal(torch.get_rng_state(), before)


SMALL = {"worlds_per_level": 2, "val_worlds_per_level": 1}


def only(loader: Any) -> Any:
    (suite,) = loader
    return suite


def trained(version: str = "v2", **changes: Any) -> MarineNavEnv:
    arguments = {"device": "cpu", "seed": 0, "pool": 2, "curriculum": "paper"} | changes
    return MarineNavEnv(2, version=version, **arguments)


@pytest.mark.parametrize(("version", "test"), [("v2", V2_TEST), ("v3", V3_TEST)])
def test_suite_of_robots_is_that_of_the_papers(version: str, test: Any) -> None:
    worlds = attached(NavigationWorlds(), trained(version))
    loaders = worlds.test_dataloader(), worlds.val_dataloader(), worlds.predict_dataloader()
    suites = [only(loader) for loader in loaders]
    envs = [suite.env for suite in suites]
    tested, validated, predicted = envs
    assert published_for(tested) is test
    number = {"v2": 500, "v3": 600}[version]
    assert [suite.num_episodes for suite in suites] == [number, 60, number]
    assert (validated.max_steps, validated.end_on_collision) == (1000, True)
    assert validated.levels[5] == (0, 7, 8, 10, 40.0) if version == "v2" else validated.levels == V3_TEST.levels
    assert (tested.seed, validated.seed) == (3, 253)
    assert (predicted.seed, predicted.levels) == (tested.seed, tested.levels)


def test_as_many_worlds_are_played_as_are_asked_for(tmp_path: Path) -> None:
    worlds = attached(NavigationWorlds(**SMALL | {"worlds_per_level": 3, "batch_size": 4}, max_steps=2), trained())
    every: Any = worlds.suite("test").play(always(4)).start
    more: Any = NavigationSuite.of_rows(worlds.suite("test").env, 4, False).play(always(4)).start
    for number, rows in ((10, [2, 2, 2, 2, 2]), (13, [3, 3, 3, 2, 2]), (3, [1, 1, 1, 0, 0])):
        suite = worlds.suite("test", number)
        played = suite.play(always(4))
        assert played.level.bincount(minlength=5).tolist() == rows
        assert played.start is not None
        # No world occurs twice.
        assert len(played.start.flatten(1).unique(dim=0)) == number
        if number != 10:
            assert all((more == start).flatten(1).all(1).any() for start in played.start)
        else:
            # These are the first worlds of each row.
            assert torch.equal(every.unflatten(0, (5, 3))[:, :2].flatten(0, 1), played.start)
    assert suite.pictures(9, 32).shape[0] == 3
    suite.draw(tmp_path)
    assert (tmp_path / "crossing.png").exists()


def test_worlds_are_like_those_of_training() -> None:
    env = trained("v3", actions="discrete", sensor_noise=False, first_env=64)
    like = only(attached(NavigationWorlds(**SMALL), env).val_dataloader()).env
    assert (like.version, like.actions, like.sensor_noise, like.first_env) == ("v3", "discrete", False, 0)
    assert like.observation_spec["robots", "observation"].shape[-1] == 32


def test_data_takes_levels_of_its_own() -> None:
    changes: dict[str, Any] = {"val_levels": "own", "test_levels": [[0, 2, 1, 0, 25]], "max_steps": 7}
    worlds = attached(NavigationWorlds(**SMALL, **changes), marine_env())
    assert worlds.suite("validate").env.levels == ((0, 1, 0, 0, 20.0),)
    assert worlds.suite("test").env.levels == ((0, 2, 1, 0, 25.0),)
    assert worlds.suite("test").env.max_steps == 7


def test_one_robot_without_its_group_has_its_own_rows() -> None:
    worlds = attached(NavigationWorlds(**SMALL), marine_env(flat=True))
    assert worlds.suite("validate").env.levels == ((0, 1, 0, 0, 20.0),)
    assert worlds.suite("test").env.flat


def test_another_seed_gives_other_worlds() -> None:
    goals = []
    for seed in (1, 2, 1):
        suite = attached(NavigationWorlds(val_seed=seed, **SMALL), trained()).suite("validate")
        suite.env.reset()
        goals.append(suite.env.scene.goal)
    assert torch.equal(goals[0], goals[2])
    assert not torch.equal(goals[0], goals[1])


def test_scores_of_a_suite() -> None:
    worlds = attached(NavigationWorlds(val_levels="own", max_steps=2, **SMALL), marine_env())
    suite = worlds.suite("validate")
    assert suite.play(always(4)).scores()[suite.headline] == 0


def test_the_worlds_of_training_are_refused() -> None:
    worlds = attached(NavigationWorlds(seed=9, **SMALL), trained(seed=9))
    with pytest.raises(ValueError, match=r"\b9\b.*'test': 9, 'validate': 253"):
        worlds.val_dataloader()


def test_bins_are_like_those_of_training() -> None:
    episodes = attached(data(), packing_env(orientations="axis", stability="support", visible_items=2))
    env = only(episodes.test_dataloader()).env
    assert (env.orientations, env.stability, env.visible_items, env.bin_size) == ("axis", "support", 2, (5.0, 5.0, 5.0))


def orders_of(env: PackingEnv) -> set[tuple[tuple[int, ...], ...]]:
    """Return the sequences of an environment as sizes of their boxes, cells."""
    pool: Any = env.item_sequences
    sizes = [tuple(each) for each in env.catalogue.extent[:, 0].tolist()]
    orders = set()
    for sequence in pool.sequences.tolist():
        orders.add(tuple(sizes[row] for row in sequence if row >= 0))
    return orders


def sizes_of(env: PackingEnv, row: list[int]) -> list[list[float]]:
    """Return the sides of the items of a sequence, metres."""
    return [env.item_sizes[item, 0, :3].tolist() for item in row if item >= 0]


def items_of(env: Any, number: int) -> list[list[int]]:
    key = env.item_sequences.begin(env.seed, torch.arange(number), torch.zeros(number, dtype=torch.int64))
    return env.item_sequences.items(key, torch.arange(env.item_sequences.length).expand(number, -1)).tolist()


@pytest.mark.parametrize("items", ["random", "cut"])
def test_training_never_sees_sequences_of_the_test(items: str) -> None:
    source = CutBoxes(2, 3, pool=64) if items == "cut" else packing_env().items
    episodes = attached(data(num_episodes=32, num_val_episodes=32), packing_env(32, items=source))
    trained = {tuple(row) for row in items_of(episodes.trainer.lightning_module.env, 32)}
    tested = [tuple(row) for row in items_of(only(episodes.test_dataloader()).env, 32)]
    # Chance has few short episodes in common.
    assert len(trained & set(tested)) < 3
    validated = [tuple(row) for row in items_of(only(episodes.val_dataloader()).env, 32)]
    assert len(set(validated) & set(tested)) < 3
    # The sequences are the same whenever they are asked for.
    assert tested == [tuple(row) for row in items_of(only(episodes.test_dataloader()).env, 32)]


def test_data_plays_every_sequence_of_a_file_once(tmp_path: Path) -> None:
    orders = [[[1, 1, 1], [2, 2, 2]], [[3, 3, 3]], [[1, 2, 3], [3, 2, 1], [1, 1, 1]]]
    (tmp_path / "orders.json").write_text(json.dumps(orders))
    # a run with few items an episode still evaluates on whole orders
    episodes = attached(data(sequences=str(tmp_path / "orders.json"), num_episodes=1), packing_env(num_items=1))
    for loader in (episodes.val_dataloader, episodes.test_dataloader, episodes.predict_dataloader):
        suite = only(loader())
        env = suite.env
        assert suite.num_episodes == 3
        sizes = [sizes_of(env, row) for row in items_of(env, 3)]
        assert [len(row) for row in sizes] == [2, 1, 3]
        assert sizes == orders


def test_data_reads_sizes_in_millimetres(tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text("[[[1000, 2000, 1500]]]")
    env = only(attached(data(sequences=str(tmp_path / "orders.json"), unit="mm"), packing_env()).test_dataloader()).env
    # Sides are rounded up to cells, the volume is not.
    assert env.item_sizes[0, 0].tolist() == pytest.approx([1.0, 2.0, 2.0, 3.0])


def test_the_unit_is_that_of_the_boxes_that_the_run_packs(tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text("[[[300, 200, 250]]]")
    pallet = {"bin_size": (1.2, 0.8, 1.5), "resolution": (120, 80), "items": OrderBoxes()}
    env = only(attached(data(sequences=str(tmp_path / "orders.json")), packing_env(**pallet)).test_dataloader()).env
    assert env.item_sizes[0, 0].tolist() == pytest.approx([0.3, 0.2, 0.25, 0.015])


@pytest.mark.parametrize("option", [{"unit": "mm"}, {"misfits": "skip_boxes"}])
def test_options_of_a_file_want_a_file(option: dict[str, str]) -> None:
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=rf"PackingEpisodes: {name} {value} .* sequences"):
        PackingEpisodes(**option)


def test_data_refuses_a_missing_file() -> None:
    with pytest.raises(FileNotFoundError, match=r"BoxSequences: no.json: "):
        PackingEpisodes(sequences="no.json")
