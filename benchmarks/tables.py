"""Writes the tables of the documentation from the results of the benchmarks: `python benchmarks/tables.py [--check]`.

A table stands between `<!-- table: RESULT / SECTION -->` and `<!-- end -->`, RESULT being a file of `results/` without
its suffix and SECTION the beginning of the title of one of its sections.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGES = (HERE.parent / "docs" / "performance.md", HERE.parent / "README.md")
MARKED = re.compile(r"(<!-- table: (?P<result>\w+) / (?P<section>.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
RATIOS = {
    "numpy_loop": "× NumPy, loop",
    "numpy_windows": "× NumPy, windows",
    "torch_unfold": "× unfold",
    "ours_eager": "× ours eager",
    "jumanji_best": "× Jumanji's best",
}
SHARES = {"float32": "% f32", "uint16": "% u16", "uint8": "% u8"}


def main(argv: list[str]) -> int:
    """Rewrites the pages; with --check only compares, and 1 where one is not up to date."""
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
    result = json.loads((HERE / "results" / f"{found['result']}.json").read_text(encoding="utf-8"))
    if found["section"] == "policies":
        return found[1] + _policies(result["policies"]) + found[4]
    (section, *_) = [each for each in result["sections"] if each["title"].startswith(found["section"])]
    return found[1] + _rates(section) + found[4]


def _rates(section: dict[str, Any]) -> str:
    rows = section["rows"]
    ratios = {key: title for key, title in RATIOS.items() if any(key in row["ratios"] for row in rows)}
    shares = {k: title for k, title in SHARES.items() if any(row.get("shares_of_add_max", {}).get(k) for row in rows)}
    lines = [["row", section["unit"], *ratios.values(), *shares.values()]]
    for row in rows:
        cells = [row["name"], _rate(row["rate"])]
        cells += [_ratio(row["ratios"].get(key)) for key in ratios]
        cells += [_percent(row.get("shares_of_add_max", {}).get(key)) for key in shares]
        lines.append(cells)
    lines += [[each["name"], each["reason"].split(":")[0]] for each in section.get("missing", [])]
    return _table(lines)


def _policies(policies: list[dict[str, Any]]) -> str:
    best = max(policy["utilization"] for policy in policies)
    lines = [["policy", "utilization", "items packed", "C", "P", "ms per decision"]]
    for each in sorted(policies, key=lambda policy: policy["utilization"]):
        bold = "**" if each["utilization"] == best else ""
        lines.append(
            [
                f"{bold}{each['policy']}{bold}",
                f"{bold}{each['utilization']:.1%} ± {each['utilization_error']:.1%}{bold}",
                f"{each['num_packed']:.2f} ± {each['num_packed_error']:.2f}",
                f"{each['compactness']:.3f}",
                f"{each['pyramidality']:.3f}",
                f"{each['decision_ms']:.3f}",
            ]
        )
    return _table(lines)


def _table(lines: list[list[str]]) -> str:
    width = len(lines[0])
    rows = ["| " + " | ".join(line + [""] * (width - len(line))) + " |" for line in lines]
    return "\n".join([rows[0], "|" + "---|" * width, *rows[1:]]) + "\n"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2g}" if value < 0.995 else f"{100 * value:.0f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
