"""The kernel benchmark, in small.

It counts what a loop counts, and times nothing that differs from the reference.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.kernels import ceilings as kernel_ceilings
from benchmarks.kernels import command
from benchmarks.kernels import parity as kernel_parity
from benchmarks.kernels.counts import count
from benchmarks.kernels.workloads import procedural
from torchrl_gpu.cli.packing.bench import ADD_MAX, COPY, TimedRow
from torchrl_gpu.envs.packing.kernels.reference import item_maps, placements

SMALL = ["--device", "cpu", "--backends", "eager", "--seconds", "0.001", "--repetitions", "2", "--visible", "2"]
SMALL += ["--footprint", "6", "--resolution", "26", "--irregular_envs", "1", "2", "--box_envs", "3"]
SMALL += ["--step_envs", "3", "--irregular_step_envs", "1"]


def machine_ceilings(device: torch.device) -> list[TimedRow]:
    notes = {COPY: "bytes/s", ADD_MAX: "add-max/s"}
    return [TimedRow(name, lambda calls: None, 1000, notes=unit) for name, unit in notes.items()]


def small_procedural(num_envs: int, num_visible: int, **size: int) -> object:
    return procedural(num_envs, num_visible, resolution=20, step=3)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_ceilings, "machine_ceilings", machine_ceilings)
    monkeypatch.setattr(kernel_ceilings, "available_backends", lambda device: {"compiled": "no compiler"})
    monkeypatch.setattr(command, "procedural", small_procedural)


def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "kernels.json"
    assert command.main([*SMALL, "--output", str(path)]) == 0
    result = json.loads(path.read_text(encoding="utf-8"))
    assert {check["difference"] for check in result["parity"]} == {""}
    ceilings, irregular, mixed, boxes, *steps = result["sections"]
    assert {each["reason"] for each in ceilings["missing"]} == {"backend compiled cannot run: no compiler"}
    rows = {row["name"]: row for row in irregular["rows"]}
    assert list(rows) == ["NumPy, windows", "torch unfold, 1", "torch unfold, 2", "ours eager, 1", "ours eager, 2"]
    ours = rows["ours eager, 2"]
    assert ours["ratios"]["numpy_windows"] == pytest.approx(ours["rate"] / rows["NumPy, windows"]["rate"])
    assert ours["add_max_per_s"] == pytest.approx(ours["rate"] * ours["add_max_per_z_map"])
    assert [row["name"] for row in mixed["rows"]] == ["NumPy, windows", "torch unfold, 1", "ours eager, 2"]
    assert boxes["rows"][1]["bound_by"] == "bytes"
    names: list[str] = []
    for section in steps:
        names += [row["name"] for row in section["rows"]]
    assert names == ["ours eager, 3", "ours eager, 1"]
    assert "% copy" in capsys.readouterr().out


def test_parity_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(kernel_parity, "_unlike", lambda *args: "z_map differs in 1 of 2 entries")
    assert command.main([*SMALL, "--output", str(tmp_path / "kernels.json")]) == 1
    said = capsys.readouterr()
    assert "boxes, ours eager: z_map differs in 1 of 2 entries" in " ".join(said.err.split())
    assert said.out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--box_envs", "0"], "--box_envs must be at least 1; got 0"),
        (["--seconds", "inf"], "--seconds must be a finite number above 0; got inf"),
        (["--footprint", "300"], "--footprint must be at most --resolution, 200; got 300"),
    ],
)
def test_bad_words_are_refused_in_one_line(words: list[str], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        command.main(words)


def test_counts_are_those_of_a_loop() -> None:
    workload = procedural(3, 2, resolution=20, step=3)
    workload.item_id[1, 1] = -1
    _, item_id, catalogue, bin_ = workload
    fitting = operations = 0
    for n, k, o in np.ndindex(*item_id.shape, catalogue.num_orientations):
        if item_id[n, k] >= 0:
            _, bottom = item_maps(catalogue, int(item_id[n, k]), o)
            places = [len(list(placements(side, bin_.cells[0], bin_))) for side in bottom.shape]
            fitting += places[0] * places[1]
            operations += places[0] * places[1] * int(np.isfinite(bottom).sum())
    work = count(workload)
    assert (work.placements, work.add_max) == (fitting, operations)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_the_loop_on_registers_does_what_is_counted(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    name = "benchmarks.kernels.triton_ceiling"
    monkeypatch.delitem(sys.modules, name, raising=False)
    interpreted = importlib.import_module(name)
    # It must be compiled elsewhere.
    sys.modules.pop(name)
    out, rounds = torch.arange(2048).to(dtype), 3
    first, second = out, out + 1
    for step in [*range(8)] * rounds:
        first = torch.maximum(first, second - (step + 1))
        second = torch.maximum(second, first - (step + 2))
    interpreted.launch(out, rounds)
    assert torch.equal(out, first + second)
    assert interpreted.operations(rounds) == 2 * 8 * rounds
