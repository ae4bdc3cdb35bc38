"""Who plays: the checkpoint's policy where there is one, a baseline where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.test_end_to_end import ORDERS, small, write_orders
from torchrl_gpu import cli
from torchrl_gpu.cli.loading import load_policy
from torchrl_gpu.evaluation.player import Player


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run")
    args = [f"--trainer.default_root_dir={folder}", "--trainer.logger=false", "--trainer.enable_progress_bar=false"]
    args += ["--trainer.callbacks=[torchrl_gpu.callbacks.EpisodeCheckpoint]"]
    assert cli.main(["fit", *small("packing_dqn.yaml"), *args]) is None
    return str(folder / "checkpoints" / "last.ckpt")


def test_the_trained_policy_plays_the_episodes_of_the_test(checkpoint: str) -> None:
    made = load_policy(small("packing_dqn.yaml"), checkpoint, None, num_envs=2)
    assert (made.name, made.version, made.env.num_envs) == ("DQN", 6, 2)
    assert made.env.seed == 1_000_003  # that of the data module, not of the run
    saved = torch.load(checkpoint, weights_only=True)["state_dict"]
    weights = dict(made.policy.named_parameters())  # type: ignore[attr-defined]
    assert any(torch.equal(value, kept) for value in weights.values() for kept in saved.values())
    player = Player(made.env, made.policy)
    while not player.step().any():
        pass
    assert int(made.env.num_packed.max()) > 0  # type: ignore[attr-defined]


def test_the_last_checkpoint_of_the_run_plays(checkpoint: str) -> None:
    folder = f"--trainer.default_root_dir={Path(checkpoint).parents[1]}"
    made = load_policy([*small("packing_dqn.yaml"), folder], "last", None, num_envs=1)
    assert (made.name, made.version) == ("DQN", 6)


def test_without_a_run_there_is_no_last_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ckpt_path 'last' wants a whole checkpoint in .*; got none"):
        load_policy([*small("packing_dqn.yaml"), f"--trainer.default_root_dir={tmp_path}"], "last", None, num_envs=1)


def test_a_heuristic_plays_without_a_checkpoint() -> None:
    made = load_policy(small("packing_dqn.yaml"), None, None, num_envs=1)
    assert (made.name, made.version) == ("pretrained", None)


def test_another_one_by_name(checkpoint: str) -> None:
    made = load_policy(small("packing_dqn.yaml"), checkpoint, "random legal", num_envs=1)
    assert (made.name, made.version) == ("random legal", None)


def test_irregular_items_without_a_checkpoint() -> None:
    made = load_policy(small("packing_irregular.yaml"), None, None, num_envs=1)
    assert made.name == "pile values"


def test_orders_on_the_pallet_without_a_checkpoint() -> None:
    made = load_policy(["--config", "packing_orders.yaml", "--data.num_episodes=2"], None, None, num_envs=1)
    assert (made.name, made.version) == ("pretrained", None)
    player = Player(made.env, made.policy)
    for _ in range(3):
        assert not player.step().any()
    assert int(made.env.num_packed[0]) == 3  # type: ignore[attr-defined]


def test_real_orders_one_after_the_other(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders.json")
    args = [each for each in small("packing_orders.yaml") if "sequences" not in each]
    made = load_policy([*args, f"--data.sequences={tmp_path / 'orders.json'}"], None, None, num_envs=1)
    player, packed = Player(made.env, made.policy), []
    while len(packed) < 3:
        if bool(player.step()):
            packed.append(int(made.env.num_packed[0]))  # type: ignore[attr-defined]
    lengths = [len(order) for order in ORDERS.values()]
    assert packed == [*lengths, lengths[0]]


def test_an_untrained_policy_has_no_name() -> None:
    with pytest.raises(ValueError, match=r"want --policy to be one of random, pretrained, random legal, .*; got 'DQN'"):
        load_policy(small("packing_dqn.yaml"), None, "DQN", num_envs=1)


def test_worlds_begin_with_the_hardest_and_with_a_random_navigator() -> None:
    made = load_policy(["--config", "navigation_dqn.yaml", "--data.worlds_per_level=2"], None, None, num_envs=2)
    assert (made.name, made.version, made.is_stopgap) == ("random", None, True)
    player = Player(made.env, made.policy)
    player.step()
    assert made.env.state.level.tolist() == [4, 3]  # type: ignore[attr-defined]


def test_no_checkpoint_there() -> None:
    with pytest.raises(FileNotFoundError, match=r"checkpoint no\.ckpt: want an existing file; got none there"):
        load_policy(small("packing_dqn.yaml"), "no.ckpt", None, num_envs=1)
