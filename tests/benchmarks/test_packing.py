"""The packing benchmark, in small.

Its parity passes for what is right and names what is wrong.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.packing import command, parity
from benchmarks.packing.settings import BPP10, irregular
from tests.records import with_values
from torchrl_gpu.cli.packing.bench import ADD_MAX, TimedRow
from torchrl_gpu.envs.packing.items import CutBoxes
from torchrl_gpu.envs.packing.kernels import eager, get_kernels

SMALL = ["--device", "cpu", "--no-peers", "--num_envs", "1", "3", "--parity_steps", "3"]
SMALL += ["--seconds", "0.001", "--repetitions", "2", "--num_objects", "2", "--resolution", "40", "--grid_step", "5"]


def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "BPP10", {"bpp10": BPP10["bpp10"]})
    monkeypatch.setattr(command, "_DROP_ENVS", (1, 2))
    monkeypatch.setattr(command, "ceilings", lambda device: [TimedRow(ADD_MAX, lambda calls: None, 1000)])
    path = tmp_path / "new" / "packing.json"
    assert command.main([*SMALL, "--output", str(path)]) == 0
    result = json.loads(path.read_text(encoding="utf-8"))
    assert {check["difference"] for check in result["parity"]} == {""}
    _, boxes, objects, steps = result["sections"]
    rows = {row["name"]: row for row in boxes["rows"]}
    numpy_rows = {"NumPy, loop", "NumPy, windows", "NumPy, box loop"}
    assert set(rows) == numpy_rows | {"ours, 1", "ours, 3", "ours, 3, with z_map"}
    ours, loop = rows["ours, 3"], rows["NumPy, loop"]
    assert ours["ratios"]["numpy_loop"] == pytest.approx(ours["rate"] / loop["rate"])
    assert {"NumPy, loop", "NumPy, windows", "ours, 1", "ours, 2"} <= {row["name"] for row in objects["rows"]}
    assert "ours, 1" in {row["name"] for row in steps["rows"]}
    assert "× loop" in capsys.readouterr().out


def test_every_setting_agrees_with_every_numpy_way() -> None:
    for name, changes in BPP10.items():
        changes = changes | {"items": CutBoxes(pool=16)} if name == "bpp10 cut2" else {}
        assert parity.difference(changes, num_envs=2, steps=8, device="cpu", drops=parity.BOX_DROPS) == "", name
    # The last placements lie at the walls of a coarse grid.
    changes = irregular(2, 4, 33, 4) | {"num_items": 6, "stability": "support"}
    assert parity.difference(changes, num_envs=2, steps=4, device="cpu", drops=parity.DROPS) == ""


def test_a_wrong_map_is_found_and_nothing_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_permissive(*args: object) -> tuple[torch.Tensor, torch.Tensor]:
        z_map, legal = eager.drop_map(*args)
        return z_map, torch.ones_like(legal)

    wrong = with_values(get_kernels("eager"), drop_map=too_permissive)
    monkeypatch.setattr("torchrl_gpu.envs.packing.env.get_kernels", lambda *args: wrong)
    monkeypatch.setattr(command, "BPP10", {"bpp10": {}})
    assert command.main([*SMALL, "--settings", "bpp10", "--output", str(tmp_path / "packing.json")]) == 1
    said = capsys.readouterr()
    assert "bpp10: NumPy loop: step 0, next: legal_mask differs in " in " ".join(said.err.split())
    assert said.out == ""
    assert not list(tmp_path.iterdir())
