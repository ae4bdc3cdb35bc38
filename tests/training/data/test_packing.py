"""The episodes of evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.tiny import data, module, packing_env, trainer
from torchrl_gpu.envs.packing.items import CutBoxes, OrderBoxes
from torchrl_gpu.evaluation.packing.suite import PackingSuite
from torchrl_gpu.training import PackingEpisodes


def connected(episodes: PackingEpisodes, env: dict[str, Any] | None = None) -> PackingEpisodes:
    runner = trainer(Path("unused"))
    runner.strategy.connect(module(env=env))
    episodes.trainer = runner
    return episodes


def only(loader: Any) -> PackingSuite:
    (suite,) = loader
    return suite


def test_the_environment_is_like_the_one_of_training() -> None:
    episodes = connected(data(), env={"orientations": "axis", "stability": "support", "visible_items": 2})
    env = only(episodes.test_dataloader()).env
    assert (env.orientations, env.stability, env.visible_items, env.bin_size) == ("axis", "support", 2, (5.0, 5.0, 5.0))


def items_of(env: Any, number: int) -> list[list[int]]:
    key = env.item_sequences.begin(env.seed, torch.arange(number), torch.zeros(number, dtype=torch.int64))
    return env.item_sequences.items(key, torch.arange(env.item_sequences.length).expand(number, -1)).tolist()


@pytest.mark.parametrize("items", ["random", "cut"])
def test_training_never_sees_them(items: str) -> None:
    source = CutBoxes(2, 3, pool=64) if items == "cut" else packing_env().items
    episodes = connected(data(num_episodes=32, num_val_episodes=32), env={"items": source, "num_envs": 32})
    trained = {tuple(row) for row in items_of(episodes.trainer.lightning_module.env, 32)}
    tested = [tuple(row) for row in items_of(only(episodes.test_dataloader()).env, 32)]
    assert len(trained & set(tested)) < 3  # chance has few short episodes in common
    validated = [tuple(row) for row in items_of(only(episodes.val_dataloader()).env, 32)]
    assert len(set(validated) & set(tested)) < 3
    assert tested == [tuple(row) for row in items_of(only(episodes.test_dataloader()).env, 32)]  # whenever asked


def test_every_sequence_of_a_file_once(tmp_path: Path) -> None:
    orders = [[[1, 1, 1], [2, 2, 2]], [[3, 3, 3]], [[1, 2, 3], [3, 2, 1], [1, 1, 1]]]
    (tmp_path / "orders.json").write_text(json.dumps(orders))
    # a run with few items an episode still evaluates on whole orders
    episodes = connected(data(sequences=str(tmp_path / "orders.json"), num_episodes=1), env={"num_items": 1})
    for loader in (episodes.val_dataloader, episodes.test_dataloader, episodes.predict_dataloader):
        suite = only(loader())
        env = suite.env
        assert suite.num_episodes == 3
        rows = [[item for item in row if item >= 0] for row in items_of(env, 3)]
        assert [len(row) for row in rows] == [2, 1, 3]
        sizes = [[(env._sizes[item, 0, :3]).tolist() for item in row] for row in rows]
        assert sizes == orders


def test_sizes_in_millimetres(tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text("[[[1000, 2000, 1500]]]")
    env = only(connected(data(sequences=str(tmp_path / "orders.json"), unit="mm")).test_dataloader()).env
    assert env._sizes[0, 0].tolist() == pytest.approx([1.0, 2.0, 2.0, 3.0])  # sides rounded up to cells, not the volume


def test_the_unit_is_that_of_the_boxes_that_the_run_packs(tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text("[[[300, 200, 250]]]")
    pallet = {"bin_size": (1.2, 0.8, 1.5), "resolution": (120, 80), "items": OrderBoxes()}
    env = only(connected(data(sequences=str(tmp_path / "orders.json")), env=pallet).test_dataloader()).env
    assert env._sizes[0, 0].tolist() == pytest.approx([0.3, 0.2, 0.25, 0.015])


@pytest.mark.parametrize("option", [{"unit": "mm"}, {"misfits": "skip_boxes"}])
def test_options_of_a_file_want_a_file(option: dict[str, str]) -> None:
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=f"PackingEpisodes: {name} wants sequences, .*; got {value} without one"):
        PackingEpisodes(**option)


def test_a_file_that_is_missing() -> None:
    with pytest.raises(FileNotFoundError, match=r"BoxSequences: no.json: want a file of box sequences; there is none"):
        PackingEpisodes(sequences="no.json")
