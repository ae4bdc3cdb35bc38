"""The kernel benchmark: parity is looked for first, and what cannot run says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kernels import ceilings as kernel_ceilings
from benchmarks.kernels import command
from benchmarks.kernels import parity as kernel_parity
from benchmarks.kernels import sweep as kernel_sweep
from tests.benchmarks.kernels import tiny
from torchrl_gpu.device import cuda_problem

TINY = ["--device", "cpu", "--backends", "eager", "triton", "--seconds", "0.001", "--repetitions", "2"]
TINY += ["--footprint", "6", "--resolution", "26", "--irregular_envs", "1", "2", "--box_envs", "3", "--visible", "2"]
TINY += ["--step_envs", "3", "--irregular_step_envs", "1"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_ceilings, "machine_ceilings", tiny.ceilings)
    monkeypatch.setattr(kernel_ceilings, "available_backends", lambda device: {"compiled": "no compiler"})
    monkeypatch.setattr(command, "procedural", lambda n, k, **size: tiny.workload(n, k))
    small = {"num_envs": (1, 4), "resolution": (13, 26), "footprint": (3, 6), "visible": (1, 2)}
    monkeypatch.setattr(kernel_sweep, "AXES", small)


def measured(path: Path, *words: str) -> dict[str, Any]:
    assert command.main([*TINY, *words, "--output", str(path)]) == 0
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def test_the_command_writes_every_raw_timing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = measured(tmp_path / "new" / "command.json")
    assert {"device", "cpu", "cores", "torch_threads", "commit"} <= set(result["machine"])
    assert {check["difference"] for check in result["parity"]} == {""}
    ceilings, irregular, mixed, boxes, *steps = result["sections"]
    assert [row["notes"] for row in ceilings["rows"]] == ["bytes/s", "add-max/s"]
    assert {each["reason"] for each in ceilings["missing"]} == {"backend compiled cannot run: no compiler"}
    rows = {row["name"]: row for row in irregular["rows"]}
    assert list(rows) == ["NumPy, windows", "torch unfold, 1", "torch unfold, 2", "ours eager, 1", "ours eager, 2"]
    ours = rows["ours eager, 2"]
    assert len(ours["seconds"]) == 2
    assert ours["ratios"]["numpy_windows"] == pytest.approx(ours["rate"] / rows["NumPy, windows"]["rate"])
    assert ours["add_max_per_s"] == pytest.approx(ours["rate"] * ours["add_max_per_z_map"])
    assert [row["name"] for row in mixed["rows"]] == ["NumPy, windows", "torch unfold, 1", "ours eager, 2"]
    assert boxes["rows"][1]["bound_by"] == "bytes"
    assert [row["name"] for section in steps for row in section["rows"]] == ["ours eager, 3", "ours eager, 1"]
    printed = capsys.readouterr().out
    assert "% copy" in printed
    assert "GPU utilisation n/a" in " ".join(printed.split())


@pytest.mark.skipif(not cuda_problem(), reason="there is a CUDA device")
def test_without_a_gpu_its_rows_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = measured(tmp_path / "command.json", "--workloads", "boxes")
    (missing,) = result["missing"]
    assert missing.startswith("ours triton: no CUDA device: ")
    boxes = result["sections"][1]
    assert [each["name"] for each in boxes["missing"]] == ["ours triton, 3"]
    assert boxes["missing"][0]["reason"].startswith("no CUDA device: ")
    assert "no CUDA device" in capsys.readouterr().out


def test_a_sweep_is_written_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    words = ["--workloads", "boxes", "--axes", "num_envs", "visible", "--sweep_envs", "2", "--point_seconds", "0.05"]
    result = measured(tmp_path / "command.json", *words, "--plot", str(tmp_path / "new" / "sweep.png"))
    assert {point["axis"] for point in result["sweep"]["points"]} == {"num_envs", "visible"}
    assert (tmp_path / "new" / "sweep.png").stat().st_size > 0
    assert "time for one environment against num_envs, boxes" in " ".join(capsys.readouterr().out.split())


def test_nothing_is_timed_while_parity_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("timed although parity fails")

    monkeypatch.setattr(kernel_parity, "_unlike", lambda *args: "z_map differs in 1 of 2 entries")
    monkeypatch.setattr(command, "measure", never)
    output = tmp_path / "command.json"
    assert command.main([*TINY, "--output", str(output)]) == 1
    said = capsys.readouterr()
    assert "boxes, ours eager: z_map differs in 1 of 2 entries" in " ".join(said.err.split())
    assert said.out == ""
    assert not output.exists()


def test_a_missing_matplotlib_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'torchrl_gpu\[plots\]'"):
        command.main(["--plot", "a.png"])


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--box_envs", "0"], "--box_envs must be at least 1; got 0"),
        (["--sweep_envs", "-1"], "--sweep_envs must be at least 1; got -1"),
        (["--point_seconds", "0"], "--point_seconds must be positive; got 0"),
        (["--memory_gib", "inf"], "--memory_gib must be positive; got inf"),
        (["--device", "abacus"], "get_device"),
        (["--axes", "colour"], "colour"),
        (["--backends", "abacus"], "abacus"),
        (["--footprint", "300"], "--footprint must be at most --resolution, 200; got 300"),
    ],
)
def test_bad_words_are_refused_in_one_line(words: list[str], wanted: str) -> None:
    with pytest.raises(ValueError) as error:
        command.main(words)
    assert wanted in str(error.value)
    assert "\n" not in str(error.value)
