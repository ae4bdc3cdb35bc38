"""Tables of what packing reaches, for `benchmarks/tables.py`.

A table is a list of lines of cells; the first line is the header.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

from benchmarks.result_types import JsonObject
from torchrl_gpu.envs.packing.protocols import PROTOCOLS
from torchrl_gpu.envs.packing.types import height_rules
from torchrl_gpu.evaluation.estimates import standard_error

# Metrics of a pallet under gravity, what they are multiplied by, and digits.
_SHOWN_METRICS = (("utilization", 100, 1), ("occupancy", 1, 3), ("static", 1, 3), ("local_m", 1000, 1))
# Filled per cent of the Physics Pack; of the board's cases, the means over the known ones.
PRINTED = {
    "repetitive": "38.5 / 39.8 (HM)",
    "repetitive-board": "36.6 / 38.7 (HM)",
    "diverse": "25.7 / 50.2 (PCT)",
    "boards": "34.9 / 34.9 (DBL)",
}
# Names of policies in the documentation by their names in a report.
NAMES = {"pretrained": "**placement values**"}
Lines = list[list[str]]
# Splits of a factory's rows.
_ROWS = {"train": "training rows", "test": "test rows"}
# Of BR1.
_PROBLEMS = range(1, 6)


def piles(result: JsonObject) -> Lines:
    """Whole random piles by each rule, of `benchmarks.load_bearing`."""
    lines = [["rule", "boxes a pile", "piles in which a box moves", "boxes that stay"]]
    for rule, row in result["piles"].items():
        name, _, margin = rule.partition(", margin ")
        words = f"`{name}`" + (f", margin {100 * float(margin):g} cm" if margin else "")
        lines.append([words, f"{row['boxes']:.1f}", str(row["piles that move"]), f"{100 * row['stays']:.4g}%"])
    return lines


def places(result: JsonObject) -> Lines:
    """Random places on piles that the rule allows and refuses."""
    lines = [["margin", "allowed", "then something moves", "refused", "of these nothing would move"]]
    for name, row in result["places"].items():
        counts = [str(row["allowed"]), f"{row['falls']:.0%}", f"{row['refused']:,}", f"{row['stays']:.1%}"]
        lines.append([f"{100 * float(name.removeprefix('margin ')):g} cm", *counts])
    return lines


def uneven(result: JsonObject) -> Lines:
    """Random piles whose heights differ, of `benchmarks/leaning.py`.

    A count that a row lacks was not measured.
    """
    lines = [["heights", "`max_tilt`", "`bearing_tilt`", "boxes a pile", "fall in MuJoCo", "in PyBullet"]]
    lines[0] += ["of these at 960 Hz, too", "off balance as planned", "refused", "of these would stand"]
    for row in result["rows"]:
        engines = ["fall in mujoco", "fall in bullet", "fall in bullet at short steps, too"]
        falls = [str(row.get(engine, "–")) for engine in engines]
        rule = [row["heights"], f"{row['max_tilt']:g}°", f"{row['bearing_tilt']:g}°", f"{row['boxes a pile']:.1f}"]
        refused = row["refused places"]
        would = row["refused and would stand within 1.5 mm"]
        statics = [str(row["statics infeasible"]), str(refused), f"{would} ({would / refused:.0%})"]
        lines.append(rule + falls + statics)
    return lines


def stands(result: JsonObject) -> Lines:
    """List policies with the share of their pallets that stands in simulation.

    The result is that of `torchrl-gpu evaluate … --physics`.
    """
    lines = [["policy", "utilization", "placements that stand", "pallets without a fault"]]
    rows = [row for row in result["tables"][0]["policies"] if "untrained" not in row["policy"]]
    for row in sorted(rows, key=lambda row: row["utilization"]):
        filled = _percent(row["utilization"], row["utilization_error"]) + "%"
        stay = _percent(row["stands"], row["stands_error"]) + "%"
        name, counts = NAMES.get(row["policy"], row["policy"]), f"{row['faultless']} of {row['simulated']}"
        lines += [[name, filled, stay, counts]]
    return lines


def protocols(result: JsonObject) -> Lines:
    """Per cent and boxes of every baseline by protocol."""
    names = list(PROTOCOLS)
    rows: dict[str, list[str]] = {}
    for name in names:
        for row in result["protocols"][name]["policies"]:
            cell = f"{_percent(row['utilization'], row['utilization_error'])} / {row['num_packed']:.1f}"
            rows.setdefault(row["policy"], []).append(cell)
    return [["policy", *(f"`{name}`" for name in names)], *([policy, *cells] for policy, cells in rows.items())]


# Of runs by the rule as it was: what leans bore load wherever it touched.
OLD_RULE = "what leans bears load"
# Sequences that policies may have learned from.
TRAINING_ROWS = "training rows"


def physics_pack(result: JsonObject) -> Lines:
    """Physics Pack of every run, by both engines."""
    columns = ["data", "policy", "rule", "pallets", "Math", "PyBullet", "collapsed", "MuJoCo", "collapsed"]
    lines = [[*columns, "printed: DBL / best"]]
    for name, run in result["runs"].items():
        data, policy, rule, *given = name.split(" / ")
        fallback = [f"else `{each}`" for each in given if each in height_rules()]
        tried = [each for each in given if each in (OLD_RULE, TRAINING_ROWS) or "rehearsed" in each]
        tried += [each for each in given if each.startswith(("clearance", "free places", "exposed"))]
        others = [each for each in given if each not in (*height_rules(), *tried)]
        # Metres of margin, and perhaps degrees of tilt, and those up to which what leans bears load.
        numbers = [float(each) for each in others]
        margin = [f"{100 * each:g} cm" for each in numbers[:1]]
        tilt = [f"{each:g}°" for each in numbers[1:2]]
        bears = [f"bears to {each:g}°" for each in numbers[2:]]
        words = ", ".join([f"`{rule}`", *margin, *tilt, *bears, *fallback, *tried])
        cells = [f"`{data}`", f"`{policy}`", words, str(len(run)), _mean([row["math"] for row in run.values()])]
        for engine in ("bullet", "mujoco"):
            found = [row[engine] for row in run.values() if engine in row]
            fallen = sum(each["collapsed"] for each in found)
            of = f" of {len(found)}" if 0 < len(found) < len(run) else ""
            cells += [_mean([each["utilization"] for each in found]), f"{fallen}{of}"] if found else ["–", "–"]
        lines.append([*cells, PRINTED[data]])
    return lines


def free_places(result: JsonObject) -> Lines:
    """Compare plans with a look at free places with those without."""
    lines = [["training rows", "by weights", "free places", "gain, points", "ms", "ms with the look"]]
    for name, case in result["cases"].items():
        rows = case["policies"].values()
        shares = [_percent(row["utilization"], row["error"]) for row in rows]
        times = [f"{row['decision_ms']:.1f}" for row in rows]
        lines.append([name, *shares, _percent(case["gain"], case["gain_error"]), *times])
    return lines


def board_cases(result: JsonObject) -> Lines:
    """Boxes placed in each known case of RoboBPP's board.

    The result is that of `benchmarks.robobpp_board`. Rules of the board are shown as printed, and as released where
    that differs.
    """
    ours = {"DBL": "deepest bottom left", "LSAH": "least surface area"}
    shipped = ("pretrained repetitive", "pretrained orders")
    rules = list(result["released"])
    header = ["case", "first row", "in the", *rules]
    header += [f"our {name}" for name in ours]
    lines = [[*header, "`repetitive`", "`orders`"]]
    for number, case in enumerate(result["cases"]):
        cells = [str(case["case"]), f"{case['first_row']:,}", _ROWS[case["rows"]]]
        for rule in rules:
            row = result["released"][rule][number]
            is_equal = row["printed"] == row["released"]
            cells.append(str(row["printed"]) if is_equal else f"{row['printed']}, not {row['released']}")
        cells += [str(result["boxes"][name][number]) for name in (*ours.values(), *shipped)]
        lines.append(cells)
    return lines


def board_carried_out(result: JsonObject) -> Lines:
    """Boxes that the board's own rules place under gravity in its known cases.

    They are shown as printed, and as our PyBullet has them where that differs.
    """
    rules = result["carried_out"]
    lines = [["case", *rules]]
    of_case: dict[int, dict[str, str]] = {}
    for name, of_rule in rules.items():
        for row in of_rule["cases"]:
            is_equal = row["printed"] == row["placed"]
            shown = str(row["printed"]) if is_equal else f"{row['printed']}, not {row['placed']}"
            of_case.setdefault(row["case"], {})[name] = shown
    for case, shown_by in of_case.items():
        cells = [shown_by.get(name, "–") for name in rules]
        lines.append([str(case), *cells])
    return lines


def board_carried_out_means(result: JsonObject) -> Lines:
    """Means over these cases, as printed and as our PyBullet has them."""
    lines = [["rule", "cases", "the same box", "filled, %", "occupancy", "static", "local, mm"]]
    for name, of_rule in result["carried_out"].items():
        cases = of_rule["cases"]
        same = sum(row["printed"] == row["placed"] for row in cases)
        means = of_rule["means"]
        cells = [name, str(len(cases)), str(same)]
        for metric, factor, digits in _SHOWN_METRICS:
            pair = [f"{factor * means[metric][way]:.{digits}f}" for way in ("printed", "found")]
            cells.append(" / ".join(pair))
        lines.append(cells)
    return lines


def board_means(result: JsonObject) -> Lines:
    """Mean utilization over the known cases of RoboBPP's board, per cent."""
    lines = [["", "22 cases", "17 in training rows", "5 in test rows"]]
    for row in result["means"]:
        cells = [f"{100 * row[column]:.1f}" for column in ("all", "train", "test")]
        lines.append([_board_name(row), *cells])
    return lines


def board_ranks(result: JsonObject) -> Lines:
    """Composites of RoboBPP's Math Pack: printed, and each of ours among those."""
    header = ["", "utilization", "occupancy", "decision, s", "composite", "place"]
    lines = [["data", *header]]
    for data, rows in result["math"].items():
        for row in rows:
            measured = [f"{100 * row['utilization']:.1f}", f"{row['occupancy']:.3f}", f"{row['decision_s']:.4f}"]
            place = f"{row['place']} of 13" if row["place"] else "–"
            lines.append([f"`{data}`", _board_name(row), *measured, f"{row['composite']:.3f}", place])
    return lines


def _board_name(row: JsonObject) -> str:
    """Printed methods by their names, and ours in bold."""
    if row["printed"]:
        return str(row["policy"])
    return f"**{row['policy'].removeprefix('pretrained ')}**"


def containers(result: JsonObject) -> Lines:
    """List how much of the first container of each problem of BR1 is filled, per cent.

    The result is that of `benchmarks/pallets.py`.
    """
    measured = [each["rows"] for each in result["sections"] if each["title"] == "containers"]
    rows: dict[str, dict[int, float]] = {}
    seconds: dict[str, float] = {}
    for row in itertools.chain.from_iterable(measured):
        name = row["by"] if row["tries"] == "default" else f"{row['by']}, {row['tries']} tries"
        rows.setdefault(name, {})[row["problem"]] = row["filled"]
        seconds[name] = seconds.get(name, 0.0) + row["s"]
    lines = [["by", *map(str, _PROBLEMS), "mean", "s for all"]]
    for name, filled in rows.items():
        cells = [f"{filled[each]:.1f}" if each in filled else "–" for each in _PROBLEMS]
        mean = f"{sum(filled.values()) / len(filled):.1f}" if len(filled) == len(_PROBLEMS) else "–"
        lines.append([name, *cells, mean, f"{seconds[name]:.1f}"])
    return lines


def bin_pack(result: JsonObject) -> Lines:
    """Share of the containers of Jumanji's BinPack that each search fills.

    The result is that of `benchmarks/jumanji_bin_pack.py`.
    """
    lines = [["by", "tries", "filled, %", "full", "least, %", "boxes left", "s an instance"]]
    for row in result["rows"]:
        left = row["boxes left"]
        filled = torch.tensor(row["filled"], dtype=torch.float64)
        mean = f"{100 * float(filled.mean()):.2f} ± {100 * float(standard_error(filled) or 0):.2f}"
        full = f"{left.count(0)} of {len(left)}"
        seconds = sum(row["seconds"]) / len(left)
        least = f"{100 * float(filled.min()):.1f}"
        cells = [mean, full, least, f"{sum(left) / len(left):.2f}", f"{seconds:.2f}"]
        lines.append([f"`{row['search']}`", f"{row['tries']:,}", *cells])
    return lines


def _mean(shares: Sequence[float]) -> str:
    if len(shares) == 1:
        return f"{100 * shares[0]:.1f}"
    each = torch.tensor(shares, dtype=torch.float64)
    return _percent(float(each.mean()), float(standard_error(each)))


def _percent(share: float, error: float) -> str:
    return f"{100 * share:.1f} ± {100 * error:.1f}"


TABLES: dict[str, Callable[[JsonObject], Lines]] = {
    "piles": piles,
    "places": places,
    "uneven heights": uneven,
    "stands": stands,
    "protocols": protocols,
    "physics pack": physics_pack,
    "free places": free_places,
    "first containers": containers,
    "bin pack": bin_pack,
}
TABLES |= {
    "board cases": board_cases,
    "board means": board_means,
    "board carried out": board_carried_out,
    "board carried out means": board_carried_out_means,
    "board ranks": board_ranks,
}
