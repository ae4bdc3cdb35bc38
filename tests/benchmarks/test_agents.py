"""The benchmark of agents runs, and shows nothing while a side decides, loses or draws otherwise."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import agents_acting as acting
from benchmarks import agents_replay as replay
from benchmarks import agents_updates as updates
from torchrl_gpu.policies import Agent

ROOT = Path(__file__).parents[2]
SMALL = ["--device=cpu", "--minutes=0.001", "--repetitions=2", "--no-compiled", "--capacities=100"]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("agents", ROOT / "benchmarks" / "agents.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "AT", 8)
    monkeypatch.setattr(acting, "LOOP_ROBOTS", 8)
    return module


def run(module: Any, monkeypatch: pytest.MonkeyPatch, output: Path, *words: str) -> int:
    small = [*SMALL, "--batches", "1", "8", "--update_sizes", "8", *words, f"--output={output}"]
    monkeypatch.setattr(sys, "argv", ["agents.py", *small])
    return int(module.main())


def test_it_runs(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(benchmark, monkeypatch, tmp_path / "result.json", "--agents", "IQN", "SAC") == 0
    result = json.loads((tmp_path / "result.json").read_text())
    sections = {section["title"]: section["rows"] for section in result["sections"]}
    assert list(sections) == [
        "acting",
        "µs per robot, by robots in a call",
        "8 robots in a call",
        "updates",
        "µs per update",
        "replay",
        "µs per cycle of replay",
    ]
    assert [row["agent"] for row in sections["8 robots in a call"]] == ["IQN", "SAC"]
    for name, line in zip(("IQN", "SAC"), sections["8 robots in a call"], strict=True):
        rates = {row["name"]: row["rate"] for row in sections["acting"] if row["agent"] == name}
        assert line["over_loop"] == pytest.approx(rates[f"{name}, 8, eager"] / rates[acting.LOOP])
        assert line["over_one"] == pytest.approx(rates[f"{name}, 8, eager"] / rates[f"{name}, 1, eager"])
    iqn, sac = sections["µs per update"]
    assert iqn["over_eager"] == ""  # TorchRL has no such loss
    assert sac["over_eager"] == pytest.approx(sac["TorchRL"] / sac["eager"], rel=0.02)
    assert [check for check in result["parity"] if check["difference"]] == []
    assert len(result["rows"]) == 4
    assert "| SAC, 8 robots |" in capsys.readouterr().out


def negated(agent: Agent, seen: list[Tensor], forward: Any = acting.forward) -> Tensor:
    return -forward(agent, seen)


def careless(agent: Any, loss: Any = updates.torchrl_loss) -> Any:
    made = loss(agent)
    made.make_value_estimator(gamma=0.5)
    return made


@pytest.mark.parametrize(
    ("part", "module", "name", "wrong", "message"),
    [
        ("acting", acting, "forward", negated, "parity fails in DQN, 1 robots, eager: robot 0: the loop decides"),
        ("updates", updates, "torchrl_loss", careless, "parity fails in DQN, update, against TorchRL's: loss:"),
        ("replay", replay, "ALPHA", 1.0, "parity fails in replay, ours: shares of rows differ"),
    ],
)
def test_nothing_is_shown_where_a_side_does_otherwise(
    benchmark: Any,
    part: str,
    module: Any,
    name: str,
    wrong: Any,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if part == "replay":
        made = {side: make(8, 512, torch.device("cpu")) for side, make in replay.SIDES.items()}
        monkeypatch.setattr(replay, "SIDES", {side: lambda *_, kept=kept: kept for side, kept in made.items()})
    monkeypatch.setattr(module, name, wrong)
    assert run(benchmark, monkeypatch, tmp_path / "result.json", "--agents", "DQN", "--parts", part) == 1
    out, err = capsys.readouterr()
    assert " ".join(err.split()).startswith(message)
    assert "|" not in out
    assert not (tmp_path / "result.json").exists()


def test_indices_with_equal_scores_are_the_same() -> None:
    env = acting.environment("DQN", "v2", "cpu")
    agent: Any = acting.make_agent("DQN", env)
    rows = acting.observed(env, 8)
    assert rows["active"].all()
    loop = acting.PerSampleLoop(agent, rows)
    actions = acting.BatchedCall(acting.PolicyWrapper(agent).eval(), rows).actions
    assert acting.difference(loop, actions) == ""
    assert "robot 0" in acting.difference(loop, (actions + 1) % 9)
    with torch.no_grad():
        agent.policy[0].module.head.out.weight.zero_()
        agent.policy[0].module.head.out.bias.fill_(3.0)
    assert acting.difference(loop, (actions + 1) % 9) == ""
