"""Predicted rates of the shipped configs on GPUs.

`python -m benchmarks.gpu.predictions` takes a minute or two and runs nothing on a GPU. Work is counted: nodes and
launches as in `graph_nodes`, bytes and operations of the packing kernels as in `expectations`, instructions of kernels
as in `table_work`, products of matrices at the rate of float32 without tensor cores. The predictions follow from it as
`predicted_rates` says. What has no count of its own, such as torch's small operators, has the time of its nodes alone.
`results/gpu_predictions.json` has the work and the tables.
"""

from __future__ import annotations

import sys

from benchmarks.gpu import expectations, network_work, predicted_rates, table_work
from benchmarks.gpu.chips import DEVICES, FLOATS_PER_CLOCK, Device
from benchmarks.gpu.predicted_rates import CHIP, NODE_S, RESULT, Work, published, rounded, rows_of
from benchmarks.gpu.shipped import environment_arguments, model_arguments
from benchmarks.gpu.steps import MARINE_CONFIGS
from benchmarks.result_types import JsonObject
from torchrl_gpu.evaluation.reports import write_json

_STEPS = "environment steps/s"
_UPDATES = "updates/s"
_TABLE_ENVS = (64, 1024)
_BOX_ENVS = (64, 16384, 65536)
_SOLID_ENVS = (16, 64)
_SOLIDS = "packing_irregular"


def step_works() -> list[Work]:
    """Return the steps of environments alone, each a replay of a graph."""
    nodes = {row["what"]: row["operators"] + row["kernels"] for row in _counted("environment steps")}
    found = []
    for num_envs in _BOX_ENVS:
        kernels = {name: table_work.step_seconds(num_envs, device) for name, device in DEVICES.items()}
        found.append(Work("packing", "step", num_envs, _STEPS, num_envs, 1, nodes["packing"], kernels))
    for num_envs in _SOLID_ENVS:
        kernels = {name: _solids_seconds(num_envs, device) for name, device in DEVICES.items()}
        found.append(Work(_SOLIDS, "step", num_envs, _STEPS, num_envs, 1, nodes[_SOLIDS], kernels))
    for config in MARINE_CONFIGS:
        num_envs = environment_arguments(config)["num_envs"]
        kernels = {name: table_work.marine_seconds(config, device) for name, device in DEVICES.items()}
        found.append(Work(config, "step", num_envs, _STEPS, num_envs, 1, nodes[config], kernels))
    return found


def _solids_seconds(num_envs: int, device: Device) -> float:
    """Time of the kernels of irregular items, `drop_solids` by its instructions."""
    total = 0.0
    for kernel in expectations.work(expectations.environment(_SOLIDS)):
        least = expectations.bound(kernel, _SOLIDS, device, num_envs).seconds
        if kernel == "drop_solids_kernel":
            operations = expectations.operations_seconds(kernel, _SOLIDS, device, num_envs)
            least = max(least, operations * _instructions_of_operation())
        total += least
    return total


def _instructions_of_operation() -> float:
    """Time of the instructions of `drop_solids`, over that of its operations."""
    today = rows_of(published("solids_work"), "prediction for an H100")[-1]
    operations = expectations.operations_seconds("drop_solids_kernel", _SOLIDS, DEVICES[CHIP])
    return float(today["least"]) * 1e-6 / operations


def training_works() -> list[Work]:
    """Training steps of the configs whose nodes are known."""
    found = [_table_work(num_envs) for num_envs in _TABLE_ENVS]
    for row in _counted("training steps"):
        config = row["config"].removesuffix(".yaml")
        num_envs = environment_arguments(config)["num_envs"]
        operations = network_work.operations(config)
        kernels = {name: operations / float_rate(device) for name, device in DEVICES.items()}
        unit, amount = _STEPS, num_envs * row["rollout_steps"]
        learner = model_arguments(config)
        if "updates_per_step" in learner:
            unit, amount = _UPDATES, learner["updates_per_step"]
        found.append(Work(config, "training", num_envs, unit, amount, row["launches"], row["nodes"], kernels))
    return found


def _table_work(num_envs: int) -> Work:
    """A training step of `packing.yaml`: a rollout in one kernel, a sweep in a graph.

    The host launches what it does with torch's operators in place of the kernel, and the kernel and what surrounds it.
    """
    known = rows_of(published("training_launches"), "launches of a training step")
    by_operators = next(row for row in known if row["config"] == "packing.yaml")
    rollout = next(row for row in _counted("environment steps") if row["what"].startswith("packing, 32 steps"))
    launches = by_operators["launches"] + rollout["operators"] + rollout["kernels"]
    # Two launches a step, and two operators for the mean of the errors.
    nodes = 2 * table_work.STEPS + 2
    kernels = {}
    for name, device in DEVICES.items():
        kernels[name] = table_work.rollout_seconds(num_envs, device) + table_work.sweep_seconds(num_envs, device)
    amount = num_envs * table_work.STEPS
    return Work("packing", "training", num_envs, _STEPS, amount, launches, nodes, kernels)


def float_rate(device: Device) -> float:
    """Additions and multiplications of float32 a second, without tensor cores."""
    return 2 * device.operations(FLOATS_PER_CLOCK[device.capability])


def check_section() -> JsonObject:
    """Return the kernels that an H100 has timed, with their predictions."""
    device = DEVICES[CHIP]
    timed = next(part for part in published("gpu_h100")["parts"] if part["name"] == "timings")["data"]["rows"]
    seconds: dict[tuple[str, str], float] = {}
    for row in timed:
        seconds |= {(row["config"], each["kernel"]): each["seconds"] for each in row["kernels"]}
    said = {}
    for kernel in ("cut_items_kernel", "drop_boxes_kernel", "advance_kernel", "restart_kernel"):
        said["packing", kernel] = table_work.kernel_seconds(kernel, 64, device)
    for kernel in ("advance_kernel", "restart_kernel"):
        said[_SOLIDS, kernel] = expectations.bound(kernel, _SOLIDS, device).seconds
    former = rows_of(published("solids_work"), "prediction for an H100")[0]
    said[_SOLIDS, "drop_solids_kernel"] = float(former["least"]) * 1e-6
    rows = []
    for (config, kernel), counted in said.items():
        predicted, measured = counted + NODE_S, seconds[config, kernel]
        row = {"config": f"`{config}`", "kernel": kernel.removesuffix("_kernel")}
        row |= {"predicted": rounded(predicted * 1e6), "measured": rounded(measured * 1e6)}
        rows.append(row | {"ratio": f"{measured / predicted:.2g}"})
    columns = {"config": "environment of", "kernel": "kernel", "predicted": "predicted, µs"}
    columns |= {"measured": f"measured on an {CHIP}, µs", "ratio": "measured / predicted"}
    return {"title": "kernels", "columns": columns, "rows": rows}


def _counted(title: str) -> list[JsonObject]:
    return rows_of(published("graph_nodes"), title)


def main() -> int:
    """Count the work, and write the JSON of the tables in the documentation."""
    works = step_works() + training_works()
    sections = [predicted_rates.prediction_section(works, DEVICES), predicted_rates.goal_section(works)]
    sections.append(check_section())
    sections.append({"title": "work", "rows": [each._asdict() for each in works]})
    write_json(RESULT, {"benchmark": "gpu.predictions", "sections": sections})
    return 0


if __name__ == "__main__":
    sys.exit(main())
