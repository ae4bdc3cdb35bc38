"""RoboBPP's board: its cases by its own rules, and our policies in its ranking.

    torchrl-gpu evaluate pallets --protocol repetitive-board --policy dbl lsah hm repetitive orders --timed 22 \
        --output benchmarks/results/board_repetitive.json
    python benchmarks/robobpp_board.py --output benchmarks/results/robobpp_board.json

The board (arXiv 2512.04415) ranks twelve methods by a weighted sum of metrics, each scaled to 0 to 1 over the rows. Its
figures are in `results/robobpp_printed.json`, ours in `results/board_DATA.json` (Math Pack) and
`results/robobpp_physics.json` (Physics Pack).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks import released_rules
from benchmarks.packing_tables import TRAINING_ROWS
from benchmarks.result_types import JsonObject
from torchrl_gpu.cli.parser import OneLineParser
from torchrl_gpu.envs.packing.items import BoardCases
from torchrl_gpu.envs.packing.items.board_cases import BOARD_CASES, CASE_BOXES
from torchrl_gpu.envs.packing.protocols import BOARD, PALLETS
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.system import machine

RESULTS = Path(__file__).parent / "results"
# In the names of runs whose policy looks at the places that boxes still find.
LOOKS = "free places"
DATA = ("repetitive", "diverse", "boards")

# Weights of the metrics in the board's ranking.
WEIGHTS = {
    "math": {"utilization": 0.60, "occupancy": 0.26, "decision_s": 0.14},
    "physics": {"utilization": 0.43, "occupancy": 0.19, "decision_s": 0.10, "local_m": 0.09, "static": 0.19},
}
# Metrics of which less is better: seconds of a decision, and metres that boxes shift along x and y.
LESS_IS_BETTER = ("decision_s", "local_m")

# Figures of single cases, among what is printed.
CASES_OF = {"math": "cases", "physics": "physics_cases"}
# Metrics of a pallet in PyBullet, and their names among the printed ones.
CARRIED_OUT = {
    "utilization": "utilization",
    "occupancy": "occupancy",
    "static_stability": "static",
    "local_mean_m": "local_m",
}

Metrics = Mapping[str, float]


def composites(rows: Mapping[str, Metrics], weights: Metrics) -> dict[str, float]:
    """Return the board's weighted sum of every row.

    It is 0 for the worst in all metrics and 1 for the best in all.

    Args:
        rows: Metrics of each method. All have the metrics of `weights`, and at least two of them differ in each.
        weights: One of `WEIGHTS`.

    Raises:
        ValueError: All rows are equal in a metric, which has no scale then.
    """
    found = dict.fromkeys(rows, 0.0)
    for metric, weight in weights.items():
        values = [row[metric] for row in rows.values()]
        least = min(values)
        spread = max(values) - least
        if not spread:
            raise ValueError(f"composites: all {len(rows)} rows have {metric} {least:g}; two must differ")
        for name, row in rows.items():
            share = (row[metric] - least) / spread
            found[name] += weight * (1 - share if metric in LESS_IS_BETTER else share)
    return found


def placed_among(printed: Mapping[str, Metrics], ours: Metrics, weights: Metrics) -> tuple[float, int]:
    """Return the composite of one more row, and its place among all, from 1."""
    found = composites({**printed, "ours": ours}, weights)
    place = 1 + sum(other > found["ours"] for other in found.values())
    return found["ours"], place


def read_printed() -> JsonObject:
    """Read the board's figures."""
    return json.loads((RESULTS / "robobpp_printed.json").read_text(encoding="utf-8"))


def means_of_known_cases(printed: JsonObject, pack: str = "math") -> dict[str, Metrics]:
    """Return means of each printed method over the known cases.

    Args:
        printed: Figures of the board.
        pack: One of `WEIGHTS`.
    """
    rows = {}
    for method, columns in printed[CASES_OF[pack]].items():
        at = [case.case for case in BOARD_CASES]
        row = {}
        for metric in WEIGHTS[pack]:
            if metric != "decision_s":
                row[metric] = fmean(columns[metric][case] for case in at)
        row["decision_s"] = fmean(columns["planning_s"][case] / columns["boxes"][case] for case in at)
        rows[method] = row
    return rows


def run_released(printed: JsonObject) -> JsonObject:
    """Pack the board's cases by its own rules, beside what is printed for them."""
    settings = PALLETS[BOARD]
    size_m = settings["bin_size"]
    cells = settings["resolution"]
    size = (cells[0], cells[1], 100 * size_m[2])
    sides = BoardCases().sides.reshape(len(BOARD_CASES), CASE_BOXES, 3)
    found: JsonObject = {}
    for name, rule in released_rules.RULES.items():
        columns = printed["cases"][name]
        rows = []
        for case, boxes in zip(BOARD_CASES, sides, strict=True):
            counted, occupancy = released_rules.pack(rule, released_rules.in_cells(boxes), size, boxes.prod(1))
            row = {"case": case.case, "printed": columns["boxes"][case.case], "released": counted}
            row |= {"printed_occupancy": columns["occupancy"][case.case], "released_occupancy": round(occupancy, 4)}
            rows.append(row)
        found[name] = rows
    return found


def carry_out_released(printed: JsonObject, runs: JsonObject) -> JsonObject:
    """Compare the board's own rules in our PyBullet with what is printed for them.

    Args:
        printed: Figures of the board.
        runs: Of `robobpp_physics`.

    Returns:
        By rule, the boxes that count in each known case, and means of metrics over these cases.
    """
    found: JsonObject = {}
    for name in released_rules.RULES:
        run = runs.get(f"{BOARD} / released-{name} / none", {})
        columns = printed["physics_cases"][name]
        rows = []
        ours = []
        for number, case in enumerate(BOARD_CASES):
            if "bullet" in run.get(str(number), {}):
                pallet = run[str(number)]["bullet"]
                ours.append(pallet)
                rows.append({"case": case.case, "printed": columns["boxes"][case.case], "placed": pallet["placed"]})
        if not rows:
            continue
        means = {}
        for metric, as_printed in CARRIED_OUT.items():
            theirs = fmean(columns[as_printed][row["case"]] for row in rows)
            means[as_printed] = {"printed": theirs, "found": fmean(pallet[metric] for pallet in ours)}
        found[name] = {"cases": rows, "means": means}
    return found


def means_by_rows(printed: JsonObject, evaluation: JsonObject) -> list[JsonObject]:
    """Mean utilizations over the known cases, and by the rows that they lie in."""
    number_of = {case.case: number for number, case in enumerate(BOARD_CASES)}
    columns = []
    for method, of_method in printed["cases"].items():
        columns.append((method, True, [of_method["utilization"][case] for case in number_of]))
    columns += [(policy["policy"], False, policy["utilizations"]) for policy in evaluation["policies"]]
    rows = []
    for name, is_printed, shares in columns:
        row: JsonObject = {"policy": name, "printed": is_printed, "all": fmean(shares)}
        for split in ("train", "test"):
            row[split] = fmean(shares[number_of[case.case]] for case in BOARD_CASES if case.rows == split)
        rows.append(row)
    return sorted(rows, key=lambda row: -row["all"])


def math_rows(printed: JsonObject, data: str, evaluation: JsonObject) -> list[JsonObject]:
    """Rank the printed methods, and each of our policies by itself among them.

    On `repetitive` all figures are means over the same cases of the board, on other data ours are of other sequences.
    """
    weights = WEIGHTS["math"]
    of_board = evaluation["sequences"]["protocol"] == BOARD
    others = means_of_known_cases(printed) if of_board else printed["means"]["math"][data]
    rows = []
    for method, composite in composites(others, weights).items():
        rows.append({"policy": method, "printed": True, **others[method], "composite": composite, "place": None})
    for policy in evaluation["policies"]:
        ours = {
            "utilization": policy["utilization"],
            "occupancy": policy["occupancy"],
            "decision_s": policy["decision_alone_ms"] / 1000,
        }
        composite, place = placed_among(others, ours, weights)
        rows.append({"policy": policy["policy"], "printed": False, **ours, "composite": composite, "place": place})
    return sorted(rows, key=lambda row: -row["composite"])


def physics_rows(printed: JsonObject, runs: JsonObject, decisions: Mapping[tuple[str, str], float]) -> list[JsonObject]:
    """Bound the composite of each run that has all its pallets in PyBullet.

    They are 30, or the known cases of the board.

    Decision times are those of the same policy in the Math Pack, or with a look at free places where a run has one, and
    not known of policies that ask an engine. What the board takes of collapsed pallets is more than the shifts before
    the collapse, which those runs have. What is not known counts as the worst and as the best of the printed rows.

    Args:
        printed: Figures of the board.
        runs: Of `robobpp_physics`.
        decisions: Seconds of a decision, by data and policy; with a look at free places by data and `LOOKS`.
    """
    rows = []
    for name, run in runs.items():
        found = [pallet["bullet"] for pallet in run.values() if "bullet" in pallet]
        data, policy = name.split(" / ")[:2]
        of_board = data == BOARD
        needed = len(BOARD_CASES) if of_board else 30
        # What was chosen on training rows is not ranked by them.
        if len(found) < needed or TRAINING_ROWS in name:
            continue
        others = means_of_known_cases(printed, "physics") if of_board else printed["means"]["physics"][data]
        measured = {
            "utilization": fmean(each["utilization"] for each in found),
            "static": fmean(each["static_stability"] for each in found),
        }
        if all("occupancy" in each for each in found):
            measured["occupancy"] = fmean(each["occupancy"] for each in found)
        way = ("repetitive" if of_board else data, LOOKS if LOOKS in name else policy)
        if "rehearsed" not in name and way in decisions:
            measured["decision_s"] = decisions[way]
        collapsed = sum(each["collapsed"] for each in found)
        if not collapsed:
            measured["local_m"] = fmean(each["local_mean_m"] for each in found)
        bounds = []
        for is_best in (False, True):
            row = dict(measured)
            for metric in WEIGHTS["physics"]:
                values = [other[metric] for other in others.values()]
                takes_most = is_best != (metric in LESS_IS_BETTER)
                row.setdefault(metric, max(values) if takes_most else min(values))
            bounds.append(placed_among(others, row, WEIGHTS["physics"]))
        (low, last), (high, first) = bounds
        row = {"run": name, "pallets": len(found), "collapsed": collapsed, **measured}
        rows.append(row | {"composite": [low, high], "place": [first, last]})
    return rows


def decision_times(evaluations: Mapping[str, JsonObject], looks: JsonObject) -> dict[tuple[str, str], float]:
    """Return seconds of a decision in the Math Pack, by data and policy.

    Those with a look at free places are by data and `LOOKS`.
    """
    names = {"deepest bottom left": "dbl", "least surface area": "lsah", "heightmap minimisation": "hm"}
    found = {}
    for data, evaluation in evaluations.items():
        for policy in evaluation["policies"]:
            name = policy["policy"].removeprefix("pretrained ")
            found[data, names.get(name, name)] = policy["decision_alone_ms"] / 1000
    # A case of the look at free places has the name of its data where its rule is that of the submission.
    for data, case in looks["cases"].items():
        if data in evaluations:
            found[data, LOOKS] = case["policies"][LOOKS]["decision_ms"] / 1000
    return found


def main() -> None:
    parser = OneLineParser(prog="benchmarks.robobpp_board", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--output", type=Path, required=True, help="JSON")
    args = parser.parse_args()
    printed = read_printed()
    released = run_released(printed)
    for name, rows in released.items():
        equal = sum(row["printed"] == row["released"] for row in rows)
        print(f"{name}: {equal} of {len(rows)} cases with the printed number of boxes")
    evaluations = {}
    for data in DATA:
        evaluations[data] = json.loads((RESULTS / f"board_{data}.json").read_text(encoding="utf-8"))
    math = {data: math_rows(printed, data, evaluation) for data, evaluation in evaluations.items()}
    of_board = evaluations["repetitive"]
    boxes = {policy["policy"]: policy["boxes"] for policy in of_board["policies"]}
    runs = json.loads((RESULTS / "robobpp_physics.json").read_text(encoding="utf-8"))["runs"]
    looks = json.loads((RESULTS / "free_places.json").read_text(encoding="utf-8"))
    result: JsonObject = {"benchmark": "robobpp_board", "machine": machine.describe(torch.device("cpu"))}
    result |= {"cases": of_board["sequences"]["cases"], "released": released, "boxes": boxes}
    result |= {
        "means": means_by_rows(printed, of_board),
        "math": math,
        "carried_out": carry_out_released(printed, runs),
        "physics": physics_rows(printed, runs, decision_times(evaluations, looks)),
    }
    write_json(args.output, result)


if __name__ == "__main__":
    main()
