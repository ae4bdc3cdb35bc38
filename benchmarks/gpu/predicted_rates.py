"""Predicted rates of chips.

They come from the work that `benchmarks.gpu.predictions` counts.

The time of a step is that of its kernels, and besides 2 µs for every node of a graph and 5 µs for every launch of the
host. These two are assumptions; of what is left out, waits of kernels for memory and for each other are the most. On an
H100 the one kernel whose instructions were counted before it was measured took as many times as long as
`waits_measured` gives: a second prediction has all kernels take that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu.chips import device_named
from benchmarks.result_types import JsonObject

RESULTS = Path(__file__).parents[1] / "results"
RESULT = RESULTS / "gpu_predictions.json"
NODE_S = 2e-6
LAUNCH_S = 5e-6
# The chip that was measured.
CHIP = "H100"
# Utilization of the goal in seconds.
UTILIZATION = 0.695


class Work(NamedTuple):
    """What is done in a step.

    Attributes:
        config: A shipped config, named without its ending.
        kind: "step" of the environment alone, in a graph, or "training".
        num_envs: Environments.
        unit: What is counted a second.
        amount: How many of these a step makes.
        launches: Of the host.
        nodes: Of graphs.
        kernels_s: Seconds of the kernels whose bytes or operations are counted, by chip.
    """

    config: str
    kind: str
    num_envs: int
    unit: str
    amount: int
    launches: int
    nodes: int
    kernels_s: dict[str, float]

    def seconds(self, chip: str, waits: float = 1.0) -> float:
        """Predicted time of a step, whose kernels take `waits` times as long as at best."""
        return LAUNCH_S * self.launches + NODE_S * self.nodes + waits * self.kernels_s[chip]

    def rate(self, chip: str, waits: float = 1.0) -> float:
        """Predicted rate."""
        return self.amount / self.seconds(chip, waits)


class Goal(NamedTuple):
    """What is to be reached on an H100.

    Attributes:
        work: Config, kind and environments of the step.
        wanted: A second, at least.
        words: In the table.
    """

    work: tuple[str, str, int]
    wanted: float
    words: str


_TRAINED = (
    Goal(("packing", "training", 64), 1e6, "`packing.yaml` in training, environment steps/s"),
    Goal(("packing", "training", 1024), 1e6, "the same with 1,024 environments"),
    Goal(("packing", "step", 65536), 50e6, "its environment alone, 65,536 environments, steps/s"),
)
GOALS = (
    *_TRAINED,
    Goal(("packing_dqn", "training", 128), 1500, "`packing_dqn.yaml`, updates/s"),
    Goal(("navigation_iqn", "training", 64), 2000, "`navigation_iqn.yaml`, updates/s"),
    Goal(("packing_irregular", "step", 16), 20_000, "irregular items, 16 environments, steps/s"),
    Goal(("packing_irregular", "step", 64), 60_000, "irregular items, 64 environments, steps/s"),
)
# Of training `packing.yaml` to the utilization of the goal.
MOST_SECONDS = 10.0


def published(result: str) -> JsonObject:
    """A result of another benchmark."""
    found: JsonObject = json.loads((RESULTS / f"{result}.json").read_text(encoding="utf-8"))
    return found


def rows_of(result: JsonObject, title: str) -> list[JsonObject]:
    """Return the rows of the section with a title."""
    return next(each["rows"] for each in result["sections"] if each["title"] == title)


def waits_measured() -> float:
    """How many times as long as its instructions `drop_solids` took on an H100."""
    former = rows_of(published("solids_work"), "prediction for an H100")[0]
    return _number(former["expected"]) / _number(former["least"])


def measured_rates() -> dict[tuple[str, str, int], float]:
    """Rates of an H100, from before graphs were the default and some kernels there."""
    result = published("gpu_h100")
    found: dict[tuple[str, str, int], float] = {}
    for row in rows_of(result, "steps"):
        found[row["config"].strip("`"), "step", row["envs"]] = row["rate"]
    environments = {"packing_dqn": 128, "navigation_iqn": 64}
    for row in rows_of(result, "fits"):
        config = row["config"].strip("`").removesuffix(".yaml")
        found[config, "training", environments[config]] = row["graphs"]
    trained = next(row for row in rows_of(result, "packing.yaml") if row["what"].startswith("lightning fit"))
    found["packing", "training", 64] = trained["rate"]
    return found


def steps_to_goal(num_envs: int) -> int | None:
    """Environment steps of `packing.yaml` until validation reaches the goal.

    They are those of a training on a CPU; None where it has not reached it.
    """
    rows = rows_of(published("num_envs"), "learning by number of environments")
    curve = next(row["curve"] for row in rows if row["num_envs"] == num_envs)
    return next((int(each["frames"]) for each in curve if each["utilization"] >= UTILIZATION), None)


def prediction_section(works: Iterable[Work], chips: Iterable[str]) -> JsonObject:
    """A row for each step: its rate on every chip, and what an H100 has measured."""
    measured = measured_rates()
    waits = waits_measured()
    names = tuple(chips)
    rows = []
    for work in works:
        row = {"what": _words(work), "unit": work.unit, "launches": f"{work.launches:,}", "nodes": f"{work.nodes:,}"}
        row["kernels"] = f"{work.kernels_s[CHIP] * 1e6:,.0f}"
        row |= {name: rounded(work.rate(name)) for name in names}
        row["waits"] = rounded(work.rate(CHIP, waits))
        rate = measured.get((work.config, work.kind, work.num_envs))
        row["measured"] = "–" if rate is None else f"{rate:,.0f}"
        rows.append(row)
    columns = {"what": "step", "unit": "predicted", "launches": "launches", "nodes": "nodes"}
    columns |= {"kernels": f"kernels on an {CHIP}, µs"} | {name: name for name in names}
    columns |= {"waits": f"{CHIP}, kernels {waits:.1f} × as long", "measured": f"measured on an {CHIP}, before"}
    return {"title": "predictions", "columns": columns, "rows": rows}


def goal_section(works: Iterable[Work]) -> JsonObject:
    """A row for each goal, and whether the prediction reaches it."""
    by_name = {(each.config, each.kind, each.num_envs): each for each in works}
    waits = waits_measured()
    rows = []
    for goal in GOALS:
        work = by_name[goal.work]
        best, least = work.rate(CHIP), work.rate(CHIP, waits)
        row = {"goal": goal.words, "wanted": f"{goal.wanted:,.0f}", "best": rounded(best), "least": rounded(least)}
        rows.append(row | {"reached": _reached(best >= goal.wanted, least >= goal.wanted)})
    work = by_name["packing", "training", 64]
    steps = steps_to_goal(work.num_envs)
    assert steps is not None
    best, most = steps / work.rate(CHIP), steps / work.rate(CHIP, waits)
    row = {"goal": f"seconds of `packing.yaml` to {UTILIZATION:.1%}", "wanted": f"at most {MOST_SECONDS:.0f}"}
    row |= {"best": rounded(best), "least": rounded(most)}
    rows.append(row | {"reached": _reached(best <= MOST_SECONDS, most <= MOST_SECONDS)})
    columns = {"goal": f"on an {CHIP}", "wanted": "wanted", "best": "predicted"}
    columns |= {"least": f"kernels {waits:.1f} × as long", "reached": "reached"}
    return {"title": "goals", "columns": columns, "rows": rows}


def predicted(chip: str, config: str, kind: str, num_envs: int) -> str:
    """The published prediction for a chip by its driver's name, with its unit.

    It is "" where there is none.
    """
    device = device_named(chip)
    if device is None:
        return ""
    works = [Work(**row) for row in rows_of(published("gpu_predictions"), "work")]
    for work in works:
        if (work.config, work.kind, work.num_envs) == (config, kind, num_envs):
            return f"{rounded(work.rate(device.name))} {work.unit}"
    return ""


def rounded(value: float) -> str:
    """A prediction with two digits."""
    short = float(f"{value:.2g}")
    return f"{short:,.0f}" if short >= 10 else f"{short:g}"


def _words(work: Work) -> str:
    """A step, for people."""
    name = f"`{work.config}.yaml`" if work.kind == "training" else f"environment of `{work.config}`"
    return f"{name}, {work.num_envs:,}"


def _reached(at_best: bool, with_waits: bool) -> str:
    if at_best and with_waits:
        return "yes"
    return "only without waits" if at_best else "no"


def _number(text: str) -> float:
    return float(text.replace(",", ""))
