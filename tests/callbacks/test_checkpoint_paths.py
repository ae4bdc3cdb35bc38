"""`ckpt_path` "last" and "best" of a plain Trainer.

And what a run that never trains leaves alone.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from tests.standins import TinyData, TinyEnv, TinyModule
from tests.training.rank_cases import Lines
from tests.training.resuming import differences, everything, last, part_of
from tests.training.tiny import data, fit, module, trainer
from torchrl_gpu.callbacks import CheckpointMirror, Divergence, EnvWorkers, EpisodeCheckpoint, FinalTable
from torchrl_gpu.callbacks.checkpoint_listener import CheckpointListener
from torchrl_gpu.system.archives import ENTRY
from torchrl_gpu.training.divergence import Diverged

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory")


def saver(**changes: Any) -> EpisodeCheckpoint:
    return EpisodeCheckpoint(**{"monitor": "val/utilization", **changes})


def step_of(path: Path) -> int:
    return int(torch.load(path, weights_only=True)["global_step"])


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run of six updates, with a last and a best checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    fit(module(), folder, 6, saver())
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("word", ["last", "latest"])
def test_fit_goes_on_from_the_last_checkpoint(word: str, copy: Path, tmp_path: Path) -> None:
    fit(module(), copy, 12, saver(), ckpt_path=word)  # type: ignore[arg-type]
    fit(module(), tmp_path / "whole", 12, saver())
    assert differences(everything(last(copy)), everything(last(tmp_path / "whole"))) == []
    assert not list((copy / "checkpoints").glob("earlier-*"))


@pytest.mark.parametrize("word", ["last", "latest", "best"])
@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_every_command_finds_the_checkpoint(command: str, word: str, copy: Path) -> None:
    runner = trainer(copy, 6, saver())
    getattr(runner, command)(module(), datamodule=data(), ckpt_path=word, weights_only=True)
    name = "best.ckpt" if word == "best" else "last.ckpt"
    assert runner.ckpt_path == str(copy / "checkpoints" / name)


def test_evaluation_without_a_model_takes_the_best_of_the_fit_before(tmp_path: Path) -> None:
    runner = trainer(tmp_path, 6, saver())
    runner.fit(module(), datamodule=data())
    runner.validate(datamodule=data(), weights_only=True)
    assert runner.ckpt_path == str(tmp_path / "checkpoints" / "best.ckpt")


@pytest.mark.parametrize("word", ["last", "best"])
@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_where_there_is_none_nothing_begins(command: str, word: str, tmp_path: Path) -> None:
    runner = trainer(tmp_path, 6, saver())
    with pytest.raises(ValueError, match=rf"ckpt_path is '{word}'.*{tmp_path / 'checkpoints'}"):
        getattr(runner, command)(module(), datamodule=data(), ckpt_path=word)
    assert tree(tmp_path) == {}


def test_a_module_of_ones_own_goes_on_too(tmp_path: Path) -> None:
    def fit_tiny(max_steps: int, word: str | None) -> Trainer:
        runner = trainer(tmp_path, max_steps, EpisodeCheckpoint(), max_epochs=-1)
        runner.fit(TinyModule(TinyEnv()), datamodule=TinyData(), ckpt_path=word, weights_only=True)  # type: ignore[arg-type]
        return runner

    fit_tiny(8, None)
    assert fit_tiny(12, "last").ckpt_path == str(last(tmp_path))
    assert step_of(last(tmp_path)) == 12


def test_a_job_that_was_started_again_goes_on(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    fit(module(), copy, 12, saver())
    assert step_of(last(copy)) == 12
    assert not list((copy / "checkpoints").glob("earlier-*"))


def test_checkpoints_elsewhere_are_fetched_first(copy: Path, tmp_path: Path) -> None:
    storage = f"file://{tmp_path / 'storage'}"
    fit(module(), tmp_path / "first", 6, saver(), CheckpointMirror(storage))
    fit(module(), tmp_path / "second", 12, saver(), CheckpointMirror(storage), ckpt_path="last")  # type: ignore[arg-type]
    assert step_of(last(tmp_path / "second")) == 12


def test_trainers_without_an_episode_checkpoint_are_lightnings(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="there is no last checkpoint"):
        fit(module(), tmp_path, 2, ckpt_path="last")  # type: ignore[arg-type]


# -- what a run leaves alone until it has trained


class Refuses(Callback):
    def __init__(self, moment: str) -> None:
        setattr(self, moment, self.refuse)

    def refuse(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("refused")


UNBEGUN: dict[str, dict[str, Any]] = {
    "no steps": {"max_steps": 0},
    "no epochs": {"max_steps": -1, "max_epochs": 0},
    "no batches": {"limit_train_batches": 0},
    "a monitor that nothing logs": {"callbacks": [EpisodeCheckpoint(monitor="val/utilisation")]},
    "workers that are refused": {"callbacks": [saver(), EnvWorkers(num_workers=4096)]},
    "a wrong warm_start": {"module": {"warm_start": "nowhere.ckpt"}},
    **{
        f"refused in {moment}": {"callbacks": [saver(), Refuses(moment)]}
        for moment in ("setup", "on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start")
    },
}


@pytest.mark.parametrize("case", UNBEGUN)
def test_a_run_that_never_trains_leaves_the_folder_as_it_was(case: str, copy: Path) -> None:
    given = dict(UNBEGUN[case])
    options, callbacks = given.pop("module", {}), given.pop("callbacks", [saver()])
    (copy / "evaluation.json").write_text("{}", encoding="utf-8")
    before = tree(copy)
    with suppress(ValueError, FileNotFoundError):
        fit(module(**options), copy, given.pop("max_steps", 6), *callbacks, FinalTable(), **given)
    assert tree(copy) == before
    fit(module(), copy, 8, saver(), ckpt_path="last")  # type: ignore[arg-type]
    assert step_of(last(copy)) == 8


class Looks(CheckpointListener):
    """Notes at the first checkpoint and after the first update what has been moved."""

    def __init__(self) -> None:
        self.moved: list[bool] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        self.moved.append(bool(list(Path(trainer.default_root_dir).glob("checkpoints/earlier-*"))))


def test_checkpoints_of_another_run_are_moved_after_the_first_update_and_named(copy: Path) -> None:
    looks = Looks()
    with Lines() as lines:
        fit(module(), copy, 6, saver(), looks)
    assert looks.moved == [False, True, True]
    matching = [line for line in lines if "earlier-1" in line]
    (line,) = matching
    assert "best.ckpt" in line
    assert "last.ckpt" in line


def test_where_none_is_left_the_moved_ones_are_named(copy: Path) -> None:
    fit(module(), copy, 6, saver())
    for path in (copy / "checkpoints").glob("*.ckpt"):
        path.unlink()
    with pytest.raises(ValueError, match=r"ckpt_path is 'last'.*earlier-1/last\.ckpt"):
        fit(module(), copy, 6, saver(), ckpt_path="last")  # type: ignore[arg-type]


class Poison(Callback):
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, *args: Any) -> None:
        next(iter(pl_module.agent.parameters())).data.fill_(float("nan"))
        outputs["loss"] = torch.tensor(float("nan"), dtype=torch.float32, device="cpu")


def test_a_run_that_diverges_at_once_never_goes_back_to_another_one(copy: Path) -> None:
    with pytest.raises(Diverged) as raised:
        fit(module(), copy, 6, Poison(), Divergence("back"), saver())
    assert raised.value.checkpoint is None


# -- objects that are used again


def run_of(path: Path) -> str:
    return str(torch.load(path, weights_only=True)[ENTRY]["run"])


def test_a_saver_that_is_used_again_saves_a_run_of_its_own(tmp_path: Path) -> None:
    """A saver that is used again moves the checkpoints of the run before away.

    They are neither overwritten nor mistaken for its own.
    """
    again = saver()
    fit(module(), tmp_path, 6, again)
    before = tree(tmp_path / "checkpoints")
    fit(module(), tmp_path, 4, again)
    aside = tmp_path / "checkpoints" / "earlier-1"
    assert tree(aside) == before
    assert run_of(last(tmp_path)) != run_of(aside / "last.ckpt")
    assert step_of(last(tmp_path)) == 4


def test_a_saver_that_is_used_again_goes_on_with_the_run_it_is_given(copy: Path, tmp_path: Path) -> None:
    again = saver()
    fit(module(), tmp_path / "other", 4, again)
    fit(module(), copy, 8, again, ckpt_path=last(copy))
    assert run_of(last(copy)) == run_of(copy / "checkpoints" / "best.ckpt")
    assert not list((copy / "checkpoints").glob("earlier-*"))


def test_a_trainer_that_fits_again_goes_on_with_its_run(tmp_path: Path) -> None:
    runner, run = trainer(tmp_path, 4, saver()), module()
    runner.fit(run, datamodule=data())
    first = run_of(last(tmp_path))
    runner.fit_loop.epoch_loop.max_steps = 8
    runner.fit(run, datamodule=data())
    assert (run_of(last(tmp_path)), step_of(last(tmp_path))) == (first, 8)


def test_a_lost_replay_is_filled_again_as_far_at_every_fit(copy: Path) -> None:
    part_of(last(copy)).unlink()
    run = module()
    fit(run, copy / "first", 8, saver(), ckpt_path=last(copy))
    frames = run.frames
    fit(run, copy / "second", 8, saver(), ckpt_path=last(copy))
    assert run.frames == frames


def test_checkpoint_of_another_command_does_not_begin_a_run(copy: Path) -> None:
    run = module(torch_compile="auto")
    trainer(copy, 6, saver()).validate(run, datamodule=data(), ckpt_path=last(copy), weights_only=True)
    with Lines() as lines:
        fit(run, copy / "new", 2)
    assert not any("as the run began" in line for line in lines)


def test_nothing_looks_at_batches_once_a_run_has_failed(tmp_path: Path) -> None:
    class Fails(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            raise ValueError("of the user's own")

    run = module()
    with pytest.raises(ValueError, match=r"user's own"):
        fit(run, tmp_path, 4, Divergence(), Fails())
    assert run.watch_batch is None
