"""Results of what is not the run's own leave those of the run alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchrl_gpu.training.results_folder import results_folder


def config(visible_items: int = 1, num_envs: int = 64, **data: Any) -> dict[str, Any]:
    """That of a run."""
    env = {"class_path": "Env", "init_args": {"visible_items": visible_items, "num_envs": num_envs}}
    return {
        "model": {"class_path": "Run", "init_args": {"env": env}},
        "data": {"class_path": "Data", "init_args": {"num_episodes": 1000, "sequences": None} | data},
        "trainer": {"max_steps": 3},
    }


def folder(root: Path, path: str | None, now: dict[str, Any] | None, stage: str = "test") -> str:
    """Where results go, from the run's folder on."""
    trainer = SimpleNamespace(
        default_root_dir=str(root),
        ckpt_path=path and str(root / path),
        state=SimpleNamespace(fn=stage),
        global_step=7,
    )
    checkpoint = None if path is None else {"global_step": 7, "torchrl_gpu": {"config": config()}}
    found, _ = results_folder(SimpleNamespace(trainer=trainer, run_config=now), checkpoint)
    return found.relative_to(root).as_posix()


OWN = "checkpoints/best.ckpt"


@pytest.mark.parametrize(
    ("path", "changes", "expected"),
    [
        (OWN, {}, "."),
        (OWN, {"num_envs": 8}, "."),  # of which nothing depends
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
    assert folder(tmp_path, None, config(), "fit") == "."  # the table at the end of a run is the run's
    for old in ("{}", "[]", "{", '{"tested": 3}'):  # of an earlier version, or broken
        (tmp_path / "evaluation.json").write_text(old)
        assert folder(tmp_path, "checkpoints/last.ckpt", config()) == "."


def test_without_a_config_the_weights_are_those_of_the_module(tmp_path: Path) -> None:
    assert folder(tmp_path, None, None) == "."
