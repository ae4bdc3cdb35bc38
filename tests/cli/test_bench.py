"""`torchrl-gpu bench packing`: parity is looked for first, and no ratio is given while it fails."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torchrl_gpu.cli import bench, main
from torchrl_gpu.cli.timing import ADD_MAX, COPY, TimedRow
from torchrl_gpu.envs.packing.kernels import eager, get_kernels
from torchrl_gpu.envs.packing.types import Moved

CPU = torch.device("cpu")
TINY = ["--device", "cpu", "--num_envs", "1", "3", "--parity_steps", "3", "--seconds", "0.001", "--repetitions", "2"]
TINY += ["--num_objects", "2", "--resolution", "26", "--grid_step", "5"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (COPY, ADD_MAX)
    monkeypatch.setattr(bench, "ceilings", lambda device: [TimedRow(n, lambda calls: None, 1000) for n in rows])


def test_the_command_writes_every_raw_timing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "packing.json"
    assert main(["bench", "packing", *TINY, "--output", str(path)], "torchrl-gpu") == 0
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert {"device", "cpu", "cores", "torch_threads", "commit", "gpu_memory"} <= set(result["machine"])
    assert {"torch", "torchrl"} <= set(result["machine"]["versions"])
    copied, _, *rows = result["rows"]
    names = ["NumPy reference", "1 envs", "3 envs"]
    assert [(row["group"], row["name"]) for row in rows] == [(g, n) for g in ("bpp10", "irregular") for n in names]
    for reference, ours in ((rows[0], rows[2]), (rows[3], rows[5])):
        assert len(ours["seconds"]) == 2
        assert ours["ratio"] == pytest.approx(ours["rate"] / reference["rate"])
        assert ours["share_of_copy"] == pytest.approx(ours["rate"] * ours["bytes_per_step"] / copied["rate"])
        assert "ratio" not in reference
    assert rows[2]["bytes_per_step"] == 8 * 100 + 5 * 200  # heights in and out; z-maps and masks out
    printed = " ".join(capsys.readouterr().out.split())
    assert "× NumPy" in printed
    assert "GPU utilisation n/a" in printed


def test_parity_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench, "difference", lambda *args, **kwargs: "step 1: legal_mask differs")
    monkeypatch.setattr(bench, "measure", pytest.fail)
    output = tmp_path / "packing.json"
    assert bench.main(["packing", *TINY, "--output", str(output)]) == 1
    said = capsys.readouterr()
    assert "legal_mask differs" in said.err
    assert said.out == ""
    assert not output.exists()


def too_permissive(*args: Any) -> tuple[Tensor, Tensor]:
    z_map, legal = eager.drop_map(*args)
    return z_map, torch.ones_like(legal)


def floating(*args: Any) -> Moved:
    moved = eager.advance(*args)
    return moved._replace(state=replace(moved.state, heightmap=moved.state.heightmap + 0.01))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, ""),
        ({"drop_map": too_permissive}, "step 0: legal_mask differs in "),
        ({"advance": floating}, "step 0: box_heightmap differs in 200 of 200 entries"),
    ],
    ids=["right", "map", "placement"],
)
def test_a_wrong_kernel_is_found(wrong: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def kernels(name: str, device: torch.device) -> Any:
        return get_kernels("eager")._replace(**wrong) if name == "auto" else get_kernels(name, device)

    monkeypatch.setattr("torchrl_gpu.envs.packing.env.get_kernels", kernels)
    found = bench.difference({}, CPU, steps=20)
    assert found.startswith(message)
    assert bool(found) == bool(wrong)


def test_an_action_that_is_not_legal_ends_the_episode_in_both() -> None:
    # One action in twenty is drawn from all of them; these steps hold several that are not legal.
    assert bench.difference({"bin_size": (10.0, 10.0, 5.0)}, CPU, steps=60) == ""
