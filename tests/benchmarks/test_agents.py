"""The benchmark of agents, in small.

It shows nothing while a side decides, loses or draws otherwise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import agents

SMALL = ["--device=cpu", "--seconds=0.001", "--repetitions=2", "--capacities=100", "--batches", "1", "8"]
SMALL += ["--update_sizes=8", "--flag_size=8"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "AT", 8)
    monkeypatch.setattr(agents, "LOOP_ROBOTS", 8)
    monkeypatch.setattr(agents, "FLAGS", {name: flag for name, flag in agents.FLAGS.items() if not flag.compiled})


def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    words = ["--agents", "IQN", "SAC", "--parts", *agents.PARTS, f"--output={path}"]
    assert agents.main([*SMALL, *words]) == 0
    result = json.loads(path.read_text())
    sections = {section["title"]: section["rows"] for section in result["sections"]}
    for name, line in zip(("IQN", "SAC"), sections["8 robots in a call"], strict=True):
        rates = {row["name"]: row["rate"] for row in sections["acting"] if row["agent"] == name}
        assert line["over_loop"] == pytest.approx(rates[f"{name}, 8, eager"] / rates[agents.LOOP])
        assert line["over_one"] == pytest.approx(rates[f"{name}, 8, eager"] / rates[f"{name}, 1, eager"])
    iqn, sac = sections["µs per update"]
    # TorchRL has no such loss.
    assert iqn["over_eager"] == ""
    assert sac["over_eager"] == pytest.approx(sac["TorchRL"] / sac["eager"], rel=0.02)
    flagged = {row["name"]: row["rate"] for row in sections["flags"]}
    _, sac, packing = sections["µs per update of 8 rows, by flag"]
    assert packing["agent"] == agents.PACKING
    assert packing["products"] > 0
    assert sac["bf16-mixed"] == pytest.approx(flagged["SAC, bf16-mixed"] / flagged["SAC, 32-true"])
    assert sac["products"] > 0
    assert len(sections["µs per cycle of replay"]) == 1
    assert [check for check in result["parity"] if check["difference"]] == []
    assert len(result["rows"]) == 4
    assert "| SAC, 8 robots |" in capsys.readouterr().out


def careless(agent: Any, loss: Any = agents.torchrl_loss) -> Any:
    made = loss(agent)
    made.make_value_estimator(gamma=0.5)
    return made


def negated(*args: object, forward: Any = agents.forward) -> Any:
    return -forward(*args)


@pytest.mark.parametrize(
    ("part", "name", "wrong", "message"),
    [
        ("acting", "forward", negated, "parity fails in DQN, 1 robots, eager: robot 0: the loop decides"),
        ("updates", "torchrl_loss", careless, "parity fails in DQN, update of 8, against TorchRL's: loss:"),
        ("flags", "OF_BFLOAT16", 0.0, "parity fails in DQN, bf16-mixed: "),
        ("replay", "EPS", 1.0, "parity fails in replay, ours: shares of rows differ"),
    ],
)
def test_nothing_is_shown_where_a_side_does_otherwise(
    part: str,
    name: str,
    wrong: Any,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(agents, name, wrong)
    if part == "flags":
        monkeypatch.setitem(agents.FLAGS, "bf16-mixed", agents.Flag(mixed=True, share=wrong))
    path = tmp_path / "result.json"
    assert agents.main([*SMALL, "--agents=DQN", f"--parts={part}", f"--output={path}"]) == 1
    out, err = capsys.readouterr()
    assert " ".join(err.split()).startswith(message)
    assert "|" not in out
    assert not path.exists()


def test_indices_with_equal_scores_are_the_same() -> None:
    env = agents.environment("DQN", "v2", agents.get_device("cpu"))
    agent: Any = agents.make("DQN", spec=env)
    rows = agents.observed(env, 8)
    loop, actions = agents.PerSampleLoop(agent, rows), agents.BatchedCall(agent, rows).actions
    assert agents.action_difference(loop, actions) == ""
    assert "robot 0" in agents.action_difference(loop, (actions + 1) % 9)
    head = agent.policy[0].module.head.out
    head.weight.data.zero_()
    head.bias.data.fill_(3.0)
    assert agents.action_difference(loop, (actions + 1) % 9) == ""
