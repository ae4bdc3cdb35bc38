"""Small promises about the end of a run and about resuming it.

Each fault is said in one plain line.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Timer

from tests.training import test_afterstates as tables
from tests.training.rank_cases import Lines
from tests.training.resuming import differences, everything, last
from tests.training.tiny import data, fit, module, packing_env, trainer
from torchrl_gpu import cli, training
from torchrl_gpu.callbacks import EnvWorkers, EpisodeCheckpoint
from torchrl_gpu.policies import PackingPolicy, load_policy
from torchrl_gpu.training.data.episodes import StepLoader
from torchrl_gpu.training.warm_start import take_network

RUNS = [each for each in vars(training).values() if isinstance(each, type) and issubclass(each, training.EnvRun)]


# -- torch_compile auto


@pytest.mark.parametrize(
    ("limits", "planned"),
    [
        ({"max_steps": 6_000}, 6_000),
        # 3 training steps of 2 updates.
        ({"max_steps": -1, "max_epochs": 1}, 6),
        ({"max_steps": 6_000, "max_epochs": 1}, 6),
        ({"max_steps": -1, "max_epochs": 10**6}, 6 * 10**6),
        ({"max_steps": -1, "max_epochs": 10, "limit_train_batches": 1}, 20),
        ({"max_steps": -1, "max_epochs": -1}, math.inf),
    ],
)
def test_auto_looks_at_every_limit(limits: dict[str, Any], planned: float, tmp_path: Path) -> None:
    run = module(torch_compile="auto")
    run.trainer = trainer(tmp_path, **limits)  # type: ignore[assignment]
    run.trainer.datamodule = data()  # type: ignore[attr-defined]
    assert run.planned_updates() == planned
    assert run.compiles is (planned >= 5_000)


@pytest.mark.parametrize("before", [True, False])
def test_a_run_that_is_extended_stays_as_it_began(before: bool, tmp_path: Path) -> None:
    fit(module(torch_compile="auto"), tmp_path, 4, EpisodeCheckpoint())
    content = torch.load(last(tmp_path), weights_only=True)
    assert content["compiled"] is False
    run = module(torch_compile="auto")
    run.trainer = trainer(tmp_path, 5 if before else 10**6)  # type: ignore[assignment]
    run.on_load_checkpoint(content | {"compiled": before})
    assert run.compiles is before


def test_resume_says_what_auto_keeps(tmp_path: Path) -> None:
    fit(module(torch_compile="auto"), tmp_path, 4, EpisodeCheckpoint())
    with Lines() as lines:
        fit(module(torch_compile="auto"), tmp_path, 6, EpisodeCheckpoint(), ckpt_path=last(tmp_path))
    assert any("torch_compile auto" in line and "not compiled" in line for line in lines)


# -- limits


def test_time_that_is_used_up_is_named(tmp_path: Path) -> None:
    fit(module(), tmp_path, 4, Timer("00:00:01:00"), EpisodeCheckpoint())
    used = Timer("00:00:01:00")
    used._offset = 3600.0
    used.load_state_dict = lambda state: None  # type: ignore[method-assign]
    with Lines() as lines:
        fit(module(), tmp_path, 8, used, EpisodeCheckpoint(), ckpt_path=last(tmp_path))
    assert any("nothing was left to train" in line and "--trainer.max_time" in line for line in lines)


def test_epochs_that_are_over_are_named(tmp_path: Path) -> None:
    fit(module(), tmp_path, -1, EpisodeCheckpoint(), max_epochs=1)
    with Lines() as lines:
        fit(module(), tmp_path, -1, EpisodeCheckpoint(), max_epochs=1, ckpt_path=last(tmp_path))
    assert any("nothing was left to train" in line and "--trainer.max_epochs" in line for line in lines)


@pytest.mark.parametrize(("steps", "told"), [(4, False), (3, True)])
def test_a_cut_within_a_training_step_is_told(steps: int, told: bool, tmp_path: Path) -> None:
    """A cut within a training step of two updates is reported.

    Without a report, a resumed run is the same as one that never stopped.
    """
    with Lines() as lines:
        fit(module(), tmp_path / "cut", steps, EpisodeCheckpoint())
    said = [line for line in lines if "within a training step, after 1 of its 2 updates" in line]
    assert bool(said) is told
    assert all(f"trainer.max_steps {steps + 1} would have ended with that step" in line for line in said)
    fit(module(), tmp_path / "cut", 8, EpisodeCheckpoint(), ckpt_path=last(tmp_path / "cut"))
    fit(module(), tmp_path / "whole", 8, EpisodeCheckpoint())
    same = differences(everything(last(tmp_path / "cut")), everything(last(tmp_path / "whole"))) == []
    assert same is not told


# -- epochs of another length


def test_an_epoch_that_is_shorter_than_what_is_done_is_told_with_both_numbers(tmp_path: Path) -> None:
    fit(module(), tmp_path, 10, EpisodeCheckpoint(), data_module=data(steps_per_epoch=8))
    again = data(steps_per_epoch=2)
    with pytest.raises(ValueError, match=r"steps_per_epoch .*\b5\b.* not 2"):
        fit(module(), tmp_path, 12, EpisodeCheckpoint(), data_module=again, ckpt_path=last(tmp_path))
    fit(module(), tmp_path, 12, EpisodeCheckpoint(), data_module=data(steps_per_epoch=7), ckpt_path=last(tmp_path))


def test_a_loader_takes_no_counts_that_cannot_be() -> None:
    for done in (-1, 4, "1", None):
        with pytest.raises(ValueError, match=r"done|steps_per_epoch"):
            StepLoader(3).load_state_dict({"done": done})  # type: ignore[dict-item]


# -- workers


def test_workers_of_a_run_that_steps_its_environment_itself_are_refused(tmp_path: Path) -> None:
    run = training.PlacementEvolution(partial(packing_env, 8), members=4)
    with pytest.raises(ValueError, match="EnvWorkers: PlacementEvolution steps"):
        fit(run, tmp_path, 1, EnvWorkers())


# -- plans


def test_plans_of_another_checkpoint_are_moved_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plans of another checkpoint are moved, as by the command line.

    Its runs know their options and leave results in their own folder.
    """

    def made() -> Any:
        run = module()
        run.run_config = {"model": {"init_args": {"x": 1}}}
        return run

    fit(made(), tmp_path, 12, EpisodeCheckpoint(every_n_updates=6))
    runner = trainer(tmp_path, 12, EpisodeCheckpoint())

    def predict(name: str) -> bytes:
        path = tmp_path / "checkpoints" / f"{name}.ckpt"
        runner.predict(made(), datamodule=data(num_episodes=20), ckpt_path=path, weights_only=True)
        return (tmp_path / "plans.json").read_bytes()

    first = predict("last")
    assert predict("last") == first
    assert "Moved" not in capsys.readouterr().out
    assert predict("updates-6") != first
    assert "plans-1.json" in capsys.readouterr().out
    assert (tmp_path / "plans-1.json").read_bytes() == first


# -- checkpoints and code


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_lightnings_way_to_load_says_which_is_ours(run: Any) -> None:
    with pytest.raises(ValueError, match=rf"{run.__name__}\.load_from_checkpoint\(here\.ckpt\): .*load_policy"):
        run.load_from_checkpoint("here.ckpt")


RAN: list[Any] = []


def instantiate(*args: Any, **kwargs: Any) -> None:
    """Code that a checkpoint names."""
    RAN.append(args)


@pytest.mark.parametrize("entry", ["hyper_parameters", "datamodule_hyper_parameters"])
def test_a_checkpoint_that_names_code_runs_nothing(
    entry: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fit(module(), tmp_path, 2, EpisodeCheckpoint())
    content = torch.load(last(tmp_path), weights_only=True)
    content[entry] = {"_instantiator": f"{__name__}.instantiate", "width": 3}
    path = tmp_path / "theirs.ckpt"
    torch.save(content, path)
    readers = [
        partial(fit, module(), tmp_path / "on", 4, EpisodeCheckpoint(), ckpt_path=path),
        partial(load_policy, path, "cpu"),
        partial(take_network, torch.nn.Linear(2, 2), str(path)),
        partial(PackingPolicy.from_pretrained, path, "cpu"),
    ]
    for read in readers:
        with pytest.raises(ValueError, match=r"_instantiator .*instantiate") as raised:
            read()
        assert "\n" not in str(raised.value)
    assert cli.main(["test", "--config", "packing.yaml", f"--ckpt_path={path}"]) == 2
    assert "_instantiator" in capfd.readouterr().err
    assert RAN == []


# -- tables


def test_options_of_the_other_kind_of_tables_are_refused() -> None:
    for options in (
        {"batch_size": 9},
        {"optimizer": torch.optim.SGD},
        {"lr_scheduler": torch.optim.lr_scheduler.StepLR},
    ):
        (name,) = options
        with pytest.raises(ValueError, match=rf"{name} .*tables with a network"):
            tables.module(**options)
    with pytest.raises(ValueError, match=r"rate .*plain tables"):
        tables.refined(rate=0.3)


def test_a_network_is_taken_or_refused(tmp_path: Path) -> None:
    trained = tables.refined()
    for weight in trained.tables.network.parameters():
        torch.nn.init.normal_(weight.data)
    PackingPolicy(trained.space, trained.tables).save(tmp_path / "refined.safetensors")
    run = tables.refined(warm_start=tmp_path / "refined.safetensors")
    run.trainer = SimpleNamespace(ckpt_path=None)  # type: ignore[assignment]
    run.take_tables(PackingPolicy.from_pretrained(run.warm_start, "cpu").tables)
    for own, theirs in zip(run.tables.network.parameters(), trained.tables.network.parameters(), strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-2, atol=1e-3)
    plain = tables.module(warm_start=tmp_path / "refined.safetensors")
    with pytest.raises(ValueError, match=r"warm_start .*RefinedTables.* not PatchTables"):
        plain.take_tables(PackingPolicy.from_pretrained(plain.warm_start, "cpu").tables)
