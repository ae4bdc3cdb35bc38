"""Tables and plain data of the kernel benchmark.

Rates stand next to the floor that the counts imply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from benchmarks import report
from benchmarks.kernels.ceilings import Ceilings
from benchmarks.kernels.rows import NUMPY, UNFOLD, row_name
from benchmarks.result_types import JsonObject
from torchrl_gpu.system.console import wide_console

_LEGEND = (
    "A z-map is one item in one orientation on one bin; with it comes the legality of every placement, no stability;"
    " unfold gives z alone, and only on the grid. Operations are those that the counts ask for: a subtraction and a"
    " maximum for each material cell at each placement that fits. Percentages are shares of ceilings measured in the"
    " same turns: bytes copied, two tensor calls (torch), loops that stay in registers (by type). The range is"
    " that of the repetitions."
)


def as_data(section: report.Section, ceilings: Mapping[str, Ceilings]) -> JsonObject:
    """A section that has been measured, with ratios and shares."""
    rates = {row.name: row.rate for row in section.rows}
    unfold = max((rate for name, rate in rates.items() if name.startswith(UNFOLD)), default=None)
    bars = {"numpy_windows": rates.get(NUMPY), "torch_unfold": unfold}
    data = report.section(section.title, section.unit, section.rows, bars)
    for row in data["rows"]:
        eager = rates.get(row_name("eager", row.get("num_envs", 0)))
        if row["name"].startswith(UNFOLD):
            del row["ratios"]["torch_unfold"]
        elif row["name"].startswith("ours") and eager and row["backend"] != "eager":
            row["ratios"]["ours_eager"] = row["rate"] / eager
        if "bytes_per_z_map" in row:
            row |= _shares(row, ceilings[row["device"]])
    return data | {"missing": [{"name": name, "reason": reason} for name, reason in section.missing.items()]}


def _shares(row: JsonObject, ceilings: Ceilings) -> JsonObject:
    operations, num_bytes = row["add_max_per_z_map"], row["bytes_per_z_map"]
    floor, bound = ceilings.floor(operations, num_bytes)
    found = {
        "bytes_per_s": row["rate"] * num_bytes,
        "share_of_copy": row["rate"] * num_bytes / ceilings.copy,
        "floor_s": floor,
        "bound_by": bound,
        "share_of_floor": None if floor is None else row["rate"] * floor,
    }
    if operations is not None:
        speed = row["rate"] * operations
        found["add_max_per_s"] = speed
        found["shares_of_add_max"] = {name: speed / ceiling for name, ceiling in ceilings.add_max.items()}
    return found


def show(result: JsonObject) -> None:
    """Print every section, the machine, and what is missing."""
    console = wide_console()
    for each in result["sections"]:
        console.print(_table(each))
    for line in result["missing"]:
        console.print(line, markup=False)
    console.print(f"Parity: {len(result['parity'])} comparisons with the reference agree. {_LEGEND}", markup=False)
    console.print(report.machine_line(result), markup=False)


_RATIOS = {"NumPy": "numpy_windows", "unfold": "torch_unfold", "eager": "ours_eager"}

_SHORT = {"float32": "f32", "int32": "i32", "uint16": "u16", "uint8": "u8"}


def _table(data: JsonObject) -> Table:
    rows = data["rows"]
    ratio_keys: set[str] = set()
    # A dict keeps the order in which kinds come.
    kinds_seen: dict[str, None] = {}
    for row in rows:
        ratio_keys |= row["ratios"].keys()
        kinds_seen |= dict.fromkeys(row.get("shares_of_add_max", ()))
    shown = {name: key for name, key in _RATIOS.items() if key in ratio_keys}
    kinds = list(kinds_seen)
    by_bytes = not kinds and any("share_of_copy" in row for row in rows)
    timed = data["unit"] != "as noted"
    table = Table(title=f"{data['title']}, {data['unit']}", title_justify="left", caption_justify="left")
    table.caption = "\n".join(_floors(rows)) or None
    table.add_column("", no_wrap=True)
    headings = ["median", "range", *["each"] * timed, *(f"× {name}" for name in shown)]
    headings += ["G ops/s"] * bool(kinds) + [f"% {_SHORT.get(kind, kind)}" for kind in kinds]
    headings += ["GB/s", "% copy"] * by_bytes + ["threads"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        cells = [report.number(row["rate"]), _spread(row)]
        cells += [duration(1 / row["rate"])] * timed
        cells += [_or_blank(row["ratios"].get(key), report.number) for key in shown.values()]
        cells += [_or_blank(row.get("add_max_per_s"), _giga)] * bool(kinds)
        cells += [_or_blank(row.get("shares_of_add_max", {}).get(kind), _percent) for kind in kinds]
        if by_bytes:
            cells += [_giga(row["bytes_per_s"]), _percent(row["share_of_copy"])]
        table.add_row(row["name"], *cells, row["threads"], row["notes"])
    for each in data["missing"]:
        table.add_row(each["name"], *("" for _ in headings), each["reason"].partition(":")[0])
    return table


def _or_blank(value: float | None, shown: Any) -> str:
    return "" if value is None else str(shown(value))


def _floors(rows: list[JsonObject]) -> list[str]:
    """Write the floor of the largest batch for each type of device.

    A share of 100% is that floor reached.
    """
    last = {row["device"]: row for row in rows if row.get("floor_s")}
    lines = []
    for device, row in last.items():
        operations, num_bytes = row["add_max_per_z_map"], row["bytes_per_z_map"]
        counts = f"{num_bytes:,.0f} bytes" + (f", {operations:,.0f} operations" if operations else "")
        best = f"{row['name']}: {_percent(row['share_of_floor'])}% of it"
        lines.append(f"floor on {device}: {duration(row['floor_s'])} for {counts}; {row['bound_by']} bind. {best}")
    return lines


def _spread(row: JsonObject) -> str:
    """The range as percentages of the median."""
    least = 100 * (row["range"][0] / row["rate"] - 1)
    most = 100 * (row["range"][1] / row["rate"] - 1)
    return f"−{abs(least):.0f} +{abs(most):.0f}%"


def _giga(value: float) -> str:
    return f"{value / 1e9:.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.2g}"


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
