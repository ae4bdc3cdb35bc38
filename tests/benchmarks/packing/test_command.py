"""The packing benchmark: parity is looked for first, and no ratio is given while it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.packing import command, parity
from benchmarks.packing.settings import BPP10
from torchrl_gpu.bench.ceilings import ADD_MAX
from torchrl_gpu.bench.timing import TimedRow

TINY = ["--device", "cpu", "--no-peers", "--num_envs", "1", "3", "--steps", "1", "--parity_steps", "3"]
TINY += ["--seconds", "0.001", "--repetitions", "2"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the protocols, few objects, and a ceiling that takes no time."""
    monkeypatch.setattr(command, "BPP10", {name: BPP10[name] for name in ("bpp10", "bpp10 discrete125")})
    monkeypatch.setattr(command, "_DROP_ENVS", (1, 2))
    monkeypatch.setattr(command, "ceilings", lambda device: [TimedRow(ADD_MAX, lambda calls: None, 1000)])


def measured(path: Path, *words: str) -> dict[str, Any]:
    assert command.main([*TINY, *words, "--output", str(path)]) == 0
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def test_the_command_writes_every_raw_timing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = measured(tmp_path / "new" / "packing.json", "--settings", "bpp10")
    assert {"device", "cpu", "cores", "torch_threads", "commit"} <= set(result["machine"])
    assert {"torch", "torchrl"} <= set(result["machine"]["versions"])
    assert [check["difference"] for check in result["parity"]] == ["", ""]
    rows = {row["name"]: row for each in result["sections"] for row in each["rows"] if each["title"] == "bpp10"}
    numpy_rows = {"NumPy, loop", "NumPy, windows", "NumPy, box loop"}
    assert set(rows) == numpy_rows | {"ours, 1", "ours, 3", "ours, 3, with z_map"}
    ours, loop = rows["ours, 3"], rows["NumPy, loop"]
    assert len(ours["seconds"]) == 2
    assert ours["ratios"]["numpy_loop"] == pytest.approx(ours["rate"] / loop["rate"])
    assert result["missing"] == []
    printed = capsys.readouterr().out
    assert "× loop" in printed
    assert "GPU utilisation n/a" in " ".join(printed.split())


def test_irregular_objects_are_measured_and_written(tmp_path: Path) -> None:
    size = ["--num_objects", "2", "--resolution", "40", "--grid_step", "5"]
    _, objects, steps = measured(tmp_path / "packing.json", *size, "--settings", "irregular")["sections"]
    assert {"NumPy, loop", "NumPy, windows", "ours, 1", "ours, 2"} <= {row["name"] for row in objects["rows"]}
    assert all(row["add_max_per_object"] > 0 for row in objects["rows"])
    assert "ours, 1" in {row["name"] for row in steps["rows"]}


def test_nothing_is_timed_while_parity_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*args: object) -> None:
        raise AssertionError("timed although parity fails")

    monkeypatch.setattr(parity, "difference", lambda *args, **kwargs: "step 1: legal_mask differs")
    monkeypatch.setattr(command, "measure", never)
    output = tmp_path / "packing.json"
    assert command.main([*TINY, "--output", str(output)]) == 1
    said = capsys.readouterr()
    assert "legal_mask differs" in said.err
    assert said.out == ""
    assert not output.exists()


def test_a_missing_peer_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.packing.jumanji_rows.find_spec", lambda name: None)
    words = [word for word in TINY if word != "--no-peers"]
    assert command.main([*words, "--settings", "bpp10"]) == 0
    assert "pip install 'torchrl_gpu[peers]'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--num_envs", "0"], "--num_envs must be at least 1; got 0"),
        (["--steps", "0"], "--steps must be at least 1; got 0"),
        (["--seconds", "nan"], "--seconds must be positive; got nan"),
        (["--device", "abacus"], "get_device"),
        (["--settings", "bpp9"], "bpp9"),
    ],
)
def test_bad_words_are_refused_in_one_line(words: list[str], wanted: str) -> None:
    with pytest.raises(ValueError) as error:
        command.main(words)
    assert wanted in str(error.value)
    assert "\n" not in str(error.value)
