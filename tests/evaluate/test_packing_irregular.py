"""`torchrl-gpu evaluate packing_irregular` as it is typed, in small."""

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
from torchrl_gpu.cli.options import resolve_configs
from torchrl_gpu.evaluation.comparison import paired
from torchrl_gpu.policies.packing.contestants import BOTH, DEEPEST, LESS_WASTE, MANAGER, RANDOM, RULE, WORKER

SMALL = [
    "--model.env.bin_size=[0.24,0.24,0.24]",
    "--model.env.resolution=24",
    "--model.env.grid_step=3",
    "--model.env.num_items=8",
    "--model.env.visible_items=3",
    "--model.env.items.num_objects=12",
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
    """What the command writes, given its arguments."""

    def run(*args: str) -> dict[str, Any]:
        path = tmp_path / "table.json"
        assert (
            cli.main(["evaluate", "packing_irregular", *QUICK, *SMALL, *args, f"--output={path}"], "torchrl-gpu")
            is None
        )
        return json.loads(path.read_text())

    return run


def rows_of(result: dict[str, Any], table: int = 0) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in result["tables"][table]["methods"]}


def cases_of(result: dict[str, Any], table: int = 0) -> dict[str, dict[str, list[float]]]:
    rows = rows_of(result, table)
    return {name: {key: row["columns"][key]["cases"] for key in FIGURES} for name, row in rows.items()}


def test_every_row(
    evaluate: Callable[..., dict[str, Any]], checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = evaluate("--ckpt_path", checkpoint, "--timed=1")
    shown = capsys.readouterr().out
    rows = rows_of(result)
    assert list(rows) == [RANDOM, DEEPEST, RULE, LESS_WASTE, WORKER, MANAGER, BOTH]
    assert "easy: K = 3 of 8 objects, 24 orientations, 24×24 cells, 3 cases" in shown
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


def test_what_is_written(evaluate: Callable[..., dict[str, Any]]) -> None:
    result = evaluate("--seed", "5")
    (table,) = result["tables"]
    asked = {"visible_items": 3, "skip_unplaceable": False, "orientations": "cube", "resolution": 24}
    assert table["setting"] == {"K": 3, **asked}
    assert (table["set"], table["cases"], table["batch"], table["reference"]) == ("easy", 3, 2, RULE)
    assert (table["objects"]["num_objects"], table["objects"]["seed"]) == (12, 5)
    assert (result["seed"], table["episodes"]["seed"]) == (5, 5)
    assert result["config"]["test"]["model"]["init_args"]["env"]["init_args"]["items"]["init_args"]["seed"] == 1
    assert result["machine"]["versions"]["torch"] == metadata.version("torch")
    assert result["arguments"]["cases"] == 3
    assert result["checkpoint"] is None


def test_the_same_seed_is_the_same_table(evaluate: Callable[..., dict[str, Any]]) -> None:
    first, again, other = (cases_of(evaluate("--seed", seed)) for seed in ("5", "5", "6"))
    assert first == again
    assert first[RULE] != other[RULE]
    batched = cases_of(evaluate("--seed", "5", "--batch=3", "--methods", "hm", "dbl"))
    assert batched == {name: first[name] for name in (DEEPEST, RULE)}


def test_without_a_checkpoint(evaluate: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    result = evaluate()
    assert list(rows_of(result)) == [RANDOM, DEEPEST, RULE, LESS_WASTE]
    assert len(result["notes"]) == 1
    assert "No --ckpt_path: the rows of the learned methods are left out; untrained networks repeat the rules.\n" in (
        capsys.readouterr().out
    )


def test_no_choice(
    evaluate: Callable[..., dict[str, Any]], checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = evaluate("--ckpt_path", checkpoint, "--visible", "0", "30", "--model.env.num_items=30")
    assert list(rows_of(result)) == [RANDOM, DEEPEST, RULE, WORKER]
    assert list(rows_of(result, 1)) == [RANDOM, DEEPEST, RULE, LESS_WASTE, WORKER, MANAGER, BOTH]
    assert [table["setting"]["K"] for table in result["tables"]] == [0, 30]
    shown = capsys.readouterr().out
    assert shown.count("K = 0: one object is shown, in box order") == 1
    assert "easy: K = 0 of 30 objects" in shown
    passed_over, largest_first = (cases_of(result, i) for i in (0, 1))
    for method in (DEEPEST, RULE, WORKER):  # the largest that fits of all: what is passed over would never fit again
        assert passed_over[method] == largest_first[method]
    assert max(passed_over[RULE]["objects"]) < 30


def test_a_table_for_each_set_and_setting(evaluate: Callable[..., dict[str, Any]]) -> None:
    words = ["--sets", "easy", "hard", "--steps", "90", "180", "--resolutions", "20", "24", "--methods", "hm"]
    result = evaluate(*words, "--cases=2")
    found = [(t["set"], t["setting"]["resolution"], t["setting"]["orientations"]) for t in result["tables"]]
    of_set = [(20, "cube"), (20, 180.0), (24, "cube"), (24, 180.0)]
    assert found == [(name, *setting) for name in ("easy", "hard") for setting in of_set]
    assert all("difference" in row and row["difference"] == {} for row in result["tables"][0]["methods"])


def test_physics(evaluate: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mujoco")
    result = evaluate("--physics=1", "--methods", "random", "hm")
    (table,) = result["tables"]
    assert [row["method"] for row in table["agreement"]] == [RANDOM, RULE]
    rows = rows_of(result)
    for row in table["agreement"]:
        columns = rows[row["method"]]["columns"]
        assert row["placements"] == columns["objects"]["cases"][0]
        assert len(columns["S physics"]["cases"]) == 1
    shown = capsys.readouterr().out
    assert "S physics" in shown
    assert "only com holds" in shown


def test_meshes(evaluate: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    trimesh = pytest.importorskip("trimesh")
    (tmp_path / "meshes").mkdir()
    trimesh.creation.box((0.05, 0.08, 0.1)).export(tmp_path / "meshes" / "box.stl")
    (tmp_path / "meshes" / "broken.stl").write_text("solid nothing")
    folder = str(tmp_path / "meshes")
    small = [word for word in SMALL if "num_objects" not in word]
    path = tmp_path / "out.json"
    words = ["--meshes", folder, "--cases=2", "--timed=0", "--methods", "hm", "--device=cpu", f"--output={path}"]
    assert cli.main(["evaluate", "packing_irregular", *words, *small], "torchrl-gpu") is None
    (table,) = json.loads(path.read_text())["tables"]
    assert (table["set"], table["episodes"]["items"]) == ("meshes", "MeshItems")
    assert table["objects"]["path"] == folder
    assert table["methods"][0]["columns"]["objects"]["mean"] > 0


WRONG = [
    (["--methods", "foo"], "argument --methods: invalid choice: 'foo'"),
    (["--sets", "hardest"], "argument --sets: invalid choice: 'hardest'"),
    (["--sets", "hard", "--shapes", "cup"], "ProceduralSolids: shapes must be among bowl, mug"),
    (["--case=3"], "want a known option"),
    (["--cases=0"], "--cases must be at least 1; got 0"),
    (["--visible", "5", "-1"], "--visible must be at least 0; got [5, -1]"),
    (["--steps", "50"], "orientation_set: the step must be positive and divide 360 degrees; got 50.0"),
    (["--seed=1"], "evaluate: --seed must differ from that of the objects trained on; got 1"),
    (["--methods", "worker"], "--methods must name a row that there is; got worker"),
    (["--meshes", "nowhere"], "--meshes must be a folder of mesh files; got nowhere"),
    (["--ckpt_path", "no.ckpt"], "checkpoint no.ckpt: want an existing file; got none there"),
    (["--config", "no.yaml"], "no.yaml"),
    (["--model.env.visible=3"], "want a known option"),
]


@pytest.mark.parametrize(("args", "message"), WRONG, ids=[" ".join(args) for args, _ in WRONG])
def test_wrong_arguments(capfd: pytest.CaptureFixture[str], args: list[str], message: str) -> None:
    assert cli.main(["evaluate", "packing_irregular", *QUICK, *SMALL, *args], "torchrl-gpu") == 2
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert message in said[0]


def test_a_config_of_another_module(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", "packing_irregular", *QUICK, "--config", "packing.yaml"], "torchrl-gpu") == 2
    assert "want a config whose model is HierarchicalPacking; got OffPolicy" in capfd.readouterr().err


def test_an_unknown_evaluation(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", "boats"], "torchrl-gpu") == 2
    assert "argument what: invalid choice: 'boats'" in capfd.readouterr().err


def test_code_in_a_checkpoint_never_runs(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "path": tmp_path}, tmp_path / "code.ckpt")
    words = [*QUICK, *SMALL, "--ckpt_path", str(tmp_path / "code.ckpt")]
    assert cli.main(["evaluate", "packing_irregular", *words], "torchrl-gpu") == 2
    assert "want tensors and plain values only; got a pickle that calls pathlib" in capfd.readouterr().err
