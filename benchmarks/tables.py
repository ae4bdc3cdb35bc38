"""Tables of the documentation, written from the results of the benchmarks.

`python benchmarks/tables.py [--check]`

A table stands between `<!-- table: RESULT / SECTION -->` and `<!-- end -->`, RESULT being a file of `results/` without
its suffix and SECTION the beginning of the title of one of its sections, or one of the words `policies`, `targets`
(figures beside what they must reach), `crossings` and `success` (of `lightning test`), `same worlds` (ours and the
released weights), `browser`, `webrtc`, `how fast` (of several results), and those of `packing_tables`. RESULT `configs`
is every shipped config.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import config_table, packing_tables
from benchmarks.result_types import JsonObject
from torchrl_gpu.evaluation.estimates import percent, share_error

HERE = Path(__file__).parent
PAGES = (*sorted((HERE.parent / "docs").rglob("*.md")), HERE.parent / "README.md")
MISSING = "*Not measured yet.*\n"
MARKED = re.compile(r"(<!-- table: (?P<result>\w+) / (?P<section>.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
RATIOS = {
    "numpy_loop": "× NumPy, loop",
    "numpy_windows": "× NumPy, windows",
    "torch_unfold": "× unfold",
    "ours_eager": "× ours eager",
    "jumanji_best": "× Jumanji's best",
    "first": "× first row",
    "reference": "× reference",
    "vmas_best": "× VMAS at its best batch",
}
# Result, section, row, its name in the README, and the ratios that are shown.
FASTEST = (
    (
        "packing",
        "bpp10",
        "ours, 1024",
        "bpp10 environment steps/s, 1,024 environments",
        {"numpy_loop": "a NumPy loop", "jumanji_best": "Jumanji BinPack's best batch"},
    ),
    (
        "kernels",
        "irregular:",
        "ours compiled, 64",
        "z-maps/s of irregular items, 200×200 cells, 24 orientations",
        {"numpy_windows": "NumPy windows", "torch_unfold": "torch `unfold`"},
    ),
    (
        "packing_irregular",
        "irregular, whole steps",
        "ours, 1",
        "environment steps/s with 20 visible irregular objects",
        {"numpy_windows": "NumPy windows"},
    ),
)
COMPARED = {
    "C": ".3f",
    "P": ".3f",
    "S com": ".2f",
    "S physics": ".2f",
    "objects": ".2f",
    "ms/object": ".0f",
    # Columns, and how they are written.
}
SHARES = {"float32": "% f32", "uint16": "% u16", "uint8": "% u8"}


def main(argv: list[str]) -> int:
    """Rewrite the pages.

    With --check it only compares them, and returns 1 where one is out of date.
    """
    stale = []
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = MARKED.sub(_filled, before)
        if after != before:
            stale.append(page.name)
            if "--check" not in argv:
                page.write_text(after, encoding="utf-8")
    if "--check" in argv and stale:
        print(f"not up to date: {', '.join(stale)}; run python benchmarks/tables.py", file=sys.stderr)
        return 1
    return 0


def _filled(found: re.Match[str]) -> str:
    if found["result"] == "configs":
        return found[1] + config_table.table() + found[4]
    path = HERE / "results" / f"{found['result']}.json"
    if not path.is_file():
        return found[1] + MISSING + found[4]
    result = json.loads(path.read_text(encoding="utf-8"))
    if found["section"] in packing_tables.TABLES:
        return found[1] + _table(packing_tables.TABLES[found["section"]](result)) + found[4]
    if found["section"] in SECTION_TABLES:
        return found[1] + SECTION_TABLES[found["section"]](result) + found[4]
    named = [each for each in result["sections"] if each["title"].startswith(found["section"])]
    if not named:
        return found[1] + MISSING + found[4]
    section = named[0]
    return found[1] + (listed(section) if "columns" in section else _rates(section)) + found[4]


def _rates(section: JsonObject) -> str:
    rows = section["rows"]
    measured: set[str] = set()
    shared: set[str] = set()
    for row in rows:
        measured |= row["ratios"].keys()
        shared |= {key for key, share in row.get("shares_of_add_max", {}).items() if share}
    ratios = {key: title for key, title in RATIOS.items() if key in measured}
    shares = {key: title for key, title in SHARES.items() if key in shared}
    lines = [["row", section["unit"], *ratios.values(), *shares.values()]]
    for row in rows:
        cells = [row["name"], _rate(row["rate"])]
        cells += [_ratio(row["ratios"].get(key)) for key in ratios]
        cells += [_percent(row.get("shares_of_add_max", {}).get(key)) for key in shares]
        lines.append(cells)
    lines += [[each["name"], each["reason"].split(":")[0]] for each in section.get("missing", [])]
    return _table(lines)


def listed(section: JsonObject) -> str:
    """Write the columns that a section names, of its rows.

    A cell of more options than a table can show gives their number.
    """
    keys = section["columns"]
    lines = []
    for row in section["rows"]:
        cells = [_figure(row[key]) if key in row else "" for key in keys]
        lines.append([_short(cell) for cell in cells])
    return _table([list(keys.values()), *lines])


def _how_fast(_: JsonObject) -> str:
    """Return the rows of several results beside what they are compared with."""
    results = {
        name: json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8")) for name, *_ in FASTEST
    }
    cores = {result["machine"]["cores"] for result in results.values()}
    lines = [[f"{'/'.join(map(str, sorted(cores)))} CPU cores", "ours", "against"]]
    for name, title, row_name, words, others in FASTEST:
        section = next(each for each in results[name]["sections"] if each["title"].startswith(title))
        rows = [each for each in section["rows"] if each["name"] == row_name]
        assert len(rows) == 1, (name, row_name)
        row = rows[0]
        against = ", ".join(f"{_ratio(row['ratios'][key])}× {other}" for key, other in others.items())
        lines.append([words, _rate(row["rate"]), against])
    return _table(lines)


def _comparison(result: JsonObject) -> str:
    """Write the means of methods on the same cases.

    In brackets is the difference from the reference with its standard error.
    """
    table = result["tables"][0]
    known = set(COMPARED)
    for each in table["methods"]:
        known &= each["columns"].keys()
    keys = [key for key in COMPARED if key in known]
    lines = [["method", *keys]]
    for each in table["methods"]:
        cells = [each["method"]]
        for key in keys:
            form = COMPARED[key]
            cell = f"{each['columns'][key]['mean']:{form}}"
            if key in each["difference"]:
                told = each["difference"][key]
                star = " *" if told["beyond_two_errors"] else ""
                cell += f" ({told['mean']:+{form}} ± {told['error']:{form}}{star})"
            cells.append(cell)
        lines.append(cells)
    return _table(lines)


def _agreement(result: JsonObject) -> str:
    """Return the verdicts of the rule `com` beside those of physics."""
    keys = ("placements", "both_hold", "only_com_holds", "only_physics_holds", "none_holds")
    lines = [["method", "agree", *(key.replace("_", " ") for key in keys)]]
    for each in result["tables"][0]["agreement"]:
        counts = [str(each[key]) for key in keys]
        lines.append([each["method"], f"{each['share']:.0%}", *counts])
    return _table(lines)


def _policies(result: JsonObject) -> str:
    policies = result["policies"]
    best = max(policy["utilization"] for policy in policies)
    lines = [["policy", "utilization", "items packed", "C", "P", "ms per decision"]]
    for each in sorted(policies, key=lambda policy: policy["utilization"]):
        bold = "**" if each["utilization"] == best else ""
        name = f"{bold}{each['policy']}{bold}"
        utilization = f"{bold}{each['utilization']:.1%} ± {each['utilization_error']:.1%}{bold}"
        packed = f"{each['num_packed']:.2f} ± {each['num_packed_error']:.2f}"
        shape = [f"{each['compactness']:.3f}", f"{each['pyramidality']:.3f}"]
        lines.append([name, utilization, packed, *shape, f"{each['decision_ms']:.3f}"])
    return _table(lines)


def targets(rows: list[JsonObject]) -> str:
    lines = [["", "measured", "wanted", ""]]
    for row in rows:
        bound = f"{'≥' if row['least'] else '≤'} {row['target']:g} {row['unit']}"
        value = f"{row['value']:.3g} {row['unit']}"
        lines.append([row["what"], value if row["met"] else f"**{value}**, missed", bound, row["notes"]])
    return _table(lines)


def _crossings(result: JsonObject) -> str:
    """Each row of an evaluation, and all of them: ours, then the released weights."""
    published = result["published"] or {"rows": {}, "overall": {}}
    rows = {}
    for index, level in result["worlds"]["rows"].items():
        ours = {f"**{each['policy']}**": each["rows"][index] for each in result["policies"]}
        told = {name: row[int(index)] for name, row in published["rows"].items() if int(index) < len(row)}
        rows["/".join(str(level[name]) for name in ("robots", "cores", "obstacles"))] = (ours, told)
    rows["all"] = ({f"**{each['policy']}**": each["scores"] for each in result["policies"]}, published["overall"])
    lines = [["robots/cores/obstacles", "policy", "worlds", "success", "robots that arrived", "time, s", "energy"]]
    for row, (ours, told) in rows.items():
        own_worlds, other_worlds = count_worlds(result, row == "all")
        named = {name: (figures, own_worlds) for name, figures in ours.items()}
        named |= {f"{name}, released": (figures, other_worlds) for name, figures in told.items()}
        for name, (figures, worlds) in named.items():
            lines.append([row, name, str(worlds), *_crossed(figures, worlds)])
            row = ""
    return _table(lines)


def count_worlds(result: JsonObject, all_rows: bool = False) -> tuple[int, int]:
    """Numbers of worlds of ours and of the released weights, of one row or of all."""
    rows, published = result["worlds"]["rows"], result["published"] or {"worlds": 0, "levels": []}
    ours, released = result["worlds"]["num_worlds"], published["worlds"]
    return (ours, released * len(published["levels"])) if all_rows else (ours // len(rows), released)


def _successes(result: JsonObject) -> str:
    """Return the shares of worlds in which all robots arrived, a line for each policy."""
    rows, published = result["worlds"]["rows"], (result["published"] or {"rows": {}})["rows"]
    levels = [f"{row['robots']}/{row['cores']}/{row['obstacles']}" for row in rows.values()]
    own_worlds, other_worlds = count_worlds(result)
    ours = {f"**{each['policy']}**": each["rows"] for each in result["policies"]}
    lines = [["robots/cores/obstacles", *levels]]
    for name, own in ours.items():
        shares = [_share(own[index]["success"], own_worlds) for index in rows]
        lines.append([name, *shares])
    for name, told in published.items():
        found = [told[int(index)]["success"] if int(index) < len(told) else None for index in rows]
        lines.append([f"{name}, released", *(_share(share, other_worlds) for share in found)])
    return _table(lines)


def _crossed(figures: JsonObject, worlds: int) -> list[str]:
    shares = [_share(figures.get(name), worlds) for name in ("success", "arrived")]
    return shares + ["" if figures.get(name) is None else f"{figures[name]:,.1f}" for name in ("time", "energy")]


def _share(share: float | None, worlds: int) -> str:
    return "" if share is None else percent(share, share_error(share, worlds))


def _same_worlds(result: JsonObject) -> str:
    """Ours and the released weights in the same worlds, and the difference in points."""
    lines = [["", "robots/cores/obstacles", "worlds", "policy", "ours", "released", "difference, points"]]
    for each in result["comparisons"]:
        shares = each["success"], each["released"]
        error = math.hypot(*(share_error(share, each["worlds"]) for share in shares))
        told = [_share(share, each["worlds"]) for share in shares]
        points = percent(shares[0] - shares[1], error).replace("%", "")
        sign = "" if points.startswith("-") else "+"
        lines.append([each["version"], each["worlds_are"], str(each["worlds"]), each["policy"], *told, sign + points])
    return _table(lines)


def _painted(result: JsonObject) -> str:
    lines = [["transport", "picture", "pictures/s", "age when painted, ms", "p95", "first picture, ms"]]
    for row in result["rows"]:
        size, age = f"{row['width']}×{row['height']}", row["age_ms"]
        ages = [f"{age['median']:.0f}", f"{age['p95']:.0f}"]
        lines.append([row["transport"], size, f"{row['painted_fps']:.1f}", *ages, f"{row['first_picture_ms']:.0f}"])
    return _table(lines)


def _connections(result: JsonObject) -> str:
    webrtc = result["webrtc"]
    lines = [["WebRTC", "median", "most"]]
    named = {"offer_to_picture_ms": "offer to picture, ms", "late_offer_to_picture_ms": "the same, joining late, ms"}
    for key, name in named.items():
        lines.append([name, f"{webrtc[key]['median']:.0f}", f"{webrtc[key]['most']:.0f}"])
    return _table([*lines, ["cost of four viewers, × that of one", f"{webrtc['cost_of_four']:.2f}", ""]])


def _table(lines: list[list[str]]) -> str:
    width = len(lines[0])
    rows = ["| " + " | ".join(line + [""] * (width - len(line))) + " |" for line in lines]
    return "\n".join([rows[0], "|" + "---|" * width, *rows[1:]]) + "\n"


def _figure(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _short(cell: str) -> str:
    options = cell.count("--")
    return cell if options < 7 else f"{options} options, see the row in `benchmarks/results`"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _percent(value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.2g}" if value < 0.995 else f"{100 * value:.0f}"


def _targets(result: JsonObject) -> str:
    return targets(result["rows"])


# Tables of sections that are not a list of rows, by the section's name in a page.
SectionTable = Callable[[JsonObject], str]
SECTION_TABLES: dict[str, SectionTable] = {
    "policies": _policies,
    "targets": _targets,
    "browser": _painted,
    "webrtc": _connections,
    "how fast": _how_fast,
    "crossings": _crossings,
    "success": _successes,
    "same worlds": _same_worlds,
    "comparison": _comparison,
    "agreement": _agreement,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
