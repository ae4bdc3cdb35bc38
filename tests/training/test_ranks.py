"""Every module on two nodes of one process each, by torchrun over loopback: alike, exact, and equal to one process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT
from tests.training import rank_cases as cases
from tests.training.resuming import LIGHTNINGS_OWN, differences, last
from torchrl_gpu.checkpoints.files import parts_of
from torchrl_gpu.policies.packing.ntuple.packed_tables import unpack_tables

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory", "ignore:`LightningModule.configure_optimizers`")
each_case = pytest.mark.parametrize("name", cases.NAMES)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the program ranks.py left, of runs that one process had begun among others."""
    path = tmp_path_factory.mktemp("ranks")
    cases.write_rows(path)
    for name in (*cases.CROSSING, "afterstates"):
        cases.fit(name, cases.make(name, path), path / "one" / name)
    for name in cases.GIVEN:
        torch.save(cases.draw(name, path), path / f"{name}.pt")
    at = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *at]
    logs = [path / f"node-{node}.log" for node in range(2)]
    nodes = []
    for log in logs:
        with log.open("w") as to:
            program = [*command, str(Path(__file__).with_name("ranks.py")), str(path)]
            nodes.append(subprocess.Popen(program, cwd=ROOT, stdout=to, stderr=to, start_new_session=True))
    try:
        status = [node.wait(timeout=300) for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGKILL)
    assert status == [0, 0], "\n".join(log.read_text()[-3000:] for log in logs)
    return path


@pytest.fixture(scope="module")
def told(folder: Path) -> list[dict[str, Any]]:
    """What each process said of its runs."""
    return [json.loads((folder / f"told-{rank}.json").read_text()) for rank in (0, 1)]


@each_case
def test_both_have_the_same_weights_after_every_update(told: list[dict[str, Any]], name: str) -> None:
    assert all(each[name]["agreed"] == [True] * cases.STEPS for each in told)
    assert len(set(told[0][name]["weights"])) == cases.STEPS  # which every update changes


@each_case
def test_both_count_the_same_frames_and_stop_together(told: list[dict[str, Any]], name: str) -> None:
    for run in ("", "rest/", *["more/"] * (name in cases.CROSSING)):  # whole, resumed, gone on with from one process
        first, second = (each[f"{run}{name}"] for each in told)
        assert first["frames"] == second["frames"]
        assert first["steps"] == second["steps"] == cases.STEPS


@each_case
def test_two_resume_to_the_last_bit(folder: Path, name: str) -> None:
    ends = [last(folder / run / name) for run in ("two", "rest")]
    ours, theirs = (torch.load(path, weights_only=True) for path in ends)
    for key in LIGHTNINGS_OWN:
        ours.pop(key), theirs.pop(key)
    assert differences(ours, theirs) == []
    parts = [{path.name[-8:]: torch.load(path, weights_only=True) for path in parts_of(end)} for end in ends]
    assert len(parts[0]) == {"cloning": 0, "ppo": 1, "afterstates": 1}.get(name, 2)  # replay of both, or state of one
    for each in (*parts[0].values(), *parts[1].values()):
        each.pop("id")
    assert differences(*parts) == []


@pytest.mark.parametrize("name", cases.AVERAGED)
def test_averaged_weights_are_the_same_everywhere_and_resume_exactly(
    folder: Path, told: list[dict[str, Any]], name: str
) -> None:
    for rank in told:
        whole, rest = rank[f"average/{name}"], rank[f"average rest/{name}"]
        assert whole["agreed"] == [True] * cases.STEPS
        assert rest["agreed"] == [True] * (cases.STEPS // 2)
        assert any(whole["moved"])
        assert whole["ends with it"]
        assert rest["ends with it"]
    ours, theirs = (torch.load(last(folder / run / name), weights_only=True) for run in ("average", "average rest"))
    for key in LIGHTNINGS_OWN:
        ours.pop(key), theirs.pop(key)
    assert {"averaging_state", "current_model_state"} <= set(ours)
    assert differences(ours, theirs) == []


@pytest.mark.parametrize("name", cases.CROSSING)
def test_a_run_of_one_goes_on_on_two_and_says_what_begins_anew(told: list[dict[str, Any]], name: str) -> None:
    (line,) = [line for line in told[0][f"more/{name}"]["said"] if "processes" in line]
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
    (line,) = [line for line in lines if "processes" in line]
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
    assert (halves.gradient - one.gradient).abs().max() > 1e-3 * one.gradient.abs().max()  # alone, one has another


def test_cloning_learns_from_the_rows_of_one_process_with_the_double_batch(folder: Path, tmp_path: Path) -> None:
    one = cases.fit("cloning", cases.make("cloning", folder, times=2), tmp_path).state_dict()
    two = torch.load(last(folder / "two" / "cloning"), weights_only=True)["state_dict"]
    for key, value in one.items():  # statistics of the demonstrations among them
        torch.testing.assert_close(two[key], value, rtol=1e-5, atol=1e-6)
    assert not torch.equal(two["learner.observation_mean"], torch.zeros_like(two["learner.observation_mean"]))


def test_tables_are_to_the_last_bit_those_of_one_process_with_all_environments(folder: Path, tmp_path: Path) -> None:
    one = cases.fit("afterstates", cases.make("afterstates", folder, times=2), tmp_path)
    saved = [torch.load(last(folder / run / "afterstates"), weights_only=True) for run in ("two", "one")]
    two, alone = (unpack_tables("checkpoint", one, each["state_dict"]) for each in saved)
    assert differences(dict(one.state_dict()), two) == []
    assert differences(two, alone) != []


def test_the_first_process_alone_streams(told: list[dict[str, Any]]) -> None:
    assert [each["dqn"]["streams"] for each in told] == [[True] * cases.STEPS, [False] * cases.STEPS]


def test_sigterm_to_one_ends_both_with_a_checkpoint(folder: Path, told: list[dict[str, Any]]) -> None:
    assert all(each["terminated"] for each in told)
    ended, at_two = (
        torch.load(path, weights_only=True)
        for path in (last(folder / "terminated" / "dqn"), cases.half(folder / "two" / "dqn"))
    )
    assert ended["global_step"] == at_two["global_step"] == cases.STEPS // 2
    for key in LIGHTNINGS_OWN:
        ended.pop(key), at_two.pop(key)
    assert differences(ended, at_two) == []
