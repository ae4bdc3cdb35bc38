"""Predicted rates: the formula, the work that it is given, the published tables."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from benchmarks.gpu import graph_nodes, page, predicted_rates, table_work
from benchmarks.gpu.chips import DEVICES
from benchmarks.gpu.launches import Compiled
from benchmarks.gpu.predicted_rates import Work, predicted, published, rows_of
from torchrl_gpu.policies.packing.ntuple.values import PatchPlan

H100 = "NVIDIA H100 80GB HBM3"


def works() -> list[Work]:
    return [Work(**row) for row in rows_of(published("gpu_predictions"), "work")]


def test_time_is_kernels_nodes_and_launches() -> None:
    work = Work("packing", "training", 64, "environment steps/s", 1000, 2, 10, {"H100": 70e-6})
    assert work.seconds("H100") == pytest.approx((2 * 5 + 10 * 2 + 70) * 1e-6)
    assert work.rate("H100") == pytest.approx(1000 / 100e-6)
    assert work.seconds("H100", waits=3) == pytest.approx((2 * 5 + 10 * 2 + 3 * 70) * 1e-6)


def test_published_tables_follow_from_the_published_work() -> None:
    predictions, goals, _kernels, _work = published("gpu_predictions")["sections"]
    assert predictions == predicted_rates.prediction_section(works(), DEVICES)
    assert goals == predicted_rates.goal_section(works())


def test_published_tables_are_named_predictions() -> None:
    predictions, goals, kernels, _work = published("gpu_predictions")["sections"]
    assert predictions["title"] == "predictions"
    assert predictions["columns"]["unit"] == "predicted"
    assert goals["columns"]["best"] == "predicted"
    assert kernels["columns"]["predicted"].startswith("predicted")


def test_every_config_with_known_launches_has_a_prediction() -> None:
    known = rows_of(published("training_launches"), "launches of a training step")
    trained = {f"{each.config}.yaml" for each in works() if each.kind == "training"}
    assert {row["config"] for row in known if _has_learner_of(row["config"])} <= trained


def _has_learner_of(config: str) -> bool:
    """True of configs whose kernels Triton's launches are counted of."""
    return config.startswith(("navigation", "ppo")) or config in ("packing.yaml", "packing_dqn.yaml")


def test_work_has_the_published_nodes_and_every_chip() -> None:
    counted = rows_of(published("graph_nodes"), "training steps")
    nodes = {(row["config"], row["launches"]): row["nodes"] for row in counted}
    of_training = [each for each in works() if each.kind == "training" and each.config != "packing"]
    assert {(f"{each.config}.yaml", each.launches): each.nodes for each in of_training} == nodes
    assert all(set(each.kernels_s) == set(DEVICES) for each in works())


def test_triton_makes_fewer_nodes() -> None:
    for row in rows_of(published("graph_nodes"), "training steps"):
        assert row["nodes"] < row["without_triton"]


@pytest.mark.parametrize("config", ["packing", "navigation_iqn"])
def test_published_nodes_of_a_step_are_those_of_this_code(config: str) -> None:
    rows = rows_of(published("graph_nodes"), "environment steps")
    wanted = next(row for row in rows if row["what"] == config)
    # In a process of its own: tests of self-tests import modules again, whose classes the counter would not know.
    code = f"from benchmarks.gpu.graph_nodes import nodes_of_step; print(*nodes_of_step({config!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=graph_nodes.ROOT, capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout.split() == [str(wanted["operators"]), str(wanted["kernels"])]


def test_passes_of_a_rollout_by_hand() -> None:
    # Patches of 1×3 and 3×1 touch a box of 2×4 cells in 2 × 6 and in 4 × 4 places.
    extent = torch.tensor([[2, 4], [2, 4], [2, 4]])
    legal = torch.zeros(3, 10, dtype=torch.bool)
    legal[0, 1] = True
    legal[1, 1:8] = True
    # Four placements go through the loop together, where any of them is legal.
    assert table_work.passes(extent, legal, PatchPlan(("1x3",), 4), 4).tolist() == [16, 32, 0]


def test_clocks_of_a_program_by_hand() -> None:
    instructions = ["MOV R0, 1", "IADD3 R1, R0", "LDG.E R2, [R1]", "IMNMX R1, R2, R3", "@P0 BRA 0x10", "EXIT"]
    code = [(16 * number, text) for number, text in enumerate(instructions)]
    found = table_work.clocks(Compiled(code, 32, 0, 0, 8, 0.0))
    # Two warps on each quarter; of the loop four instructions, two of them integers, and a load of four clocks.
    assert found == table_work.Program(once=2 * 2, loop=2 * 4)


def test_programs_are_shared_evenly_or_wait_for_the_longest() -> None:
    device = DEVICES["H100"]
    assert table_work.seconds(264e6, 1e6, device) == pytest.approx(2e6 / 1.98e9)
    assert table_work.seconds(264e6, 3e6, device) == pytest.approx(3e6 / 1.98e9)


def test_a_report_has_predictions_for_its_chip() -> None:
    said = predicted(H100, "packing", "training", 64)
    assert said.endswith("environment steps/s")
    assert predicted("NVIDIA A1000", "packing", "training", 64) == ""
    assert predicted(H100, "packing", "training", 65) == ""
    fit = {"config": "packing.yaml", "graphs": True, "num_envs": 64, "loss": 0.1, "warnings": []}
    assert said in page.html(report_of({"name": "fit_packing", "title": "Fit", "data": fit}))
    step = {"config": "packing", "num_envs": 64, "backend": "triton", "seconds_per_step": 1e-3, "steps_per_s": 64e3}
    timed = {"name": "timings", "title": "Timings", "data": {"rows": [step | {"kernels": []}]}}
    assert predicted(H100, "packing", "step", 64) in page.html(report_of(timed))


def report_of(part: dict[str, Any]) -> dict[str, Any]:
    """A report of one part from an H100."""
    whole = part | {"state": "passed", "seconds": 1.0, "detail": "", "avoid": "", "log": ""}
    machine = {"device_name": H100, "device": "cuda:0", "driver": "1", "cpu": "c", "cores": 2, "system": "s"}
    machine |= {"versions": {}, "commit": None}
    return {"machine": machine, "made": "now", "quick": False, "parts": [whole]}
