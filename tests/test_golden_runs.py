"""Any bit of a tensor or a value is a change of a run.

Names of tensors and clocks are not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import golden_runs as golden
from torchrl_gpu import configs

WEIGHTS = {"agent.scale": torch.tensor([1.0, 2.0]), "agent.count": torch.tensor(3)}


def checkpoint(folder: Path, weights: dict[str, Tensor] | None = None, **changes: Any) -> dict[str, Any]:
    optimizer = {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    whole = {
        "epoch": 4,
        "global_step": 24,
        "state_dict": WEIGHTS if weights is None else weights,
        "optimizer_states": [optimizer],
        "random": {"cpu": torch.Generator().manual_seed(5).get_state()},
        "rollout": {"env": {"heights": torch.zeros(2, 3)}, "pending": None},
        "callbacks": {"saved": torch.rand(3)},
        "torchrl_gpu": {"id": "0123456789ab", "saved_s": 1.5},
    }
    torch.save(whole | changes.pop("whole", {}), folder / "last.ckpt")
    part = {"id": "0123456789ab", "replay": {"transitions": {"action": torch.arange(4)}}} | changes
    torch.save(part, folder / "last-0123456789ab.rank0.pt")
    return golden.contents(folder / "last.ckpt")


def changes(recorded: Any, found: Any) -> list[str]:
    return list(golden.differences(recorded, found))


def test_what_is_kept_of_a_checkpoint(tmp_path: Path) -> None:
    kept = checkpoint(tmp_path)
    assert (kept["updates"], kept["learning rates"]) == (24, [0.1])
    forms = {}
    for name in ("weights", "optimizer"):
        forms[name] = [line.rpartition(" ")[0] for line in kept[name]]
    assert forms == {"weights": ["float32 2", "int64 scalar"], "optimizer": ["float32 2"]}
    assert len(kept["random"]) == 1
    assert [line.split()[1] for line in kept["environment and replay"]] == ["2×3", "4"]
    # What the callbacks keep was drawn anew, and does not count.
    assert changes(kept, checkpoint(tmp_path)) == []


def test_names_and_places_of_tensors_do_not_count(tmp_path: Path) -> None:
    renamed = {f"policy.{name}": value for name, value in reversed(WEIGHTS.items())}
    moved = {"rollout": None, "collector": [torch.arange(4)]}
    there = {"replay": {"entries": (torch.zeros(2, 3),)}}
    assert changes(checkpoint(tmp_path), checkpoint(tmp_path, renamed, whole=moved, **there)) == []


@pytest.mark.parametrize(
    "other",
    [
        # The last bit of one of them.
        torch.tensor([1.0, 2.0]).nextafter(torch.tensor([9.0, 2.0])),
        torch.tensor([2.0, 1.0]),
        torch.tensor([[1.0, 2.0]]),
        # The same bytes.
        torch.tensor([1.0, 2.0]).view(torch.int32),
    ],
    ids=["bit", "order", "shape", "type"],
)
def test_another_weight_is_told(tmp_path: Path, other: Tensor) -> None:
    told = changes(checkpoint(tmp_path), checkpoint(tmp_path, WEIGHTS | {"agent.scale": other}))
    assert told[0] == "weights: 1 of 2 tensors are gone, 1 are new"
    assert any(line.startswith("weights: float32 2: 1 gone, ") for line in told)


@pytest.mark.parametrize("places", [["random"], ["optimizer"], ["environment and replay"]], ids=lambda each: each[0])
def test_every_state_counts(tmp_path: Path, places: list[str]) -> None:
    state = {
        "random": {"random": {"cpu": torch.Generator().manual_seed(6).get_state()}},
        "optimizer": {"optimizer_states": [{"state": {0: torch.zeros(2)}, "param_groups": [{"lr": 0.1}]}]},
        "environment and replay": {"rollout": {"env": {"heights": torch.ones(2, 3)}}},
    }
    told = changes(checkpoint(tmp_path), checkpoint(tmp_path, whole=state[places[0]]))
    assert {line.partition(":")[0] for line in told} == set(places)


def test_curves_leave_out_what_a_clock_decides(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(
        "epoch,step,train/loss,val/time,throughput/env_steps_per_s,gpu/memory_gib,updates_per_s\n"
        "0,1,0.1,,900.5,3,7\n0,2,0.30000000000000004,12.5,800.5,3,7\n1,3,nan,,,,\n"
    )
    found = golden.curves(path)
    assert {name: repr(values) for name, values in found.items()} == {
        "step": "[1.0, 2.0, 3.0]",
        "train/loss": "[0.1, 0.30000000000000004, nan]",
        "val/time": "[12.5]",
    }


def test_tables_leave_out_what_a_clock_decides() -> None:
    row = {"policy": "a", "utilization": 0.5, "decision_ms": 3.0, "seconds": 9.0, "time_s": 4.5, "energy": 2.0}
    row |= {"columns": {"C": [1.0], "ms/object": [2.0], "objects/s": [5.0], "ms/decision": [1.0]}}
    kept = golden.without_clocks(
        {"machine": {"cpu": "x"}, "policies": [row], "elapsed_s": 2.0, "checkpoint": {"path": "p"}}
    )
    row_kept = {"policy": "a", "utilization": 0.5, "time_s": 4.5, "energy": 2.0, "columns": {"C": [1.0]}}
    assert kept == {"policies": [row_kept], "checkpoint": {}}


def test_a_resumed_run_must_end_as_the_one_in_one_go(tmp_path: Path) -> None:
    straight = checkpoint(tmp_path) | {"curves": {"train/loss": [1.0, 2.0]}}
    runs = {"navigation_iqn": {"fit-24": straight}, "navigation_iqn_resumed": {"fit-24": straight | {"curves": {}}}}
    assert list(golden.unequal_ends(runs)) == []
    runs["navigation_iqn_resumed"]["fit-24"] = checkpoint(tmp_path, {"agent.scale": torch.zeros(2)})
    (first, *_) = golden.unequal_ends(runs)
    assert first == "navigation_iqn_resumed beside navigation_iqn, weights: 2 of 2 tensors are gone, 1 are new"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The program, whose runs come to what they are told."""
    path = tmp_path / "golden_runs.json"

    def run(*args: str, loss: float = 0.1, **curves: list[float]) -> int:
        state = checkpoint(tmp_path) | {"curves": {"loss": [loss], **curves}}
        monkeypatch.setattr(golden, "play_all", lambda names, jobs: {name: {"fit-24": state} for name in names})
        return golden.main(["--only", "packing", "navigation_sac", "--file", str(path), *args])

    return run


def test_it_checks_what_it_recorded(program: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert program("--record") == 0
    assert program() == 0
    assert "2 runs, no difference" in capsys.readouterr().out
    # This is the same number.
    assert program(loss=0.1 + 1e-18) == 0
    assert program(loss=0.1 + 2e-17) == 1
    assert "packing, fit-24, curves, loss[0]: 0.1 was recorded; now 0.10000000000000002" in capsys.readouterr().out
    assert program(more=[1.0]) == 0
    assert "Not recorded, and so not compared:\n  packing, fit-24, curves, more" in capsys.readouterr().out


def test_a_run_that_was_never_recorded_is_a_difference(
    program: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program() == 1
    assert "packing: was never recorded\nnavigation_sac: was never recorded" in capsys.readouterr().out
    assert not (tmp_path / "golden_runs.json").exists()


def test_every_shipped_config_has_a_run() -> None:
    assert {run.config for run in golden.RUNS.values()} == set(configs.names())


def test_what_is_committed_is_of_these_runs() -> None:
    content = json.loads(golden.RECORDED.read_text(encoding="utf-8"))
    assert set(content["runs"]) == set(golden.RUNS)
    assert golden.as_text(content) == golden.RECORDED.read_text(encoding="utf-8")
