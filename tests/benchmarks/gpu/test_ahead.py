"""Compilation ahead of time.

The tests are about what is read off a binary, and which limits fail the build.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import ahead
from benchmarks.gpu.ahead import CONFIGS
from benchmarks.gpu.chips import CHIPS
from benchmarks.gpu.launches import innermost_loops


def row(**changes: object) -> dict[str, Any]:
    fine = {"config": "packing", "capability": 90, "kernel": "place_kernel", "form": "place_kernel"}
    return fine | {"registers": 32, "spills": 0} | changes


def test_a_limit_fails_the_build(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ahead.steps, "environment", lambda config: None)
    monkeypatch.setattr(ahead, "rows", spilling)
    assert ahead.main(["--configs", "packing", "--capabilities", "90"]) == 1
    assert "spills: 3 accesses" in capsys.readouterr().err


def spilling(task: tuple[str, int]) -> list[dict[str, Any]]:
    """Return the kernels that spill, in place of a compilation.

    It is found by name in the process that would compile.
    """
    return [row(spills=3, compile_s=1.0)]


def test_a_kernel_is_compiled_and_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, names = tmp_path / "ahead.json", ["restart_kernel", "place_kernel"]
    # Those that compile fast.
    some = [each for each in ahead.launches("packing", 86) if each.name in names]
    monkeypatch.setattr(ahead, "all_launches", lambda config, capability: some)
    assert ahead.main(["--configs", "packing", "--capabilities", "86", "--output", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [each["kernel"] for each in rows] == names
    assert all(0 < each["registers"] <= 255 for each in rows)
    assert all(0 < each["occupancy"] <= 1 for each in rows)
    assert all(each["instructions"] > 50 for each in rows)


def test_the_published_table_is_of_every_config_and_chip() -> None:
    rows = json.loads(ahead.RESULT.read_text())["rows"]
    assert {(each["config"], each["capability"]) for each in rows} == set(itertools.product(CONFIGS, CHIPS))
    assert list(ahead.problems(rows)) == []


def test_loops_are_found_innermost() -> None:
    code = [(0, "MOV R1"), (16, "FADD"), (32, "@P0 BRA 0x10"), (48, "LDG"), (64, "BRA.U UP1, 0x0"), (80, "BRA 0x50")]
    assert innermost_loops(code) == [["FADD", "@P0 BRA 0x10"]]
