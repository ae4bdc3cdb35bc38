"""Two processes of one machine: they save at the same step, each its own state."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import forks
from tests.callbacks import two_ranks
from tests.training.resuming import LIGHTNINGS_OWN, differences, last
from torchrl_gpu.checkpoints.files import newest_checkpoint, parts_of
from torchrl_gpu.system.archives import ENTRY


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two_ranks.py left."""
    path = tmp_path_factory.mktemp("two_ranks")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ThreadPoolExecutor(2) as pool:
        ends = pool.map(lambda rank: forks.run(two_ranks.main, rank, port, path, log=path / f"log-{rank}"), (0, 1))
    assert list(ends) == [0, 0], [(path / f"log-{rank}").read_text()[-3000:] for rank in (0, 1)]
    return path


def parts(checkpoint: Path) -> dict[int, dict[str, Any]]:
    found = [torch.load(part, weights_only=True) for part in parts_of(checkpoint)]
    return {part["rank"]: part for part in found}


def test_both_are_part_of_one_checkpoint(folder: Path) -> None:
    content, found = torch.load(last(folder / "whole"), weights_only=True), parts(last(folder / "whole"))
    assert set(found) == {0, 1}
    assert {part["id"] for part in found.values()} == {content[ENTRY]["id"]}
    assert content[ENTRY]["world_size"] == 2
    assert newest_checkpoint(folder / "whole" / "checkpoints") == (last(folder / "whole"), [])


def test_each_plays_episodes_of_its_own(folder: Path) -> None:
    content, other = torch.load(last(folder / "whole"), weights_only=True), parts(last(folder / "whole"))[1]
    assert differences(content["random"], other["random"]) != []
    assert differences(content["rollout"], other["rollout"]) != []


def test_they_agree_when_to_save(folder: Path) -> None:
    saved = sorted((folder / "whole" / "checkpoints").glob("episodes-*.ckpt"))
    assert saved
    assert all(set(parts(path)) == {0, 1} for path in saved)


@pytest.mark.soak
def test_where_one_is_killed_torchrun_starts_both_again_and_nothing_is_lost(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", str(Path(__file__).with_name("killed_rank.py")), str(tmp_path)]
    more = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    made = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, check=False, timeout=300)
    assert made.returncode == 0, made.stderr[-3000:]
    assert (tmp_path / "was_killed").exists()
    assert_same(last(tmp_path / "whole"), last(tmp_path / "killed"))


def assert_same(one: Path, other: Path) -> None:
    """Two checkpoints of two processes hold the same bits."""
    ours, theirs = (torch.load(path, weights_only=True) for path in (one, other))
    for name in LIGHTNINGS_OWN:
        ours.pop(name), theirs.pop(name)
    assert differences(ours, theirs) == []
    for rank in (0, 1):
        mine, their_own = (parts(path)[rank] for path in (one, other))
        mine.pop("id"), their_own.pop("id")
        assert differences(mine, their_own) == []


def test_they_learn_one_policy(folder: Path) -> None:
    first, second = (json.loads((folder / f"whole-{rank}.json").read_text()) for rank in (0, 1))
    assert first["weights"] == second["weights"]


def test_they_agree_on_frames_and_on_what_is_logged(folder: Path) -> None:
    first, second = (json.loads((folder / f"whole-{rank}.json").read_text()) for rank in (0, 1))
    assert first["frames"] == second["frames"] == (2 + 6) * 2 * 8 * 2  # of two processes, warm-up included
    assert first["logged"] == second["logged"]
    assert {"train/loss", "train/utilization"} <= set(first["logged"])
    assert first["episodes"] != second["episodes"]


def test_one_that_fails_in_the_middle_of_saving_ends_both(folder: Path) -> None:
    first, second = (json.loads((folder / f"failed-{rank}.json").read_text()) for rank in (0, 1))
    assert "want all processes to save; got another one that failed" in first["error"]
    assert second["error"] == "KeyError: 'no such thing'"
    assert first["updates"] == second["updates"] == 2
    assert not list((folder / "failed" / "checkpoints").glob("*.ckpt*"))
