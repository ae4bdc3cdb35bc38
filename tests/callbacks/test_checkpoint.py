"""Checkpoints: when they are due, which are kept and whose they are.

None is ever half written.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from itertools import chain, pairwise
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException

from tests.training.rank_cases import Lines
from tests.training.resuming import differences, everything, last
from tests.training.tiny import data, fit, module, trainer
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.callbacks import checkpoint as checkpoint_callback
from torchrl_gpu.callbacks.end_signals import EndSignals
from torchrl_gpu.checkpoints import run_folder
from torchrl_gpu.checkpoints.files import checkpoint_entry, new_id, newest_checkpoint, parts_of, write_whole
from torchrl_gpu.system.archives import ENTRY

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory")


def saver(every_n_episodes: int | None = None, **changes: Any) -> EpisodeCheckpoint:
    return EpisodeCheckpoint(every_n_episodes=every_n_episodes, **changes)


class Diary(Callback):
    def __init__(self) -> None:
        self.episodes: list[int] = []
        self.updates: list[int] = []

    def on_train_batch_start(self, trainer, pl_module, *args) -> None:  # type: ignore[no-untyped-def]
        if not self.episodes:
            self.note(trainer, pl_module)

    def on_train_batch_end(self, trainer, pl_module, *args) -> None:  # type: ignore[no-untyped-def]
        self.note(trainer, pl_module)

    def note(self, trainer, pl_module) -> None:  # type: ignore[no-untyped-def]
        self.episodes.append(int(pl_module.episodes))
        self.updates.append(trainer.global_step)


def files(folder: Path) -> set[Path]:
    return {path for path in (folder / "checkpoints").iterdir() if path.is_file()}


def stems(folder: Path) -> set[str]:
    """Return the names of whole checkpoints, each with one part.

    Nothing else may lie around.
    """
    checkpoints = {path for path in files(folder) if path.suffix == ".ckpt"}
    parts = set(chain.from_iterable(parts_of(path) for path in checkpoints))
    assert len(parts) == len(checkpoints)
    assert files(folder) == checkpoints | parts
    return {path.stem for path in checkpoints}


def crossings(counts: list[int], every: int) -> list[int]:
    """Counts at which another multiple has been crossed, the definition."""
    return [after for before, after in pairwise(counts) if after // every > before // every]


def test_checkpoint_is_saved_at_each_multiple_of_episodes(tmp_path: Path) -> None:
    diary = Diary()
    fit(module(), tmp_path, 16, diary, saver(4, keep=100, name="sac_video"))
    due = crossings(diary.episodes, 4)
    assert stems(tmp_path) == {"last", *(f"sac_video_ep{count}" for count in due)}
    # It is due at some steps, but not at every step.
    assert 0 < len(due) < 8


def test_by_updates_nothing_waits_for_an_episode(tmp_path: Path) -> None:
    # There are two updates in a training step.
    fit(module(), tmp_path, 14, saver(every_n_updates=5, keep=100))
    assert stems(tmp_path) == {"last", "updates-6", "updates-10"}


class Clock(Callback):
    def __init__(self, step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step_s, self.now = step_s, 0.0
        monkeypatch.setattr(checkpoint_callback.time, "monotonic", lambda: self.now)

    def on_train_batch_start(self, *args: Any) -> None:
        self.now += self.step_s


def test_checkpoint_is_saved_by_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(module(), tmp_path, 16, Clock(25.0, monkeypatch), saver(every_n_minutes=1.0, keep=100))
    # These are at 75, 125 and 200 of 200 s.
    assert stems(tmp_path) == {"last", "updates-6", "updates-10", "updates-16"}


@pytest.mark.parametrize("seconds", [1.0, 2.0])
def test_saving_that_takes_too_much_of_the_time_is_a_warning(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    clock = Clock(30.0, monkeypatch)

    def slow(fresh: Path, path: Path) -> None:
        clock.now += seconds
        fresh.replace(path)

    monkeypatch.setattr(run_folder, "publish", slow)
    long = data(steps_per_epoch=100)
    # 12 steps, and as many saves.
    fit(module(), tmp_path, 24, clock, saver(every_n_updates=2), data_module=long)
    said = [str(each.message) for each in recwarn if "saving takes" in str(each.message)]
    # Saving takes 6.25% of the time, and 3.2%.
    assert len(said) == (seconds > 1.5)
    assert all("saving takes 6.2% of the time" in line for line in said)


def test_a_folder_of_its_own_and_no_replay(tmp_path: Path) -> None:
    fit(module(), tmp_path / "run", 2, EpisodeCheckpoint(dirpath=str(tmp_path / "checkpoints"), save_replay=False))
    assert files(tmp_path) == {tmp_path / "checkpoints" / "last.ckpt"}
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_resumed_run_saves_nothing_before_it_is_due(tmp_path: Path) -> None:
    fit(module(), tmp_path / "half", 8, EpisodeCheckpoint())
    diary = Diary()
    finished = int(torch.load(last(tmp_path / "half"), weights_only=True)["meter"]["finished"])
    fit(module(), tmp_path / "rest", 10, diary, saver(finished), ckpt_path=last(tmp_path / "half"))
    # It crossed a multiple before.
    assert diary.episodes[0] == finished >= 2
    assert diary.episodes[-1] < 2 * finished
    assert stems(tmp_path / "rest") == {"last"}


def test_a_finished_run_that_is_resumed_is_left_as_it_is(tmp_path: Path) -> None:
    fit(module(), tmp_path, 4, EpisodeCheckpoint())
    before = {path: path.read_bytes() for path in files(tmp_path)}
    with Lines() as lines:
        fit(module(), tmp_path, 4, EpisodeCheckpoint(), ckpt_path=last(tmp_path))
    assert any(f"nothing was left to train, as {last(tmp_path)} stands at step 4" in line for line in lines)
    assert {path: path.read_bytes() for path in files(tmp_path)} == before


def test_a_quick_look_writes_nothing(tmp_path: Path) -> None:
    fit(module(), tmp_path, 2, EpisodeCheckpoint())
    before = {path: path.read_bytes() for path in files(tmp_path)}
    fit(module(), tmp_path, 4, saver(1), fast_dev_run=2)
    assert {path: path.read_bytes() for path in files(tmp_path)} == before


def test_checkpoint_that_is_due_before_a_validation_waits_for_it(tmp_path: Path) -> None:
    """A run that goes on from it would leave that validation out."""
    there: list[bool] = []

    class Look(Callback):
        def on_validation_end(self, trainer, pl_module) -> None:  # type: ignore[no-untyped-def]
            there.append((tmp_path / "checkpoints" / "updates-6.ckpt").exists())

    fit(module(), tmp_path, 12, Look(), saver(every_n_updates=6))
    # These are at updates 6 and 12.
    assert there == [False, True]


class Luck(Callback):
    """Logs `val/luck`: values by update, or else better ones at every validation."""

    def __init__(self, values: dict[int, float] | None = None) -> None:
        self.values = values

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        step = trainer.global_step
        pl_module.log("val/luck", float(step) if self.values is None else self.values[step])


def best_step(folder: Path) -> int:
    return int(torch.load(folder / "checkpoints" / "best.ckpt", weights_only=True)["global_step"])


def test_the_best_one_by_what_validation_finds(tmp_path: Path) -> None:
    callback = saver(monitor="val/luck")
    # These are the validations of three epochs.
    fit(module(), tmp_path, 18, Luck({6: 0.25, 12: 0.75, 18: 0.5}), callback)
    assert best_step(tmp_path) == 12
    assert parts_of(tmp_path / "checkpoints" / "best.ckpt") == []
    assert callback.state_dict()["best"] == 0.75


def test_a_run_from_an_older_checkpoint_keeps_a_better_best(tmp_path: Path) -> None:
    def saving() -> EpisodeCheckpoint:
        return saver(monitor="val/luck", every_n_updates=6, mode="min")

    fit(module(), tmp_path, 12, saving(), Luck({6: -0.2, 12: -0.8}))
    # A kill may leave this.
    last(tmp_path).unlink()
    older = tmp_path / "checkpoints" / "updates-6.ckpt"
    before = (tmp_path / "checkpoints" / "best.ckpt").read_bytes()
    fit(module(), tmp_path, 12, saving(), Luck({12: -0.5}), ckpt_path=older)
    assert (tmp_path / "checkpoints" / "best.ckpt").read_bytes() == before
    fit(module(), tmp_path, 18, saving(), Luck({18: -0.9}), ckpt_path=last(tmp_path))
    assert best_step(tmp_path) == 18


def test_best_checkpoint_is_read_from_the_folder(tmp_path: Path) -> None:
    fit(module(), tmp_path / "a", 6, saver(monitor="val/luck"), Luck({6: 0.8}))
    fit(module(), tmp_path / "b", 12, saver(monitor="val/luck"), Luck({12: 0.5}), ckpt_path=last(tmp_path / "a"))
    # This is the first one there.
    assert best_step(tmp_path / "b") == 12
    best = tmp_path / "a" / "checkpoints" / "best.ckpt"
    best.write_bytes(best.read_bytes()[:5000])
    fit(module(), tmp_path / "a", 12, saver(monitor="val/luck"), Luck({12: 0.5}), ckpt_path=last(tmp_path / "a"))
    # The other one was torn.
    assert best_step(tmp_path / "a") == 12


def test_the_best_by_another_measure_is_no_measure(tmp_path: Path) -> None:
    fit(module(), tmp_path, 6, saver(monitor="val/luck"), Luck({6: 0.8}))
    saving = saver(monitor="val/luck", mode="min")
    fit(module(), tmp_path, 12, saving, Luck({12: 0.9}), ckpt_path=last(tmp_path))
    assert best_step(tmp_path) == 12


def test_checkpoint_of_nan_is_never_the_best(tmp_path: Path) -> None:
    """Nothing is larger or smaller than NaN.

    Had it been kept, no later checkpoint would be better.
    """
    callback = saver(monitor="val/luck")
    fit(module(), tmp_path, 12, Luck({6: float("nan"), 12: 0.5}), callback)
    assert best_step(tmp_path) == 12
    assert callback.state_dict()["best"] == 0.5


def test_a_resumed_run_goes_on_counting_and_dropping(tmp_path: Path) -> None:
    fit(module(), tmp_path, 8, saver(1, keep=1))
    (old,) = (tmp_path / "checkpoints").glob("episodes-*.ckpt")
    diary = Diary()
    fit(module(), tmp_path, 12, diary, saver(1, keep=1), ckpt_path=old)
    newest = crossings(diary.episodes, 1)[-1]
    assert f"episodes-{newest}.ckpt" != old.name
    assert stems(tmp_path) == {"last", f"episodes-{newest}"}


def test_a_new_run_moves_those_of_another_out_of_its_way(tmp_path: Path) -> None:
    fit(module(), tmp_path, 2, EpisodeCheckpoint())
    before = {path.name: path.read_bytes() for path in files(tmp_path)}
    for number in (1, 2):
        fit(module(), tmp_path, 4, EpisodeCheckpoint())
        assert stems(tmp_path) == {"last"}
        assert len(list((tmp_path / "checkpoints").glob("earlier-*"))) == number
    aside = tmp_path / "checkpoints" / "earlier-1"
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == before
    fit(module(), tmp_path / "rest", 4, EpisodeCheckpoint(), ckpt_path=aside / "last.ckpt", seed=9)
    assert differences(everything(last(tmp_path / "rest")), everything(last(tmp_path))) == []


def test_the_copy_of_a_run_leaves_the_original_alone(tmp_path: Path) -> None:
    fit(module(), tmp_path / "original", 10, saver(every_n_updates=4, keep=2))
    before = {path.name: path.read_bytes() for path in files(tmp_path / "original")}
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    fit(module(), tmp_path / "copy", 12, saver(every_n_updates=4, keep=2), ckpt_path=last(tmp_path / "copy"))
    assert {path.name: path.read_bytes() for path in files(tmp_path / "original")} == before
    # The older ones went here.
    assert stems(tmp_path / "copy") == {"last", "updates-8", "updates-12"}


def test_a_strangers_checkpoint_names_nothing_to_remove(tmp_path: Path) -> None:
    callback = saver(1, keep=1)
    callback.load_state_dict({"saved": ["../victim.ckpt", "/etc/passwd"], "run": "../x", "best": "high"})
    assert callback.state_dict() == {"run": None, "best": None}


def put(folder: Path, name: str, step: int, *, saved_s: float = 0.0, **entry: Any) -> None:
    known = checkpoint_entry("0123456789ab", new_id(), [], 1)
    write_whole({"global_step": step, ENTRY: {**known, "saved_s": saved_s, **entry}}, folder / f"{name}.ckpt")


@pytest.mark.parametrize("clock", [1.0, -1.0])
def test_within_a_run_updates_decide_and_no_clock(tmp_path: Path, clock: float) -> None:
    for name, step in (("updates-300", 300), ("last", 16), ("updates-8", 8)):
        put(tmp_path, name, step, saved_s=1e9 - clock * step)
        os.utime(tmp_path / f"{name}.ckpt", (1e9 - clock * step,) * 2)
    assert newest_checkpoint(tmp_path)[0] == tmp_path / "updates-300.ckpt"
    # Another callback saves them without an entry, with only the time of the file.
    for path in tmp_path.glob("*.ckpt"):
        torch.save({"global_step": torch.load(path, weights_only=True)["global_step"]}, path)
        os.utime(path, (1e9 - clock * 300,) * 2)
    assert newest_checkpoint(tmp_path)[0] == tmp_path / "updates-300.ckpt"


def test_of_equal_updates_frames_and_then_the_name_decide(tmp_path: Path) -> None:
    put(tmp_path, "last", 6, saved_s=1.0)
    put(tmp_path, "updates-6", 6, saved_s=2.0)
    assert newest_checkpoint(tmp_path)[0] == tmp_path / "last.ckpt"
    write_whole({"global_step": 6, "frames": 48}, tmp_path / "episodes-3.ckpt")
    assert newest_checkpoint(tmp_path)[0] == tmp_path / "episodes-3.ckpt"


@pytest.mark.parametrize("step", ["many", -1, None, 1.5, [3], 2**63])
def test_checkpoint_without_a_place_in_its_run_is_torn(tmp_path: Path, step: Any) -> None:
    put(tmp_path, "updates-3", 3)
    write_whole({"global_step": step}, tmp_path / "last.ckpt")
    found, torn = newest_checkpoint(tmp_path)
    assert found == tmp_path / "updates-3.ckpt"
    assert len(torn) == 1
    assert "last.ckpt: global_step must be " in torn[0]


def test_checkpoint_saved_after_going_back_is_later(tmp_path: Path) -> None:
    """Going back leaves behind the checkpoints that came after.

    They are removed first, and `last` never means them.
    """
    fit(module(), tmp_path, 12, saver(every_n_updates=4, keep=2))
    folder = tmp_path / "checkpoints"
    assert stems(tmp_path) == {"last", "updates-8", "updates-12"}
    last(tmp_path).unlink()
    fit(module(), tmp_path, 10, saver(every_n_updates=2, keep=2), ckpt_path=folder / "updates-8.ckpt")
    assert stems(tmp_path) == {"last", "updates-10", "updates-12"}
    assert newest_checkpoint(folder)[0] == last(tmp_path)
    last(tmp_path).unlink()
    assert newest_checkpoint(folder)[0] == folder / "updates-10.ckpt"
    fit(module(), tmp_path, 12, saver(every_n_updates=1, keep=1), ckpt_path=folder / "updates-10.ckpt")
    assert stems(tmp_path) == {"last", "updates-12"}
    assert newest_checkpoint(folder)[0] == last(tmp_path)


def test_two_runs_do_not_save_to_one_folder_at_a_time(tmp_path: Path) -> None:
    class Another(Callback):
        def on_train_start(self, *args: Any) -> None:
            with pytest.raises(ValueError, match=f"another run .*{tmp_path}"):
                fit(module(), tmp_path, 2, EpisodeCheckpoint())

    fit(module(), tmp_path, 2, EpisodeCheckpoint(), Another())
    # The folder is free again.
    fit(module(), tmp_path, 2, EpisodeCheckpoint())


@pytest.mark.parametrize("moment", ["write_whole", "publish", "strategies.SingleDeviceStrategy.save_checkpoint"])
def test_interrupted_save_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    fit(module(), tmp_path, 2, EpisodeCheckpoint())
    before = everything(last(tmp_path))

    def interrupted(*args: object, **kwargs: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        where = "lightning.pytorch." if "." in moment else "torchrl_gpu.checkpoints.run_folder."
        patched.setattr(where + moment, interrupted)
        with (
            pytest.warns(UserWarning, match=r"is not saved \(no space left\)"),
            pytest.raises(OSError, match=r"last checkpoint .*not be written"),
        ):
            fit(module(), tmp_path, 4, EpisodeCheckpoint(), ckpt_path=last(tmp_path))
    found, torn = newest_checkpoint(tmp_path / "checkpoints")
    assert (found, torn) == (last(tmp_path), [])
    content = torch.load(last(tmp_path), weights_only=True)
    (part,) = content[ENTRY]["parts"]
    assert differences(before["replay"], torch.load(last(tmp_path).with_name(part), weights_only=True)["replay"]) == []
    fit(module(), tmp_path, 4, EpisodeCheckpoint(), ckpt_path=last(tmp_path))
    # Leftovers have gone.
    assert stems(tmp_path) == {"last"}


@pytest.mark.parametrize(("which", "where"), [("checkpoint", 0.3), ("part", 0.6)])
def test_checkpoint_with_one_changed_byte_is_refused(tmp_path: Path, which: str, where: float) -> None:
    fit(module(), tmp_path, 4, saver(every_n_updates=2))
    path = last(tmp_path) if which == "checkpoint" else parts_of(last(tmp_path))[0]
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 0x10
    path.write_bytes(bytes(content))
    with pytest.raises((ValueError, UnpicklingError), match=r"checksum mismatch|Weights only"):
        fit(module(), tmp_path / "again", 6, saver(), ckpt_path=last(tmp_path))
    # `--ckpt_path last` passes it over.
    found, torn = newest_checkpoint(tmp_path / "checkpoints")
    assert found == tmp_path / "checkpoints" / "updates-4.ckpt"
    assert [str(path) in line for line in torn] == [True]
    fit(module(), tmp_path, 6, saver(), ckpt_path=found)


class Killed(BaseException):
    """An error that nobody handles."""


def test_killed_between_two_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new replay is there, the new checkpoint is not: the old pair still is one."""
    fit(module(), tmp_path, 2, EpisodeCheckpoint())
    before = everything(last(tmp_path))

    def killed(*args: object) -> None:
        raise Killed

    monkeypatch.setattr(run_folder, "publish", killed)
    with pytest.raises(Killed):
        fit(module(), tmp_path, 4, EpisodeCheckpoint(), ckpt_path=last(tmp_path))
    assert len(parts_of(last(tmp_path))) == 2
    content = torch.load(last(tmp_path), weights_only=True)
    (name,) = content[ENTRY]["parts"]
    part = torch.load(last(tmp_path).with_name(name), weights_only=True)
    assert part["id"] == content[ENTRY]["id"]
    assert differences(before["replay"], part["replay"]) == []
    assert newest_checkpoint(tmp_path / "checkpoints") == (last(tmp_path), [])


def test_a_replay_of_another_checkpoint_is_refused(tmp_path: Path) -> None:
    for name, steps in (("a", 2), ("b", 4)):
        fit(module(), tmp_path / name, steps, EpisodeCheckpoint())
    (ours,), (theirs,) = parts_of(last(tmp_path / "a")), parts_of(last(tmp_path / "b"))
    theirs.replace(ours)
    with pytest.raises(ValueError, match=r"checkpoint part .*checkpoint [0-9a-f]{12} .*process 0"):
        fit(module(), tmp_path / "rest", 6, EpisodeCheckpoint(), ckpt_path=last(tmp_path / "a"))


def test_a_torn_one_is_passed_over_in_one_line(tmp_path: Path) -> None:
    fit(module(), tmp_path, 8, saver(1, keep=1))
    folder = tmp_path / "checkpoints"
    (older,) = folder.glob("episodes-*.ckpt")
    whole = last(tmp_path).read_bytes()
    part = parts_of(last(tmp_path))[0]
    for spoil, said in (
        (lambda: last(tmp_path).write_bytes(whole[:5000]), "last"),
        (lambda: os.truncate(part, 100), f"{part.name} has 100 bytes, but {part.stat().st_size}"),
    ):
        last(tmp_path).write_bytes(whole)
        spoil()
        found, torn = newest_checkpoint(folder)
        assert found == older
        assert len(torn) == 1
        assert "\n" not in torn[0]
        assert said in torn[0]
    callback, runner = saver(1), trainer(tmp_path)
    assert callback.find(runner) == older
    older.unlink()
    with pytest.raises(ValueError, match=f"ckpt_path is 'last', .*{folder}"):
        callback.find(runner)
    with pytest.raises(ValueError, match=r"ckpt_path is 'best'.*\(best\.ckpt "):
        callback.find(runner, "best")


def test_parts_are_files_beside_the_checkpoint(tmp_path: Path) -> None:
    fit(module(), tmp_path, 2, EpisodeCheckpoint())
    content = torch.load(last(tmp_path), weights_only=True)
    known = {"run": "0" * 12, "id": "0" * 12, "saved_s": 1.0, "world_size": 1, "parts": {}}
    names = "../../x-000000000000.rank0.pt", "/etc/passwd", "x.pt", ""
    for entry in (7, {}, known | {"run": "x" * 12}, *(known | {"parts": {name: 3}} for name in names)):
        torch.save({**content, ENTRY: entry}, last(tmp_path))
        with pytest.raises(ValueError, match=r"checkpoint \S*last\.ckpt: its (entry|part)"):
            fit(module(), tmp_path / "rest", 4, EpisodeCheckpoint(), ckpt_path=last(tmp_path))


def test_checkpoint_describes_its_run(tmp_path: Path) -> None:
    made = module()
    made.run_config = {"model": {"env": {"num_envs": 8}}, "token": "secret-of-a-stream", "callbacks": [{"token": None}]}
    fit(made, tmp_path, 2, EpisodeCheckpoint())
    entry = torch.load(last(tmp_path), weights_only=True)[ENTRY]
    assert entry["config"]["model"] == {"env": {"num_envs": 8}}
    assert entry["versions"]["torch"] == metadata.version("torch")
    assert entry["module"] == "torchrl_gpu.training.off_policy.OffPolicy"
    assert "commit" in entry
    assert "secret-of-a-stream" not in str(entry)


def test_checkpoint_of_another_callback_resumes_without_replay(tmp_path: Path) -> None:
    made = module()
    made.run_config = {"model": {"init_args": {"agent": "x"}}}
    fit(made, tmp_path, 4)
    # Lightning's `ModelCheckpoint` saves both ways.
    for name, weights_only in (("weights", True), ("plain", False)):
        made.trainer.save_checkpoint(tmp_path / f"{name}.ckpt", weights_only)
        content = torch.load(tmp_path / f"{name}.ckpt", weights_only=True)
        # `load_policy` reads this.
        assert content[ENTRY]["config"] == made.run_config
    resumed = fit(module(), tmp_path, 6, data_module=data(), ckpt_path=tmp_path / "plain.ckpt")
    assert resumed.trainer.global_step == 6


class Asks(Callback):
    def __init__(self, number: signal.Signals, *updates: int) -> None:
        self.number, self.updates = number, updates

    def on_train_batch_start(self, trainer, pl_module, *args) -> None:  # type: ignore[no-untyped-def]
        if trainer.global_step in self.updates:
            signal.raise_signal(self.number)


@pytest.fixture
def default_interrupts() -> Iterator[None]:
    """Restore Python's handler of interrupts.

    Lightning ignores further interrupts after the first, and a shell's background jobs ignore all.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("straight")
    fit(module(), folder, 12, saver())
    return everything(last(folder))


@pytest.mark.usefixtures("default_interrupts")
@pytest.mark.parametrize(
    # Within an epoch, and before a validation.
    ("number", "raised", "updates"),
    [(signal.SIGTERM, SIGTERMException, 6), (signal.SIGINT, SystemExit, 4)],
)
def test_a_run_that_is_asked_to_end_goes_on_as_if_it_never_had(
    number: signal.Signals, raised: type[BaseException], updates: int, tmp_path: Path, straight: Any
) -> None:
    with pytest.raises(raised) as error:
        fit(module(), tmp_path, 12, saver(), Asks(number, updates - 2))
    assert isinstance(error.value.__context__, KeyboardInterrupt) is (number is signal.SIGINT)
    assert torch.load(last(tmp_path), weights_only=True)["global_step"] == updates
    fit(module(), tmp_path / "rest", 12, saver(), ckpt_path=last(tmp_path))
    assert differences(everything(last(tmp_path / "rest")), straight) == []


@pytest.mark.usefixtures("default_interrupts")
@pytest.mark.parametrize(("moment", "number"), [("write_whole", signal.SIGTERM), ("publish", signal.SIGINT)])
def test_a_run_that_is_asked_to_end_while_it_saves_saves_to_the_end(
    number: signal.Signals, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, straight: Any
) -> None:
    write, asked = getattr(run_folder, moment), []

    def asking(*args: Any) -> None:
        if not asked:
            signal.raise_signal(number)
        asked.append(args)
        write(*args)

    monkeypatch.setattr(run_folder, moment, asking)
    with pytest.raises((SIGTERMException, SystemExit)):
        fit(module(), tmp_path, 12, saver(every_n_updates=4, keep=9))
    found, torn = newest_checkpoint(tmp_path / "checkpoints")
    assert found is not None
    assert torn == []
    monkeypatch.setattr(run_folder, moment, write)
    fit(module(), tmp_path / "rest", 12, saver(), ckpt_path=found)
    assert differences(everything(last(tmp_path / "rest")), straight) == []


def test_a_folder_that_cannot_be_written_to_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**options: Any) -> None:
        raise PermissionError(13, "Permission denied", str(options["dir"]))

    monkeypatch.setattr("torchrl_gpu.checkpoints.files.tempfile.TemporaryFile", refused)
    with pytest.raises(PermissionError, match=r"Permission denied: .*checkpoints'"):
        fit(module(), tmp_path, 4, saver())


@pytest.mark.usefixtures("default_interrupts")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_fills_its_replay_ends_when_it_is_asked(number: signal.Signals, tmp_path: Path) -> None:
    """A run may be asked to end while its replay is filled.

    There is nothing to save yet, and filling may take many minutes.
    """
    run, plays = module(warmup_frames=100_000), Counter[str]()
    play = run.extend_replay

    def asking() -> None:
        plays["made"] += 1
        if plays["made"] == 3:
            signal.raise_signal(number)
        play()

    run.extend_replay = asking  # type: ignore[method-assign]
    with pytest.raises((SIGTERMException, SystemExit)):
        fit(run, tmp_path, 12, saver())
    assert plays["made"] == 3
    assert not last(tmp_path).exists()


@pytest.mark.usefixtures("default_interrupts")
def test_the_second_interrupt_ends_a_run_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fit(module(), tmp_path, 12, saver(), Asks(signal.SIGINT, 4), Asks(signal.SIGINT, 4))
    assert not last(tmp_path).exists()
    assert "interrupt: ending after this step; once more to end at once" in capfd.readouterr().err


@pytest.mark.usefixtures("default_interrupts")
def test_interrupts_are_given_back(tmp_path: Path) -> None:
    fit(module(), tmp_path, 2, saver())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupts_of_others_are_left_alone() -> None:
    taken = EndSignals()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        taken.begin()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        taken.end()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_take_no_interrupts() -> None:
    taken = EndSignals()
    thread = threading.Thread(target=taken.begin)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not taken.interrupt
