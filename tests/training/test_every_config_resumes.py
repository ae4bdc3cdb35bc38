"""Every shipped run, killed at any moment and resumed.

It ends with the same bits and curves as one never stopped.
"""

from __future__ import annotations

import os
import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.training.forked_runs import NAMES, arguments, curves, result, run, write_inputs
from tests.training.resuming import differences

KILLS = int(os.environ.get("TORCHRL_GPU_KILLS", "2"))
SEED = int(os.environ.get("TORCHRL_GPU_KILLS_SEED", "0"))
OTHERS = [name for name in NAMES if name != "packing_dqn.yaml"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def uninterrupted(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what a config's run that is never stopped comes to.

    Also its curves, and the seconds that it takes.
    """

    @cache
    def made(name: str) -> tuple[dict[str, Any], list[dict[str, str]], float]:
        folder = tmp_path_factory.mktemp("whole")
        status, seconds = run(arguments(name, folder), inputs, folder / "log")
        assert status == 0, (folder / "log").read_text()
        (rows,) = curves(folder)
        whole = result(folder, name), rows, seconds
        shutil.rmtree(folder)
        return whole

    return made


def resuming(folder: Path) -> list[str]:
    return ["--ckpt_path=last"] if list((folder / "checkpoints").glob("*.ckpt")) else []


def assert_the_same(
    folder: Path, name: str, whole: tuple[dict[str, Any], list[dict[str, str]], float], without: tuple[str, ...] = ()
) -> None:
    ours = {key: each for key, each in result(folder, name).items() if key not in without}
    theirs = {key: each for key, each in whole[0].items() if key not in without}
    assert differences(ours, theirs) == []
    *stopped, ended = curves(folder)
    for rows in stopped:
        assert [row for row in rows if row not in whole[1]] == []
    assert ended == whole[1][len(whole[1]) - len(ended) :]


# In the middle of an epoch. The others, each kind of which a test of its module stops and resumes in a moment, are
# killed in `make soak`, at the end of an epoch, where a validation lies between.
@pytest.mark.parametrize(
    ("name", "saved"),
    [("packing_dqn.yaml", 1), *(pytest.param(name, 2, marks=pytest.mark.soak) for name in OTHERS)],
)
def test_killed_once_it_is_saved(name: str, saved: int, inputs: Path, tmp_path: Path, uninterrupted: Any) -> None:
    log, whole = tmp_path / "log", uninterrupted(name)
    assert run(arguments(name, tmp_path), inputs, log, killed_when_saved=saved)[0] == -9, log.read_text()
    assert len(list((tmp_path / "checkpoints").glob("*.ckpt"))) == saved
    assert run([*arguments(name, tmp_path), "--ckpt_path=last"], inputs, log)[0] == 0, log.read_text()
    assert_the_same(tmp_path, name, whole)
    assert len(curves(tmp_path)[-1]) > 2


@pytest.mark.soak
@pytest.mark.parametrize("kill", range(KILLS))
def test_killed_and_resumed(kill: int, inputs: Path, tmp_path: Path, uninterrupted: Any) -> None:
    """Kill a run again and again, until it ends.

    `TORCHRL_GPU_KILLS=100 make soak` does it a hundred times.
    """
    chance = random.Random(SEED * 1_000_003 + kill)
    name = chance.choice(NAMES)
    whole, log = uninterrupted(name), tmp_path / "log"
    status = None
    for _ in range(5):
        again = [*arguments(name, tmp_path), *resuming(tmp_path)]
        status, _ = run(again, inputs, log, chance.uniform(0.2, 1.0) * whole[2])
        if status == 0:
            break
        assert status == -9, log.read_text()
    else:
        assert run([*arguments(name, tmp_path), *resuming(tmp_path)], inputs, log)[0] == 0, log.read_text()
    # Where it was killed behind its last update, that one's checkpoint is the last: as it is before an epoch ends.
    assert_the_same(tmp_path, name, whole, without=("epoch", "loops"))
