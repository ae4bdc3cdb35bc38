"""`torchrl-gpu evaluate` as it is typed, in small."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from torchrl_gpu import cli
from torchrl_gpu.cli.lightning_cli import build
from torchrl_gpu.cli.parser import resolve_configs
from torchrl_gpu.envs.packing.protocols import make_protocol
from torchrl_gpu.evaluation.estimates import paired
from torchrl_gpu.policies.packing import baselines
from torchrl_gpu.policies.packing.heuristics import BOTH, DEEPEST, LESS_WASTE, MANAGER, RANDOM, RULE, VALUES, WORKER

SMALL = [
    "--model.env.bin_size=[0.24,0.24,0.24]",
    "--model.env.resolution=16",
    "--model.env.grid_step=2",
    "--model.env.num_items=5",
    "--model.env.visible_items=3",
    "--model.env.items.num_objects=4",
    "--model.networks.channels=[8,4]",
]
QUICK = ["--device=cpu", "--cases=3", "--batch=2", "--timed=0", "--sets", "easy"]
FIGURES = ("C", "P", "S com", "objects", "utilization")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of networks that differ from the rules, as if they had been trained."""
    config = ["--config=packing_irregular.yaml", "--model.env.device=cpu", "--model.env.num_envs=1"]
    module = build("fit", [*resolve_configs(config), "--trainer.logger=false", *SMALL]).model
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in module.parameters():
            weights.add_(torch.randn_like(weights), alpha=0.1)
    path = tmp_path_factory.mktemp("trained") / "some.ckpt"
    torch.save({"state_dict": module.state_dict(), "global_step": 12, "frames": 340}, path)
    return str(path)


@pytest.fixture
def evaluate(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(*args: str) -> dict[str, Any]:
        path = tmp_path / "table.json"
        assert (
            cli.main(["evaluate", "packing_irregular", *QUICK, *SMALL, *args, f"--output={path}"], "torchrl-gpu")
            is None
        )
        return json.loads(path.read_text())

    return run


def rows_of(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in result["tables"][0]["methods"]}


def test_evaluate_prints_every_row(
    evaluate: Callable[..., dict[str, Any]], checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = evaluate("--ckpt_path", checkpoint, "--timed=1")
    shown = capsys.readouterr().out
    rows = rows_of(result)
    assert list(rows) == [RANDOM, DEEPEST, RULE, LESS_WASTE, VALUES, WORKER, MANAGER, BOTH]
    assert "easy: K = 3 of 5 objects, 24 orientations, 16×16 cells, 3 cases" in shown
    assert "…" not in shown
    assert all(name in shown for name in [*rows, *FIGURES, "objects/s", "ms/object"])
    for name, row in rows.items():
        for column in FIGURES:
            values = torch.tensor(row["columns"][column]["cases"], dtype=torch.float64)
            assert len(values) == 3
            assert row["columns"][column]["mean"] == pytest.approx(values.mean().item())
            assert row["columns"][column]["error"] == pytest.approx((values.std() / 3**0.5).item())
        for column, told in row["difference"].items():
            again = paired(*(torch.tensor(rows[n]["columns"][column]["cases"]) for n in (name, RULE)))
            assert (told["mean"], told["error"]) == (pytest.approx(again.mean), pytest.approx(again.error))
        assert set(row["difference"]) == (set() if name == RULE else {"C", "P", "objects"})
        assert row["columns"]["ms/object"]["cases"][0] > 0
    assert rows[BOTH]["columns"]["P"]["cases"] != rows[RULE]["columns"]["P"]["cases"]
    assert result["checkpoint"] == {"path": checkpoint, "global_step": 12, "frames": 340}


def test_evaluate_writes_its_results(
    evaluate: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    # It works without a checkpoint, too.
    result = evaluate("--seed", "5")
    assert list(rows_of(result)) == [RANDOM, DEEPEST, RULE, LESS_WASTE, VALUES]
    (table,) = result["tables"]
    asked = {"visible_items": 3, "skip_unplaceable": False, "orientations": "cube", "resolution": 16}
    assert table["setting"] == {"K": 3, **asked}
    assert (table["set"], table["cases"], table["batch"], table["reference"]) == ("easy", 3, 2, RULE)
    assert (table["objects"]["num_objects"], table["objects"]["seed"]) == (4, 5)
    assert (result["seed"], table["episodes"]["seed"]) == (5, 5)
    assert result["config"]["test"]["model"]["init_args"]["env"]["init_args"]["items"]["init_args"]["seed"] == 1
    assert result["machine"]["versions"]["torch"] == metadata.version("torch")
    assert result["arguments"]["cases"] == 3
    assert result["checkpoint"] is None
    assert len(result["notes"]) == 1
    assert "No --ckpt_path: the rows of the learned methods are left out; untrained networks repeat the rules.\n" in (
        capsys.readouterr().out
    )


BOXES = ["evaluate", "--config", "packing_dqn.yaml", "--model.env.items.pool=16", "--model.agent.network.channels=4"]
WORLDS = ["evaluate", "navigation_iqn", "--model.env.pool=16", "--data.worlds_per_level=2", "--data.max_steps=5"]


def test_evaluate_plays_boxes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.json"
    words = [*BOXES, "--device=cpu", "--cases=3", "--batch=2", "--seed=5", f"--output={path}"]
    assert cli.main(words, "torchrl-gpu") is None
    result = json.loads(path.read_text())
    assert (result["evaluation"], result["seed"], result["checkpoint"]) == ("packing_dqn", 5, None)
    (table,) = result["tables"]
    assert table["episodes"]["items"] == "CutBoxes"
    rows = {row["policy"]: row["num_episodes"] for row in table["policies"]}
    assert set(rows) == {*baselines(make_protocol("cut2", 1, device="cpu")), "DQN (untrained)"}
    assert set(rows.values()) == {3}
    assert "3 episodes" in capsys.readouterr().out
    assert [each.name for each in tmp_path.iterdir()] == ["table.json"]


@pytest.mark.parametrize("cases", [1, 3])
def test_fewer_worlds_than_rows(cases: int, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    assert cli.main([*WORLDS, "--device=cpu", f"--cases={cases}", f"--output={path}"], "torchrl-gpu") is None
    (table,) = json.loads(path.read_text(encoding="utf-8"))["tables"]
    assert {len(row["rows"]) for row in table["policies"]} == {cases}


def test_evaluate_plays_worlds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.json"
    assert cli.main([*WORLDS, "--device=cpu", "--cases=5", f"--output={path}"], "torchrl-gpu") is None
    (table,) = json.loads(path.read_text())["tables"]
    # One of each row.
    assert table["worlds"]["num_worlds"] == 5
    assert [row["policy"] for row in table["policies"]] == ["IQN (untrained)", "adaptive IQN"]
    assert "5 worlds" in capsys.readouterr().out
