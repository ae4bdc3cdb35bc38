"""The record of a run: changed options, and where results belong."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.resuming import last, part_of
from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.checkpoints.record import changed_options, check_replay_options, describe_changes, results_folder

SAVED = {
    "trainer": {"max_steps": 4},
    "model": {
        "class_path": "torchrl_gpu.training.OffPolicy",
        "init_args": {
            "env": {"class_path": "torchrl_gpu.envs.PackingEnv", "init_args": {"num_envs": 4, "bin_size": [10.0, 5.0]}},
            "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.1}},
            "batch_size": 16,
        },
    },
}


def with_change(*path: str, value: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = dict(SAVED["model"]["init_args"])  # type: ignore[arg-type]
    found = arguments
    for name in path[:-1]:
        found[name] = dict(found[name])
        found = found[name]
    found[path[-1]] = value
    return {
        "trainer": {"max_steps": 9},
        "model": {"class_path": "torchrl_gpu.training.OffPolicy", "init_args": arguments},
    }


def test_changed_options_are_named_as_on_the_command_line() -> None:
    assert changed_options(SAVED, with_change("batch_size", value=16)) == {}
    found = changed_options(SAVED, with_change("env", "init_args", "bin_size", value=[10.0, 6.0]))
    assert found == {"model.env.bin_size": ([10.0, 5.0], [10.0, 6.0])}
    found = changed_options(SAVED, with_change("optimizer", "init_args", "lr", value=0.2))
    (line,) = describe_changes(found, ["optimizer*"])
    assert "change nothing: model.optimizer.lr 0.1 → 0.2" in line
    found = changed_options(SAVED, with_change("batch_size", value=17))
    assert describe_changes(found) == ["goes on with other options: model.batch_size 16 → 17"]
    found = changed_options(SAVED, with_change("new", value=1))
    assert found == {"model.new": ("nothing", 1)}


@pytest.mark.parametrize("saved", [None, {}, 3, {"model": 7}, {"model": {"init_args": ["x"]}}, {1: {2: 3}}])
def test_a_configuration_may_be_anything(saved: Any) -> None:
    """It comes from a file."""
    for line in describe_changes(changed_options(saved, SAVED)):
        assert len(line) < 2000
    assert changed_options(SAVED, None) == {}


def test_the_environment_of_a_replay_stays() -> None:
    check_replay_options(changed_options(SAVED, with_change("env", "init_args", "num_envs", value=8)), "here")
    with pytest.raises(ValueError, match=r"here: its replay .*model\.env\.bin_size \[10"):
        check_replay_options(changed_options(SAVED, with_change("env", "init_args", "bin_size", value=[1.0])), "here")
    other = with_change("env", "class_path", value="their.Env")
    with pytest.raises(ValueError, match=r"model\.env\.class_path torchrl_gpu\.envs\.PackingEnv → their\.Env"):
        check_replay_options(changed_options(SAVED, other), "here")


@pytest.mark.parametrize("change", [{"n_steps": 5}, {"gamma": 0.5}])
def test_returns_in_a_replay_stay_what_they_are(tmp_path: Path, change: dict[str, Any]) -> None:
    fit(module(), tmp_path, 4, EpisodeCheckpoint())
    with pytest.raises(ValueError, match=r"other returns, \{'n_steps'"):
        fit(module(agent=change), tmp_path, 8, EpisodeCheckpoint(), ckpt_path=last(tmp_path))
    part_of(last(tmp_path)).unlink()
    # The message asks for this.
    fit(module(agent=change), tmp_path, 8, EpisodeCheckpoint(), ckpt_path=last(tmp_path))


def test_a_run_tells_what_it_goes_on_with(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = module(), module(batch_size=17)
    first.run_config, second.run_config = SAVED, with_change("batch_size", value=17)
    fit(first, tmp_path, 4, EpisodeCheckpoint())
    with caplog.at_level(logging.INFO):
        fit(second, tmp_path, 6, EpisodeCheckpoint(), ckpt_path=last(tmp_path))
    assert any("last.ckpt goes on with other options: model.batch_size 16 → 17" in line for line in caplog.messages)


def config(visible_items: int = 1, num_envs: int = 64, **data: Any) -> dict[str, Any]:
    env = {"class_path": "Env", "init_args": {"visible_items": visible_items, "num_envs": num_envs}}
    return {
        "model": {"class_path": "Run", "init_args": {"env": env}},
        "data": {"class_path": "Data", "init_args": {"num_episodes": 1000, "sequences": None} | data},
        "trainer": {"max_steps": 3},
    }


def folder(root: Path, path: str | None, now: dict[str, Any] | None, stage: str = "test") -> str:
    trainer = SimpleNamespace(
        default_root_dir=str(root), ckpt_path=path and str(root / path), state=SimpleNamespace(fn=stage), global_step=7
    )
    checkpoint = None if path is None else {"global_step": 7, "torchrl_gpu": {"config": config()}}
    found, _ = results_folder(SimpleNamespace(trainer=trainer, run_config=now), checkpoint)
    return found.relative_to(root).as_posix()


OWN = "checkpoints/best.ckpt"


@pytest.mark.parametrize(
    ("path", "changes", "expected"),
    [
        (OWN, {}, "."),
        # Nothing depends on it.
        (OWN, {"num_envs": 8}, "."),
        (None, {}, "tested/untrained"),
        (None, {"sequences": "my boxes.json"}, "tested/untrained-my_boxes"),
        (OWN, {"sequences": "../mine.json"}, "tested/best-mine"),
        ("../another/checkpoints/last.ckpt", {}, "tested/last-another"),
        ("../another/last.ckpt", {}, "tested/last-another"),
    ],
)
def test_a_folder_by_what_was_tested(tmp_path: Path, path: str | None, changes: dict[str, Any], expected: str) -> None:
    assert folder(tmp_path / "run", path, config(**changes)) == expected


def test_other_options_have_a_folder_for_each_set_of_them(tmp_path: Path) -> None:
    folders = [
        folder(tmp_path, OWN, config(**c)) for c in ({"visible_items": 3}, {"num_episodes": 9}, {"visible_items": 3})
    ]
    assert folders[0] == folders[2] != folders[1]
    assert all(each.startswith("tested/best-") for each in folders)


def test_the_table_of_another_checkpoint_stays(tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text(json.dumps({"tested": {"checkpoint": "best.ckpt"}, "policies": []}))
    assert folder(tmp_path, OWN, config()) == "."
    assert folder(tmp_path, "checkpoints/last.ckpt", config()) == "tested/last"
    # The table at the end of a run is the run's.
    assert folder(tmp_path, None, config(), "fit") == "."
    # A file of an earlier version, or a broken one.
    for old in ("{}", "[]", "{", '{"tested": 3}'):
        (tmp_path / "evaluation.json").write_text(old)
        assert folder(tmp_path, "checkpoints/last.ckpt", config()) == "."


def test_without_a_config_the_weights_are_those_of_the_module(tmp_path: Path) -> None:
    assert folder(tmp_path, None, None) == "."
