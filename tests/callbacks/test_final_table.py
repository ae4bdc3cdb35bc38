"""The table at the end of a run: that of `test`, and only where a run ends as it should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule

from tests.standins import TinyData, TinyEnv, TinyModule
from tests.training import tiny_packer
from tests.training.tiny import data, fit, module, packing_env, trainer
from tests.training.tiny_navigation import navigation, worlds
from torchrl_gpu.callbacks import EpisodeCheckpoint, FinalTable
from torchrl_gpu.policies.packing import baselines
from torchrl_gpu.policies.packing.heuristics import (
    BOTH,
    DEEPEST,
    LESS_WASTE,
    MANAGER,
    RANDOM,
    RULE,
    VALUES,
    WORKER,
)

QUIET: dict[str, Any] = {"enable_checkpointing": False}


def report_in(folder: Path) -> dict[str, Any]:
    report = json.loads((folder / "evaluation.json").read_text())
    for row in report["policies"]:
        del row["decision_ms"]
    return report


def test_it_is_the_table_of_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = fit(module(), tmp_path / "fit", 4, FinalTable(), **QUIET)
    assert "5 episodes" in capsys.readouterr().out
    report = report_in(tmp_path / "fit")
    assert {row["policy"] for row in report["policies"]} == {"DQN", *baselines(packing_env(1))}
    assert {row["num_episodes"] for row in report["policies"]} == {5}
    trainer(tmp_path / "test", **QUIET).test(trained, datamodule=data(), verbose=False)
    assert report_in(tmp_path / "test") == report


def test_a_packer_stands_beside_its_own_contestants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tiny_packer.module(), tmp_path, 6, FinalTable(), **QUIET)  # type: ignore[arg-type]
    shown = capsys.readouterr().out
    assert "* beyond two standard errors" in shown
    report = report_in(tmp_path)
    names = [row["policy"] for row in report["policies"]]
    assert names == [RANDOM, DEEPEST, RULE, LESS_WASTE, VALUES, WORKER, MANAGER, BOTH]
    assert [row["method"] for row in report["comparison"]] == names
    assert all(name in shown for name in names)
    assert all(0 <= row["stability"] <= 1 for row in report["policies"])


def test_an_untrained_packer_stands_beside_rules_alone(tmp_path: Path) -> None:
    trainer(tmp_path).test(tiny_packer.module(), datamodule=data(num_episodes=2), verbose=False)
    rows = {row["method"]: row for row in json.loads((tmp_path / "evaluation.json").read_text())["comparison"]}
    assert list(rows) == [RANDOM, DEEPEST, RULE, LESS_WASTE, VALUES, f"{BOTH} (untrained)"]


def test_fewer_episodes(tmp_path: Path) -> None:
    fit(module(), tmp_path, 2, FinalTable(num_episodes=2), **QUIET)
    assert {row["num_episodes"] for row in report_in(tmp_path)["policies"]} == {2}


def test_the_checkpoint_is_saved_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: LightningModule, suite: Any) -> None:
        raise RuntimeError("no table")

    made = module()
    monkeypatch.setattr(type(made), "compare", fail)
    with pytest.raises(RuntimeError, match="no table"):
        fit(made, tmp_path, 2, FinalTable(), EpisodeCheckpoint(str(tmp_path)))
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 2


class Stop(Callback):
    def on_train_batch_end(self, *args: Any) -> None:
        raise RuntimeError("stopped")


def test_no_table_of_a_run_that_broke_off(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stopped"):
        fit(module(), tmp_path, 4, FinalTable(), Stop(), **QUIET)
    assert not (tmp_path / "evaluation.json").exists()


def test_no_table_of_a_trial_run(tmp_path: Path) -> None:
    fit(module(), tmp_path, 4, FinalTable(), fast_dev_run=1, **QUIET)
    assert not (tmp_path / "evaluation.json").exists()


def test_navigators_have_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(navigation("IQN"), tmp_path, 4, FinalTable(num_episodes=2), data_module=worlds(), **QUIET)  # type: ignore[arg-type]
    report = json.loads((tmp_path / "evaluation.json").read_text())
    assert report["worlds"]["num_worlds"] == 2  # one of each row
    assert [row["policy"] for row in report["policies"]] == ["IQN", "adaptive IQN"]
    assert "2 worlds" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_without_a_data_module(tmp_path: Path) -> None:
    runner = trainer(tmp_path, 2, FinalTable(num_episodes=3), **QUIET)
    runner.fit(module())
    assert {row["num_episodes"] for row in report_in(tmp_path)["policies"]} == {3}


def test_a_module_that_cannot_be_compared(tmp_path: Path) -> None:
    runner = trainer(tmp_path, 2, FinalTable(), **QUIET)
    with pytest.raises(ValueError, match=r"FinalTable: want a module .*; got TinyModule"):
        runner.fit(TinyModule(TinyEnv()), datamodule=TinyData())
