"""What acting, learning and replay cost: six agents on marine navigation.

Greedy actions of `PolicyWrapper` against the per-sample loop of released code, whole updates against those with
TorchRL's losses, prioritised replay against TorchRL's. Parity comes first: nothing is shown while any side decides,
loses or draws otherwise. What is compared takes turns, warm. The ceiling is the rate of float32 matrix products
measured in the same turns: a robot's share of the networks' products at that rate is the least that it can cost here.

python benchmarks/agents.py --output benchmarks/results/agents.json
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))  # twins and oracles lie among the tests

from benchmarks import agents_acting as acting
from benchmarks import agents_replay as replay
from benchmarks import agents_updates as updates
from benchmarks import report
from benchmarks.tables import listed, targets
from tests.policies.navigation_spaces import AGENTS
from torchrl_gpu import machine
from torchrl_gpu.allocator import keep_freed_memory
from torchrl_gpu.bench.timing import TimedRow, measure
from torchrl_gpu.console import progress
from torchrl_gpu.device import get_device

PARTS = ("acting", "updates", "replay")
AT = 1024  # robots of the figures that have a target
BATCHES = [1, 64, AT, 16_384, 65_536]
LOOP_RATIO, BATCH_RATIO = 100.0, 50.0
QUICK = {"minutes": 0.3, "batches": [1, 64, 1024], "update_sizes": [64], "capacities": [10_000], "compiled": False}


class Bench:
    """Measures groups of rows, and keeps what parity said of them."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.args, self.device = args, device
        self.parity: list[dict[str, str]] = []
        self.missing: list[str] = []
        groups = len(args.agents) * len({"acting", "updates"} & set(args.parts))
        groups += len(args.capacities) * ("replay" in args.parts)
        self.seconds = 60 * args.minutes / max(1, groups)

    def check(self, setting: str, difference: str) -> None:
        """Takes note of a check; "" says that nothing differs."""
        self.parity.append({"setting": setting, "difference": difference})

    @property
    def failed(self) -> list[dict[str, str]]:
        """Checks that found a difference."""
        return [check for check in self.parity if check["difference"]]

    def measured(self, title: str, rows: Iterator[TimedRow]) -> list[TimedRow]:
        """Rows in turns; nothing is timed once parity has failed."""
        torch._dynamo.reset()  # else the groups together exceed the graphs that one function may have
        with progress(title) as say:
            made = list(rows)
            if not self.failed:
                measure(made, self.seconds / len(made), self.args.repetitions, on_row=say)
        return made

    def sections(self) -> Iterator[dict[str, Any]]:
        """Everything that was asked for, part by part: raw rows, then tables of them."""
        for part in [part for part in PARTS if part in self.args.parts]:
            groups = list(getattr(self, f"_{part}")())
            if self.failed:
                return
            rows = [row for group in groups for row in group["rows"]]
            yield {"title": part, "unit": groups[0]["unit"], "rows": rows}
            yield from TABLES[part](rows)

    def _acting(self) -> Iterator[dict[str, Any]]:
        for name in self.args.agents:
            env = acting.environment(name, self.args.discrete, str(self.device))
            agent = acting.make_agent(name, env)
            rows = acting.observed(env, max(*self.args.batches, acting.LOOP_ROBOTS))
            batches, compiled = self.args.batches, self.args.compiled
            made = self.measured(f"{name} acting", acting.timed_rows(agent, rows, batches, compiled, self.check))
            if self.failed:
                return
            rates = {row.name: row.rate for row in made}
            least = 1e6 * acting.operations(agent, rows[: acting.LOOP_ROBOTS]) / rates[acting.CEILING]
            for row in made:
                row.extra |= {"agent": name, "us": 1e6 / row.rate, "ceiling_us": least}
            yield report.section(name, "robots/s", made, {"loop": rates[acting.LOOP]})

    def _updates(self) -> Iterator[dict[str, Any]]:
        for name in self.args.agents:
            how = self.args.update_sizes, self.device, self.args.compiled
            made = self.measured(f"{name} learning", updates.timed_rows(name, *how, self.check, self.missing))
            if not self.failed:
                yield report.section(name, "updates/s", made, {})

    def _replay(self) -> Iterator[dict[str, Any]]:
        for side in replay.SIDES:
            self.check(f"replay, {side}", replay.difference(side, self.device))
        for capacity in self.args.capacities:
            rows = replay.timed_rows(capacity, self.args.update_sizes, self.device)
            made = self.measured(f"replay of {capacity:,}", rows)
            if not self.failed:
                yield report.section(str(capacity), "cycles/s", made, {})


# -- tables ------------------------------------------------------------------------------------------------------------


def acting_tables(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """µs per robot by batch, and what `AT` robots in a call cost beside loop and ceiling."""
    by_batch, at = [], []
    batches = sorted({row["robots"] for row in rows if "robots" in row})
    for name in dict.fromkeys(row["agent"] for row in rows):
        own = [row for row in rows if row["agent"] == name]
        loop = next(row["us"] for row in own if row["name"] == acting.LOOP)
        for how in dict.fromkeys(row["how"] for row in own if "how" in row):
            us = {row["robots"]: row["us"] for row in own if row.get("how") == how}
            times = {str(n): _short(us[n]) if n in us else "" for n in batches}
            by_batch.append({"agent": name, "how": how, "loop": _short(loop)} | times)
            if {1, AT} <= set(us):
                ceiling, ratios = own[0]["ceiling_us"], {"over_loop": loop / us[AT], "over_one": us[1] / us[AT]}
                line = {"agent": name, "how": how, "loop": _short(loop), "us": us[AT], **ratios}
                at.append(line | {"ceiling": ceiling, "share": ceiling / us[AT]})
    columns = {"agent": "agent", "how": "", "loop": "per-sample loop"} | {str(n): f"{n:,}" for n in batches}
    yield {"title": "µs per robot, by robots in a call", "columns": columns, "rows": by_batch}
    columns = {"agent": "agent", "how": "", "loop": "loop, µs", "us": "ours, µs", "over_loop": "× loop"}
    columns |= {"over_one": "× one robot alone", "ceiling": "products alone, µs", "share": "share of that"}
    if at:
        yield {"title": f"{AT:,} robots in a call", "columns": columns, "rows": at}


def update_tables(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """µs per update, and ours over TorchRL's, eager and compiled."""
    hows = dict.fromkeys(how for how in UPDATE_WAYS if any(row["how"] == how for row in rows))
    lines = []
    for name, size in dict.fromkeys((row["agent"], row["batch"]) for row in rows):
        us = {row["how"]: 1e6 / row["rate"] for row in rows if (row["agent"], row["batch"]) == (name, size)}
        line: dict[str, Any] = {"agent": name, "batch": size}
        line |= {how: _short(us[how]) if how in us else "" for how in hows}
        pairs = {"eager": ("eager", "TorchRL"), "compiled": ("compiled", "TorchRL compiled")}
        for key, (mine, other) in pairs.items():
            line[f"over_{key}"] = us[other] / us[mine] if {mine, other} <= set(us) else ""
        lines.append(line)
    columns = {"agent": "agent", "batch": "rows"} | {how: f"{how}, µs" for how in hows}
    columns |= {"over_eager": "× TorchRL, eager", "over_compiled": "× TorchRL, compiled"}
    yield {"title": "µs per update", "columns": columns, "rows": lines}


UPDATE_WAYS = ("eager", "compiled", "CUDA graph", "TorchRL", "TorchRL compiled")


def replay_tables(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """µs per cycle of both."""
    lines = []
    for capacity, size in dict.fromkeys((row["capacity"], row["batch"]) for row in rows):
        us = {r["side"]: 1e6 / r["rate"] for r in rows if (r["capacity"], r["batch"]) == (capacity, size)}
        times = {side: _short(each) for side, each in us.items()}
        lines.append({"capacity": capacity, "batch": size, **times, "over": us["TorchRL"] / us["ours"]})
    columns = {"capacity": "transitions kept", "batch": "rows drawn", "ours": "ours, µs", "TorchRL": "TorchRL, µs"}
    yield {"title": "µs per cycle of replay", "columns": columns | {"over": "× TorchRL"}, "rows": lines}


def _short(us: float) -> float:
    """No more digits than tables show."""
    return round(us) if us >= 100 else us


TABLES: dict[str, Callable[[list[dict[str, Any]]], Iterator[dict[str, Any]]]] = {
    "acting": acting_tables,
    "updates": update_tables,
    "replay": replay_tables,
}


def beside_targets(sections: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What `AT` robots in a call must reach, and do, called as they are: neither compiled nor graphed."""
    rows = []
    for line in next((each["rows"] for each in sections if each["title"].startswith(f"{AT:,} robots")), []):
        least = f"matrix products alone: {line['loop'] / line['ceiling']:.3g} ×"
        pairs = (("over_loop", "× the per-sample loop", LOOP_RATIO), ("over_one", "× one robot alone", BATCH_RATIO))
        for key, unit, target in pairs if line["how"] == "eager" else ():
            what, value = f"{line['agent']}, {AT:,} robots", line[key]
            row = {"what": what, "value": value, "unit": unit, "target": target, "least": True}
            rows.append(row | {"notes": least if key == "over_loop" else "", "met": value >= target})
    return rows


# -- command -----------------------------------------------------------------------------------------------------------


def main() -> int:
    """Prints the tables and writes the JSON; 1 where parity fails."""
    args = _arguments()
    _quieten()
    started, device = time.perf_counter(), get_device(args.device)
    kept, bench = keep_freed_memory(), Bench(args, device)
    result: dict[str, Any] = {
        "benchmark": "agents",
        "machine": machine.describe(device) | {"keeps_freed_memory": kept},
        "arguments": {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()},
    }
    # Compiled and eager calls draw the same random numbers, so that they can be compared.
    with torch._inductor.config.patch(fallback_random=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result["sections"] = list(bench.sections())
    if bench.failed:
        report.refuse(bench.failed, "a ratio between two different results means nothing")
        return 1
    if device.type == "cpu":
        bench.missing.append("CUDA graph: no CUDA device")
    result |= {"rows": beside_targets(result["sections"]), "parity": bench.parity, "missing": bench.missing}
    result |= {"elapsed_s": time.perf_counter() - started} | machine.gpu_use(device)
    print(markdown(result))
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def markdown(result: dict[str, Any]) -> str:
    """All tables, what must be reached, and what is missing."""
    lines = []
    for section in result["sections"]:
        if "columns" in section:
            lines += [f"\n{section['title']}\n", listed(section)]
    if result["rows"]:
        lines += ["", targets(result["rows"])]
    return "\n".join([*lines, *result["missing"], report.machine_line(result)])


def _quieten() -> None:
    """Leaves the output to the tables: what a compiler cannot hold, and storages, are not news."""
    torch._logging.set_logs(dynamo=logging.ERROR)
    logging.getLogger("torchrl").setLevel(logging.WARNING)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=list(AGENTS), help="which")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="which")
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES, help="robots in a call")
    parser.add_argument("--discrete", choices=("v2", "v3"), default="v3", help="where agents choose among 9, or 25")
    parser.add_argument("--update_sizes", nargs="+", type=int, default=[64, 256, 1024], help="transitions of an update")
    parser.add_argument("--capacities", nargs="+", type=int, default=[10_000, 100_000, 1_000_000], help="of replay")
    parser.add_argument("--device", default="auto", help="where all sides run; loop and TorchRL's trees use the host")
    parser.add_argument("--minutes", type=float, default=8.0, help="of timing; warm-ups and compiling come on top")
    parser.add_argument("--repetitions", type=int, default=5, help="turns; medians are shown")
    parser.add_argument("--compiled", action=argparse.BooleanOptionalAction, default=True, help="torch.compile, too")
    parser.add_argument("--quick", action="store_true", help="a look: small batches, seconds, nothing compiled")
    parser.add_argument("--output", type=Path, help="JSON with every raw timing")
    args = parser.parse_args()
    if args.quick:
        vars(args).update(QUICK)
    return args


if __name__ == "__main__":
    sys.exit(main())
