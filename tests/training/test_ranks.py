"""Every module on two nodes of one process each, over loopback.

They are alike, exact, and equal to one process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import forks
from tests.training import rank_cases as cases
from tests.training import ranks
from tests.training.resuming import differences, last, without_replay
from torchrl_gpu.checkpoints.files import newest_checkpoint, parts_of
from torchrl_gpu.policies.weights import unpacked_state
from torchrl_gpu.system.archives import ENTRY

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory", "ignore:`LightningModule.configure_optimizers`")
each_case = pytest.mark.parametrize("name", cases.NAMES)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    cases.write_rows(path)
    for name in (*cases.CROSSING, "afterstates"):
        cases.fit(name, cases.make(name, path), path / "one" / name)
    for name in cases.GIVEN:
        torch.save(cases.draw(name, path), path / f"{name}.pt")
    port = str(free_port())
    logs = [path / f"node-{node}.log" for node in range(2)]
    nodes = [forks.start(ranks.main, path, log=log, environment=node_of(n, port)) for n, log in enumerate(logs)]
    for node in nodes:
        node.join(300)
    status = [node.exitcode for node in nodes]
    for node in nodes:
        node.kill()
    assert status == [0, 0], "\n".join(log.read_text()[-3000:] for log in logs)
    return path


def node_of(rank: int, port: str) -> dict[str, str]:
    """Variables that torchrun gives the process of a node, of two nodes with one each."""
    each = {"LOCAL_RANK": 0, "RANK": rank, "GROUP_RANK": rank, "LOCAL_WORLD_SIZE": 1, "WORLD_SIZE": 2}
    elastic = {"RUN_ID": "ranks", "RESTART_COUNT": 0, "MAX_RESTARTS": 0, "USE_AGENT_STORE": False}
    variables = each | {f"TORCHELASTIC_{name}": value for name, value in elastic.items()}
    return {name: str(value) for name, value in variables.items()} | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


@pytest.fixture(scope="module")
def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"told-{rank}.json").read_text()) for rank in (0, 1)]


@each_case
def test_both_have_the_same_weights_after_every_update(told: list[dict[str, Any]], name: str) -> None:
    assert all(each[name]["agreed"] == [True] * cases.STEPS for each in told)
    # Every update changes the weights.
    assert len(set(told[0][name]["weights"])) == cases.STEPS


@each_case
def test_both_count_the_same_frames_and_stop_together(told: list[dict[str, Any]], name: str) -> None:
    # The runs are whole, resumed, and continued from one process.
    for run in ("", "rest/", *["more/"] * (name in cases.CROSSING)):
        first = told[0][f"{run}{name}"]
        second = told[1][f"{run}{name}"]
        assert first["frames"] == second["frames"]
        assert first["steps"] == second["steps"] == cases.STEPS


def parts_by_rank(end: Path) -> dict[str, dict[str, object]]:
    """Return the parts of a checkpoint by the ends of their names: the rank."""
    return {path.name[-8:]: torch.load(path, weights_only=True) for path in parts_of(end)}


@each_case
def test_two_resume_to_the_last_bit(folder: Path, name: str) -> None:
    ends = [last(folder / run / name) for run in ("two", "rest")]
    assert differences(*map(without_replay, ends)) == []
    parts = [parts_by_rank(end) for end in ends]
    # The parts hold the replay of both processes, or the state of one.
    assert len(parts[0]) == {"cloning": 0, "ppo": 1, "afterstates": 1}.get(name, 2)
    for each in (*parts[0].values(), *parts[1].values()):
        each.pop("id")
    assert differences(*parts) == []


@pytest.mark.parametrize("name", cases.AVERAGED)
def test_averaged_weights_agree_and_resume_exactly(folder: Path, told: list[dict[str, Any]], name: str) -> None:
    for rank in told:
        whole, rest = rank[f"average/{name}"], rank[f"average rest/{name}"]
        assert whole["agreed"] == [True] * cases.STEPS
        assert rest["agreed"] == [True] * (cases.STEPS // 2)
        assert any(whole["moved"])
        assert whole["ends with it"]
        assert rest["ends with it"]
    ours = without_replay(last(folder / "average" / name))
    theirs = without_replay(last(folder / "average rest" / name))
    assert {"averaging_state", "current_model_state"} <= set(ours)
    assert differences(ours, theirs) == []


@pytest.mark.parametrize("name", cases.CROSSING)
def test_a_run_of_one_goes_on_on_two_and_says_what_begins_anew(told: list[dict[str, Any]], name: str) -> None:
    matching = [line for line in told[0][f"more/{name}"]["said"] if "processes" in line]
    (line,) = matching
    assert "saved by 1 and going on on 2 processes: " in line
    anew = "another row" if name == "cloning" else "of processes from 1 on begin anew"
    assert anew in line
    assert line.endswith("learns from 2 times the rows")
    assert not any("processes" in line for line in told[0][f"rest/{name}"]["said"])


@pytest.mark.parametrize("name", cases.CROSSING)
def test_a_run_of_two_goes_on_on_one_and_says_what_is_left_out(folder: Path, tmp_path: Path, name: str) -> None:
    with cases.Lines() as lines:
        made = cases.fit(name, cases.make(name, folder), tmp_path, ckpt_path=cases.half(folder / "two" / name))
    assert made.trainer.global_step == cases.STEPS
    matching = [line for line in lines if "processes" in line]
    (line,) = matching
    assert "saved by 2 and going on on 1 processes: " in line
    assert ("another row" if name == "cloning" else "from 1 on are left out") in line
    assert line.endswith("learns from 0.5 times the rows")


@pytest.mark.parametrize("name", cases.GIVEN)
def test_the_gradient_is_that_of_one_process_with_the_double_batch(folder: Path, tmp_path: Path, name: str) -> None:
    rows = torch.load(folder / f"{name}.pt", weights_only=True)
    one = cases.Given(rows, 0, 1)
    cases.fit(name, cases.make(name, folder), tmp_path, one, max_steps=1)
    for rank in (0, 1):
        two = torch.load(folder / f"gradient-{name}-{rank}.pt", weights_only=True)
        assert (two - one.gradient).abs().max() <= 1e-5 * one.gradient.abs().max()
    halves = cases.Given(rows, 0, 2)
    cases.fit(name, cases.make(name, folder), tmp_path / "half", halves, max_steps=1)
    # Half of the batch alone gives another gradient.
    assert (halves.gradient - one.gradient).abs().max() > 1e-3 * one.gradient.abs().max()


def test_cloning_learns_from_the_rows_of_one_process_with_the_double_batch(folder: Path, tmp_path: Path) -> None:
    one = cases.fit("cloning", cases.make("cloning", folder, times=2), tmp_path).state_dict()
    two = torch.load(last(folder / "two" / "cloning"), weights_only=True)["state_dict"]
    # The statistics of the demonstrations are among the entries.
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-5, atol=1e-6)
    assert not torch.equal(two["learner.observation_mean"], torch.zeros_like(two["learner.observation_mean"]))


def test_tables_are_to_the_last_bit_those_of_one_process_with_all_environments(folder: Path, tmp_path: Path) -> None:
    one = cases.fit("afterstates", cases.make("afterstates", folder, times=2), tmp_path)
    saved = [torch.load(last(folder / run / "afterstates"), weights_only=True) for run in ("two", "one")]
    unpacked = [unpacked_state("checkpoint", one, each["state_dict"]) for each in saved]
    two, alone = unpacked
    assert differences(dict(one.state_dict()), two) == []
    assert differences(two, alone) != []


def test_the_first_process_alone_streams(told: list[dict[str, Any]]) -> None:
    assert [each["dqn"]["streams"] for each in told] == [[True] * cases.STEPS, [False] * cases.STEPS]


def test_sigterm_to_one_ends_both_with_a_checkpoint(folder: Path, told: list[dict[str, Any]]) -> None:
    assert all(each["terminated"] for each in told)
    paths = last(folder / "terminated" / "dqn"), cases.half(folder / "two" / "dqn")
    ended, at_two = map(without_replay, paths)
    assert ended["global_step"] == at_two["global_step"] == cases.STEPS // 2
    assert differences(ended, at_two) == []


def parts(checkpoint: Path) -> dict[int, dict[str, Any]]:
    found = [torch.load(part, weights_only=True) for part in parts_of(checkpoint)]
    return {part["rank"]: part for part in found}


def test_both_are_part_of_one_checkpoint_and_play_episodes_of_their_own(folder: Path) -> None:
    path = last(folder / "by episodes")
    content, found = torch.load(path, weights_only=True), parts(path)
    assert set(found) == {0, 1}
    assert {part["id"] for part in found.values()} == {content[ENTRY]["id"]}
    assert content[ENTRY]["world_size"] == 2
    assert newest_checkpoint(path.parent) == (path, [])
    assert differences(content["random"], found[1]["random"]) != []
    assert differences(content["rollout"], found[1]["rollout"]) != []


def test_ranks_agree_when_to_save_and_on_frames_and_metrics(folder: Path, told: list[dict[str, Any]]) -> None:
    saved = list((folder / "by episodes" / "checkpoints").glob("episodes-*.ckpt"))
    assert saved
    assert all(set(parts(path)) == {0, 1} for path in saved)
    first = told[0]["by episodes"]
    second = told[1]["by episodes"]
    # Frames count those of two processes, with the warm-up.
    assert first["frames"] == second["frames"] == (2 + 6) * 2 * 8 * 2
    assert first["logged"] == second["logged"]
    assert {"train/loss", "train/utilization"} <= set(first["logged"])
    assert first["episodes"] != second["episodes"]


def test_rank_that_fails_in_the_middle_of_saving_ends_both(folder: Path, told: list[dict[str, Any]]) -> None:
    first = told[0]["failed"]
    second = told[1]["failed"]
    assert "another process failed while it saved" in first["error"]
    assert second["error"] == "KeyError: 'no such thing'"
    assert first["updates"] == second["updates"] == 2
    assert not list((folder / "failed" / "checkpoints").glob("*.ckpt*"))


@pytest.mark.soak
def test_where_one_is_killed_torchrun_starts_both_again_and_nothing_is_lost(tmp_path: Path) -> None:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    program = [sys.executable, "-m", *launcher, str(Path(__file__).with_name("killed_rank.py")), str(tmp_path)]
    more = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    made = subprocess.run(program, env=os.environ | more, capture_output=True, text=True, check=False, timeout=300)
    assert made.returncode == 0, made.stderr[-3000:]
    assert (tmp_path / "was_killed").exists()
    whole = last(tmp_path / "whole")
    killed = last(tmp_path / "killed")
    assert differences(without_replay(whole), without_replay(killed)) == []
    ours = {rank: part | {"id": ""} for rank, part in parts(whole).items()}
    theirs = {rank: part | {"id": ""} for rank, part in parts(killed).items()}
    assert differences(ours, theirs) == []
