"""`torchrl-gpu bench packing`: parity comes before speed.

No ratio is given while parity fails.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.test_end_to_end import small
from torchrl_gpu import cli
from torchrl_gpu.cli import main
from torchrl_gpu.cli.cost import Rate, estimate
from torchrl_gpu.cli.packing import bench
from torchrl_gpu.cli.packing.bench import ADD_MAX, COPY, TimedRow, measure
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
    assert [(row["group"], row["name"]) for row in rows] == list(product(("bpp10", "irregular"), names))
    for reference, ours in ((rows[0], rows[2]), (rows[3], rows[5])):
        assert len(ours["seconds"]) == 2
        assert ours["ratio"] == pytest.approx(ours["rate"] / reference["rate"])
        assert ours["share_of_copy"] == pytest.approx(ours["rate"] * ours["bytes_per_step"] / copied["rate"])
        assert "ratio" not in reference
    # Heights in and out, z-maps and masks out.
    assert rows[2]["bytes_per_step"] == 8 * 100 + 5 * 200
    printed = " ".join(capsys.readouterr().out.split())
    assert "× NumPy" in printed
    assert "GPU utilisation n/a" in printed


def test_bench_looks_for_parity_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.order = 0.0, list[str]()
        monkeypatch.setattr(bench.time, "perf_counter", lambda: self.now)

    def worker(self, name: str, seconds: float, per_call: int = 1) -> TimedRow:
        def run(calls: int) -> None:
            self.now += calls * seconds
            self.order.append(name)

        return TimedRow(name, run, per_call)


def test_rows_take_turns_after_their_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    rows = [clock.worker("a", 0.1), clock.worker("b", 0.1)]
    measure(rows, seconds=0.6, repetitions=3)
    assert clock.order == ["a", "a", "b", "b", *("a", "b") * 3]
    assert [row.calls for row in rows] == [2, 2]
    assert [len(row.seconds) for row in rows] == [3, 3]


@pytest.mark.parametrize(("each", "seconds", "calls", "turns"), [(0.5, 5.0, 2, 5), (10.0, 1.0, 1, 2)])
def test_calls_fill_the_time_and_rates_count_results(
    each: float, seconds: float, calls: int, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that take longer than their time are made twice."""
    row = Clock(monkeypatch).worker("a", each, per_call=64)
    measure([row], seconds=seconds, repetitions=5)
    assert row.calls == calls
    assert row.rates == pytest.approx([64 / each] * turns)
    assert row.rate == pytest.approx(64 / each)


SMALL = small("packing.yaml", 50)


def test_bench_figures_by_hand() -> None:
    found = estimate(7200, Rate(2.0, "by hand"), 0.44)
    # 7,200 updates at two a second.
    assert found["hours"] == 1.0
    assert found["cost"] == pytest.approx(0.44)
    assert estimate(7200, Rate(4.0, "by hand"), None)["cost"] is None


def test_a_given_rate(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", "packing.yaml", "--price", "3", "--throughput", "0.25"]
    assert cli.main(["cost", *words], "torchrl-gpu") is None
    said = capsys.readouterr().out.splitlines()
    # 500 updates at a quarter a second are 2,000 s.
    assert said == [
        "packing.yaml: 500 updates at 0.25 updates/s: 33.3 minutes",
        "at 3 USD an hour: 1.67 USD",
        "rate: given by --throughput",
    ]
    assert cli.main(["cost", *words, "--trainer.max_steps", "1000000"], "torchrl-gpu") is None
    assert "1,000,000 updates at 0.25 updates/s: 1111.1 hours" in capsys.readouterr().out


def test_a_trial_here(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, "--price", "0.44", "--seconds", "0.01", "--json"]
    assert cli.main(["cost", *words], "torchrl-gpu") is None
    found = json.loads(capsys.readouterr().out)
    assert found["updates"] == 50
    updates, _ = re.match(r"measured just now, (\d+) updates in ([\d.]+) s on ", found["source"]).groups()  # type: ignore[union-attr]
    # The trial is shorter than the run.
    assert 0 < int(updates) < 50
    assert found["updates_per_s"] > 0
    assert found["cost"] == pytest.approx(0.44 * 50 / found["updates_per_s"] / 3600)
    # A trial leaves nothing.
    assert list(tmp_path.iterdir()) == []


def test_a_recorded_rate(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "run" / "tensorboard" / "version_0"))
    for step, rate in enumerate([1.0, 5.0, 2.0, float("nan")]):
        writer.add_scalar("throughput/updates_per_s", rate, step)
    writer.close()
    assert cli.main(["cost", "--config", "packing.yaml", "--run", str(tmp_path / "run")], "torchrl-gpu") is None
    said = capsys.readouterr().out
    assert "500 updates at 2 updates/s: 4.2 minutes" in said
    assert "rate: the median of 3 readings" in said
