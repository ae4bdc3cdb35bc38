"""Behaviour cloning as Lightning runs it.

It learns, stops early, resumes bit for bit, and refuses what does not fit.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from tensordict import TensorDict

from tests.demonstrations import row_files
from tests.training import resuming, tiny
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.demonstrations import Demonstrations, memmap
from torchrl_gpu.envs.dishes.env import DishwashingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.evaluation.demonstrations import play_rows
from torchrl_gpu.evaluation.episodes import suite_for
from torchrl_gpu.evaluation.random_actions import RandomActions
from torchrl_gpu.policies import AgentSpace, BCPolicy, PlacementScores, load_policy
from torchrl_gpu.policies.packing.heuristics import DeepestBottomLeft
from torchrl_gpu.training import BehaviourCloning, DemonstrationEpisodes

SCHEDULE = partial(torch.optim.lr_scheduler.LinearLR, start_factor=1.0, end_factor=0.1, total_iters=20)


@pytest.fixture(scope="module")
def bins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    env = tiny.packing_env()
    shown = play_rows(suite_for(env, 40, seed=5), DeepestBottomLeft(env), 40)
    return memmap.save(shown, tmp_path_factory.mktemp("bins") / "rows")


def choice(**changes: Any) -> BehaviourCloning:
    torch.manual_seed(7)
    arguments = {"batch_size": 32, "updates_per_step": 2, "lr_scheduler": SCHEDULE} | changes
    network = partial(PlacementScores, channels=8, blocks=1)
    optimizer = partial(torch.optim.Adam, lr=1e-2)
    return BehaviourCloning(network=network, env=tiny.packing_env(), optimizer=optimizer, **arguments)


def data(path: Path, **changes: Any) -> DemonstrationEpisodes:
    arguments = {"held_out": 0.2, "num_val_episodes": 3, "num_episodes": 3, "pictures": False, "steps_per_epoch": 5}
    return DemonstrationEpisodes(str(path), **(arguments | changes))


def fit(
    module: BehaviourCloning, given: DemonstrationEpisodes, folder: Path, max_steps: int, *more: Any, **kw: Any
) -> Any:
    trainer = tiny.trainer(folder, max_steps, *more)
    trainer.fit(module, given, weights_only=True, **kw)
    return trainer


def test_cloning_learns_a_rule_and_packs_by_it(bins: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, given = choice(lr_scheduler=None), data(bins)
    trainer = fit(module, given, tmp_path, 100)
    logged = trainer.callback_metrics
    assert trainer.global_step == 100
    # A network that has learned nothing reaches 0.31.
    assert logged["val/agreement"] > 0.55
    # It begins at 3.0.
    assert logged["val/loss"] < 1.5
    assert 0 < logged["val/utilization"] <= 1
    module.trainer.test(module, given, verbose=False)
    assert "BC" in capsys.readouterr().out


def test_a_run_goes_on_bit_for_bit(bins: Path, tmp_path: Path) -> None:
    def saver() -> list[Any]:
        return [EpisodeCheckpoint(monitor="val/agreement"), EarlyStopping("val/agreement", mode="max", patience=50)]

    fit(choice(), data(bins), tmp_path / "straight", 38, *saver())
    # It stops in the middle of an epoch, and of a pass.
    fit(choice(), data(bins), tmp_path / "halves", 14, *saver())
    half = resuming.last(tmp_path / "halves")
    torch.manual_seed(99)
    fit(choice(), data(bins), tmp_path / "halves", 38, *saver(), ckpt_path=str(half))
    ours = resuming.without_replay(resuming.last(tmp_path / "straight"))
    theirs = resuming.without_replay(resuming.last(tmp_path / "halves"))
    assert resuming.differences(ours, theirs) == []
    assert ours["agent_space"]["source"] == "PackingEnv"


def test_cloning_draws_every_row_once_in_a_pass_and_the_seed_decides_when(bins: Path, tmp_path: Path) -> None:
    module = choice(batch_size=16)
    fit(module, data(bins), tmp_path, 1)
    rows = len(module.train_rows)
    drawn = [module.draw_rows(update) for update in range(rows // 16)]
    assert len(torch.cat(drawn).unique()) == 16 * (rows // 16)
    assert set(torch.cat(drawn).tolist()) <= set(module.train_rows.tolist())
    # These rows are of the next pass.
    assert not torch.equal(drawn[0], module.draw_rows(rows // 16))
    assert torch.equal(drawn[1], module.draw_rows(1))
    other = choice(batch_size=16, seed=1)
    fit(other, data(bins), tmp_path / "other", 1)
    assert torch.equal(other.train_rows, module.train_rows)
    assert not torch.equal(drawn[0], other.draw_rows(0))


@pytest.mark.parametrize(("updates_per_step", "steps"), [(10, 1), (2, 2), (4, 1), (3, 1)])
def test_an_epoch_is_a_pass(updates_per_step: int, steps: int, tmp_path: Path) -> None:
    """Three updates of four rows, whether or not a step's updates divide them."""
    path = row_files.write_robomimic(tmp_path / "a.hdf5")
    module = vectors()
    module.updates_per_step = updates_per_step
    given = DemonstrationEpisodes(str(path), masks=["train", "valid"])
    with h5py.File(path, "a") as file:
        del file["mask/train"]
        file["mask/train"], file["mask/valid"] = np.array([b"demo_0", b"demo_2"]), np.array([b"demo_1"])
    trainer = tiny.trainer(tmp_path, -1, max_epochs=4)
    trainer.fit(module, given, weights_only=True)
    assert module.steps_of(len(given.train_rows)) == steps
    assert trainer.global_step == 4 * 3
    assert trainer.current_epoch == 4


def test_robomimics_masks_split_the_episodes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = row_files.write_robomimic(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        file["mask/valid"], file["mask/more"] = np.array([b"demo_2"]), np.array([b"demo_1", b"demo_2"])
    given = data(path)
    given.setup("fit")
    assert "mask/train (2 episodes) and mask/valid (1) are not used; data.masks [train, valid] learns" in caplog.text
    caplog.clear()
    given = data(path, masks=["train", "valid"])
    given.setup("fit")
    assert given.train_rows.tolist() == list(range(8))
    assert given.held_rows.tolist() == list(range(8, 15))
    assert "mask" not in caplog.text
    with pytest.raises(ValueError, match=r"mask/train .*mask/more.* 1 "):
        data(path, masks=["train", "more"]).setup("fit")
    with pytest.raises(ValueError, match=r"mask/some.* masks \['more', 'train', 'valid'\]"):
        data(path, masks=["train", "some"]).setup("fit")
    with pytest.raises(ValueError, match=r"mask/train.* no masks"):
        data(row_files.write_rows(tmp_path / "rows"), masks=["train", "valid"]).setup("fit")
    for masks in (["train"], ["train", "train"]):
        with pytest.raises(ValueError, match=r"masks .*\[train, valid\]"):
            data(path, masks=masks)


def test_a_sensor_that_the_policy_does_not_take_may_be_broken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = row_files.write_robomimic(tmp_path / "a.hdf5", **{"obs/more": np.full((3, 1), np.nan)})
    with h5py.File(path, "a") as file:
        file["data/demo_0/obs/word"] = np.array([b"x"] * 5)
    trainer = fit(vectors(), data(path), tmp_path, 4)
    assert trainer.global_step == 4
    with h5py.File(path, "a") as file:
        file["data/demo_1/obs/state"][1] = np.nan
    with pytest.raises(ValueError, match=r"demo_1/obs/state: .*finite"):
        fit(vectors(), data(path), tmp_path, 4)
    given = data(path, on_bad="skip")
    fit(vectors(), given, tmp_path, 4)
    assert given.demonstrations is not None
    assert given.demonstrations.num_episodes == 2
    assert "1 episodes skipped" in caplog.text
    with pytest.raises(ValueError, match=r"on_bad .*raise, skip"):
        data(path, on_bad="pass")


def test_cloning_does_not_learn_from_rows_held_back(bins: Path, tmp_path: Path) -> None:
    module, given = choice(), data(bins)
    fit(module, given, tmp_path, 1)
    assert not set(given.train_rows.tolist()) & set(given.held_rows.tolist())
    assert len(given.train_rows) + len(given.held_rows) == len(module.demonstrations)
    assert module.steps_of(len(given.train_rows)) == -(-(len(given.train_rows) // 32) // 2)


def test_cloning_stops_early(bins: Path, tmp_path: Path) -> None:
    def nothing(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.0)

    module = choice(lr_scheduler=None)
    module.make_optimizer = nothing
    stop = EarlyStopping("val/agreement", mode="max", patience=2)
    trainer = fit(module, data(bins, num_val_episodes=0), tmp_path, 1000, stop)
    # It stops after the first validation and two that are no better.
    assert trainer.global_step == 3 * 10
    assert "val/utilization" not in trainer.callback_metrics


def vectors(**changes: Any) -> BehaviourCloning:
    torch.manual_seed(7)
    names = ["state", "hand"]
    policy = BCPolicy(row_files.STATE + row_files.HAND, row_files.ACTION, (16,), observations=names, **changes)
    return BehaviourCloning(policy, batch_size=4, updates_per_step=2)


@pytest.mark.parametrize("loss", ["mse", "nll"])
def test_vectors_without_an_environment(loss: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = row_files.write_robomimic(tmp_path / "a.hdf5")
    module, given = vectors(loss=loss), data(path, held_out=0.3)
    trainer = fit(module, given, tmp_path / "run", 30, EpisodeCheckpoint(monitor="val/loss", mode="min"))
    assert {"val/loss", "val/error"} <= set(trainer.callback_metrics)
    content = torch.load(resuming.last(tmp_path / "run"), weights_only=True)
    assert content["bc_policy"]["obs_dim"] == 6
    learned = row_files.joined("action")[given.train_rows]
    torch.testing.assert_close(content["state_dict"]["learner.action_mean"], learned.mean(0))
    other = vectors(loss=loss)
    other.load_state_dict(content["state_dict"])
    given_rows = row_files.joined("state"), row_files.joined("hand")
    assert torch.equal(other.learner(*given_rows), module.learner(*given_rows))
    loaded = load_policy(resuming.last(tmp_path / "run"), "cpu")
    seen = TensorDict(dict(zip(("state", "hand"), given_rows, strict=True)), [len(given_rows[0])])
    assert torch.equal(loaded(seen)["action"], module.learner(*given_rows))
    capsys.readouterr()
    trainer.test(module, given, verbose=False)
    assert "rows held back: loss" in capsys.readouterr().out


def test_vectors_in_an_environment(tmp_path: Path) -> None:
    env = DishwashingEnv(4, max_steps=5, device="cpu", seed=1)
    shown = play_rows(suite_for(env, 12, seed=2), RandomActions(env), 12)
    assert shown.lengths.tolist() == [5] * 12
    path = memmap.save(shown, tmp_path / "rows")
    width = env.observation_spec["observation"].shape[-1]
    module = BehaviourCloning(BCPolicy(width, 2, (8,)), env=env, batch_size=8, updates_per_step=2)
    trainer = fit(module, data(path), tmp_path / "run", 10)
    assert {"val/loss", "val/error", "val/profit"} <= set(trainer.callback_metrics)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    loaded, seen = load_policy(tmp_path / "last.ckpt", "cpu"), env.reset()
    assert loaded.space == AgentSpace.of(env)
    assert torch.equal(loaded(seen.clone())["action"], module.policy_for(env).eval()(seen)["action"])


def spoilt(bins: Path, folder: Path, **entries: Any) -> Path:
    shown = memmap.open_saved(bins)
    rows = TensorDict({**shown.rows, **entries}, [len(shown)])
    rows = rows.exclude(*(name for name, value in entries.items() if value is None))
    return memmap.save(Demonstrations(rows, shown.lengths, shown.dtypes), folder / "spoilt")


def changed(bins: Path, name: str, row: int, value: int) -> dict[str, Any]:
    entry = memmap.open_saved(bins).rows[name].clone().to(torch.int16)
    entry[row] = value
    return {name: entry}


WRONG = {
    "an action that is none": ("action", 1234, r"action must be from 0 to \d+; got 1234 at \[3\]"),
    "an item of another catalogue": ("item_id", 900, r"item_id must be from -1 to 26; got 900 at \[3, 0\]"),
    "higher than the bin": ("box_heightmap", 9, r"box_heightmap must be from 0 to 5\.\d+; got 9 at \[3, 0, 0\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_cloning_refuses_demonstrations_of_another_environment(name: str, bins: Path, tmp_path: Path) -> None:
    entry, value, says = WRONG[name]
    path = spoilt(bins, tmp_path, **changed(bins, entry, 3, value))
    with pytest.raises(ValueError, match=says):
        fit(choice(), data(path), tmp_path, 1)


def test_items_that_are_others(tmp_path: Path) -> None:
    env = tiny.packing_env(items=RandomBoxes(1, 2))
    path = memmap.save(play_rows(suite_for(env, 9, seed=5), DeepestBottomLeft(env), 9), tmp_path / "rows")
    with pytest.raises(ValueError, match=r"items of .*PackingEnv.* those of others"):
        fit(choice(), data(path), tmp_path, 1)


def test_an_action_that_is_not_legal_there(bins: Path, tmp_path: Path) -> None:
    module = choice()
    shown = memmap.open_saved(bins)
    batch = module.env.restore(shown.batch(torch.arange(len(shown))))
    row = int((~batch["action_mask"]).any(1).nonzero()[4])
    illegal = int((~batch["action_mask"][row]).nonzero()[0])
    path = spoilt(bins, tmp_path, **changed(bins, "action", row, illegal))
    wanted = rf"actions that are legal in this PackingEnv.* {illegal} in row {row}"
    with pytest.raises(ValueError, match=wanted):
        fit(module, data(path), tmp_path, 1)


def test_entries_that_are_missing_or_of_another_shape(bins: Path, tmp_path: Path) -> None:
    path = spoilt(bins, tmp_path, box_heightmap=None)
    with pytest.raises(ValueError, match=r"entry box_heightmap, .*PackingEnv.* action, item_id"):
        fit(choice(), data(path), tmp_path, 1)
    path = spoilt(bins, tmp_path / "b", box_heightmap=memmap.open_saved(bins).rows["box_heightmap"][:, :4])
    with pytest.raises(ValueError, match=r"box_heightmap .*\(\d+, 5, 5\); got \(\d+, 4, 5\)"):
        fit(choice(), data(path), tmp_path, 1)


def test_vectors_of_another_width(tmp_path: Path) -> None:
    path = row_files.write_robomimic(tmp_path / "a.hdf5")
    for policy, says in [
        (BCPolicy(5, 3, observations=["state"]), r"state: .*5 numbers in each row, policy.obs_dim.* 4"),
        (BCPolicy(4, 2, observations=["state"]), r"action: .*2 numbers in each row, policy.action_dim.* 3"),
        (BCPolicy(4, 3), r"demo_0/obs: .*no entry observation, only \['hand', 'state'\]"),
    ]:
        with pytest.raises(ValueError, match=says):
            fit(BehaviourCloning(policy), data(path), tmp_path, 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "policy .* not none of them"),
        ({"network": PlacementScores}, "not network"),
        ({"policy": BCPolicy(), "network": PlacementScores}, "not policy, network"),
        ({"policy": BCPolicy(), "batch_size": 0}, "batch_size must be at least 1"),
        ({"policy": BCPolicy(6, 5), "env": DishwashingEnv(1, device="cpu")}, "5 continuous actions"),
    ],
)
def test_cloning_refuses_wrong_arguments(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        BehaviourCloning(**arguments)


def test_demonstrations_are_needed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data .*not PackingEpisodes"):
        tiny.trainer(tmp_path).fit(choice(), tiny.data())
    with pytest.raises(ValueError, match=r"held_out .*0 and 1"):
        DemonstrationEpisodes("x", held_out=1.0)
