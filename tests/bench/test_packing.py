"""The packing benchmark: parity is looked for first, and no ratio is given while it fails."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from torchrl_gpu import bench
from torchrl_gpu.bench import packing, parity
from torchrl_gpu.bench.report import section
from torchrl_gpu.bench.settings import BPP10, episodes_of, irregular, make, random_legal
from torchrl_gpu.bench.timing import Contestant, measure
from torchrl_gpu.envs.packing.kernels import eager

TINY = ["--device", "cpu", "--no-peers", "--num_envs", "1", "3", "--steps", "1", "--parity_steps", "3"]
TINY += ["--seconds", "0.001", "--repetitions", "2"]


@pytest.mark.parametrize("name", BPP10)
def test_ours_and_the_numpy_path_agree_on_boxes(name: str) -> None:
    assert parity.difference(BPP10[name], num_envs=2, steps=25, device="cpu", drops=parity.BOX_DROPS) == ""


def test_ours_and_the_numpy_path_agree_on_solids() -> None:
    changes = irregular(2, 6, resolution=40, grid_step=3)
    assert parity.difference(changes, num_envs=1, steps=3, device="cpu", drops=parity.DROPS) == ""


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = eager.drop_map

    def wrong(heightmap, item_id, catalogue, bin_):  # type: ignore[no-untyped-def]
        z_map, legal = right(heightmap, item_id, catalogue, bin_)
        return z_map, legal & (z_map < 4)

    monkeypatch.setattr(eager, "drop_map", wrong)
    found = parity.difference({}, num_envs=2, steps=25, device="cpu", drops=parity.DROPS)
    assert "legal_mask differs" in found or "done differs" in found


def test_nothing_is_timed_while_parity_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*args: object) -> None:
        raise AssertionError("timed although parity fails")

    monkeypatch.setattr(parity, "difference", lambda *args, **kwargs: "step 1: legal_mask differs")
    monkeypatch.setattr(packing, "measure", never)
    assert packing.main([*TINY, "--no-peers"]) == 1
    said = capsys.readouterr()
    assert "legal_mask differs" in said.out + said.err


def test_the_command_writes_every_raw_timing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "packing.json"
    assert bench.main(["packing", *TINY, "--no-peers", "--output", str(out)]) == 0
    result = json.loads(out.read_text())
    assert all(check["difference"] == "" for check in result["parity"])
    assert {"torch", "torchrl"} <= set(result["machine"]["versions"])
    rows = {row["name"]: row for each in result["sections"] for row in each["rows"] if each["title"] == "bpp10"}
    ours, loop = rows["ours, 2"], rows["NumPy, loop"]
    assert len(ours["seconds"]) == 2
    assert ours["ratios"]["numpy_loop"] == pytest.approx(ours["rate"] / loop["rate"])
    assert result["missing"] == []
    assert "NumPy, loop" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--steps", "0"], ["--num_envs", "0"], ["--seconds", "nan"]])
def test_bad_arguments_are_refused(wrong: list[str]) -> None:
    with pytest.raises(ValueError, match=r"torchrl-gpu bench packing: --\w+ must be"):
        packing.main(wrong)


def test_contestants_take_turns_after_a_warm_up() -> None:
    turns: list[str] = []
    rows = [Contestant(name, lambda calls, name=name: turns.append(name)) for name in "ab"]
    measure(rows, seconds=1e-6, repetitions=2)
    assert turns == ["a", "a", "b", "b", "a", "b", "a", "b"]
    assert [len(row.seconds) for row in rows] == [2, 2]


def test_ratios_are_to_the_rows_of_the_same_section() -> None:
    loop = Contestant("NumPy, loop", lambda calls: None, seconds=[2.0])
    best = Contestant("Jumanji BinPack-v2, 64", lambda calls: None, 64, seconds=[8.0])
    ours = Contestant("ours, 4", lambda calls: None, 4, seconds=[1.0])
    row = section("a title", "steps/s", [loop, best, ours])["rows"][2]
    assert row["ratios"] == {"numpy_loop": 8.0, "jumanji_best": 0.5}  # 4/s against 1/2/s and 8/s


def test_random_legal_actions_are_legal_and_uniform() -> None:
    torch.manual_seed(0)
    mask = torch.tensor([0, 1, 0, 1, 1, 0], dtype=torch.bool).expand(6000, -1)
    counts = np.bincount(random_legal(mask).numpy(), minlength=6)
    assert counts[[0, 2, 5]].sum() == 0
    assert (np.abs(counts[[1, 3, 4]] - 2000) < 5 * 2000**0.5).all()


def test_the_twin_plays_the_episodes_of_the_environment() -> None:
    env = make({}, 3, "cpu")
    env.reset()
    assert episodes_of(env, 2, 1)[0, 0] == env.state.item_id[2, 0]
