"""The benchmark of ranks in small: it times a real run, refuses ranks that learn apart, and says what it found."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ranks
from tests.test_end_to_end import TABLES

ARGS = Namespace(turns=3, steps=4, warm=1, options=[])


def test_a_run_is_timed_behind_its_warm_up(tmp_path: Path) -> None:
    output = tmp_path / "one.json"
    ranks.train("packing.yaml", [*TABLES, "--model.env.num_envs=4"], 1, steps=3, warm=2, output=output)
    found = json.loads(output.read_text())
    assert found["samples"] == 3 * 4 * 4  # training steps, environments, steps of each
    assert found["updates"] == 3
    assert found["seconds"] > 0


def fake(second_weights: float) -> Any:
    def run(config: str, args: Namespace, processes: int, together: bool) -> list[dict[str, float]]:
        if not together:
            return [
                {"samples": 100, "seconds": 1.0 if processes == 1 else 1.25, "weights": 0.0, "updates": 4}
            ] * processes
        one = {"samples": 180, "seconds": 1.0, "weights": 2.0, "updates": 4}
        return [one, one | {"seconds": 1.2, "weights": second_weights}]

    return run


def test_two_ranks_are_held_against_one_and_against_the_ceiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ranks, "run", fake(2.0))
    monkeypatch.setattr(ranks.os, "sched_getaffinity", lambda _: {0, 1})
    output = tmp_path / "ranks.json"
    monkeypatch.setattr(sys, "argv", ["ranks.py", "--configs", "packing.yaml", "--output", str(output)])
    ranks.main()
    (row,) = json.loads(output.read_text())["rows"]
    assert (row["one"], row["ceiling"], row["two"]) == (100, 160, 150)  # by the slower rank
    assert (row["ratio"], row["of_ceiling"]) == (1.5, 0.9375)
    assert "| packing.yaml | 100 | 160 | 150 | 1.50 | 94% |" in capsys.readouterr().out


def test_ranks_that_learn_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "run", fake(2.5))
    with pytest.raises(RuntimeError, match=r"want the same weights on both ranks of packing\.yaml; got others"):
        ranks.measure("packing.yaml", ARGS)


def test_one_core_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks.os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(sys, "argv", ["ranks.py"])
    with pytest.raises(SystemExit, match="want two cores"):
        ranks.main()
